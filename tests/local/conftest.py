"""A swarmctl with a state folder and ports of its own, and nothing left behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarmctl.local.observe import observe
from swarmctl.local.ports import free_port
from swarmctl.local.state import deployed_folders
from swarmctl.local.status import report

SMALL = Path(__file__).with_name("small.yml")
WITHOUT_NUMBA = Path(__file__).parents[2] / "bench" / "without"


class Swarmctl:
    """Runs swarmctl as a user does."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.small = SMALL  # a test that changes it takes a copy
        # numba would take two seconds of processor time for every coordinator that starts.
        self.environment = {
            **os.environ,
            "SWARMCTL_STATE": str(state),
            "NO_COLOR": "1",
            "PYTHONPATH": str(WITHOUT_NUMBA),
        }

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "swarmctl", *map(str, arguments)]

    def start(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.command(*arguments), env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *arguments: str | Path, code: int = 0) -> "subprocess.CompletedProcess[str]":
        ended = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            text=True,
            capture_output=True,
            check=False,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        assert ended.returncode == code, f"exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
        assert "Traceback" not in ended.stderr
        return ended

    def status(self) -> dict[str, Any]:
        """What `status --json` prints for the one stack that is deployed."""
        (folder,) = deployed_folders(self.state)
        observed = observe(folder)
        assert observed
        return report(observed)

    def process(self, name: str) -> dict[str, Any]:
        return next(process for process in self.status()["processes"] if process["name"] == name)

    def folder(self, stack: str = "small") -> Path:
        return self.state / "local" / stack

    def agents(self) -> list[psutil.Process]:
        """All processes that live for this state folder."""
        return [
            process
            for process in psutil.process_iter()
            if any(str(self.state) in argument for argument in _arguments(process)) and process.pid != os.getpid()
        ]


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def eventually(holds: Callable[[], object], seconds: float = 60) -> None:
    """Wait for something that other processes bring about."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def swarmctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarmctl]:
    # Longer than a socket's address can be: wherever a user's home is, it has to work.
    user = Swarmctl(tmp_path_factory.mktemp("state") / ("long" * 30))
    user.small = user.state.parent / "small.yml"
    user.small.write_text(SMALL.read_text())
    yield user
    for folder in (user.state / "local").glob("*"):
        user.run("rm", "--local", "--stack", folder.name, "--yes", "--volumes")
    assert user.agents() == []
    assert list((user.state / "local").glob("*")) == []


@pytest.fixture(scope="module")
def ports() -> list[str]:
    """Options for two ports that nobody uses."""
    port = free_port(17100 + os.getpid() % 10000)
    return ["--port", str(port), "--http-port", str(free_port(port + 1))]
