"""SSH servers of our own, and a client that knows nothing of this machine's."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sshd import Agent, Sshd, generate_key

from swarmctl.fleet.ssh import SshSettings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The client's home, with one key and nothing else; no agent."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    generate_key(folder / ".ssh/id_ed25519")
    return folder


@pytest.fixture
def settings(home: Path) -> SshSettings:
    return SshSettings()


@pytest.fixture
def sshd(home: Path, tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Starts servers that let the client's key in; `options` are lines of their configuration."""
    servers: list[Sshd] = []

    def start(*options: str, address: str = "127.0.0.1", port: int = 0) -> Sshd:
        folder = tmp_path / f"sshd-{len(servers)}"
        server = Sshd(folder, home / ".ssh/id_ed25519", *options, address=address, port=port)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    running = Agent(home)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(running.socket))
    yield running
    running.stop()


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """Whatever the test started has ended soon after it."""
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + 5
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < end, left
        time.sleep(0.01)
