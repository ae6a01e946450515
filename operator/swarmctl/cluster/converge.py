"""Waits until a stack is as it was wished, shows how far it is, and finds out when it will never be.

May import: ``observe``, ``tasks``, ``state``; ``fleet`` for the engine and the nodes.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ..console import Story
from ..errors import SwarmctlError, WaitTimeoutError
from ..fleet.engine import Engine
from ..fleet.observe import observe
from ..fleet.swarm import Node
from .logs import frames
from .observe import observe_stack
from .state import Observed, Task
from .tasks import ServiceState, states

_POLL_SEC = 0.5
FAILURES_TO_GIVE_UP = 3
LAST_WORDS = 4
_NO_NODE = "no suitable node"


class UpdateFailedError(SwarmctlError):
    """What was deployed does not run."""


@dataclass(frozen=True)
class Seen:
    """One look."""

    observed: Observed
    nodes: Sequence[Node]
    services: Mapping[str, ServiceState]


def look(engine: Engine, stack: str) -> Seen:
    """See how a stack is."""
    observed, nodes = observe_stack(engine, stack), observe(engine).nodes
    return Seen(observed, nodes, states(observed, nodes))


def wait(
    engine: Engine,
    stack: str,
    services: Collection[str],
    story: Story,
    *,
    deadline: float,
    before: Mapping[str, Collection[str]] | None = None,
) -> Seen:
    """Wait until services have all tasks that the nodes can take.

    Args:
        engine: A manager's.
        stack: Its name.
        services: Which; those that are not there count as done.
        story: Where to show how far it is.
        deadline: By `time.monotonic`.
        before: Ids of tasks that had failed before, by service: they don't count.

    Returns:
        The last look. Tasks that no node can take are still waiting then.

    Raises:
        UpdateFailedError: A service's tasks fail again and again.
        WaitTimeoutError: Not all of it runs at the deadline.
    """
    told: set[str] = set()
    with story.waiting(f"waits for {', '.join(services)}") as show:
        while True:
            seen = look(engine, stack)
            here = [state for name, state in seen.services.items() if name in services]
            show(_progress(here))
            for state in here:
                _give_up_where_hopeless(engine, state, seen, before or {})
                if is_settled(state, seen) and state.service not in told:
                    told.add(state.service)
                    story.done(f"{state.service}: {state.running} of {state.wished} running")
            if all(is_settled(state, seen) for state in here):
                return seen
            if time.monotonic() > deadline:
                missing = "; ".join(_line(state) for state in here if not is_settled(state, seen))
                raise WaitTimeoutError(
                    f"not all of {stack} runs yet: {missing}. The swarm goes on with it.",
                    f"swarmctl status --stack {stack}",
                    f"swarmctl logs {next(s.service for s in here if not is_settled(s, seen))} --stack {stack}",
                )
            time.sleep(_POLL_SEC)


def is_settled(state: ServiceState, seen: Seen) -> bool:
    """Whether nothing more will come of waiting: all tasks run, or wait for a node that is not there."""
    update = seen.observed.services[state.service].update.get("State", "")
    if update in {"updating", "rollback_started"} or state.starting:
        return False
    stuck = [task for task in state.tasks if task.wanted == "running" and not task.node_id and _NO_NODE in task.error]
    return state.running + len(stuck) >= state.wished and _extra(state) == 0


def _extra(state: ServiceState) -> int:
    """Tasks that are still to end."""
    return sum(task.state == "running" and task.wanted != "running" for task in state.tasks)


def _give_up_where_hopeless(
    engine: Engine, state: ServiceState, seen: Seen, before: Mapping[str, Collection[str]]
) -> None:
    old = set(before.get(state.service, ()))
    service = seen.observed.services[state.service]
    failed = [
        task
        for task in seen.observed.tasks
        if task.service_id == service.id and task.state in {"failed", "rejected"} and task.id not in old
    ]
    stopped = service.update.get("State") in {"paused", "rollback_paused", "rollback_completed"} and failed
    if stopped or (len(failed) >= FAILURES_TO_GIVE_UP and state.running < state.wished):
        raise UpdateFailedError(_reason(engine, state.service, failed, seen))


def _reason(engine: Engine, service: str, failed: Sequence[Task], seen: Seen) -> str:
    last = max(failed, key=lambda task: task.since)
    where = next((node.hostname for node in seen.nodes if node.id == last.node_id), "no node")
    said = "".join(f"\n    {line}" for line in last_words(engine, last))
    return f"{service} does not start: {last.error or last.message} (on {where}, {len(failed)} tries){said}"


def last_words(engine: Engine, task: Task) -> list[str]:
    """What the program in a task said before it ended; it knows best."""
    if not task.container_id:
        return []
    try:
        raw = engine.task_logs(task.id, tail=LAST_WORDS)
    except SwarmctlError:
        return []  # its node is gone, too; the engine's own word must do
    text = b"".join(frames(raw)).decode(errors="replace")
    return [line.partition(" ")[2] for line in text.splitlines()][-LAST_WORDS:]


def failed_tasks(observed: Observed) -> dict[str, list[str]]:
    """Ids of all tasks that have failed so far, by service."""
    return {
        name: [
            task.id for task in observed.tasks if task.service_id == service.id and task.state in {"failed", "rejected"}
        ]
        for name, service in observed.services.items()
    }


def _progress(states_: Sequence[ServiceState]) -> str:
    return "   ".join(_line(state) for state in states_) or "waits"


def _line(state: ServiceState) -> str:
    starting = f", {state.starting} starting" if state.starting else ""
    waiting = f", {state.waiting} waiting" if state.waiting else ""
    return f"{state.service} {state.running}/{state.wished}{starting}{waiting}"


def until(check: Callable[[], bool], *, deadline: float, what: str) -> None:
    """Wait for something that has no progress to show.

    Raises:
        WaitTimeoutError: It did not come about by the deadline.
    """
    while not check():
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"{what}: not within the time given", "--timeout SECONDS   # waits longer")
        time.sleep(_POLL_SEC)
