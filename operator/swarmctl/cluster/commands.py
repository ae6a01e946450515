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
from ..fleet.where import Manager, Settings, manager
from ..stack import Stack, load
from . import deploy as deploying
from . import export, history, keeper, logs, reconcile, status
from .converge import Seen, last_words, look, until
from .deploy import DeployWish
from .observe import observe_stack, stacks
from .plan import COORDINATOR, StackAction, as_data, eligible, removal
from .state import Task
from .training import Coordinator, checkpoint_first

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
        seen = deploying.deploy(wish, found, settings, story, what=f"swarmctl deploy --stack {wish.stack.name}")
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
        name = deploying.chosen(found.engine, stack)
        if dry_run:
            actions = deploying.scaled(observe_stack(found.engine, name), wishes, found.swarm.nodes)
            deploying.tell(story, actions)
            return planned(actions)
        words = " ".join(f"{key} {'auto' if value is None else value}" for key, value in wishes.items())
        seen = deploying.scale(name, wishes, found, story, timeout=timeout, what=f"swarmctl scale {words}")
        return [row for row in _report(name, seen, found, settings)["services"] if row["service"] in wishes]


def report(stack: str | None, settings: Settings) -> Report:
    """The status of a stack."""
    with manager(settings) as found:
        name = deploying.chosen(found.engine, stack)
        return _report(name, look(found.engine, name), found, settings)


@contextmanager
def watching(stack: str | None, settings: Settings) -> Iterator[Any]:
    """A function that reports again and again over one connection."""
    with manager(settings) as found:
        name = deploying.chosen(found.engine, stack)
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
        failed = [task for task in seen.observed.tasks if task.service_id == service_id and task.state == "failed"]
        if failed and not state.whole:
            found[name] = max(failed, key=lambda task: task.since)
    return found


def rollback(stack: str | None, number: int | None, settings: Settings, story: Story, *, timeout: float) -> Report:
    """Go back to an earlier revision."""
    with manager(settings) as found:
        name = deploying.chosen(found.engine, stack)
        what = f"swarmctl rollback {number if number is not None else ''}".rstrip()
        seen = deploying.rollback(name, number, found, settings, story, timeout=timeout, what=what)
        return _report(name, seen, found, settings)


def remove(stack: str | None, settings: Settings, story: Story, *, timeout: float, dry_run: bool, ask: Any) -> None:
    """Remove a stack."""
    with manager(settings) as found:
        name = deploying.chosen(found.engine, stack)
        if dry_run:
            deploying.tell(story, removal(observe_stack(found.engine, name)))
            return
        ask(name)
        checkpoint_first(name, found, settings, story)
        deploying.remove(name, found, story, timeout=timeout, what="swarmctl rm")


def past(stack: str | None, settings: Settings) -> list[Report]:
    """Who changed what and when."""
    with manager(settings) as found:
        name = stack or deploying.chosen(found.engine, None)
        found_entries = history.entries(found.engine, name)
    return [
        {"number": e.number, "when": e.when, "who": e.who, "what": e.what, "revision": e.revision or None}
        for e in found_entries
    ]


def control(stack: str | None, what: Control, settings: Settings) -> tuple[str, Mapping[str, Any]]:
    """Have the coordinator do something; returns the stack and the answer."""
    with manager(settings) as found:
        name = deploying.chosen(found.engine, stack)
        with Coordinator(name, found, settings) as coordinator:
            return name, coordinator.control(what)


def set_availability(
    node_name: str, availability: str, settings: Settings, story: Story, *, timeout: float, dry_run: bool, yes: bool
) -> None:
    """Drain a node, or give it work again.

    Raises:
        UsageError: The last coordinator's place would be lost.
        WaitTimeoutError: Its tasks have not moved in time.
    """
    with manager(settings) as found:
        node = named_node(node_name, found.swarm)
        if node.availability == availability:
            story.same(f"{node.hostname} is {'drained' if availability == 'drain' else 'active'} already")
            return
        leads = [name for name in stacks(found.engine) if _leads(name, node.id, found)]
        change = Change("availability", node.availability, availability)
        action = UpdateNode(node.id, node.hostname, {}, (change,), availability=availability)
        story.change("~", f"{node.hostname}: {node.availability} → {availability}")
        if dry_run:
            return
        if availability == "drain" and leads and not yes and not _another_place(leads[0], node.id, found):
            raise UsageError(
                f"the coordinator of {leads[0]} is on {node.hostname}, and no other node can take it: "
                "training would stop",
                f"swarmctl drain {node.hostname} --yes   # stop it all the same; a checkpoint is written first",
            )
        for name in leads if availability == "drain" else []:
            checkpoint_first(name, found, settings, story)
        apply_to_fleet([action], found.engine)
        if availability == "drain":
            _wait_until_empty(node.id, node.hostname, found, story, timeout)
        story.done(f"{node.hostname} is {'drained' if availability == 'drain' else 'active'}")


def _leads(stack: str, node_id: str, found: Manager) -> bool:
    observed = observe_stack(found.engine, stack)
    lead = observed.services.get(COORDINATOR)
    return any(
        lead and task.service_id == lead.id and task.node_id == node_id and task.state == "running"
        for task in observed.tasks
    )


def _another_place(stack: str, node_id: str, found: Manager) -> bool:
    lead = observe_stack(found.engine, stack).services[COORDINATOR]
    return any(node.id != node_id for node in eligible(lead.spec, found.swarm.nodes))


def _wait_until_empty(node_id: str, name: str, found: Manager, story: Story, timeout: float) -> None:
    def empty() -> bool:
        return not any(task["Status"]["State"] == "running" for task in found.engine.tasks({"node": node_id}))

    with story.waiting(f"waits for the tasks on {name} to end or move"):
        until(empty, deadline=time.monotonic() + timeout, what=f"{name} still runs tasks")


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
        name = deploying.chosen(found.engine, stack)
        began = time.time()
        seen = look(found.engine, name)
        chosen, skipped = logs.sources(seen.observed, seen.nodes, service)
        if not chosen and not skipped:
            known = [*seen.services, "all"]
            raise UsageError(f"there is no log of {service!r} in {name}; known are {', '.join(known)}")
        for why in skipped:
            story.warn(f"left out: {why}")
        yield from logs.read(found.engine, chosen, since=since, tail=tail, on_skip=story.warn)
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
        names = [deploying.chosen(found.engine, stack)] if stack else stacks(found.engine)
        if not names and not may_be_idle:
            raise UnreachableError("no stack is deployed in the swarm", "swarmctl deploy --stack rwkv-tiny")
        changed = [reconcile.reconcile(name, found, story, dry_run=dry_run) for name in names]
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
        name = deploying.chosen(found.engine, stack)
        with Coordinator(name, found, settings) as coordinator:
            return export.export(coordinator, checkpoint, folder, story)


def wish(
    stack_name: str, *, registry: str | None, allow_unpinned: bool, reset_scale: bool, timeout: float, break_lock: bool
) -> DeployWish:
    """What was typed after `deploy` or `plan`."""
    stack: Stack = load(stack_name)
    chosen = registry or os.environ.get("REGISTRY") or None
    return DeployWish(stack, chosen, allow_unpinned, reset_scale, timeout, break_lock)
