"""`swarmctl reconcile`: brings back what drifted from a stack's last revision, and follows what the fleet became.

It compares the swarm with the revision that was deployed last, not with a file, so it can run anywhere, also as a
service of the swarm itself. What the stack does not declare it leaves alone. May import: all of ``cluster``.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from ..console import Story
from ..errors import SwarmctlError
from ..fleet.actions import describe as describe_fleet
from ..fleet.apply import apply as apply_to_fleet
from ..fleet.plan import remove_ghosts
from ..fleet.where import Manager, Settings
from ..stack import to_type
from . import history
from .converge import failed_tasks, wait
from .deploy import carry_out, checkpoint_before, tell
from .observe import observe_stack
from .place import keeping
from .plan import DropObject, StackAction, describe, plan
from .scale import following
from .state import Observed, Wanted

_TIMEOUT_SEC = 180.0


def drift(stack: str, found: Manager) -> tuple[list[StackAction], Observed, Wanted]:
    """What differs from the last revision, what there is, and what is wanted.

    Raises:
        SwarmctlError: The stack has no revision: it was not deployed by swarmctl.
    """
    engine = found.engine
    revisions = [entry for entry in history.entries(engine, stack) if entry.revision]
    if not revisions:
        raise SwarmctlError(f"{stack} has no revision to go by", f"swarmctl deploy --stack {to_type(stack)}")
    kept = history.revision(engine, revisions[-1])
    observed = observe_stack(engine, stack)
    services = {name: following(name, spec, observed, found.swarm.nodes) for name, spec in kept["services"].items()}
    wanted = Wanted(stack, services, kept["networks"], {}, {}, (), {}, ())
    placing, _ = keeping(wanted, observed, found.swarm.nodes)
    actions = [*placing, *(a for a in plan(wanted, observed, kept["services"]) if not isinstance(a, DropObject))]
    return actions, observed, wanted


def reconcile(stack: str, found: Manager, settings: Settings, story: Story, *, dry_run: bool) -> bool:
    """Bring back what drifted, and wait until it runs; returns whether anything had.

    Raises:
        LockedError: Somebody else is at work on the stack.
        UpdateFailedError: What was brought back does not run.
        WaitTimeoutError: Not all of it runs in time.
    """
    ghosts = remove_ghosts(found.swarm)
    actions, _, _ = drift(stack, found)
    if not actions and not ghosts:
        return False
    for ghost in ghosts:
        story.change("-", describe_fleet(ghost))
    tell(story, actions)
    if dry_run:
        return True
    with history.lock(found.engine, stack, "swarmctl reconcile"):
        for ghost in ghosts:
            apply_to_fleet([ghost], found.engine)
        # What was seen before the lock was had may be out of date.
        actions, observed, wanted = drift(stack, replace(found, swarm=found.again()))
        deadline, before = time.monotonic() + _TIMEOUT_SEC, failed_tasks(observed)
        checkpoint_before(stack, actions, found, settings, story)
        try:
            carry_out(actions, wanted, found.engine, story, deadline, before)
        finally:
            history.record(found.engine, stack, f"reconcile: {summary(actions, len(ghosts))}")
        if actions:
            wait(found.engine, stack, list(wanted.services), story, deadline=deadline, before=before)
    story.done(f"{stack} is as it was deployed again")
    return True


def summary(actions: Sequence[StackAction], ghosts: int) -> str:
    """What was done, in short."""
    parts = [describe(action) for action in actions]
    return "; ".join([*parts, *([f"{ghosts} ghosts removed"] if ghosts else [])])
