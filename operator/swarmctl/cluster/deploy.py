"""`swarmctl plan`, `deploy`, `rollback`: how what is wished comes about, as stories.

May import: all of ``cluster``; ``fleet`` for the engine and the nodes; ``stack``.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ..console import Story
from ..errors import RolledBackError, SwarmctlError, UsageError, WaitTimeoutError
from ..fleet.engine import Engine
from ..fleet.swarm import CLASS, Node
from ..fleet.where import Manager, Settings
from ..stack import Stack
from . import history, training
from .apply import apply, with_ids
from .compose import wanted as compose
from .converge import Seen, UpdateFailedError, failed_tasks, is_settled, look, tell_shortage, told_shortage, wait
from .images import pins, refuse_unsupported
from .observe import observe_stack
from .place import bound, home, keeping
from .plan import (
    COORDINATOR,
    CreateService,
    DropObject,
    RemoveNetwork,
    RemoveService,
    StackAction,
    UpdateService,
    describe,
    eligible,
    missing,
    plan,
    shown,
)
from .scale import following, numbered
from .state import WISH, Observed, Raw, Wanted
from .tasks import unfit

REMOVALS = (RemoveService, RemoveNetwork, DropObject)


@dataclass(frozen=True)
class DeployWish:
    """What was typed after `swarmctl deploy` or `plan`."""

    stack: Stack
    registry: str | None
    allow_unpinned: bool
    reset_scale: bool
    timeout: float


def prepare(wish: DeployWish, found: Manager, story: Story) -> tuple[Wanted, Observed, list[StackAction]]:
    """Work out what a deploy would do, and refuse what can't come to good.

    Raises:
        SwarmctlError: An image, a secret or the coordinator's node is not there.
    """
    observed = observe_stack(found.engine, wish.stack.name)
    nodes: Sequence[Node] = found.swarm.nodes
    first = _compose(wish, {}, nodes, observed)
    pinned = pins(list(first.images.values()), found.engine, story, allow_unpinned=wish.allow_unpinned)
    wanted = _compose(wish, pinned, nodes, observed)
    placing, nodes = keeping(wanted, observed, nodes)
    refuse_unsupported(wanted, pinned, nodes)
    _refuse_without_room(wanted, observed, nodes)
    if absent := missing(wanted, observed):
        raise SwarmctlError(
            "the swarm lacks what the stack expects: " + ", ".join(f"{kind} {name}" for kind, name in absent),
            "swarmctl init   # makes fdtc-token and its kin",
        )
    revisions = _revisions(found.engine, wish.stack.name)
    # Configs and secrets that a kept revision would need again stay.
    kept = {name for revision in revisions for name in revision.get("names", ())}
    declared = revisions[-1]["services"] if revisions else {}
    actions = [a for a in plan(wanted, observed, declared) if not (isinstance(a, DropObject) and a.name in kept)]
    return wanted, observed, [*placing, *actions]


def _compose(wish: DeployWish, pinned: Mapping[str, Any], nodes: Sequence[Node], observed: Observed) -> Wanted:
    """What the file wants, with as many replicas as were wished by the file, by `scale`, or by the nodes there are."""
    base = compose(wish.stack, replicas={}, registry=wish.registry, pins=pinned)
    services = bound(base.services, base.stack)
    services = numbered(services, wish.stack.wishes, observed, nodes, reset=wish.reset_scale)
    return replace(base, services=services)


def _refuse_without_room(wanted: Wanted, observed: Observed, nodes: Sequence[Node]) -> None:
    if COORDINATOR not in wanted.services or eligible(wanted.services[COORDINATOR], nodes):
        return
    if node := home(wanted.stack, nodes):
        again = {"down": f"# switch {node.hostname} on", "drained": f"swarmctl activate {node.hostname}"}
        reason = unfit(wanted.services[COORDINATOR], node, observed)
        move = f"swarmctl drain {node.hostname}   # takes coordinator and checkpoints to another node"
        if reason == "down":
            move = f"swarmctl drain {node.hostname} --yes   # if it is gone for good, and its checkpoints with it"
        steps = [again[reason], move] if reason in again else ["# deploy without that rule first, to be able to:", move]
        raise SwarmctlError(
            f"the coordinator of {wanted.stack} belongs on {node.hostname}, which has its checkpoints and is {reason}",
            *steps,
        )
    rules = (wanted.services[COORDINATOR]["TaskTemplate"].get("Placement") or {}).get("Constraints") or []
    classes = sorted({node.labels.get(CLASS, "no class") for node in nodes})
    raise SwarmctlError(
        f"no node can run the coordinator, which wants {' and '.join(rules)}; there are nodes of {', '.join(classes)}",
        "swarmctl label --auto           # if they are not labelled yet",
        "swarmctl label NODE server      # makes one of them the server",
    )


def _revisions(engine: Engine, stack: str) -> list[dict[str, Any]]:
    """What each kept revision holds, oldest first."""
    entries = [entry for entry in history.entries(engine, stack) if entry.revision]
    with ThreadPoolExecutor(len(entries) or 1) as pool:  # one after the other they take seconds on a slow link
        return list(pool.map(lambda entry: history.revision(engine, entry), entries))


# Telling --------------------------------------------------------------------------------------------------------


def tell(story: Story, actions: Sequence[StackAction]) -> None:
    """Show a plan field by field."""
    for action in actions:
        sign = "~" if isinstance(action, UpdateService) else "-" if isinstance(action, REMOVALS) else "+"
        story.change(sign, describe(action))
        if isinstance(action, UpdateService):
            for difference in action.differences:
                story.field(difference.path, shown(difference.old), shown(difference.new))


# Doing ----------------------------------------------------------------------------------------------------------


def deploy(wish: DeployWish, found: Manager, settings: Settings, story: Story, *, what: str) -> Seen:
    """Bring a stack up, or change it, and wait until it runs; what does not run is rolled back.

    Raises:
        RolledBackError: The new state did not run; the old one does again.
        PartlyDoneError: All runs that the nodes can take, but more was wished.
        WaitTimeoutError: Not all of it runs in time; the swarm goes on.
    """
    stack, engine = wish.stack.name, found.engine
    story.title(f"Deploying {stack}", f"to the swarm of {found.engine.host}")
    with history.lock(engine, stack, what):
        wanted, observed, actions = prepare(wish, found, story)
        if actions:
            kept = None if _is_last_revision(wanted, engine) else _revision(wanted)
            number = _change(actions, wanted, observed, found, settings, story, kept, timeout=wish.timeout, what=what)
            if number:
                story.done(f"revision {number} of {stack}")
        else:
            story.same("nothing to change")
            _wait_for_all(wanted, engine, story, time.monotonic() + wish.timeout)
            if not _is_last_revision(wanted, engine):  # a deploy that was stopped before it could be recorded
                story.done(f"revision {history.record(engine, stack, what, _revision(wanted))} of {stack}")
    seen = look(engine, stack)
    if actions:
        return told_shortage(seen, stack, story)
    tell_shortage(seen, story)  # and it is as it was: no failure of this command
    return seen


def _is_last_revision(wanted: Wanted, engine: Engine) -> bool:
    """Whether the last revision is what is wanted, whatever `scale` wished since."""
    entries = [entry for entry in history.entries(engine, wanted.stack) if entry.revision]
    if not entries:
        return False
    last = history.revision(engine, entries[-1])
    return bool(_without_numbers(last["services"]) == _without_numbers(wanted.services))


def _without_numbers(services: Mapping[str, Raw]) -> Any:
    return json.loads(
        json.dumps(
            {
                name: {**spec, "Mode": {}, "Labels": {k: v for k, v in (spec.get("Labels") or {}).items() if k != WISH}}
                for name, spec in services.items()
            }
        )
    )


def _wait_for_all(wanted: Wanted, engine: Engine, story: Story, deadline: float) -> None:
    """Where nothing is to change, something may still be starting, or may have failed since."""
    seen = look(engine, wanted.stack)
    if not all(is_settled(state, seen) for state in seen.services.values()):
        before = failed_tasks(seen.observed)
        wait(engine, wanted.stack, list(wanted.services), story, deadline=deadline, before=before)


def _change(
    actions: Sequence[StackAction],
    wanted: Wanted,
    observed: Observed,
    found: Manager,
    settings: Settings,
    story: Story,
    revision: Raw | None,
    *,
    timeout: float,
    what: str,
) -> int:
    """Tell what changes, change it, and wait until it runs; what does not run is rolled back.

    Returns:
        The number under which the revision is kept; 0 where there is none to keep.
    """
    tell(story, actions)
    deadline, engine = time.monotonic() + timeout, found.engine
    specs = [action.spec for action in actions if isinstance(action, CreateService | UpdateService)]
    for image in sorted({spec["TaskTemplate"]["ContainerSpec"]["Image"].partition("@")[0] for spec in specs}):
        if engine.has_login(image):
            story.same(f"nodes pull {image} with your login, which the swarm keeps")
    checkpoint_before(wanted.stack, actions, found, settings, story)
    before = failed_tasks(observed)
    all_told = False
    try:
        carry_out(actions, wanted, engine, story, deadline, before)
        all_told = True
        # All of it, since workers of the old coordinator may start again.
        names = list(wanted.services)
        wait(engine, wanted.stack, names, story, deadline=deadline, before=before, told=[COORDINATOR])
    except UpdateFailedError as error:
        _undo(error, observed, actions, engine, story, deadline, what)
    except (WaitTimeoutError, KeyboardInterrupt):
        if all_told:  # the swarm goes on with it, so it is what `reconcile` and the next plan have to go by
            history.record(engine, wanted.stack, f"{what}: not all of it ran yet", revision)
        raise
    return history.record(engine, wanted.stack, what, revision)


def carry_out(
    actions: Sequence[StackAction],
    wanted: Wanted,
    engine: Engine,
    story: Story,
    deadline: float,
    before: Collection[str],
) -> None:
    """The coordinator first, and running, before any worker is touched; what is left over goes last."""
    services = [action for action in actions if isinstance(action, CreateService | UpdateService)]
    lead = [action for action in services if action.service == COORDINATOR]
    last = [action for action in actions if isinstance(action, REMOVALS)]
    for action in (*(action for action in actions if action not in services and action not in last), *lead):
        apply(action, engine)
    if services and COORDINATOR in wanted.services:
        try:
            wait(engine, wanted.stack, [COORDINATOR], story, deadline=deadline, before=before)
        except WaitTimeoutError as error:
            raise WaitTimeoutError(
                f"{error} Nothing was changed but the coordinator: workers come after it.",
                *error.next_steps,
                "type the same again to go on",
            ) from error
    for action in (*(action for action in services if action not in lead), *last):
        apply(action, engine)


def checkpoint_before(
    stack: str, actions: Sequence[StackAction], found: Manager, settings: Settings, story: Story
) -> None:
    """A coordinator that is going to be restarted writes a checkpoint first."""
    if any(isinstance(a, UpdateService) and a.service == COORDINATOR and a.restarts for a in actions):
        training.checkpoint_first(stack, found, settings, story)


def _undo(
    error: UpdateFailedError,
    observed: Observed,
    actions: Sequence[StackAction],
    engine: Engine,
    story: Story,
    deadline: float,
    what: str,
) -> None:
    """Give every service that was changed its old spec again; raises what the command ends with."""
    story.failed(str(error))
    changed = [action for action in actions if isinstance(action, UpdateService)]
    made = [action.service for action in actions if isinstance(action, CreateService)]
    if not changed:
        history.record(engine, observed.stack, f"{what}: failed: {_first_line(error)}")
        raise SwarmctlError(
            f"{observed.stack} does not come up, and there is nothing to go back to: {_first_line(error)}",
            f"swarmctl logs {made[0] if made else COORDINATOR} --stack {observed.stack}",
            f"swarmctl rm --stack {observed.stack}",
        ) from error
    story.title("Rolling back")
    present = observe_stack(engine, observed.stack)
    for action in changed:
        old, now = observed.services[action.service], present.services[action.service]
        engine.update_service(now.id, now.version, _old_spec(old.spec, now.spec, engine))
    for name in made:
        if name in present.services:
            engine.remove_service(present.services[name].id)
    after = time.monotonic() + max(60.0, deadline - time.monotonic())
    names = [action.service for action in changed]
    wait(engine, observed.stack, names, story, deadline=after, before=failed_tasks(present))
    history.record(engine, observed.stack, f"{what}: failed and rolled back: {error}")
    raise RolledBackError(f"rolled back to what was before: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _old_spec(old: Raw, now: Raw, engine: Engine) -> Raw:
    forced = now["TaskTemplate"].get("ForceUpdate", 0)
    return with_ids({**old, "TaskTemplate": {**old["TaskTemplate"], "ForceUpdate": forced}}, engine)


def _revision(wanted: Wanted) -> Raw:
    return {
        "services": wanted.services,
        "networks": wanted.networks,
        "names": sorted({*wanted.configs, *wanted.secrets}),
    }


def _one_before(stack: str, entries: Sequence[history.Entry], kept: Sequence[Raw]) -> int:
    for entry, revision in reversed(list(zip(entries, kept, strict=True))[:-1]):
        if _without_numbers(revision["services"]) != _without_numbers(kept[-1]["services"]):
            return entry.revision
    raise UsageError(f"{stack} has no revision to go back to", f"swarmctl history --stack {stack}")


def rollback(
    stack: str, number: int | None, found: Manager, settings: Settings, story: Story, *, timeout: float, what: str
) -> Seen:
    """Go back to an earlier revision; without a number, to the last one that was another.

    Raises:
        UsageError: There is no such revision.
        RolledBackError: It does not run any more; what was there before does again.
    """
    engine = found.engine
    revisions = [entry for entry in history.entries(engine, stack) if entry.revision]
    if number is None:
        number = _one_before(stack, revisions, _revisions(engine, stack))
    entry = next((entry for entry in revisions if entry.revision == number), None)
    if entry is None:
        raise UsageError(
            f"{stack} has no revision {number}; kept are {', '.join(str(e.revision) for e in revisions) or 'none'}",
            f"swarmctl history --stack {stack}",
        )
    with history.lock(engine, stack, what):
        kept = history.revision(engine, entry)
        observed = observe_stack(engine, stack)
        services = {name: following(name, spec, observed, found.swarm.nodes) for name, spec in kept["services"].items()}
        wanted = Wanted(stack, services, kept["networks"], {}, {}, (), {}, ())
        declared = history.revision(engine, revisions[-1])["services"]
        placing, _ = keeping(wanted, observed, found.swarm.nodes)
        actions = [*placing, *(a for a in plan(wanted, observed, declared) if not isinstance(a, DropObject))]
        story.title(f"Rolling {stack} back to revision {number}", f"of {entry.when} by {entry.who}")
        if not actions:
            story.same("nothing to change")
            return look(engine, stack)
        made = _change(actions, wanted, observed, found, settings, story, kept, timeout=timeout, what=what)
        story.done(f"revision {made} of {stack}, the same as {number}")
    return told_shortage(look(engine, stack), stack, story)
