"""Looks at a local stack: what is wished, what the supervisor knows, what the coordinator says.

May import: ``local.state``, ``local.client``, ``coordinator``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from .. import coordinator
from .client import is_supervised
from .state import COORDINATOR, Deployment, Folder, ProcessState, State, living_process


@dataclass(frozen=True)
class Observed:
    """All that can be seen of a local stack at one moment."""

    folder: Folder
    deployment: Deployment
    state: State | None
    supervised: bool
    status: Mapping[str, Any] | None  # the coordinator's

    @property
    def is_finished(self) -> bool:
        """Whether the run reached its last step and every process ended by itself."""
        states = self.state.processes.values() if self.state else ()
        return not self.supervised and bool(states) and all(p.state == "finished" for p in states)

    def process(self, name: str) -> ProcessState | None:
        """What the supervisor knows of a process."""
        return self.state.processes.get(name) if self.state else None

    @property
    def run_state(self) -> str | None:
        """What the coordinator says of the run, such as ``training``; None where it says nothing."""
        return coordinator.run_state(self.status)

    @property
    def living(self) -> list[psutil.Process]:
        """The processes that live, watched by a supervisor or not."""
        states = self.state.processes.values() if self.state else ()
        return [process for state in states if (process := living_process(state))]

    def trains(self, name: str) -> bool:
        """Whether a worker takes part in the training, or would if it were not paused."""
        return coordinator.worker(self.status, name).get("state") in {"training", "paused"}


def observe(folder: Folder) -> Observed | None:
    """Look at a stack; None where it is not deployed."""
    deployment = folder.read_deployment()
    if deployment is None:
        return None
    supervised = is_supervised(folder)
    state = folder.read_state()
    lead = state.processes.get(COORDINATOR) if state else None
    # A port says nothing about who listens on it: ask only where our coordinator lives.
    status = coordinator.read_status(deployment.http_port) if lead and living_process(lead) else None
    return Observed(folder, deployment, state, supervised, status)


def how_it_ended(process: ProcessState) -> str:
    """In words: ``was killed by signal 9``."""
    if process.last_ending is None:
        return "ended"
    code = process.last_ending.code
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
