"""Asks a machine what it is: one shell script in one SSH exec, read by a pure function.

``probe.sh`` only collects; what its lines mean is decided here. Nothing that a machine answers can raise anything but
`ProbeError`. May import: ``fleet.facts``, ``fleet.connection`` (types only), ``errors``.
"""

import ipaddress
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, get_args

import msgspec

from ..errors import SwarmctlError
from .facts import Access, Address, EngineFacts, Probe, Route

if TYPE_CHECKING:
    from .connection import Connection

_BEGIN = "--- swarmctl probe 1"
_END = "--- swarmctl probe end"
_TIMEOUT_SEC = 45.0

_FLAGS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "neon", "asimd")
_DOCKERS_DEVICES = re.compile(r"docker0|docker_gwbridge|veth|br-[0-9a-f]{12}")
# What systemd-detect-virt calls things, by the maker in a virtual machine's DMI tables.
_HYPERVISORS = {
    "qemu": "kvm",
    "kvm": "kvm",
    "vmware": "vmware",
    "innotek": "oracle",
    "virtualbox": "oracle",
    "xen": "xen",
    "virtual machine": "microsoft",
    "parallels": "parallels",
    "bochs": "bochs",
    "amazon ec2": "amazon",
    "google compute engine": "google",
    "openstack": "kvm",
    "bhyve": "bhyve",
    "apple virtualization": "apple",
}
_CONTAINERS = {"container-other", "docker", "lxc", "lxc-libvirt", "openvz", "podman", "systemd-nspawn", "wsl"}

Records = Mapping[str, Sequence[str]]


class ProbeError(SwarmctlError):
    """A machine was reached, but what it answered is not a probe."""


def script(manager: str | None) -> bytes:
    """The text for ``sh -s``.

    Args:
        manager: Address or name of the machine that the route is wanted to; None: the default route's.
    """
    name = ""
    if manager is not None:
        try:
            manager = str(ipaddress.ip_address(manager))
        except ValueError:
            manager, name = "", manager
    parameters = f"manager={shlex.quote(manager or '')} manager_name={shlex.quote(name)}\n"
    return parameters.encode() + resources.files(__package__).joinpath("probe.sh").read_bytes()


def probe(connection: "Connection", manager: str | None = None) -> Probe:
    """Ask a machine.

    Args:
        connection: To it.
        manager: Address or name of the machine that the route is wanted to.

    Raises:
        ProbeError: It did not answer with a probe; the message has what it said instead.
        SwarmctlError: What `Connection.run` raises.
    """
    asked_at = time.time()
    done = connection.run("sh -s", stdin=script(manager), timeout=_TIMEOUT_SEC)
    answered_at = time.time()
    try:
        return parse(done.stdout, asked_at=asked_at, answered_at=answered_at)
    except ProbeError as error:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing on its error output"]
        raise ProbeError(
            f"{connection.host.name}: {error} (exit status {done.status}; it said: {said[-1][:200]})",
            f"ssh {connection.host.name} 'echo it works' </dev/null   # must print that and nothing of an error",
        ) from error


def parse(stdout: bytes, *, asked_at: float, answered_at: float) -> Probe:
    """Read the script's output.

    Args:
        stdout: All that came; a greeting before and noise behind it do no harm.
        asked_at: Our clock just before the script was sent, in seconds since 1970.
        answered_at: The same, when its output had ended.

    Raises:
        ProbeError: The frame is not there, or not whole.
    """
    records = _records(stdout)
    offset, doubt = _clock(records, asked_at, answered_at)
    engine, engine_notes = _engine(records)
    addresses, mtus = _addresses(records.get("address", ()))
    disk_total, disk_free = _disk(records)
    flags = f"{_cpu(records, 'flags')} {_cpu(records, 'Features')}".split()
    virtualization = _virtualization(records, flags)
    return Probe(
        hostname=_one(records, "hostname").partition(".")[0],
        machine_id=_one(records, "machine_id"),
        kernel=_one(records, "kernel"),
        kernel_arch=_one(records, "kernel_arch"),
        long_bit={"32": 32, "64": 64}.get(_one(records, "long_bit")),
        system=_one(records, "system").partition("=")[2].strip("\"'"),
        model=_one(records, "model") or _one(records, "dmi_product"),
        compatible=tuple(records.get("compatible", ())),
        revision=_cpu(records, "Revision"),
        memory_mb=_memory_mb(records),
        cores=_cores(records),
        cpu_model=_cpu(records, "model name"),
        cpu_flags=tuple(flag for flag in _FLAGS if flag in flags),
        chassis_type=_whole(_one(records, "chassis_type")),
        has_battery=_has_battery(records),
        virtualization=virtualization,
        disk_path=_one(records, "disk_folder"),
        disk_total_mb=disk_total,
        disk_free_mb=disk_free,
        addresses=addresses,
        networks=_networks(records.get("network", ())),
        route=_route(records, addresses, mtus),
        temperature_c=_temperature(records.get("temperature", ())),
        throttled=_throttled(records),
        memory_cgroup=_memory_cgroup(records, engine),
        vxlan=_vxlan(records, virtualization),
        clock_offset_sec=offset,
        clock_doubt_sec=doubt,
        uptime_sec=_number(_one(records, "uptime").partition(" ")[0]),
        tools=tuple(records.get("tool", ())),
        engine=engine,
        notes=(*records.get("note", ()), *_unread(records), *engine_notes),
    )


def _records(stdout: bytes) -> dict[str, list[str]]:
    """The values of each key, in their order."""
    lines = stdout.decode(errors="replace").replace("\r\n", "\n").split("\n")
    if _BEGIN not in lines:
        raise ProbeError("what came is not a probe: its first line is missing")
    lines = lines[lines.index(_BEGIN) + 1 :]
    if _END not in lines:
        raise ProbeError("the probe broke off before its last line")
    records: dict[str, list[str]] = {}
    for line in lines[: lines.index(_END)]:
        key, tab, value = line.partition("\t")
        if tab:
            records.setdefault(key, []).append(value)
    return records


def _one(records: Records, key: str) -> str:
    """The first value of a key that is not empty; empty where there is none."""
    return next(filter(None, (value.strip("\0 \t") for value in records.get(key, ()))), "")


def _whole(text: str) -> int | None:
    """A whole number of a believable length."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text) else None


def _unread(records: Records) -> list[str]:
    """What is missing that a Linux machine should have."""
    missing = {
        "started": "clock: there is no date command",
        "memory": "memory: there is no /proc/meminfo; is this Linux?",
        "address": "addresses and routes: there is no ip command",
        "disk": "disk: there is no df command",
        "long_bit": "userland: neither getconf nor the shell's own file tells whether it is a 64-bit one",
    }
    notes = [note for key, note in missing.items() if key not in records]
    if _one(records, "vxlan") == "no-modules":
        notes.append("vxlan: the running kernel has no folder in /lib/modules (upgraded and not yet rebooted?)")
    return notes


def _clock(records: Records, asked_at: float, answered_at: float) -> tuple[float | None, float]:
    """Its clock minus ours, and the doubt, in seconds.

    The stamp was taken some time after we asked, and before we were answered by at least the time that the script
    took behind it. The middle of that span is the best guess, and half its length what it may be wrong by (RFC 5905,
    section 8).
    """
    started = re.fullmatch(r"([0-9]{1,11})(\.[0-9]{1,9})?\D*", _one(records, "started"))
    if not started:
        return None, 0.0
    span = max(0.0, answered_at - asked_at)
    if started[2] is None:  # BusyBox knows no %N: somewhere within that second
        return int(started[1]) + 0.5 - (asked_at + span / 2), span / 2 + 0.5
    stamp = float(started[1] + started[2])
    ended = _number(_one(records, "ended"))
    took = ended - stamp if ended is not None else 0.0
    if 0.0 <= took <= span:  # otherwise its clock was set meanwhile
        span -= took
    return stamp - (asked_at + span / 2), span / 2


def _cpu(records: Records, name: str) -> str:
    """A line of /proc/cpuinfo."""
    for line in records.get("cpu", ()):
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _memory_mb(records: Records) -> int:
    """MemTotal, or the limit of the container that the machine is."""
    total = re.fullmatch(r"MemTotal:\s*([0-9]{1,15}) kB", _one(records, "memory"))
    if not total:
        return 0
    limits = (_whole(limit.strip()) for limit in records.get("memory_limit", ()))
    return min([int(total[1]) // 1024, *(limit // 2**20 for limit in limits if limit)])


def _cores(records: Records) -> int:
    """CPUs in a list such as ``0-3,6``."""
    ranges = re.findall(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", _one(records, "cores"))
    listed = sum(max(0, int(last or first) - int(first) + 1) for first, last in ranges)
    return listed or _whole(_one(records, "cores_count")) or 0


def _has_battery(records: Records) -> bool | None:
    """Whether a battery drives the machine; a mouse's has scope Device, and a removed one is not present."""
    if any(re.match(r"(?!Device )\S+ (?!0 )\S+ ", line) for line in records.get("battery", ())):
        return True
    return False if "power_supplies" in records else None


def _virtualization(records: Records, flags: Sequence[str]) -> str:
    """In systemd-detect-virt's words, which wins where it is there."""
    detected = _one(records, "virtualization")
    if detected:
        return "" if detected == "none" else detected
    if container := _one(records, "container"):
        return container
    group = _one(records, "init_cgroup")
    for part, name in {"/docker": "docker", "/lxc": "lxc", "/libpod": "podman", "/kubepods": "container-other"}.items():
        if part in group:
            return name
    if hypervisor := _one(records, "hypervisor"):
        return hypervisor
    dmi = f"{_one(records, 'dmi_vendor')} {_one(records, 'dmi_product')}".lower()
    for maker, name in _HYPERVISORS.items():
        if maker in dmi:
            return name
    return "vm-other" if "hypervisor" in flags else ""


def _disk(records: Records) -> tuple[int | None, int | None]:
    """Total and free MiB, out of `df -Pk`: used and free make the total, since the rest is kept for root."""
    line = next(reversed(records.get("disk", ())), "")
    found = re.search(r" ([0-9]{1,15}) +([0-9]{1,15}) +[0-9]+% ", line)
    if not found:
        return None, None
    used, free = int(found[1]), int(found[2])
    return (used + free) // 1024, free // 1024


def _addresses(lines: Sequence[str]) -> tuple[tuple[Address, ...], dict[str, int]]:
    """The addresses out of `ip addr show`, and each device's MTU."""
    addresses, mtus, device = [], {}, ""
    for line in lines:
        if head := re.match(r"[0-9]+: ([^:@\s]+)[:@].* mtu ([0-9]{1,9})\b", line):
            device = head[1]
            mtus[device] = int(head[2])
        elif entry := re.match(r"\s+inet6? ([0-9a-f:.]+)(?: peer \S+?)?(?:/([0-9]{1,3}))?\s(.*)", line):
            parsed = _address(entry[1])
            # Every device has an IPv6 link-local address, which means nothing on another machine.
            if parsed is None or parsed.is_loopback or (parsed.version == 6 and parsed.is_link_local):
                continue
            if device == "lo" or _DOCKERS_DEVICES.match(device):
                continue
            length = int(entry[2] or parsed.max_prefixlen)
            addresses.append(Address(device, str(parsed), length, "dynamic" in entry[3].split()))
    return tuple(addresses), mtus


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _networks(lines: Sequence[str]) -> tuple[str, ...]:
    """IPv4 networks out of `ip route show`, each once."""
    networks: dict[str, None] = {}
    for line in lines:
        for word in line.split()[:2]:  # the second where the first is a type, such as "unreachable"
            if _address(word.partition("/")[0]) is None:
                continue
            try:
                network = ipaddress.IPv4Network(word, strict=False)
            except ValueError:
                break
            if network.prefixlen:
                networks[str(network)] = None
            break
    return tuple(networks)


def _route(records: Records, addresses: Sequence[Address], mtus: Mapping[str, int]) -> Route:
    """Out of `ip route get`."""
    words = _one(records, "route").split()
    if not words or words[0] in ("unreachable", "blackhole", "prohibit", "throw"):
        return Route()
    told = dict(pairwise(words))
    source, device = told.get("src", ""), told.get("dev", "")
    if device == "lo":  # to one of its own addresses
        device = next((address.device for address in addresses if address.address == source), device)
    wireless = device in records.get("radio", ()) if "radios" in records else None
    return Route(source, device, wireless, _whole(told.get("mtu", "")) or mtus.get(device))


def _temperature(lines: Sequence[str]) -> float | None:
    """The hottest of the processor's sensors; a sensor that is off says 0 or something absurd."""
    degrees = [milli / 1000 for line in lines if (milli := _whole(line.strip())) and 1000 <= milli <= 150_000]
    return max(degrees, default=None)


def _throttled(records: Records) -> int | None:
    """The firmware's bits: `vcgencmd` writes ``throttled=0x50005``, the kernel ``50005``."""
    for text in (_one(records, "throttled"), _one(records, "throttled_hex")):
        if found := re.fullmatch(r"(?:throttled=)?(?:0x)?([0-9a-fA-F]{1,8})", text):
            return int(found[1], 16)
    return None


def _memory_cgroup(records: Records, engine: EngineFacts) -> bool | None:
    if "cgroup2" in records:
        return "memory" in _one(records, "cgroup2").split()
    if columns := _one(records, "cgroup1").split():
        return columns[-1] == "1"
    return engine.memory_limit


def _vxlan(records: Records, virtualization: str) -> bool | None:
    """A kernel without its folder of modules can load none; but a container's modules are its host's affair."""
    found = _one(records, "vxlan")
    if found == "no-modules" and virtualization in _CONTAINERS:
        return None
    return {"loaded": True, "loadable": True, "missing": False, "no-modules": False}.get(found)


class _Manager(msgspec.Struct, rename="pascal"):
    addr: str = ""


class _Cluster(msgspec.Struct):
    id: str = msgspec.field(name="ID", default="")


class _Swarm(msgspec.Struct, rename="pascal"):
    local_node_state: str = ""
    error: str = ""
    node_id: str = msgspec.field(name="NodeID", default="")
    node_addr: str = ""
    control_available: bool = False
    remote_managers: list[_Manager] | None = None
    cluster: _Cluster | None = None


class _Component(msgspec.Struct, rename="pascal"):
    name: str = ""


class _Answer(msgspec.Struct, rename="pascal"):
    """What we need of ``/version`` and ``/info`` together; they share no key that matters."""

    version: str = ""
    server_version: str = ""
    api_version: str = ""
    arch: str = ""
    components: list[_Component] | None = None
    memory_limit: bool | None = None
    security_options: list[str] | None = None
    docker_root_dir: str = ""
    swarm: _Swarm | None = None
    message: str = msgspec.field(name="message", default="")


def _engine(records: Records) -> tuple[EngineFacts, list[str]]:
    """What Docker said, and notes on what could not be read of it."""
    together: dict[str, object] = {}
    words, notes = [], []
    for line in records.get("engine", ()):
        try:
            together.update(msgspec.json.decode(line, type=dict[str, object]))
        except (msgspec.MsgspecError, RecursionError):
            words.append(line.strip())
    try:
        answer = msgspec.convert(together, _Answer)
    except (msgspec.MsgspecError, RecursionError) as error:
        notes.append(f"engine: its answer can't be read: {error}")
        answer = _Answer()
    access: Access = next((known for known in get_args(Access) if known == _one(records, "access")), "")
    whole = answer.api_version and answer.docker_root_dir  # then what was said besides is no failure
    error_text = "" if whole else answer.message or next((word for word in reversed(words) if word != "null"), "")
    if any("podman" in component.name.lower() for component in answer.components or ()):
        access, error_text = "absent", "what answers on Docker's socket is Podman, which has no swarm"
    certificate = "\n".join(records.get("certificate", ()))
    pem = certificate + "\n" if certificate.startswith("-----BEGIN CERTIFICATE-----") else ""
    return _engine_facts(answer, access, error_text[:300], pem), notes


def engine_facts(info: Mapping[str, object], version: Mapping[str, object], access: Access) -> EngineFacts:
    """The same facts, of an engine that could be asked only after the script had run.

    Args:
        info: Answer to ``/info``.
        version: Answer to ``/version``.
        access: How it was reached.
    """
    return _engine_facts(msgspec.convert({**info, **version}, _Answer), access, "", "")


def _engine_facts(answer: "_Answer", access: Access, error: str, certificate_pem: str) -> EngineFacts:
    swarm = answer.swarm or _Swarm()
    return EngineFacts(
        access=access,
        version=answer.server_version or answer.version,
        api_version=answer.api_version,
        arch=answer.arch,
        error=error,
        memory_limit=answer.memory_limit,
        rootless="name=rootless" in (answer.security_options or ()),
        data_root=answer.docker_root_dir,
        swarm_state=swarm.local_node_state,
        swarm_error=swarm.error,
        node_id=swarm.node_id,
        node_address=swarm.node_addr,
        is_manager=swarm.control_available,
        managers=tuple(manager.addr for manager in swarm.remote_managers or () if manager.addr),
        cluster_id=swarm.cluster.id if swarm.cluster else "",
        certificate_pem=certificate_pem,
    )
