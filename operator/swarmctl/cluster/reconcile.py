"""`swarmctl reconcile`: brings back what drifted from a stack's last revision, and follows what the fleet became.

It compares the swarm with the revision that was deployed last, not with a file, so it can run anywhere, also as a
service of the swarm itself. What the stack does not declare it leaves alone. May import: all of ``cluster``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..console import Story
from ..errors import SwarmctlError
from ..fleet.actions import describe as describe_fleet
from ..fleet.apply import apply as apply_to_fleet
from ..fleet.plan import remove_ghosts
from ..fleet.where import Manager
from . import history
from .apply import apply
from .deploy import WISH_FILE, tell
from .observe import observe_stack
from .plan import DropObject, StackAction, describe, eligible, plan, replicas_of
from .state import WISH, Observed, Raw, Wanted


def drift(stack: str, found: Manager) -> tuple[list[StackAction], Observed]:
    """What differs from the last revision.

    Raises:
        SwarmctlError: The stack has no revision: it was not deployed by swarmctl.
    """
    engine = found.engine
    revisions = [entry for entry in history.entries(engine, stack) if entry.revision]
    if not revisions:
        raise SwarmctlError(f"{stack} has no revision to go by", f"swarmctl deploy --stack {stack}")
    kept = history.revision(engine, revisions[-1])
    observed = observe_stack(engine, stack)
    services = {name: _following(name, spec, observed, found) for name, spec in kept["services"].items()}
    wanted = Wanted(stack, services, kept["networks"], {}, {}, (), {}, ())
    actions: list[StackAction] = [a for a in plan(wanted, observed, kept["services"]) if not isinstance(a, DropObject)]
    return actions, observed


def _following(name: str, spec: Raw, observed: Observed, found: Manager) -> Raw:
    """The revision's spec with as many replicas as are wished now: by `scale` since, or by the nodes there are."""
    labels = dict(spec.get("Labels") or {})
    if WISH_FILE not in labels or replicas_of(spec) is None:
        return spec
    present = observed.services.get(name)
    now: Mapping[str, Any] = (present.spec.get("Labels") or {}) if present else labels
    if WISH in now:
        labels[WISH], count = now[WISH], int(now[WISH])
    elif labels[WISH_FILE] == "auto":
        labels.pop(WISH, None)
        count = len(eligible(spec, found.swarm.nodes))
    else:
        labels.pop(WISH, None)
        count = int(labels[WISH_FILE])
    return {**spec, "Labels": labels, "Mode": {"Replicated": {"Replicas": count}}}


def reconcile(stack: str, found: Manager, story: Story, *, dry_run: bool) -> bool:
    """Bring back what drifted; returns whether anything had.

    Raises:
        LockedError: Somebody else is at work on the stack.
    """
    ghosts = remove_ghosts(found.swarm)
    actions, _ = drift(stack, found)
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
        actions, _ = drift(stack, replace(found, swarm=found.again()))
        for action in actions:
            apply(action, found.engine)
        history.record(found.engine, stack, f"reconcile: {summary(actions, len(ghosts))}")
    story.done(f"{stack} is as it was deployed again")
    return True


def summary(actions: Sequence[StackAction], ghosts: int) -> str:
    """What was done, in short."""
    parts = [describe(action) for action in actions]
    return "; ".join([*parts, *([f"{ghosts} ghosts removed"] if ghosts else [])])
