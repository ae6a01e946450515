"""docs/tutorial.md, command by command, as it is written."""

import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest
from operator_at_work import SWARMCTL, Operator, checked

from tests.lab import images
from tests.lab.fixtures import MakeLab
from tests.lab.lab import Lab

PAGE = Path("docs/tutorial.md")
CODES = {"plan": 10}  # it tells that there are changes


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    """The tutorial's machines. Its image comes from the cache: docs/images.md's own test builds it."""
    lab = make_lab(
        {
            "registry": True,
            "nodes": [
                {"name": "server-1", "hardware": "server"},
                {"name": "pi-[01-02]", "hardware": "rpi4-4g", "user": "pi"},
                {"name": "laptop-1", "hardware": "laptop-16g"},
            ],
        }
    )
    images.agent(lab)
    return lab


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


def test_every_command_of_the_tutorial_works_in_its_order(lab: Lab) -> None:
    folder = lab.home / "tutorial"
    folder.mkdir()
    said: dict[str, str] = {}
    for line in commands():
        words = shlex.split(line)
        assert words[0] == "swarmctl", line
        arguments = [
            str(found) for word in words[1:] for found in (sorted(folder.glob(word)) if "*" in word else [word])
        ]
        if line == "swarmctl checkpoint":
            _await_training(lab)
        ended = subprocess.run(
            [*SWARMCTL, *arguments],
            env={**lab.environment, "REGISTRY": lab.registry},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        checked(ended, CODES.get(words[1], 0))
        said[line] = ended.stdout + ended.stderr
    assert "laptop" in said["swarmctl nodes"]
    assert "worker-rpi" in said["swarmctl status"]
    assert "removed" in said["swarmctl rm --yes"]


def _await_training(lab: Lab) -> None:
    """A reader takes longer to come here than the first updates take."""
    operator, end = Operator(lab), time.monotonic() + 240
    while True:
        training = operator.json("status")["training"]
        if training and training["version"] >= 20 and training["loss"] < 5:
            return
        assert time.monotonic() < end, training
        time.sleep(1)
