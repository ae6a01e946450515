"""A lab: real Docker engines on machines of their own, on one Linux machine.

A machine is a set of namespaces (network, mounts, host name, processes) whose first process, once killed, takes all the
rest with it. The machines' cables meet in a bridge in a namespace of its own, the switch, so that no firewall of this
system is asked; this system has one cable to it too. Everything is written down under /run/swarmctl-lab before it is
made, so that a lab whose maker crashed is found and taken down by the next one.
"""

import contextlib
import fcntl
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import bcrypt
import psutil

from tests.lab import operator, packages
from tests.lab.node import LabNode
from tests.lab.packages import LabError
from tests.lab.spec import NodeSpec, Spec, load
from tests.lab.system import delete_namespaces, eventually, remove_cgroups, run

_COUNTER = itertools.count()
FILES = Path("/var/tmp/swarmctl-lab")
STATE = Path("/run/swarmctl-lab")  # short: a Docker socket's path has 108 bytes at most
_FIRST_ADDRESS = 11
_MANY = 20  # nodes; from there on the kernel's tables are too small
# Kernel tables that belong to the whole machine: raised while there is a large lab.
_TABLES = {
    "net/ipv4/neigh/default/gc_thresh1": 8192,
    "net/ipv4/neigh/default/gc_thresh2": 16384,
    "net/ipv4/neigh/default/gc_thresh3": 32768,
    "fs/inotify/max_user_instances": 8192,
    "fs/inotify/max_user_watches": 1048576,
}


class Lab:
    """Use it as a context manager, or call `up` and `down`.

    Attributes:
        name: Part of the names of everything that it makes.
        spec: What it is to be.
        folder: Its files, on a disk that overlayfs can write to.
        nodes: By name.
        network: First three numbers of its /24.
        home: The operator's.
        binaries: The operator's own programs.
        fleet_yml: The operator's inventory.
        children: Processes that this process started.
    """

    def __init__(
        self, spec: Spec | Path | Mapping[str, Any], *, name: str = "", folder: Path | None = None, keep: bool = False
    ) -> None:
        """Plan a lab; `up` makes it.

        Args:
            spec: A `Spec`, a lab file, or what would be in one.
            name: Default: one of this process's own.
            folder: Default: below /var/tmp.
            keep: Let it live on when this process ends without `down`.
        """
        self.spec = spec if isinstance(spec, Spec) else load(spec)
        self.name = name or f"p{os.getpid()}-{next(_COUNTER)}"
        if not re.fullmatch(r"[a-z0-9-]{1,20}", self.name):
            raise LabError(f"a lab's name is at most 20 of a-z, 0-9 and -, not {self.name}")
        self.folder = folder or FILES / self.name
        self.keep = keep
        self.state_folder = STATE / self.name
        self.namespace = f"lab.{self.name}"
        self.cgroup = f"swarmctl-lab.{self.name}"
        self.home = self.folder / "operator"
        self.binaries = self.folder / "bin"
        self.fleet_yml = self.home / "fleet.yml"
        self.nodes: dict[str, LabNode] = {}
        self.children: list[subprocess.Popen[str]] = []
        self.public_key = ""
        self._number = 0
        self._last_address = _FIRST_ADDRESS - 1
        self._lock = threading.Lock()

    @property
    def network(self) -> str:
        """First three numbers of its addresses: the switch is .1, this system .2."""
        return f"10.77.{self._number}"

    @property
    def environment(self) -> dict[str, str]:
        """For running programs from this system, as the operator."""
        return operator.environment(self.home, self.binaries)

    @property
    def registry(self) -> str:
        """Host and port of the image registry, where the lab has one."""
        return f"{self.network}.1:5000"

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.down()

    def up(self) -> Self:
        """Make it, and wait until every engine answers.

        Raises:
            LabError: No root, a package that is not to be had, or something that failed; nothing is left then.
        """
        if os.geteuid() != 0:
            raise LabError("the lab needs root: it makes network namespaces and mounts")
        for wish in {self.spec.engine, *(node.engine for node in self.spec.nodes)} - {""}:
            packages.require(wish)
        self._reserve()
        try:
            self._build()
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Take it down and remove every trace; what is gone already is not missed."""
        for node in self.nodes.values():
            node.close()
        take_down(self.name)
        for child in self.children:
            child.wait()
        self.nodes, self.children = {}, []

    def next_address(self) -> str:
        """One that no node had before."""
        with self._lock:
            self._last_address += 1
            if self._last_address > 254:
                raise LabError("a lab has 244 addresses, and all were used")
            return f"{self.network}.{self._last_address}"

    def record(self) -> None:
        """Write down what there is (or will be in a moment), and tell the operator the addresses."""
        with self._lock:
            _write(self.state_folder / "state.json", json.dumps(self._state()))
            if self.public_key:
                nodes, ssh = self.nodes.values(), self.home / ".ssh"
                operator.write_config(ssh, nodes, seen_as=ssh)
                for node in nodes:
                    operator.write_config(node.folder / "root" / ".ssh", nodes, seen_as=Path("/root/.ssh"))

    def _state(self) -> dict[str, Any]:
        owner = psutil.Process()
        return {
            "folder": str(self.folder),
            "number": self._number,
            "owner": None if self.keep else [owner.pid, owner.create_time()],
            "namespaces": [self.namespace, *(node.namespace for node in self.nodes.values())],
            "spec": asdict(self.spec),
            "last_address": self._last_address,
            "nodes": {node.name: {"address": node.address, "hardware": node.hardware} for node in self.nodes.values()},
        }

    def _reserve(self) -> None:
        """Take a name and a network that nobody has, and write down all that will be made."""
        with _locked():
            _clean()
            if (self.state_folder / "state.json").exists():
                raise LabError(
                    f"there is a lab called {self.name} already: python -m tests.lab down --name {self.name}"
                )
            if self.folder.exists() and any(self.folder.iterdir()):
                raise LabError(f"{self.folder} is not empty, and taking the lab down would remove it")
            self._number = _free_number()
            self.state_folder.mkdir(parents=True)
            for number, spec in enumerate(self.spec.nodes):
                self.nodes[spec.name] = LabNode(self, spec, number, self.next_address())
            self.record()

    def _build(self) -> None:
        if len(self.nodes) > _MANY:
            with _locked():
                _raise_tables()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.public_key = operator.make_key(self.home)
        operator.make_programs(self.home, self.binaries)
        operator.write_environment(self.folder / "environment", self.home, self.binaries)
        for node in self.nodes.values():  # whoever is root on a node is the operator too
            shutil.copytree(self.home / ".ssh", node.folder / "root" / ".ssh")
        self.record()
        names = "".join(f"  - {node.name}\n" for node in self.nodes.values())
        self.fleet_yml.write_text(f"hosts:\n{names}")
        self._make_switch()
        if self.spec.registry:
            self._start_registry()
        self.everywhere(LabNode.boot)
        self.everywhere(LabNode.wait)

    def everywhere(self, work: Callable[[LabNode], object], *, at_once: int = 4) -> None:
        """Do something to all nodes, a few at a time.

        Raises:
            LabError: The first that failed.
        """
        with ThreadPoolExecutor(at_once) as pool:
            for _ in pool.map(work, self.nodes.values()):
                pass

    def _make_switch(self) -> None:
        """A bridge that all cables end in, and this system's cable to it."""
        here = f"lab{self._number}"
        run("ip", "netns", "add", self.namespace)
        inside = ("ip", "-n", self.namespace)
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "link", "add", "br0", "type", "bridge")
        run(*inside, "address", "add", f"{self.network}.1/24", "dev", "br0")
        run(*inside, "link", "set", "br0", "up")
        run("ip", "link", "add", here, "type", "veth", "peer", "name", "operator", "netns", self.namespace)
        run(*inside, "link", "set", "operator", "master", "br0", "up")
        run("ip", "address", "add", f"{self.network}.2/24", "dev", here)
        run("ip", "link", "set", here, "up")

    def _start_registry(self) -> None:
        """Debian's docker-registry, at the switch's address, where nodes and operator reach it."""
        settings = self.folder / "registry.yml"
        settings.write_text(
            "version: 0.1\nlog: {level: warn}\n"
            f"storage: {{filesystem: {{rootdirectory: {self.folder}/registry}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '{self.registry}'}}\n" + self._registry_login()
        )
        program = shutil.which("docker-registry") or str(packages.tools() / "usr/bin/docker-registry")
        with (self.folder / "registry.log").open("ab") as log:
            self.children.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self.namespace, program, "serve", str(settings)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, start_new_session=True,
                )
            )  # fmt: skip
        address = (f"{self.network}.1", 5000)
        eventually(lambda: _listens(address), 20, f"the registry listens ({self.folder}/registry.log)")

    def _registry_login(self) -> str:
        """The registry's settings for a login, where it wants one."""
        name, _, password = self.spec.registry_login.partition(":")
        if not name:
            return ""
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$", 1)
        (self.folder / "registry.htpasswd").write_text(f"{name}:{hashed}\n")
        return f"auth: {{htpasswd: {{realm: lab, path: '{self.folder}/registry.htpasswd'}}}}\n"


def attach(name: str) -> Lab:
    """A lab that another process has made.

    Raises:
        LabError: There is none of that name.
    """
    state = _read(name)
    if not state:
        raise LabError(f"there is no lab called {name} (there: {', '.join(sorted(names())) or 'none'})")
    # Another checkout's lab may know more of itself than this one's.
    known = {field.name: state["spec"][field.name] for field in fields(Spec) if field.name in state["spec"]}
    spec = Spec(**{**known, "nodes": tuple(NodeSpec(**node) for node in known["nodes"])})
    lab = Lab(spec, name=name, folder=Path(state["folder"]), keep=state["owner"] is None)
    lab._number, lab._last_address = state["number"], state["last_address"]
    key = lab.home / ".ssh" / "id_ed25519.pub"
    lab.public_key = key.read_text() if key.exists() else ""  # not yet, while the lab is being made
    for number, node in enumerate(spec.nodes):
        lab.nodes[node.name] = LabNode(lab, node, number, state["nodes"][node.name]["address"])
        lab.nodes[node.name].hardware = state["nodes"][node.name]["hardware"]
    return lab


def names() -> list[str]:
    """All labs on this machine."""
    return [path.parent.name for path in STATE.glob("*/state.json")]


def take_down(name: str) -> None:
    """Remove a lab by what is written down of it: processes, namespaces, devices, control groups, files.

    Nothing happens when there is none of that name.
    """
    with _locked():
        _take_down(name)


def _take_down(name: str) -> None:
    state = _read(name)
    if not state:
        return
    delete_namespaces(state["namespaces"])
    remove_cgroups(f"swarmctl-lab.{name}")
    for folder in (Path(state["folder"]), STATE / name / "run"):
        if folder.exists():
            shutil.rmtree(folder)
    shutil.rmtree(STATE / name)
    if not names():
        _restore_tables()


def _clean() -> None:
    """Take down labs whose maker has ended without doing so, and files that outlived a restart of this machine."""
    for name in names():
        state = _read(name)
        if state and state["owner"] and not _lives(*state["owner"]):
            _take_down(name)
    for parent in (STATE, FILES):
        for folder in parent.glob("*/"):
            if folder.name not in names():
                shutil.rmtree(folder)


def _free_number() -> int:
    """A number N such that nobody on this machine uses 10.77.N.0/24."""
    taken = {state["number"] for state in map(_read, names()) if state}
    routes = run("ip", "-4", "route", "show", "table", "all")
    for number in range(256):
        if number not in taken and f"10.77.{number}." not in routes:
            return number
    raise LabError("every 10.77.N.0/24 is in use")


def _raise_tables() -> None:
    kept = STATE / "tables.json"
    before = json.loads(kept.read_text()) if kept.exists() else {}
    for name, wanted in _TABLES.items():
        table = Path("/proc/sys") / name
        if int(table.read_text()) < wanted:
            before[name] = table.read_text().strip()
            _write(kept, json.dumps(before))
            table.write_text(f"{wanted}\n")


def _restore_tables() -> None:
    kept = STATE / "tables.json"
    if kept.exists():
        for name, value in json.loads(kept.read_text()).items():
            (Path("/proc/sys") / name).write_text(f"{value}\n")
        kept.unlink()


def _read(name: str) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads((STATE / name / "state.json").read_text())
    except FileNotFoundError:
        return None
    return state


def _write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def _lives(pid: int, started: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - started) < 1
    except psutil.NoSuchProcess:
        return False


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One process at a time reads and changes what labs there are."""
    STATE.mkdir(exist_ok=True)
    with (STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
