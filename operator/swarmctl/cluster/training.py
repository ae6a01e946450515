"""The training behind a stack in a swarm: the coordinator's status and controls, asked inside its own container.

No port is published for that: the program that is the coordinator's health check is run beside it, through the engine
of the node where it is. May import: ``observe``, ``state``; ``fleet`` for machines and engines.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from ..console import Story
from ..errors import SwarmctlError, UnreachableError
from ..fleet.engine import Engine
from ..fleet.where import Manager, Settings, engine_of
from .observe import observe_stack
from .plan import COORDINATOR
from .state import Observed, Task

ASK = ("python3", "-m", "swarm_agent.ask")


class Coordinator:
    """The coordinator of one stack, for as long as the block lasts."""

    def __init__(self, stack: str, found: Manager, settings: Settings) -> None:
        """Nothing is asked yet."""
        self._stack = stack
        self._found = found
        self._settings = settings
        self._ways = ExitStack()
        self._engine: Engine | None = None
        self._node = ""

    @property
    def engine(self) -> Engine:
        """The manager's, not that of the coordinator's node."""
        return self._found.engine

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, *_: object) -> None:
        self._ways.close()

    def status(self, observed: Observed | None = None) -> Mapping[str, Any]:
        """The coordinator's ``/status``.

        Raises:
            UnreachableError: It does not run, or its node can't be reached.
        """
        return self._ask("GET", "/status", observed)

    def control(self, what: str) -> Mapping[str, Any]:
        """Have it pause, resume, or write a checkpoint.

        Raises:
            UnreachableError: It does not run, or its node can't be reached.
            SwarmctlError: It refuses.
        """
        return self._ask("POST", f"/control/{what}")

    def listed(self, folder: str) -> list[str]:
        """Names in a folder of its container, sorted; those that begin with a dot are left out."""
        task = self._task(observe_stack(self._found.engine, self._stack))
        program = "import os,sys;print(*sorted(n for n in os.listdir(sys.argv[1]) if n[0]!='.'),sep='\\n')"
        status, out, err = self._engine_of(task).run_in(task.container_id, ["python3", "-c", program, folder])
        if status != 0:
            raise SwarmctlError(f"{folder} can't be read: {err.decode(errors='replace').strip()}")
        return out.decode().split()

    def archive(self, path: str) -> AbstractContextManager[Callable[[int], bytes]]:
        """A file or folder of its container as a tar archive; see `Engine.archive`."""
        task = self._task(observe_stack(self._found.engine, self._stack))
        return self._engine_of(task).archive(task.container_id, path)

    def _ask(self, method: str, path: str, observed: Observed | None = None) -> Mapping[str, Any]:
        task = self._task(observed or observe_stack(self._found.engine, self._stack))
        status, out, err = self._engine_of(task).run_in(task.container_id, [*ASK, method, path])
        if status != 0:
            said = err.decode(errors="replace").strip() or out.decode(errors="replace").strip()
            raise SwarmctlError(
                f"the coordinator of {self._stack} says no: {said}", f"swarmctl logs coordinator --stack {self._stack}"
            )
        answer = json.loads(out)
        return answer if isinstance(answer, dict) else {}

    def _task(self, observed: Observed) -> Task:
        service = observed.services.get(COORDINATOR)
        running = [
            task
            for task in observed.tasks
            if service and task.service_id == service.id and task.state == "running" and task.wanted == "running"
        ]
        if not running:
            raise UnreachableError(
                f"the coordinator of {self._stack} does not run", f"swarmctl status --stack {self._stack}   # tells why"
            )
        return max(running, key=lambda task: task.since)

    def _engine_of(self, task: Task) -> Engine:
        if self._engine is None or self._node != task.node_id:
            node = self._found.swarm.node(task.node_id)
            if node is None or node.state != "ready":
                raise UnreachableError(
                    f"the coordinator's node {node.hostname if node else task.node_id} does not answer"
                )
            self._engine = self._ways.enter_context(engine_of(node, self._found, self._settings))
            self._node = task.node_id
        return self._engine


def checkpoint_first(stack: str, found: Manager, settings: Settings, story: Story) -> None:
    """Have the coordinator write a checkpoint before it is stopped or moved; says so where it can't be asked."""
    try:
        with Coordinator(stack, found, settings) as coordinator, story.waiting("writes a checkpoint first"):
            answer = coordinator.control("checkpoint")
    except UnreachableError as error:
        story.warn(f"no checkpoint: {error}")
        return
    except SwarmctlError as error:
        story.warn(f"no checkpoint now ({error}); the coordinator writes one as it stops")
        return
    story.done(f"checkpoint at version {answer.get('version', '?')}", "before the coordinator stops")
