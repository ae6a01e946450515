"""What a lab is to look like: a small YAML file, or the same as a mapping.

    engine: "28"                # newest, 28, 26, 20.10; default the newest that runs
    registry: true              # default: none
    registry_login: pi:secret   # default: anybody may pull and push
    nodes:
      - {name: server-1, hardware: server}
      - {name: "pi-[01-20]", hardware: rpi4-4g, user: pi, sudo: nopasswd}

Imports only `hardware` and `packages` of the lab.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from tests.lab.hardware import KINDS
from tests.lab.packages import LabError

Sudo = Literal["none", "nopasswd", "password"]
Sshd = Literal["ok", "off", "hang"]


@dataclass(frozen=True)
class NodeSpec:
    """One machine.

    Attributes:
        name: How the operator calls it.
        hardware: A kind of `tests.lab.hardware`.
        engine: Version of its engine, where it differs from the lab's.
        hostname: Default: the name.
        machine_id: Default: its own; give two nodes the same to have a cloned SD card.
        user: Whom the operator logs in as.
        docker_group: Whether that user is in the group docker.
        sudo: What that user may do with sudo: nothing, everything, everything with a password.
        password: That user's.
        greeting: Text that the login shell prints before anything else.
        sshd: ``ok``, ``off``, or ``hang``: says its banner and nothing more.
        max_startups: sshd's MaxStartups.
        clock_offset: Seconds that its `date` is ahead.
        docker: Whether Docker is installed at all.
    """

    name: str
    hardware: str = "server"
    engine: str = ""
    hostname: str = ""
    machine_id: str = ""
    user: str = "root"
    docker_group: bool = True
    sudo: Sudo = "none"
    password: str = "raspberry"
    greeting: str = ""
    sshd: Sshd = "ok"
    max_startups: str = "100"
    clock_offset: float = 0.0
    docker: bool = True


@dataclass(frozen=True)
class Spec:
    """A lab.

    Attributes:
        nodes: In the order of their addresses.
        engine: Version, or ``newest``.
        registry: Whether to start an image registry.
        registry_login: Name and password, with a colon between, that it wants; empty for none.
    """

    nodes: tuple[NodeSpec, ...]
    engine: str = "newest"
    registry: bool = False
    registry_login: str = ""


def load(source: Path | Mapping[str, Any]) -> Spec:
    """Read a lab file.

    Raises:
        LabError: It says something that a lab doesn't know.
    """
    text = _read(source) if isinstance(source, Path) else source
    if not isinstance(text, Mapping) or not text.get("nodes"):
        raise LabError("a lab file is a mapping with a list called nodes")
    _known(text, {field.name for field in fields(Spec)}, "the lab")
    nodes = tuple(node for entry in text["nodes"] for node in _nodes(entry))
    names = [node.name for node in nodes]
    if twice := {name for name in names if names.count(name) > 1}:
        raise LabError(f"twice in the lab: {', '.join(sorted(twice))}")
    return Spec(
        nodes,
        str(text.get("engine", "newest")),
        bool(text.get("registry", False)),
        str(text.get("registry_login", "")),
    )


def _read(path: Path) -> object:
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise LabError(f"{path}: {error}") from error


def _nodes(entry: str | Mapping[str, Any]) -> Iterator[NodeSpec]:
    keys = {"name": entry} if isinstance(entry, str) else dict(entry)
    _known(keys, {field.name for field in fields(NodeSpec)}, f"node {keys.get('name', '')}")
    for name in ("engine", "max_startups", "password"):
        if name in keys:
            keys[name] = str(keys[name])
    pattern = NodeSpec(**keys)
    if pattern.hardware not in KINDS:
        raise LabError(f"node {pattern.name}: no hardware {pattern.hardware} (there: {', '.join(KINDS)})")
    for key, kinds in (("sudo", Sudo), ("sshd", Sshd)):
        if getattr(pattern, key) not in get_args(kinds):
            raise LabError(f"node {pattern.name}: {key} is one of {', '.join(get_args(kinds))}")
    for name in expand(pattern.name):
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,39}", name):
            raise LabError(f"a node's name is at most 40 of a-z, 0-9, - and ., not {name}")
        yield replace(pattern, name=name, hostname=pattern.hostname or name)


def expand(name: str) -> list[str]:
    """``pi-[01-03]`` as pi-01, pi-02, pi-03, padded as written; any other name as itself."""
    match = re.fullmatch(r"(.*)\[(\d+)-(\d+)\](.*)", name)
    if not match:
        return [name]
    before, first, last, after = match.groups()
    return [f"{before}{number:0{len(first)}}{after}" for number in range(int(first), int(last) + 1)]


def _known(given: Mapping[str, Any], allowed: set[str], where: str) -> None:
    if unknown := sorted(set(given) - allowed):
        raise LabError(f"{where}: unknown {', '.join(unknown)} (there: {', '.join(sorted(allowed))})")
