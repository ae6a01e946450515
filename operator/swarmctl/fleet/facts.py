"""What a probe found out about a machine, as plain data. Imports nothing of ours and does no I/O.

An empty text, an empty tuple or None means "could not be read": a probe never guesses.
"""

from dataclasses import dataclass, field
from typing import Literal

Access = Literal["direct", "sudo", "sudo-password", "denied", "down", "absent", ""]


@dataclass(frozen=True, slots=True)
class Address:
    """One IPv4 or IPv6 address of a machine.

    Attributes:
        device: Network device, such as ``wlan0``.
        address: Without the prefix length.
        prefix_length: Bits of the network part.
        dynamic: From DHCP or the like: it has a lifetime, so it may be another one tomorrow.
    """

    device: str
    address: str
    prefix_length: int
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """How a machine reaches another: ``ip route get``.

    Attributes:
        source: The address it sends from.
        device: Network device.
        wireless: Whether the device is a radio.
        mtu: Of the device, in bytes.
    """

    source: str = ""
    device: str = ""
    wireless: bool | None = None
    mtu: int | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the machine's Docker engine says.

    Attributes:
        access: How the SSH user reaches the engine's socket: ``direct``, through ``sudo`` without a password, only
            with one (``sudo-password``), not at all (``denied``), nothing listens (``down``), Docker is not
            installed (``absent``).
        version: Such as ``28.5.2``.
        api_version: Such as ``1.51``.
        arch: Of the engine's own binary in Go's words (``amd64``, ``arm64``, ``arm``): it tells the userland's.
        error: What the engine or the shell said when it could not be asked.
        memory_limit: Whether the kernel lets containers be limited in memory.
        rootless: Whether the engine runs without root; such an engine can't be in a swarm.
        data_root: Folder of images and volumes.
        swarm_state: ``LocalNodeState``: inactive, pending, active, error, locked.
        swarm_error: Why, when the state is ``error``.
        node_id: In the swarm.
        node_address: Address that it advertises.
        is_manager: Whether it is a manager.
        managers: ``host:port`` of the managers that it knows.
        cluster_id: The swarm's, where the engine tells it (managers only).
        certificate_pem: The node's own swarm certificate, where it can be read.
    """

    access: Access = ""
    version: str = ""
    api_version: str = ""
    arch: str = ""
    error: str = ""
    memory_limit: bool | None = None
    rootless: bool = False
    data_root: str = ""
    swarm_state: str = ""
    swarm_error: str = ""
    node_id: str = ""
    node_address: str = ""
    is_manager: bool = False
    managers: tuple[str, ...] = ()
    cluster_id: str = ""
    certificate_pem: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """What one machine says of itself.

    Attributes:
        hostname: Short host name.
        machine_id: ``/etc/machine-id``.
        kernel: Release, ``uname -r``.
        kernel_arch: ``uname -m``.
        long_bit: ``getconf LONG_BIT``: 32 or 64, of the userland.
        system: Such as ``Debian GNU/Linux 12 (bookworm)``.
        model: devicetree model, or the DMI product name.
        compatible: devicetree compatible strings.
        revision: A Pi's revision code, hexadecimal.
        memory_mb: MemTotal in MiB.
        cores: CPUs that are online.
        cpu_model: Such as ``Intel(R) Core(TM) i5-4570``.
        cpu_flags: Those that matter to numpy: avx, avx2, fma, avx512f, asimd, neon, sse4_2.
        chassis_type: DMI chassis type.
        has_battery: A battery that drives the machine itself.
        virtualization: Such as ``kvm``, ``docker``, ``lxc``; empty: none, or not known.
        disk_path: Folder that `disk_free_mb` is of (the engine's data root where it exists).
        disk_total_mb: MiB.
        disk_free_mb: MiB.
        addresses: Of all devices but loopback and Docker's own.
        networks: IPv4 networks that its routing table knows, as CIDR; without the default route.
        route: To the address that the probe was given (a manager's), or the default route.
        temperature_c: Of the processor.
        throttled: Raspberry Pi's ``get_throttled`` bits.
        memory_cgroup: Whether the memory controller is on.
        vxlan: Whether the kernel has, or can load, the vxlan module.
        clock_offset_sec: Its clock minus ours, counted at the middle of the exchange.
        clock_doubt_sec: Half the exchange's length: the offset is known no better than this.
        uptime_sec: Seconds since it booted.
        tools: Those found of what doctor would use: python3, ping, bash, curl, sudo.
        engine: Its Docker.
        notes: What could not be read and why, a line each.
    """

    hostname: str = ""
    machine_id: str = ""
    kernel: str = ""
    kernel_arch: str = ""
    long_bit: int | None = None
    system: str = ""
    model: str = ""
    compatible: tuple[str, ...] = ()
    revision: str = ""
    memory_mb: int = 0
    cores: int = 0
    cpu_model: str = ""
    cpu_flags: tuple[str, ...] = ()
    chassis_type: int | None = None
    has_battery: bool | None = None
    virtualization: str = ""
    disk_path: str = ""
    disk_total_mb: int | None = None
    disk_free_mb: int | None = None
    addresses: tuple[Address, ...] = ()
    networks: tuple[str, ...] = ()
    route: Route = field(default_factory=Route)
    temperature_c: float | None = None
    throttled: int | None = None
    memory_cgroup: bool | None = None
    vxlan: bool | None = None
    clock_offset_sec: float | None = None
    clock_doubt_sec: float = 0.0
    uptime_sec: float | None = None
    tools: tuple[str, ...] = ()
    engine: EngineFacts = field(default_factory=EngineFacts)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a machine was taken for, and why.

    Attributes:
        hardware_class: ``rpi``, ``laptop``, ``desktop`` or ``server``.
        profile: Name of the profile, such as ``RPI4_4G``.
        arch: Docker's word for the userland: ``amd64``, ``arm64``, ``arm``, …
        confidence: ``sure`` (it says what it is), ``likely`` (form factor), ``guess`` (memory alone).
        reasons: One sentence a step of the decision.
    """

    hardware_class: str
    profile: str
    arch: str
    confidence: Literal["sure", "likely", "guess"]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, or may go wrong, with one machine or between two.

    Attributes:
        severity: ``error``: it can't work so; ``warning``: it will hurt at some time.
        check: Short name of what was looked at, such as ``clock`` or ``memory-cgroup``.
        where: The host, ``a -> b`` for a pair, or ``swarm``.
        message: What is so, with the figures.
        remedy: What to type or do, one a line.
        fix: Name of the safe mending that ``doctor --fix`` can do itself, or empty.
        subject: What the mending needs, such as a node id.
    """

    severity: Literal["error", "warning"]
    check: str
    where: str
    message: str
    remedy: tuple[str, ...] = ()
    fix: str = ""
    subject: str = ""
