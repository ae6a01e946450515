"""swarmctl as a person runs it, on the operator's machine of a lab or on one of its nodes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab
from tests.lab.node import LabNode

SWARMCTL = [sys.executable, "-m", "swarmctl"]


class Operator:
    """Types commands; every one must end with the code that is expected, and never with a traceback."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def run(
        self, *arguments: str | Path, code: int | None = 0, stdin: str | None = None, **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run swarmctl on the operator's machine."""
        ended = subprocess.run(
            [*SWARMCTL, *map(str, arguments)],
            env={**self.lab.environment, **environment},
            cwd=self.lab.home / ".ssh",  # a folder without a fleet.yml
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        return checked(ended, code)

    def json(self, *arguments: str | Path, code: int = 0, **environment: str) -> Any:
        """What a command prints with ``--json``."""
        return json.loads(self.run(*arguments, "--json", code=code, **environment).stdout)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Rows of `swarmctl nodes`, by name."""
        return {row["node"]: row for row in self.json("nodes")}


def on(node: LabNode, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run swarmctl on a node itself, as root."""
    return checked(node.run([*SWARMCTL, *arguments], check=False), code)


def checked(ended: "subprocess.CompletedProcess[str]", code: int | None) -> "subprocess.CompletedProcess[str]":
    said = f"exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    assert code is None or ended.returncode == code, said
    assert "Traceback" not in ended.stderr, said
    return ended


def labels(manager: LabNode) -> dict[str, dict[str, str]]:
    """Labels of every node by its host name, as the engine has them."""
    return {
        node["Description"]["Hostname"]: node["Spec"].get("Labels") or {}
        for node in manager.api.nodes()
        if node["Status"]["State"] == "ready"
    }
