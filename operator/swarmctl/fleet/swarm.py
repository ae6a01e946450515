"""A swarm as it was observed, as plain data. Imports nothing of ours and does no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field

CLASS = "fdtc.class"
PROFILE = "fdtc.profile"
ARCH = "fdtc.arch"
MEMORY = "fdtc.memory-mb"
CORES = "fdtc.cores"
IDENTITY = "fdtc.identity"
SOURCE = "fdtc.source"

_DOCKERS_WORDS = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "armv6l": "arm"}


def dockers_arch(kernel_arch: str) -> str:
    """Docker's word for an architecture that a kernel names."""
    return _DOCKERS_WORDS.get(kernel_arch, kernel_arch)


@dataclass(frozen=True, slots=True)
class Node:
    """One node, as the managers see it.

    Attributes:
        id: The swarm's.
        version: Index that an update has to name.
        hostname: As the engine reported it when it last connected.
        address: As the managers saw it; ``0.0.0.0`` when never.
        role: ``worker`` or ``manager``.
        availability: ``active``, ``pause`` or ``drain``.
        state: ``ready``, ``down``, ``unknown`` or ``disconnected``.
        message: The managers' own words on the state.
        labels: All of them, ours and others'.
        name: ``Spec.Name``, which nobody sets, but an update must keep.
        leader: Whether it leads the managers.
        reachability: ``reachable`` or ``unreachable`` among the managers; empty for a worker.
        manager_address: ``host:port`` of a manager.
        engine_version: Such as ``28.5.2``.
        memory_mb: As its engine counts it.
        cores: As its engine counts them.
        platform_arch: Kernel's word, such as ``x86_64``.
    """

    id: str
    version: int
    hostname: str
    address: str
    role: str
    availability: str
    state: str
    message: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    leader: bool = False
    reachability: str = ""
    manager_address: str = ""
    engine_version: str = ""
    memory_mb: int = 0
    cores: float = 0.0
    platform_arch: str = ""

    @property
    def arch(self) -> str:
        """Docker's word: of its userland where it was probed, else of its kernel."""
        return self.labels.get(ARCH) or dockers_arch(self.platform_arch)


@dataclass(frozen=True, slots=True)
class Task:
    """A task that runs, or should.

    Attributes:
        id: The swarm's.
        service: The service's name.
        slot: Number among its replicas, or None for a global service.
        node_id: Where it is.
        state: Such as ``running``.
        constraints: Of its own spec, such as ``node.labels.fdtc.class==rpi``.
    """

    id: str
    service: str
    slot: int | None
    node_id: str
    state: str
    constraints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Swarm:
    """What one manager said.

    Attributes:
        id: The cluster's.
        version: Index that an update of the swarm's spec has to name.
        spec: The raw spec, to be changed and sent back whole.
        worker_token: For ``docker swarm join``.
        manager_token: The same, for a manager.
        pool: Address pools that overlay networks are cut from, as CIDR.
        autolock: Whether managers need a key after a restart.
        via: Name of the host whose engine was asked.
        via_node_id: Its node.
        nodes: All nodes.
        tasks: Tasks whose desired state is ``running``.
        secrets: Labels of each secret, by name.
        configs: Labels of each config, by name.
        networks: Subnets of each overlay network, by name.
        ca_pem: The swarm's root certificate.
        overlay_mtu: The largest packet that the overlay networks put on the wire, in bytes.
    """

    id: str
    version: int
    spec: Mapping[str, object]
    worker_token: str
    manager_token: str
    pool: tuple[str, ...]
    autolock: bool
    via: str
    via_node_id: str
    nodes: tuple[Node, ...]
    tasks: tuple[Task, ...]
    secrets: Mapping[str, Mapping[str, str]]
    configs: Mapping[str, Mapping[str, str]]
    networks: Mapping[str, tuple[str, ...]]
    ca_pem: str = ""
    overlay_mtu: int = 1500

    @property
    def managers(self) -> tuple[Node, ...]:
        """The managers, the leader first."""
        return tuple(sorted((node for node in self.nodes if node.role == "manager"), key=lambda node: not node.leader))

    def node(self, id_: str) -> Node | None:
        """A node by its id."""
        return next((node for node in self.nodes if node.id == id_), None)
