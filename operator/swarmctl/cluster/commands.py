"""The commands on a stack in a swarm: each opens the swarm, does one thing, and tells it.

May import: all of ``cluster``; ``fleet``, ``stack``, ``console``, ``errors``.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..console import Story
from ..coordinator import Control
from ..errors import SwarmctlError, UnreachableError, UsageError
from ..fleet.actions import Change, UpdateNode
from ..fleet.apply import apply as apply_to_fleet
from ..fleet.label import named_node
from ..fleet.swarm import Node
from ..fleet.where import Manager, Settings, manager
from ..schema import did_you_mean
from ..stack import Stack, load, to_type
from . import deploy as deploying
from . import export, history, keeper, logs, reconcile, status
from . import move as moving
from . import remove as removing
from . import scale as scaling
from .converge import Seen, last_words, look
from .deploy import DeployWish
from .observe import observe_stack, stacks
from .place import home, is_bound
from .plan import COORDINATOR, StackAction, as_data, removal
from .state import Task
from .tasks import has_failed
from .training import Coordinator, checkpoint_first
from .which import chosen

Report = dict[str, Any]


def planned(actions: Sequence[StackAction]) -> list[Report]:
    """A plan for ``--json``."""
    return [as_data(action) for action in actions]


def plan(wish: DeployWish, settings: Settings, story: Story) -> list[StackAction]:
    """What `deploy` would do; shows it."""
    with manager(settings) as found:
        _, _, actions = deploying.prepare(wish, found, story)
    deploying.tell(story, actions)
    if not actions:
        story.same("nothing to change")
    return actions


def deploy(wish: DeployWish, settings: Settings, story: Story) -> Report:
    """Bring a stack up, or change it."""
    with manager(settings) as found:
        what = f"swarmctl deploy --stack {to_type(wish.stack.name, wish.stack.path)}"
        seen = deploying.deploy(wish, found, settings, story, what=what)
        return _report(wish.stack.name, seen, found, settings)


def scale(
    stack: str | None,
    wishes: Mapping[str, int | None],
    settings: Settings,
    story: Story,
    *,
    timeout: float,
    dry_run: bool,
) -> list[Report]:
    """Change how many workers there are of a class."""
    with manager(settings) as found:
        name = chosen(found.engine, stack)
        if dry_run:
            actions = scaling.scaled(observe_stack(found.engine, name), wishes, found.swarm.nodes)
            deploying.tell(story, actions)
            return planned(actions)
        words = " ".join(f"{key} {'auto' if value is None else value}" for key, value in wishes.items())
        seen = scaling.scale(name, wishes, found, story, timeout=timeout, what=f"swarmctl scale {words}")
        return [row for row in _report(name, seen, found, settings)["services"] if row["service"] in wishes]


def report(stack: str | None, settings: Settings) -> Report:
    """The status of a stack."""
    with manager(settings) as found:
        name = chosen(found.engine, stack)
        return _report(name, look(found.engine, name), found, settings)


@contextmanager
def watching(stack: str | None, settings: Settings) -> Iterator[Any]:
    """A function that reports again and again over one connection."""
    with manager(settings) as found:
        name = chosen(found.engine, stack)
        with Coordinator(name, found, settings) as coordinator:
            yield lambda: _build_report(name, look(found.engine, name), coordinator)


def _report(name: str, seen: Seen, found: Manager, settings: Settings) -> Report:
    with Coordinator(name, found, settings) as coordinator:
        return _build_report(name, seen, coordinator)


def _build_report(name: str, seen: Seen, coordinator: Coordinator) -> Report:
    words = {service: last_words(coordinator.engine, task) for service, task in _failing(seen).items()}
    training, why_not = None, ""
    try:
        training = coordinator.status(seen.observed)
    except SwarmctlError as error:
        why_not = str(error)
    return status.report(name, seen, training, why_not, words)


def _failing(seen: Seen) -> dict[str, Task]:
    """The task that failed last of each service that is not whole."""
    found = {}
    for name, state in seen.services.items():
        service_id = seen.observed.services[name].id
        failed = [task for task in seen.observed.tasks if task.service_id == service_id and has_failed(task)]
        if failed and not state.whole:
            found[name] = max(failed, key=lambda task: task.since)
    return found


def rollback(stack: str | None, number: int | None, settings: Settings, story: Story, *, timeout: float) -> Report:
    """Go back to an earlier revision."""
    with manager(settings) as found:
        name = chosen(found.engine, stack)
        what = f"swarmctl rollback {number if number is not None else ''}".rstrip()
        seen = deploying.rollback(name, number, found, settings, story, timeout=timeout, what=what)
        return _report(name, seen, found, settings)


def remove(
    stack: str | None, settings: Settings, story: Story, *, timeout: float, dry_run: bool, ask: Any
) -> list[Report]:
    """Remove a stack; returns what that takes away."""
    with manager(settings) as found:
        # One whose removal was cut short has no services any more, but a past.
        there = sorted({*stacks(found.engine), *history.stacks(found.engine)})
        if not there:
            story.same("nothing to remove: no stack is deployed in the swarm")
            return []
        name = chosen(found.engine, stack, there)
        observed = observe_stack(found.engine, name)
        actions = removal(observed)
        if dry_run:
            deploying.tell(story, actions)
            return planned(actions)
        ask(name)
        if COORDINATOR in observed.services:
            checkpoint_first(name, found, settings, story)
        removing.remove(name, found, story, timeout=timeout, what="swarmctl rm")
        return planned(actions)


def unlock(stack: str | None, settings: Settings, story: Story, *, dry_run: bool) -> None:
    """Take away a stack's lock, whoever has it; also one that is left of a stack that is not there."""
    with manager(settings) as found:
        locked = history.locks(found.engine)
        name = stack if stack in locked else next(iter(locked)) if len(locked) == 1 and stack is None else None
        if name is None:
            name = chosen(found.engine, stack)
        if name not in locked:
            story.same(f"{name} is not locked")
            return
        story.change("-", f"the lock of {name}: {locked[name]}")
        if not dry_run:
            history.unlock(found.engine, name)


def past(stack: str | None, settings: Settings) -> list[Report]:
    """Who changed what and when."""
    with manager(settings) as found:
        found_entries = history.entries(found.engine, chosen(found.engine, stack))
    return [
        {"number": e.number, "when": e.when, "who": e.who, "what": e.what, "revision": e.revision or None}
        for e in found_entries
    ]


def control(stack: str | None, what: Control, settings: Settings, *, dry_run: bool) -> tuple[str, Mapping[str, Any]]:
    """Have the coordinator do something; returns the stack and the answer, empty with `dry_run`."""
    with manager(settings) as found:
        name = chosen(found.engine, stack)
        if dry_run:
            return name, {}
        with Coordinator(name, found, settings) as coordinator:
            return name, coordinator.control(what)


def set_availability(
    node_name: str, availability: str, settings: Settings, story: Story, *, timeout: float, dry_run: bool, yes: bool
) -> None:
    """Drain a node, or give it work again; a coordinator goes to another node, its checkpoint with it.

    Raises:
        UsageError: A training would stop, or lose its checkpoints.
        WaitTimeoutError: Its tasks have not moved in time.
    """
    deadline = time.monotonic() + timeout
    with manager(settings) as found:
        node = named_node(node_name, found.swarm)
        moves = _moves_from(node, found) if availability == "drain" else {}
        if node.availability == availability and not moves:
            story.same(f"{node.hostname} is {'drained' if availability == 'drain' else 'active'} already")
            return
        if not yes:
            for name, target in moves.items():
                moving.refuse_unwished(name, node, target, found)
        for name, target in moves.items():
            if target:
                story.change("~", f"coordinator of {name}: {node.hostname} → {target.hostname}")
        if node.availability != availability:
            story.change("~", f"{node.hostname}: {node.availability} → {availability}")
        if dry_run:
            return
        for name, target in moves.items():
            if target and is_bound(observe_stack(found.engine, name).services[COORDINATOR].spec, name):
                moving.move(name, node, target, found, settings, story, deadline=deadline)
            else:
                checkpoint_first(name, found, settings, story)
        change = Change("availability", node.availability, availability)
        apply_to_fleet([UpdateNode(node.id, node.hostname, {}, (change,), availability=availability)], found.engine)
        if availability == "drain" and node.state == "ready":
            moving.wait_until_empty(node, found.engine, story, deadline)
        story.done(f"{node.hostname} is {'drained' if availability == 'drain' else 'active'}")


def _moves_from(node: Node, found: Manager) -> dict[str, Node | None]:
    """Stacks whose coordinator is on a node, and where each can go."""
    return {name: moving.target_for(name, node, found) for name in stacks(found.engine) if _leads(name, node, found)}


def _leads(stack: str, node: Node, found: Manager) -> bool:
    observed = observe_stack(found.engine, stack)
    lead = observed.services.get(COORDINATOR)
    if lead is None:
        return False
    there = home(stack, found.swarm.nodes)
    if there is not None and is_bound(lead.spec, stack):
        return there.id == node.id
    return any(
        task.service_id == lead.id and task.node_id == node.id and task.state == "running" for task in observed.tasks
    )


def read_logs(
    stack: str | None,
    service: str,
    settings: Settings,
    story: Story,
    *,
    since: float,
    tail: int | None,
    follow: bool,
) -> Iterator[logs.Line]:
    """Lines of a service, a task, or all."""
    with manager(settings) as found:
        name = chosen(found.engine, stack)
        began = time.time()
        seen = look(found.engine, name)
        sources, skipped = logs.sources(seen.observed, seen.nodes, service)
        if not sources and not skipped:
            if service in seen.services:
                raise UsageError(
                    f"{service} has written no log yet", f"swarmctl status --stack {name}   # tells whether it runs"
                )
            known = [*seen.services, "all"]
            raise UsageError(f"there is no log of {service!r} in {name}{did_you_mean(service, known)}")
        for why in skipped:
            story.warn(f"left out: {why}")
        yield from logs.read(found.engine, sources, since=since, tail=tail, on_skip=story.warn)
        if follow:

            def again() -> tuple[list[logs.Source], list[str]]:
                now = look(found.engine, name)
                return logs.sources(now.observed, now.nodes, service, ended=False)

            yield from logs.follow(found.engine, again, began, story.warn)


def reconcile_once(
    stack: str | None, settings: Settings, story: Story, *, dry_run: bool, may_be_idle: bool = False
) -> bool:
    """Bring back what drifted; returns whether anything had.

    Raises:
        UnreachableError: No stack is deployed, and it may not be idle.
    """
    with manager(settings) as found:
        names = [chosen(found.engine, stack)] if stack else stacks(found.engine)
        if not names and not may_be_idle:
            raise UnreachableError("no stack is deployed in the swarm", "swarmctl deploy --stack rwkv-tiny")
        changed = [reconcile.reconcile(name, found, settings, story, dry_run=dry_run) for name in names]
    return any(changed)


def reconcile_watch(stack: str | None, settings: Settings, story: Story, interval: float) -> None:
    """Do it again and again; what fails once is told and tried again."""
    while True:
        try:
            reconcile_once(stack, settings, story, dry_run=False, may_be_idle=True)
        except SwarmctlError as error:
            story.warn(str(error))
        time.sleep(interval)


def keep(settings: Settings, registry: str, story: Story, *, install: bool, timeout: float, dry_run: bool) -> None:
    """Install the service that reconciles, or remove it."""
    with manager(settings) as found:
        if install:
            keeper.install(found, registry, story, timeout=timeout, dry_run=dry_run)
        else:
            keeper.uninstall(found, story, dry_run=dry_run)


def export_checkpoint(stack: str | None, checkpoint: str, folder: Path, settings: Settings, story: Story) -> Path:
    """Copy a checkpoint out of the swarm."""
    with manager(settings) as found:
        name = chosen(found.engine, stack)
        with Coordinator(name, found, settings) as coordinator:
            return export.export(coordinator, checkpoint, folder, story)


def wish(
    stack_name: str, *, registry: str | None, allow_unpinned: bool, reset_scale: bool, timeout: float
) -> DeployWish:
    """What was typed after `deploy` or `plan`."""
    stack: Stack = load(stack_name)
    source = registry or os.environ.get("REGISTRY") or None
    return DeployWish(stack, source, allow_unpinned, reset_scale, timeout)
