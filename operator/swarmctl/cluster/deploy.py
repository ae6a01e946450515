"""`swarmctl plan`, `deploy`, `scale`, `rollback`, `rm`: how what is wished comes about, as stories.

May import: all of ``cluster``; ``fleet`` for the engine and the nodes; ``stack``.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..console import Story
from ..errors import PartlyDoneError, RolledBackError, SwarmctlError, UnreachableError, UsageError, WaitTimeoutError
from ..fleet.engine import Engine
from ..fleet.observe import observe_nodes
from ..fleet.swarm import CLASS, Node
from ..fleet.where import Manager, Settings
from ..schema import did_you_mean
from ..stack import Stack, find, is_path, load, to_type
from . import history, training
from .apply import apply, with_ids
from .compose import wanted as compose
from .converge import Seen, UpdateFailedError, failed_tasks, is_settled, look, wait
from .diff import differences
from .images import pins, refuse_unsupported
from .observe import observe_stack, stacks
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
    removal,
    replicas_of,
    shown,
)
from .state import WISH, Observed, Raw, Wanted
from .tasks import ServiceState, unfit

WISH_FILE = f"{WISH}-file"
AUTO = "auto"
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
    others = {name: replicas_of(spec) for name, spec in services.items() if name != COORDINATOR}
    numbers = {name: number for name, number in others.items() if number is not None}
    for name, number in {**numbers, **wish.stack.wishes}.items():
        kept = None if wish.reset_scale else kept_wish(observed, name, number)
        count = kept if kept is not None else number
        if count is None:
            count = len(eligible(services[name], nodes))
        labels = dict(services[name].get("Labels") or {})
        labels[WISH_FILE] = _word(number)
        if kept is not None:
            labels[WISH] = str(kept)
        services[name] = {**services[name], "Labels": labels, "Mode": {"Replicated": {"Replicas": count}}}
    return replace(base, services=services)


def kept_wish(observed: Observed, name: str, in_file: int | None) -> int | None:
    """What `scale` wished for a service, as long as the file says what it said then."""
    present = observed.services.get(name)
    labels = (present.spec.get("Labels") or {}) if present else {}
    wish = labels.get(WISH)
    return int(wish) if wish is not None and labels.get(WISH_FILE) == _word(in_file) else None


def _word(number: int | None) -> str:
    return AUTO if number is None else str(number)


def _refuse_without_room(wanted: Wanted, observed: Observed, nodes: Sequence[Node]) -> None:
    if COORDINATOR not in wanted.services or eligible(wanted.services[COORDINATOR], nodes):
        return
    if node := home(wanted.stack, nodes):
        again = {"down": f"# switch {node.hostname} on", "drained": f"swarmctl activate {node.hostname}"}
        reason = unfit(wanted.services[COORDINATOR], node, observed)
        raise SwarmctlError(
            f"the coordinator of {wanted.stack} belongs on {node.hostname}, which has its checkpoints and is {reason}",
            *([again[reason]] if reason in again else []),
            f"swarmctl drain {node.hostname}   # takes coordinator and checkpoints to another node",
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
    return [history.revision(engine, entry) for entry in history.entries(engine, stack) if entry.revision]


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
            kept = _revision(wanted)
            number = _change(actions, wanted, observed, found, settings, story, kept, timeout=wish.timeout, what=what)
            story.done(f"revision {number} of {stack}")
        else:
            story.same("nothing to change")
            _wait_for_all(wanted, engine, story, time.monotonic() + wish.timeout)
            if not _is_last_revision(wanted, engine):  # a deploy that was stopped before it could be recorded
                story.done(f"revision {history.record(engine, stack, what, _revision(wanted))} of {stack}")
    seen = look(engine, stack)
    if actions:
        return told_shortage(seen, stack, story)
    _tell_shortage(seen, story)  # and it is as it was: no failure of this command
    return seen


def _is_last_revision(wanted: Wanted, engine: Engine) -> bool:
    """Whether the last revision is what is wanted, whatever `scale` wished since."""
    revisions = _revisions(engine, wanted.stack)
    return bool(revisions) and _without_numbers(revisions[-1]["services"]) == _without_numbers(wanted.services)


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
    revision: Raw,
    *,
    timeout: float,
    what: str,
) -> int:
    """Tell what changes, change it, and wait until it runs; what does not run is rolled back.

    Returns:
        The number under which the revision is kept.
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


def _tell_shortage(seen: Seen, story: Story) -> list[ServiceState]:
    short = [state for state in seen.services.values() if state.running < state.wished]
    for state in short:
        for line in state.why:
            story.warn(f"{state.service}: {state.running} running, {line}")
    return short


def told_shortage(seen: Seen, stack: str, story: Story) -> Seen:
    """Say what the nodes could not take.

    Raises:
        PartlyDoneError: Something.
    """
    if short := _tell_shortage(seen, story):
        raise PartlyDoneError(
            "; ".join(f"{state.service}: {state.running} of {state.wished}" for state in short)
            + " run; the others start by themselves when there is room",
            f"swarmctl status --stack {stack}   # tells node by node what is missing",
        )
    return seen


# scale, rollback, rm --------------------------------------------------------------------------------------------


def chosen(engine: Engine, name: str | None, there: Sequence[str] | None = None) -> str:
    """The stack that is meant, by its name or its file; without a name, the only one.

    Args:
        engine: A manager's.
        name: What was typed.
        there: Stacks to choose from; default: those that have services.

    Raises:
        UsageError: There are several and none was named.
        UnreachableError: It is not deployed.
    """
    there = stacks(engine) if there is None else there
    path = find(name) if name is not None and is_path(name) else None
    if path is not None:
        name = load(str(path)).name
    if name is None and len(there) == 1:
        return there[0]
    if name is None and there:
        raise UsageError("several stacks are deployed; say which", *(f"--stack {other}" for other in there))
    if name is None or name not in there:
        also = f"; deployed are {', '.join(there)}" if there else ""
        raise UnreachableError(
            f"{name or 'no stack'} is {'not ' if name else ''}deployed in the swarm{also}",
            f"swarmctl deploy --stack {to_type(name or 'rwkv-tiny', path)}",
        )
    return name


def scaled(observed: Observed, wishes: Mapping[str, int | None], nodes: Sequence[Node]) -> list[StackAction]:
    """What brings services to other numbers; None: as many as there are nodes.

    Raises:
        UsageError: A service is not there, or is the coordinator.
    """
    actions: list[StackAction] = []
    for name, wish in wishes.items():
        if name == COORDINATOR:
            raise UsageError("there is always one coordinator", "swarmctl scale worker-rpi 20")
        if name not in observed.services:
            known = [service for service in observed.services if service != COORDINATOR]
            raise UsageError(
                f"{observed.stack} has no service {name!r}{did_you_mean(name, known)}",
                *(f"swarmctl scale {other} 1" for other in known),
            )
        present = observed.services[name]
        if replicas_of(present.spec) is None:
            raise UsageError(
                f"{name} runs once on every node that its constraints allow (mode: global), so it has no number",
                "# services: … deploy: {mode: replicated}   # in the stack file, if it is to have one",
            )
        labels = {key: value for key, value in (present.spec.get("Labels") or {}).items() if key != WISH}
        if wish is not None:
            labels[WISH] = str(wish)
        count = len(eligible(present.spec, nodes)) if wish is None else wish
        spec = {**present.spec, "Labels": labels, "Mode": {"Replicated": {"Replicas": count}}}
        found = differences(present.spec, spec, {"Labels": present.spec.get("Labels") or {}})
        if found:
            actions.append(UpdateService(name, present.id, present.version, spec, tuple(found), restarts=False))
    return actions


def scale(
    stack: str, wishes: Mapping[str, int | None], found: Manager, story: Story, *, timeout: float, what: str
) -> Seen:
    """Bring services to other numbers, and wait for what the nodes can take.

    Raises:
        PartlyDoneError: There are fewer nodes than were wished; the wish is kept.
    """
    engine = found.engine
    with history.lock(engine, stack, what):
        observed = observe_stack(engine, stack)
        actions = scaled(observed, wishes, found.swarm.nodes)
        if not actions:
            story.same("nothing to change")
        for action in actions:
            assert isinstance(action, UpdateService)
            old, new = replicas_of(observed.services[action.service].spec), replicas_of(action.spec)
            story.change(
                "~", f"{action.service}: {old} → {new}" if old != new else f"{action.service}: {new} is the wish"
            )
            apply(action, engine)
        if actions:
            wait(engine, stack, list(wishes), story, deadline=time.monotonic() + timeout, before=failed_tasks(observed))
            history.record(engine, stack, what)
    seen = look(engine, stack)
    only = {name: state for name, state in seen.services.items() if name in wishes}
    told_shortage(replace(seen, services=only), stack, story)
    return seen


def following(name: str, spec: Raw, observed: Observed, nodes: Sequence[Node]) -> Raw:
    """A kept spec with as many replicas as are wished now: by `scale` since, or by the nodes there are."""
    labels = dict(spec.get("Labels") or {})
    if WISH_FILE not in labels or replicas_of(spec) is None:
        return spec
    present = observed.services.get(name)
    now: Mapping[str, Any] = (present.spec.get("Labels") or {}) if present else labels
    if WISH in now:
        labels[WISH], count = now[WISH], int(now[WISH])
    else:
        labels.pop(WISH, None)
        count = len(eligible(spec, nodes)) if labels[WISH_FILE] == AUTO else int(labels[WISH_FILE])
    return {**spec, "Labels": labels, "Mode": {"Replicated": {"Replicas": count}}}


def rollback(
    stack: str, number: int | None, found: Manager, settings: Settings, story: Story, *, timeout: float, what: str
) -> Seen:
    """Go back to an earlier revision; without a number, to the one before the last.

    Raises:
        UsageError: There is no such revision.
        RolledBackError: It does not run any more; what was there before does again.
    """
    engine = found.engine
    revisions = [entry for entry in history.entries(engine, stack) if entry.revision]
    if number is None:
        if len(revisions) < 2:
            raise UsageError(f"{stack} has no revision to go back to", f"swarmctl history --stack {stack}")
        number = revisions[-2].revision
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


def remove(stack: str, found: Manager, story: Story, *, timeout: float, what: str) -> None:
    """Remove a stack, all but its volumes: workers first, and wait until its tasks and networks are gone.

    Raises:
        WaitTimeoutError: They are not in time.
    """
    engine = found.engine
    with history.lock(engine, stack, what):
        observed = observe_stack(engine, stack)
        actions = removal(observed)
        deadline = time.monotonic() + timeout
        services = [action for action in actions if isinstance(action, RemoveService)]
        workers = [service for service in services if service.service != COORDINATOR]
        lead = [service for service in services if service.service == COORDINATOR]
        for those, words in ((workers, "workers removed"), (lead, "coordinator removed")):
            for service in those:
                apply(service, engine)
            if those:
                left = _wait_until_gone(engine, {service.id for service in those}, deadline, stack)
                story.done(words)
                if left:
                    story.warn(f"{', '.join(left)}: down; what still runs there ends when the machine is back")
        for action in actions:
            if action not in services:
                apply(action, engine)
    story.done(f"{stack} removed", "volumes stay")


def _wait_until_gone(engine: Engine, service_ids: set[str], deadline: float, stack: str) -> list[str]:
    """Wait until tasks have ended, but for those on nodes that are down, from which nothing is heard; returns these."""
    while True:
        nodes = {node.id: node for node in observe_nodes(engine)}
        left = [task for task in engine.tasks() if task["ServiceID"] in service_ids and _lives(task)]
        there = [node for task in left if (node := nodes.get(task.get("NodeID", "")))]
        if all(node.state != "ready" for node in there):
            return sorted({node.hostname for node in there})
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"{len(left)} tasks of {stack} have not ended yet", f"swarmctl rm --stack {stack}")
        time.sleep(0.3)


def _lives(task: Raw) -> bool:
    return task["Status"]["State"] in {"running", "starting", "preparing", "assigned", "accepted", "ready"}
