"""Waits until a stack is as it was wished, shows how far it is, and finds out when it will never be.

May import: ``observe``, ``plan``, ``tasks``, ``state``; ``fleet`` for the engine and the nodes.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ..console import Story
from ..errors import PartlyDoneError, SwarmctlError, WaitTimeoutError
from ..fleet.engine import Engine
from ..fleet.observe import observe_nodes
from ..fleet.swarm import Node
from .logs import written
from .observe import observe_again, observe_stack
from .plan import COORDINATOR
from .state import Observed, Task
from .tasks import ServiceState, has_failed, states, unfit

_POLL_SEC = 0.3
# A look is not repeated before this many times as long as it took: on a busy machine it would slow what it waits for.
_SHARE = 6
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
    return _seen(observe_stack(engine, stack), engine)


def _seen(observed: Observed, engine: Engine) -> Seen:
    nodes = observe_nodes(engine)
    return Seen(observed, nodes, states(observed, nodes))


def wait(
    engine: Engine,
    stack: str,
    services: Collection[str],
    story: Story,
    *,
    deadline: float,
    before: Collection[str],
    told: Collection[str] = (),
) -> Seen:
    """Wait until services have all tasks that the nodes can take.

    Args:
        engine: A manager's.
        stack: Its name.
        services: Which; those that are not there count as done.
        story: Where to show how far it is.
        deadline: By `time.monotonic`.
        before: Ids of tasks that had failed before: they don't count.
        told: Services that were told of already.

    Returns:
        The last look. Tasks that no node can take are still waiting then.

    Raises:
        UpdateFailedError: A service's tasks fail again and again.
        WaitTimeoutError: Not all of it runs at the deadline.
    """
    done = set(told)
    with story.waiting(f"waits for {', '.join(services)}") as show:
        began = time.monotonic()
        seen = look(engine, stack)
        stale = _refusals_of_before(seen)
        while True:
            here = [state for name, state in seen.services.items() if name in services]
            show(_progress(here))
            for state in here:
                _give_up_where_hopeless(engine, state, seen, before)
                if is_settled(state, seen, stale) and state.service not in done:
                    done.add(state.service)
                    story.done(f"{state.service}: {state.running} of {state.wished} running")
            if all(is_settled(state, seen, stale) for state in here):
                return seen
            if time.monotonic() > deadline:
                missing = "; ".join(_line(state) for state in here if not is_settled(state, seen, stale))
                raise WaitTimeoutError(
                    f"not all of {stack} runs yet: {missing}. The swarm goes on with it.",
                    f"swarmctl status --stack {stack}",
                    f"swarmctl logs {next(s.service for s in here if not is_settled(s, seen, stale))} --stack {stack}",
                )
            time.sleep(max(_POLL_SEC, _SHARE * (time.monotonic() - began)))
            began = time.monotonic()
            seen = _seen(observe_again(engine, seen.observed), engine)


def is_settled(state: ServiceState, seen: Seen, stale: Collection[tuple[str, str]] = ()) -> bool:
    """Whether nothing more will come of waiting: all tasks run, or wait for a node that is not there.

    Args:
        state: Of a service.
        seen: The look that it is from.
        stale: Tasks and their words of "no suitable node" that say nothing about now.
    """
    update = seen.observed.services[state.service].update.get("State", "")
    if update in {"updating", "rollback_started"} or state.starting:
        return False
    if any(not task.current and task.wanted == "running" for task in _running(state, seen.nodes)):
        return False  # the swarm has not come round to replacing it yet
    stuck = [task for task in refused(state) if (task.id, task.error) not in stale]
    to_end = [task for task in _running(state, seen.nodes) if task.wanted != "running"]
    return state.running + len(stuck) >= state.wished and not to_end


def refused(state: ServiceState) -> list[Task]:
    """Tasks for which the scheduler has found no node; its words change, not their time, when it has tried again."""
    return [task for task in state.tasks if task.wanted == "running" and not task.node_id and _NO_NODE in task.error]


def _refusals_of_before(seen: Seen) -> set[tuple[str, str]]:
    """Of a coordinator that has a place again by now; for workers a free node would have been found at once."""
    state = seen.services.get(COORDINATOR)
    spec = seen.observed.services[COORDINATOR].spec if state else {}
    if state is None or all(unfit(spec, node, seen.observed) for node in seen.nodes):
        return set()
    return {(task.id, task.error) for task in refused(state)}


def _running(state: ServiceState, nodes: Sequence[Node]) -> list[Task]:
    """Tasks that run; of those on a node that is down nothing will be heard."""
    ready = {node.id for node in nodes if node.state == "ready"}
    return [task for task in state.tasks if task.state == "running" and task.node_id in ready]


def _give_up_where_hopeless(engine: Engine, state: ServiceState, seen: Seen, before: Collection[str]) -> None:
    service = seen.observed.services[state.service]
    failed = [
        task
        for task in seen.observed.tasks
        if task.service_id == service.id
        and has_failed(task)
        and task.id not in before
        and task.current  # those of an earlier spec may go on failing until they are replaced
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
    return [line.partition(" ")[2] for line in written(raw).splitlines()][-LAST_WORDS:]


def failed_tasks(observed: Observed) -> frozenset[str]:
    """Ids of all tasks that have failed so far."""
    return frozenset(task.id for task in observed.tasks if has_failed(task))


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


def tell_shortage(seen: Seen, story: Story) -> list[ServiceState]:
    """Say what the nodes could not take; returns the services that lack something."""
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
    if short := tell_shortage(seen, story):
        raise PartlyDoneError(
            "; ".join(f"{state.service}: {state.running} of {state.wished}" for state in short)
            + " run; the others start by themselves when there is room",
            f"swarmctl status --stack {stack}   # tells node by node what is missing",
        )
    return seen
