"""Where the swarm is: finds a manager that answers, and the host behind a node.

What is remembered on this machine is only where to knock; the swarm itself is asked for everything else. May import:
``engine``, ``observe``, ``inventory``, ``ssh``, ``swarm``, ``console``.
"""

import ipaddress
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from ..console import Story
from ..errors import SwarmctlError, UnreachableError, UsageError
from .engine import Engine, EngineError, engine_on
from .inventory import HERE, Host, Inventory, expand
from .observe import observe
from .ssh import Connection, SshSettings, connect, here, knows
from .swarm import Node, Swarm

_KNOCK_SEC = 10.0
_FILE = "swarm.json"
_SELF = "this machine"


@dataclass(frozen=True)
class Settings:
    """How a command reaches machines.

    Attributes:
        state: Folder of what swarmctl remembers on this machine.
        inventory: The fleet file's hosts, or none.
        ssh: For all connections.
        manager: The host whose engine to ask, where the user named one.
        deadline: Seconds for one host.
    """

    state: Path
    inventory: Inventory
    ssh: SshSettings
    manager: str = ""
    deadline: float = 60.0


class Memory(msgspec.Struct, frozen=True):
    """What is kept between commands.

    Attributes:
        swarm: The cluster's id.
        managers: How to reach its managers, as on the command line.
        hosts: The same for every node whose host was named on a command line, by node id.
    """

    swarm: str = ""
    managers: tuple[str, ...] = ()
    hosts: dict[str, str] = {}


@dataclass(frozen=True)
class Manager:
    """A manager that answered.

    Attributes:
        connection: To its machine.
        engine: Its Docker.
        swarm: What it said.
        local: Whether it is this machine.
    """

    connection: Connection
    engine: Engine
    swarm: Swarm
    local: bool

    def again(self) -> Swarm:
        """Ask once more."""
        return observe(self.engine)


@contextmanager
def manager(settings: Settings) -> Iterator[Manager]:
    """The first manager that answers: the one that was named, else this machine, else those known from before.

    Raises:
        UnreachableError: None answers; the message says what each said.
        UsageError: The one that was named is none.
    """
    with ExitStack() as stack:
        found = _named(settings, stack) if settings.manager else _find(settings, stack)
        # What was typed reached it, which its address alone may not.
        typed = {found.swarm.via_node_id: found.connection.host} if settings.manager and not found.local else {}
        remember(settings, found.swarm, typed)
        yield found


class _NoManagerError(SwarmctlError):
    """The machine answers, and is no manager.

    Attributes:
        state: Its place in a swarm, as its engine calls it.
        managers: Addresses of the managers that it knows.
    """

    def __init__(self, name: str, state: str, managers: tuple[str, ...]) -> None:
        """Take the machine's name, its state, and the managers that it knows."""
        what = "a worker" if state == "active" else f"in no swarm (its state is {state})"
        super().__init__(f"{name} is {what}, not a manager", *(f"--manager {address}" for address in managers))
        self.state = state
        self.managers = managers


def _named(settings: Settings, stack: ExitStack) -> Manager:
    host = expand([settings.manager], settings.inventory)[0]
    try:
        return _knock(host, settings, stack)
    except _NoManagerError as error:
        raise UsageError(str(error), *error.next_steps) from error


def _find(settings: Settings, stack: ExitStack) -> Manager:
    waiting = [
        Host(HERE),
        *_hosts(recall(settings).managers, settings.inventory),
        *(host for host in settings.inventory.hosts if host.role == "manager"),
    ]
    refusals: dict[str, SwarmctlError] = {}
    while waiting:
        host = waiting.pop(0)
        if host.name in refusals:
            continue
        try:
            return _knock(host, settings, stack)
        except _NoManagerError as error:
            refusals[host.name] = error
            waiting += _hosts(error.managers, settings.inventory)  # a worker knows who its managers are
        except SwarmctlError as error:
            refusals[host.name] = error
    raise _none_answers(recall(settings), refusals)


def _none_answers(memory: Memory, refusals: dict[str, SwarmctlError]) -> UnreachableError:
    """What each said that was asked, and what to do; how to make a swarm only where none is known of."""
    here_said = refusals[HERE]
    known = memory.swarm or len(refusals) > 1 or not _is_no_part_of_a_swarm(here_said)
    if not known:
        return UnreachableError(
            "no swarm is known here: this machine is no manager, and none was named",
            "swarmctl init            # makes a swarm, with this machine as its manager",
            "swarmctl init HOST       # the same, with another machine as its manager",
            "swarmctl nodes --manager HOST   # there is one already",
            "--local   # with deploy, status, scale, logs, rm: on this machine, with no swarm",
        )
    asked = "no manager of the swarm answers; asked were" if len(refusals) > 1 else "no manager of the swarm is known"
    steps: list[str] = []
    for error in refusals.values():
        if isinstance(error, _NoManagerError):
            steps += (f"swarmctl nodes --manager USER@{address}" for address in error.managers)
        elif len(refusals) == 1 or not (error is here_said and isinstance(error, UnreachableError)):
            steps += error.next_steps
    steps.append("swarmctl nodes --manager HOST   # names another")
    said = [f"  {_said(name, error)}" for name, error in refusals.items()]
    return UnreachableError("\n".join([asked, *said]), *dict.fromkeys(steps))


def _is_no_part_of_a_swarm(error: SwarmctlError) -> bool:
    """Whoever drives a swarm from a laptop needs no Docker on it."""
    return isinstance(error, UnreachableError) or (isinstance(error, _NoManagerError) and error.state == "inactive")


def _said(name: str, error: SwarmctlError) -> str:
    name = _SELF if name == HERE else name
    return str(error) if name in str(error).partition("\n")[0] else f"{name}: {error}"


def _hosts(words: Iterable[str], inventory: Inventory) -> list[Host]:
    """The hosts behind words that no person typed just now; one that names none is passed over."""
    found = []
    for one in words:
        try:
            found += expand([one], inventory)
        except UsageError:
            _warn_once(f"{one!r} is remembered as a host, and names none")
    return found


def open_host(host: Host, settings: Settings, timeout: float = _KNOCK_SEC) -> Connection:
    """Reach a machine: by SSH, or this one without."""
    return here() if host.is_here else connect(host, settings=settings.ssh, timeout=timeout)


def _knock(host: Host, settings: Settings, stack: ExitStack) -> Manager:
    with ExitStack() as trying:
        connection = trying.enter_context(open_host(host, settings))
        engine = trying.enter_context(open_engine(connection))
        info = engine.info()
        if not info["Swarm"].get("ControlAvailable"):
            name = _SELF if host.is_here else host.name
            raise _NoManagerError(name, info["Swarm"].get("LocalNodeState", "inactive"), _managers_in(info))
        try:
            swarm = observe(engine, info)
        except EngineError as error:
            raise EngineError(
                str(error),
                "swarmctl doctor   # tells which managers are missing",
                "docker swarm init --force-new-cluster   # on this manager, when the others are lost for good",
                status=error.status,
            ) from error
        stack.push(trying.pop_all())
    return Manager(connection, engine, swarm, local=host.is_here)


@contextmanager
def open_engine(connection: Connection) -> Iterator[Engine]:
    """A machine's engine: as the user, or with sudo where that is what it takes."""
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(engine_on(connection))
        except UnreachableError as error:
            if "permission denied" not in str(error).lower():
                raise
            engine = stack.enter_context(engine_on(connection, sudo=True))
        yield engine


def _managers_in(info: dict[str, dict[str, object]]) -> tuple[str, ...]:
    peers = info["Swarm"].get("RemoteManagers") or ()
    assert isinstance(peers, list | tuple)
    return tuple(str(peer["Addr"]).rpartition(":")[0].strip("[]") for peer in peers)


# What is remembered ---------------------------------------------------------------------------------------------


def recall(settings: Settings) -> Memory:
    """What this machine remembers; nothing, where there is nothing or it can't be read."""
    path = settings.state / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Memory)
    except FileNotFoundError:
        return Memory()
    except OSError as error:
        _warn_once(f"can't read where the swarm is from {path}: {error.strerror}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _warn_once(f"{path} does not tell where the swarm is: {error}")
    return Memory()


def remember(settings: Settings, swarm: Swarm, hosts: dict[str, Host] | None = None) -> None:
    """Keep where the managers are, those that are up first, and which host was meant by which node."""
    old = recall(settings)
    if old.swarm != swarm.id:
        old = Memory(swarm=swarm.id)
    words = {**old.hosts, **{node_id: word(host) for node_id, host in (hosts or {}).items()}}
    known = {node.id for node in swarm.nodes}
    # Just after the managers changed their leader none of them is ready; they are where they were, though.
    up_first = sorted(swarm.managers, key=lambda node: node.state != "ready")
    memory = Memory(
        swarm=swarm.id,
        managers=tuple(dict.fromkeys(word(host_of(node, settings, words)) for node in up_first)) or old.managers,
        hosts={node_id: name for node_id, name in words.items() if node_id in known},
    )
    if memory != old:
        path = settings.state / _FILE
        try:
            _write(path, msgspec.json.format(msgspec.json.encode(memory), indent=1))
        except OSError as error:
            _warn_once(f"can't keep where the swarm is in {path}: {error.strerror}; --manager HOST names it")


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, whoever else does the same just now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink()
        raise


@cache
def _warn_once(text: str) -> None:
    """What is remembered is asked for many times in a command."""
    Story().warn(text)


def word(host: Host) -> str:
    """A host as it is named on a command line."""
    user = f"{host.user}@" if host.user else ""
    if host.port is None:
        return f"{user}{host.name}"
    return f"{user}[{host.name}]:{host.port}" if _is_ipv6(host.name) else f"{user}{host.name}:{host.port}"


def _is_ipv6(name: str) -> bool:
    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return False
    return True


# The host behind a node -----------------------------------------------------------------------------------------


def host_of(node: Node, settings: Settings, words: dict[str, str] | None = None) -> Host:
    """How to reach a node's machine: by the fleet file, as it was named before, by ~/.ssh/config, by its address."""
    address = address_of(node)
    for host in settings.inventory.hosts:
        if address in {host.address, host.name} or host.name.partition(".")[0] == node.hostname:
            return host
    words = recall(settings).hosts if words is None else words
    if node.id in words and (named := _hosts([words[node.id]], settings.inventory)):
        return named[0]
    if knows(node.hostname, settings.ssh):
        return Host(name=node.hostname)
    return Host(name=address or node.hostname)


def address_of(node: Node) -> str:
    """The address that others reach it by; the leader may list itself as 0.0.0.0."""
    if node.address not in {"", "0.0.0.0", "127.0.0.1"}:  # noqa: S104  # compared, not listened on
        return node.address
    return node.manager_address.rpartition(":")[0].strip("[]")


def machine_host(node: Node, found: Manager, settings: Settings) -> Host:
    """How to reach a node's machine; this one needs no SSH."""
    if found.local and node.id == found.swarm.via_node_id:
        return Host(HERE)
    return host_of(node, settings)


@contextmanager
def engine_of(node: Node, found: Manager, settings: Settings) -> Iterator[Engine]:
    """A node's own engine, for as long as the block lasts.

    Raises:
        UnreachableError: Its machine or its engine does not answer.
    """
    if node.id == found.swarm.via_node_id:
        yield found.engine
        return
    with open_host(machine_host(node, found, settings), settings) as connection, open_engine(connection) as engine:
        yield engine


def manager_addresses(swarm: Swarm) -> list[str]:
    """``host:port`` of every manager, the leader first."""
    return [node.manager_address for node in swarm.managers if node.manager_address]
