"""`swarmctl rm`: a stack's end. May import: ``plan``, ``apply``, ``history``, ``observe``; ``fleet``."""

import time

from ..console import Story
from ..errors import WaitTimeoutError
from ..fleet.engine import Engine
from ..fleet.observe import observe_nodes
from ..fleet.where import Manager
from . import history
from .apply import apply
from .observe import observe_stack
from .plan import COORDINATOR, RemoveService, removal
from .state import Raw


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
