"""On a disk without room nothing that was learnt is lost, and all is well again once there is room."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.small_disk import fill, small_disk

from .conftest import SMALL, Swarmctl, eventually

LEARNT = 10  # versions that must not be lost


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """With room for a few checkpoints."""
    with small_disk(tmp_path / "small", "64m") as folder:
        yield folder


def test_a_full_disk_costs_nothing_that_was_learnt(disk: Path, tmp_path: Path, ports: list[str]) -> None:
    user = Swarmctl(disk / "state")
    stack = tmp_path / "small.yml"
    stack.write_text(SMALL.read_text().replace("interval: 5", "interval: 1000000"))
    filler = disk / "filler"
    try:
        user.run("deploy", "--stack", stack, "--local", *ports)
        eventually(lambda: user.status()["training"]["version"] >= LEARNT)
        fill(filler)
        config = user.folder() / "config" / "coordinator.toml"
        before, wish = config.read_bytes(), (user.folder() / "deployment.json").read_bytes()

        stack.write_text(stack.read_text().replace("learning_rate: 1e-3", "learning_rate: 2e-3"))
        said = user.run("deploy", "--stack", stack, "--local", *ports, code=1).stderr
        assert "can't write a checkpoint, so it goes on" in said
        assert "free some space in" in said
        assert (config.read_bytes(), (user.folder() / "deployment.json").read_bytes()) == (before, wish)

        said = user.run("rm", "--local", "--yes", code=1).stderr
        assert "can't write a checkpoint, so it goes on" in said
        assert "--checkpoint-dir" not in said
        assert user.status()["training"]["version"] >= LEARNT

        os.kill(user.process("worker-rpi-1")["pid"], signal.SIGKILL)
        eventually(lambda: user.process("worker-rpi-1")["restarts"] == 1 or "can't write" in supervisor(user))
        filler.unlink()
        eventually(lambda: user.process("worker-rpi-1")["restarts"] == 1)
        eventually(lambda: user.process("worker-rpi-1")["state"] == "training")

        said = user.run("deploy", "--stack", stack, "--local", *ports).stderr
        assert "it trains" in said
        assert user.status()["training"]["version"] >= LEARNT
    finally:
        filler.unlink(missing_ok=True)
        user.run("rm", "--local", "--yes", "--volumes")
    assert user.agents() == []


def supervisor(user: Swarmctl) -> str:
    return user.folder().joinpath("logs", "supervisor.log").read_text()
