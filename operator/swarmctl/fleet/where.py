"""Where the swarm is: finds a manager that answers, and the host behind a node.

What is remembered on this machine is only where to knock; the swarm itself is asked for everything else. May import:
``engine``, ``observe``, ``inventory``, ``ssh``, ``swarm``.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import SwarmctlError, UnreachableError, UsageError
from .engine import Engine, EngineError, engine_on
from .inventory import HERE, Host, Inventory, expand
from .observe import observe
from .ssh import Connection, SshSettings, connect, here, knows
from .swarm import Node, Swarm

_KNOCK_SEC = 10.0
_FILE = "swarm.json"


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
        found = _find(settings, stack)
        remember(settings, found.swarm)
        yield found


def _find(settings: Settings, stack: ExitStack) -> Manager:
    tried: list[str] = []
    for host in _candidates(settings):
        try:
            return _knock(host, settings, stack)
        except _NoManagerError as error:
            if settings.manager:
                raise UsageError(str(error), *error.next_steps) from error
            if not host.is_here:
                tried.append(str(error))
        except SwarmctlError as error:
            if settings.manager:
                raise
            if not (host.is_here and _no_engine_here(error)):
                tried.append(str(error))
    if tried:
        raise UnreachableError(
            "no manager of the swarm answers\n" + "\n".join(tried), "swarmctl status --manager HOST   # names another"
        )
    raise UnreachableError(
        "no swarm is known here: this machine is no manager, and none was named",
        "swarmctl init            # makes a swarm, with this machine as its manager",
        "swarmctl init HOST       # the same, with another machine as its manager",
        "swarmctl nodes --manager HOST   # there is one already",
    )


class _NoManagerError(SwarmctlError):
    """The machine answers, and is no manager."""


def _candidates(settings: Settings) -> Iterator[Host]:
    """Where to ask, in this order."""
    if settings.manager:
        yield from expand([settings.manager], settings.inventory)
        return
    yield Host(HERE)
    seen: set[str] = set()
    for host in (
        *expand(recall(settings).managers, settings.inventory),
        *(host for host in settings.inventory.hosts if host.role == "manager"),
    ):
        if host.name not in seen:
            seen.add(host.name)
            yield host


def _no_engine_here(error: SwarmctlError) -> bool:
    """Whoever drives a swarm from a laptop needs no Docker on it."""
    return isinstance(error, UnreachableError)


def open_host(host: Host, settings: Settings, timeout: float = _KNOCK_SEC) -> Connection:
    """Reach a machine: by SSH, or this one without."""
    return here() if host.is_here else connect(host, settings=settings.ssh, timeout=timeout)


def _knock(host: Host, settings: Settings, stack: ExitStack) -> Manager:
    with ExitStack() as trying:
        connection = trying.enter_context(open_host(host, settings))
        engine = trying.enter_context(open_engine(connection))
        info = engine.info()
        if not info["Swarm"].get("ControlAvailable"):
            state = info["Swarm"].get("LocalNodeState", "inactive")
            what = "a worker" if state == "active" else f"in no swarm (its state is {state})"
            raise _NoManagerError(f"{connection.host.name} is {what}, not a manager", *_managers_in(info))
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
    return tuple(f"--manager {str(peer['Addr']).rpartition(':')[0]}" for peer in peers)


# What is remembered ---------------------------------------------------------------------------------------------


def recall(settings: Settings) -> Memory:
    """What this machine remembers; nothing, where there is nothing or it can't be read."""
    try:
        return msgspec.json.decode((settings.state / _FILE).read_bytes(), type=Memory)
    except FileNotFoundError:
        return Memory()
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{settings.state / _FILE} can't be read: {error}", f"rm {settings.state / _FILE}   # it is only remembered"
        ) from error


def remember(settings: Settings, swarm: Swarm, hosts: dict[str, Host] | None = None) -> None:
    """Keep where the managers are, and which host was meant by which node."""
    old = recall(settings)
    if old.swarm != swarm.id:
        old = Memory(swarm=swarm.id)
    words = {**old.hosts, **{node_id: word(host) for node_id, host in (hosts or {}).items()}}
    known = {node.id for node in swarm.nodes}
    memory = Memory(
        swarm=swarm.id,
        managers=tuple(word(host_of(node, settings, words)) for node in swarm.managers if node.state == "ready"),
        hosts={node_id: name for node_id, name in words.items() if node_id in known},
    )
    if memory != old:
        settings.state.mkdir(parents=True, exist_ok=True)
        path = settings.state / _FILE
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(memory), indent=1))
        temporary.replace(path)


def word(host: Host) -> str:
    """A host as it is named on a command line."""
    user = f"{host.user}@" if host.user else ""
    port = f":{host.port}" if host.port else ""
    return f"{user}{host.name}{port}"


# The host behind a node -----------------------------------------------------------------------------------------


def host_of(node: Node, settings: Settings, words: dict[str, str] | None = None) -> Host:
    """How to reach a node's machine: by the fleet file, as it was named before, by ~/.ssh/config, by its address."""
    address = address_of(node)
    for host in settings.inventory.hosts:
        if address in {host.address, host.name} or host.name.partition(".")[0] == node.hostname:
            return host
    words = recall(settings).hosts if words is None else words
    if node.id in words:
        return expand([words[node.id]], settings.inventory)[0]
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


def manager_addresses(swarm: Swarm) -> list[str]:
    """``host:port`` of every manager, the leader first."""
    return [node.manager_address for node in swarm.managers if node.manager_address]
