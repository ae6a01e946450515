"""Coordinators and workers as real processes: started on free ports, waited for by what can be seen, always ended."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
HERE = Path(__file__).parent
DEADLINE = 60.0  # seconds: for a condition that comes much sooner, on a machine that is busy
LINEAR = ("--model", "linear_model:model")
# As the image has it, and quicker to start: numba takes nearly two seconds of processor time for each coordinator.
WITHOUT_NUMBA = {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1] / "bench" / "without")])}
WITH_NUMBA = {"PYTHONPATH": str(HERE)}
Status = dict[str, Any]


def until(condition: Callable[[], T | None], what: str, seconds: float = DEADLINE) -> T:
    """Wait until `condition` gives something, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.03)
    return found


class Process:
    """One command of ours, its output kept in a file."""

    def __init__(self, module: str, options: tuple[str, ...], folder: Path, settings: Mapping[str, object]) -> None:
        folder.mkdir(parents=True)
        self.log = folder / "output"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FDTC_")}
        environment |= WITHOUT_NUMBA | {"OPENBLAS_NUM_THREADS": "1"}
        environment |= {name: str(value) for name, value in settings.items()}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"swarm_agent.{module}", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def events(self, name: str) -> list[dict[str, Any]]:
        """What was logged under a name so far."""
        lines = [json.loads(line) for line in self.output.splitlines() if line.startswith("{") and line.endswith("}")]
        return [line for line in lines if line["event"] == name]

    def event(self, name: str, **facts: object) -> dict[str, Any]:
        """Wait until an event with these facts is logged, and return it."""

        def look() -> dict[str, Any] | None:
            running = self.running  # before the look, so that the last words are not missed
            for event in self.events(name):
                if all(event.get(key) == value for key, value in facts.items()):
                    return event
            assert running, f"ended without having logged {name!r}:\n{self.output}"
            return None

        return until(look, f"{name!r} {facts} in\n{self.output}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait()

    def exit_status(self, seconds: float = DEADLINE) -> int:
        """Wait for the process's own end."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:g} s:\n{self.output}") from None


class Coordinator(Process):
    """A running coordinator, seen over its HTTP port."""

    @cached_property
    def port(self) -> int:
        return int(self.event("coordinator listens")["port"])

    @cached_property
    def http_port(self) -> int:
        return int(self.event("coordinator listens")["http_port"])

    def request(
        self, path: str, method: str = "GET", content_type: str = "application/json"
    ) -> tuple[int, str, Mapping[str, str]]:
        """Send an HTTP request; return status code, body and headers."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http_port}{path}",
            method=method,
            data=b"" if method == "POST" else None,
            headers={"Content-Type": content_type},
        )
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), error.headers

    def status(self) -> Status:
        code, body, _ = self.request("/status")
        assert code == 200, body
        status: Status = json.loads(body)
        return status

    def control(self, word: str) -> dict[str, Any]:
        code, body, _ = self.request(f"/control/{word}", "POST")
        assert code == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer

    def when(self, condition: Callable[[Status], object], what: str) -> Status:
        """Wait until the status fulfils a condition, and return it."""

        def look() -> Status | None:
            assert self.running, f"the coordinator has ended:\n{self.output}"
            status = self.status()
            return status if condition(status) else None

        return until(look, what)

    def progress(self, versions: int = 3) -> Status:
        """Wait until the weights have had so many more updates."""
        goal = self.status()["version"] + versions
        return self.when(lambda status: status["version"] >= goal, f"version {goal}")


P = TypeVar("P", bound=Process)


class Swarm:
    """The processes of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Process] = []

    def coordinator(self, *options: str, port: int = 0, **settings: object) -> Coordinator:
        """Start a coordinator that keeps its checkpoints in `folder`; settings are environment variables."""
        places = ("--host", "127.0.0.1", "--port", str(port), "--http-port", "0")
        return self._start(Coordinator, "coordinator_command", (*places, *LINEAR, *options), settings)

    def worker(self, port: int, name: str, *options: str, **settings: object) -> Process:
        """Start a worker that trains the linear model and comes back quickly."""
        patience = {"FDTC_NETWORK_RECONNECT_DELAY_SEC": 0.2, "FDTC_NETWORK_RECONNECT_ATTEMPTS": 0}
        given = ("--host", "127.0.0.1", "--port", str(port), "--id", name, "--profile", "RPI3")
        data = ("--data", "linear_model:Rows", "--accumulation-steps", "1")
        return self._start(Process, "worker_command", (*given, *LINEAR, *data, *options), patience | settings)

    def _start(self, kind: type[P], module: str, options: tuple[str, ...], settings: Mapping[str, object]) -> P:
        folder = self.folder / f"process-{len(self.processes)}"
        if kind is Coordinator and "--checkpoint-dir" not in options:
            options = (*options, "--checkpoint-dir", str(self.checkpoints))
        process = kind(module, options, folder, settings)
        self.processes.append(process)
        return process

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def end(self) -> None:
        """End whatever still runs; no process may have shown a traceback."""
        for process in self.processes:
            if process.running:
                process.kill()
        for process in self.processes:
            assert "Traceback" not in process.output, process.output
