"""Machines as their kernels and commands show them, written after documented formats, and the probe run on them.

A `Machine` is a folder of files and a folder of commands. `run` runs the real ``probe.sh`` on it, with its paths
turned to that folder, so what lies in ``probes/`` is what the script truly writes for such a machine. After a change of
the script or of a machine, write them again:

    python tests/fleet/probed_machines.py
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from swarmctl.fleet.probe import script

PROBES = Path(__file__).parent / "probes"
# When all of them were recorded, by our clock: the frame's stamps lie within.
ASKED_AT, ANSWERED_AT = 1_760_000_000.0, 1_760_000_000.4
NOW = 1_760_000_000
MANAGER = "192.168.1.10"
NOBODY = 65534
CERTIFICATE = "/var/lib/docker/swarm/certificates/swarm-node.crt"

Files = Mapping[str, str | None]  # None: a folder


@dataclass(frozen=True)
class Machine:
    """What the script can see.

    Attributes:
        files: Content by absolute path.
        commands: Body of a shell script by name; a command that is not here is not installed.
        socket: Path of the engine's socket; empty: none.
        may_write: Whether the user may write to it.
        environment: Of the SSH session.
        greeting: What the login shell writes before the script runs.
        noise: What it writes behind.
        secret: A file that only root may read.
    """

    files: Files
    commands: Mapping[str, str]
    socket: str = ""
    may_write: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    greeting: str = ""
    noise: str = ""
    secret: str = ""

    def but(
        self,
        files: Files | None = None,
        commands: Mapping[str, str] | None = None,
        *,
        without: Sequence[str] = (),
        **keys: Any,
    ) -> "Machine":
        """The same with other files and commands, and without those that begin so."""
        merged: dict[str, Any] = {
            "files": {**self.files, **(files or {})},
            "commands": {**self.commands, **(commands or {})},
        }
        for part in without:
            merged["files"] = {path: text for path, text in merged["files"].items() if not path.startswith(part)}
            merged["commands"].pop(part, None)
        same = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in merged}
        return Machine(**{**same, **merged, **keys})


def says(text: str, status: int = 0, error: str = "") -> str:
    """The body of a command that writes this."""
    told = f"printf '%s\\n' {shlex.quote(text)}\n" if text else ""
    told += f"printf '%s\\n' {shlex.quote(error)} >&2\n" if error else ""
    return f"{told}exit {status}\n"


def by_words(answers: Mapping[str, str]) -> str:
    """The body of a command that answers by its words, a shell pattern each."""
    cases = "".join(f"{pattern}) {body} ;;\n" for pattern, body in answers.items())
    return f'case "$*" in\n{cases}*) exit 1 ;;\nesac\n'


NO_PASSWORD = says("", 1, "sudo: a password is required")

# --- the network ---


def network(device: str, address: str, *, dynamic: bool = True, docker: bool = True, mtu: int = 1500) -> dict[str, str]:
    """`ip` of iproute2 on a machine with one device in use."""
    life = "valid_lft 85530sec preferred_lft 85530sec" if dynamic else "valid_lft forever preferred_lft forever"
    flag = "dynamic noprefixroute " if dynamic else ""
    base = address.rpartition(".")[0]
    shown = f"""\
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
       valid_lft forever preferred_lft forever
    inet6 ::1/128 scope host noprefixroute
       valid_lft forever preferred_lft forever
2: {device}: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu {mtu} qdisc fq_codel state UP group default qlen 1000
    link/ether dc:a6:32:11:22:33 brd ff:ff:ff:ff:ff:ff
    inet {address}/24 brd {base}.255 scope global {flag}{device}
       {life}
    inet6 fe80::dea6:32ff:fe11:2233/64 scope link noprefixroute
       valid_lft forever preferred_lft forever"""
    proto = "dhcp" if dynamic else "static"
    routes = f"""\
default via {base}.1 dev {device} proto {proto} src {address} metric 600
{base}.0/24 dev {device} proto kernel scope link src {address} metric 600"""
    if docker:
        shown += """
3: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN group default
    link/ether 02:42:5a:00:00:01 brd ff:ff:ff:ff:ff:ff
    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0
       valid_lft forever preferred_lft forever"""
        routes += "\n172.17.0.0/16 dev docker0 proto kernel scope link src 172.17.0.1 linkdown"
    to = f"{MANAGER} dev {device} src {address} uid 1000\n    cache"
    return {"ip": by_words({"'addr show'": says(shown), "'route show'": says(routes), "'route get '*": says(to)})}


def busybox_network(device: str, address: str) -> dict[str, str]:
    """`ip` of BusyBox: other words, the same order."""
    base = address.rpartition(".")[0]
    shown = f"""\
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
       valid_lft forever preferred_lft forever
2: {device}: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc pfifo_fast qlen 1000
    link/ether 52:54:00:12:34:56 brd ff:ff:ff:ff:ff:ff
    inet {address}/24 scope global {device}
       valid_lft forever preferred_lft forever"""
    routes = f"default via {base}.1 dev {device} \n{base}.0/24 dev {device} scope link  src {address} "
    to = f"{MANAGER} dev {device}  src {address} "
    return {"ip": by_words({"'addr show'": says(shown), "'route show'": says(routes), "'route get '*": says(to)})}


def nic(device: str, *, wireless: bool = False) -> dict[str, str | None]:
    files: dict[str, str | None] = {f"/sys/class/net/{name}/mtu": "1500\n" for name in ("lo", device, "docker0")}
    if wireless:
        files |= {f"/sys/class/net/{device}/wireless": None, f"/sys/class/net/{device}/phy80211": None}
    return files


# --- the engine ---


def engine(
    version: str = "28.5.2",
    api: str = "1.51",
    arch: str = "amd64",
    *,
    memory_limit: bool = True,
    root: str = "/var/lib/docker",
    swarm: Mapping[str, object] | None = None,
    security: Sequence[str] = ("name=seccomp,profile=builtin", "name=cgroupns"),
) -> tuple[str, str]:
    """The bodies of ``GET /version`` and ``GET /info`` (Docker Engine API), with the keys of use and some more."""
    machine = {"amd64": "x86_64", "arm64": "aarch64", "arm": "armv7l", "386": "i686"}[arch]
    release = {
        "Platform": {"Name": "Docker Engine - Community"},
        "Components": [
            {"Name": "Engine", "Version": version, "Details": {"ApiVersion": api, "Arch": arch, "Os": "linux"}}
        ],
        "Version": version,
        "ApiVersion": api,
        "MinAPIVersion": "1.24",
        "GitCommit": "89c5e8f",
        "GoVersion": "go1.24.9",
        "Os": "linux",
        "Arch": arch,
    }
    info = {
        "ID": "5d1c7e3a-5ed4-4d10-9a2c-2c2f7d9f6a11",
        "Containers": 2,
        "Images": 3,
        "Driver": "overlay2",
        "Plugins": {"Volume": ["local"], "Network": ["bridge", "host", "ipvlan", "macvlan", "null", "overlay"]},
        "MemoryLimit": memory_limit,
        "CgroupDriver": "systemd",
        "CgroupVersion": "2",
        "Architecture": machine,
        "NCPU": 4,
        "DockerRootDir": root,
        "Labels": [],
        "ServerVersion": version,
        "Swarm": swarm or no_swarm(),
        "SecurityOptions": list(security),
        "Warnings": None if memory_limit else ["WARNING: No memory limit support"],
    }
    return json.dumps(release, separators=(",", ":")), json.dumps(info, separators=(",", ":"))


def no_swarm(state: str = "inactive", error: str = "") -> dict[str, object]:
    return {
        "NodeID": "",
        "NodeAddr": "",
        "LocalNodeState": state,
        "ControlAvailable": False,
        "Error": error,
        "RemoteManagers": None,
    }


def in_swarm(address: str, *, manager: bool = False, state: str = "active", error: str = "") -> dict[str, object]:
    swarm = {
        "NodeID": "xq0u2l1rwk6k9m5yk1h0c8b3d",
        "NodeAddr": address,
        "LocalNodeState": state,
        "ControlAvailable": manager,
        "Error": error,
        "RemoteManagers": [
            {"NodeID": "t4gx3m0r2n8m6w1c5v7b9z0ad", "Addr": f"{MANAGER}:2377"},
            {"NodeID": "kq5o1o8v3d7f2j6h9s4l0p1xz", "Addr": "192.168.1.11:2377"},
        ],
    }
    if manager:
        swarm["Cluster"] = {"ID": "v8n2b6m1x0c9z7l5k3j4h2g1f", "DataPathPort": 4789}
    return swarm


def by_curl(answers: Sequence[str]) -> dict[str, str]:
    return {"curl": says("\n".join(answers))}


def by_docker(answers: Sequence[str]) -> dict[str, str]:
    return {"docker": by_words({"*' version '*": says(answers[0]), "*' info '*": says(answers[1])})}


def certificate(began: int, ends: int) -> str:
    """A swarm node's certificate, of days before or after `NOW`, as PEM: always the same, hence Ed25519."""
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))
    name = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "v8n2b6m1x0c9z7l5k3j4h2g1f"),
            x509.NameAttribute(x509.NameOID.ORGANIZATIONAL_UNIT_NAME, "swarm-worker"),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, "xq0u2l1rwk6k9m5yk1h0c8b3d"),
        ]
    )
    now = datetime.fromtimestamp(NOW, UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "swarm-ca")]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + timedelta(days=began))
        .not_valid_after(now + timedelta(days=ends))
        .sign(key, None)
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


# --- the parts of a machine ---


def system(
    hostname: str,
    kernel: str,
    arch: str,
    pretty: str,
    *,
    bits: int = 64,
    memory_kb: int,
    cores: int = 4,
    disk: tuple[int, int] = (28_000_000, 9_000_000),
) -> Machine:
    """What every Linux machine has; `disk` is total and used KiB."""
    total, used = disk
    device = "/dev/sda2" if arch == "x86_64" else "/dev/mmcblk0p2"
    return Machine(
        files={
            "/proc/sys/kernel/hostname": f"{hostname}\n",
            "/proc/sys/kernel/osrelease": f"{kernel}\n",
            "/etc/machine-id": f"{hash_of(hostname):032x}\n",
            "/etc/os-release": f'PRETTY_NAME="{pretty}"\nNAME="{pretty.split()[0]}"\n',
            "/proc/uptime": "183422.17 701230.44\n",
            "/proc/meminfo": f"MemTotal:       {memory_kb:>8} kB\nMemFree:        {memory_kb // 2:>8} kB\n",
            "/sys/devices/system/cpu/online": f"0-{cores - 1}\n",
            "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
            "/sys/class/power_supply": None,
            f"/lib/modules/{kernel}/modules.dep": "kernel/drivers/net/vxlan/vxlan.ko.xz: kernel/net/ipv6/ipv6.ko.xz\n",
            f"/lib/modules/{kernel}/modules.builtin": "kernel/fs/ext4/ext4.ko\n",
            "/var/lib": None,
        },
        commands={
            "date": says(f"{NOW}.150000000"),
            "uname": by_words({"-m": says(arch), "-n": says(hostname)}),
            "getconf": by_words({"LONG_BIT": says(str(bits)), "_NPROCESSORS_ONLN": says(str(cores))}),
            "systemd-detect-virt": says("none", 1),
            "df": says(
                "Filesystem     1024-blocks      Used Available Capacity Mounted on\n"
                f"{device} {total:>14} {used:>9} {total - used:>9} {100 * used // total:>7}% /"
            ),
            "python3": "exit 1\n",
            "ping": "exit 1\n",
            "bash": "exit 1\n",
            "sudo": NO_PASSWORD,
        },
    )


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode().ljust(16, b"\x5a")[:16], "big")


def pi(
    kind: str,
    compatible: str,
    soc: str,
    revision: str,
    memory_kb: int,
    *,
    hostname: str = "",
    arch: str = "aarch64",
    bits: int = 64,
    kernel: str = "6.12.47+rpt-rpi-v8",
    pretty: str = "Debian GNU/Linux 12 (bookworm)",
    wireless: bool = True,
    throttled: str = "0x0",
    temperature: int = 52_582,
    disk: tuple[int, int] = (28_000_000, 9_000_000),
) -> Machine:
    """A Raspberry Pi with its own system, which leaves the memory controller off, and Docker in reach of its user."""
    model = f"Raspberry Pi {kind}"
    hostname = hostname or f"pi-{revision}"
    device = "wlan0" if wireless else "eth0"
    number = 20 + hash_of(hostname) % 200
    features = "fp asimd evtstrm crc32 cpuid"
    if arch != "aarch64":
        features = "half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32 lpae evtstrm crc32"
    elif soc == "bcm2712":
        features = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
    name = "" if arch == "aarch64" else "model name\t: ARMv7 Processor rev 4 (v7l)\n"
    cpu = f"{name}BogoMIPS\t: 108.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
    cores = "".join(f"processor\t: {core}\n{cpu}\n" for core in range(4))
    answers = engine(arch="arm64" if bits == 64 else "arm", memory_limit=False)
    base = system(hostname, kernel, arch, pretty, bits=bits, memory_kb=memory_kb, disk=disk)
    return base.but(
        {
            "/proc/cpuinfo": f"{cores}Revision\t: {revision}\nSerial\t\t: 10000000aabbccdd\nModel\t\t: {model}\n",
            "/sys/firmware/devicetree/base/model": f"{model}\0",
            "/sys/firmware/devicetree/base/compatible": f"raspberrypi,{compatible}\0brcm,{soc}\0",
            "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io pids\n",
            "/sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
            "/sys/class/thermal/thermal_zone0/temp": f"{temperature}\n",
            **nic(device, wireless=wireless),
        },
        {
            "vcgencmd": by_words({"get_throttled": says(f"throttled={throttled}")}),
            "sudo": 'shift\nexec "$@"\n',  # its first user needs no password
            **network(device, f"192.168.1.{number}"),
            **by_curl(answers),
        },
        socket="/var/run/docker.sock",
    )


IVY_BRIDGE = "fpu vme tsc msr pae apic sep sse sse2 ht nx lm ssse3 sse4_1 sse4_2 popcnt avx f16c"
HASWELL = f"{IVY_BRIDGE} fma movbe bmi1 avx2 bmi2 erms"
SKYLAKE_X = f"{HASWELL} avx512f avx512dq avx512cd avx512bw avx512vl"
WESTMERE = "fpu vme tsc msr pae apic sep sse sse2 ht nx lm ssse3 sse4_1 sse4_2 popcnt aes"

Cpu = tuple[str, str, int]  # model name, flags, cores


def core(name: str, flags: str = HASWELL, cores: int = 4) -> Cpu:
    return f"Intel(R) Core(TM) {name}GHz", flags, cores


def xeon(name: str, cores: int, flags: str = HASWELL) -> Cpu:
    return f"Intel(R) Xeon(R) CPU {name}GHz", flags, cores


def atom(name: str, cores: int = 4) -> Cpu:
    return f"Intel(R) Atom(TM) Processor {name}GHz", WESTMERE, cores


def pc(
    vendor: str,
    product: str,
    chassis: int,
    cpu: Cpu,
    memory_kb: int,
    *,
    hostname: str = "",
    wireless: bool = False,
    temperature: int = 47_000,
    kernel: str = "6.1.0-40-amd64",
    arch: str = "x86_64",
    bits: int = 64,
) -> Machine:
    """A PC with Docker in reach of its user."""
    pretty, disk = "Debian GNU/Linux 12 (bookworm)", (230_000_000, 60_000_000)
    hostname = hostname or f"pc-{chassis}"
    model_name, flags, cores = cpu
    device = "wlp3s0" if wireless else "enp0s25"
    one = f"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: {model_name}\nflags\t\t: {flags}\n\n"
    number = 20 + hash_of(hostname) % 200
    base = system(hostname, kernel, arch, pretty, bits=bits, memory_kb=memory_kb, cores=cores, disk=disk)
    return base.but(
        {
            "/proc/cpuinfo": one * cores,
            "/sys/class/dmi/id/product_name": f"{product}\n",
            "/sys/class/dmi/id/sys_vendor": f"{vendor}\n",
            "/sys/class/dmi/id/chassis_type": f"{chassis}\n",
            "/sys/class/thermal/thermal_zone0/type": "acpitz\n",
            "/sys/class/thermal/thermal_zone0/temp": "27800\n",  # what such a zone says is nobody's temperature
            "/sys/class/thermal/thermal_zone1/type": "x86_pkg_temp\n",
            "/sys/class/thermal/thermal_zone1/temp": f"{temperature}\n",
            **nic(device, wireless=wireless),
        },
        {
            **network(device, f"192.168.1.{number}"),
            **by_curl(engine(arch="amd64" if bits == 64 else "386")),
        },
        socket="/var/run/docker.sock",
    )


def supply(name: str, **values: str) -> dict[str, str]:
    return {f"/sys/class/power_supply/{name}/{key}": f"{value}\n" for key, value in values.items()}


BATTERY = {**supply("BAT0", type="Battery", present="1", capacity="81"), **supply("AC", type="Mains", online="1")}
MOUSE = supply("hidpp_battery_0", type="Battery", scope="Device", present="1")

LENOVO, DELL, HP = "LENOVO", "Dell Inc.", "HP"
ALPINE = "Alpine Linux v3.22"


def vm(vendor: str, product: str, virtualization: str, memory_kb: int) -> Machine:
    cpu = xeon("E5-2670 v3 @ 2.30", 2, f"{HASWELL} hypervisor")
    return pc(vendor, product, 1, cpu, memory_kb).but(
        commands={"systemd-detect-virt": says(virtualization)}, without=["/sys/class/thermal"]
    )


def board(model: str, compatible: str, memory_kb: int, cores: int) -> Machine:
    """An ARM board that is not a Raspberry Pi: a devicetree, no DMI, no vcgencmd."""
    features = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
    pretty, kernel = "Armbian 25.8.1 bookworm", "6.1.115-vendor-rk35xx"
    base = system("board-1", kernel, "aarch64", pretty, memory_kb=memory_kb, cores=cores)
    one = f"BogoMIPS\t: 48.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\n\n"
    return base.but(
        {
            "/proc/cpuinfo": "".join(f"processor\t: {core}\n{one}" for core in range(cores)),
            "/sys/firmware/devicetree/base/model": f"{model}\0",
            "/sys/firmware/devicetree/base/compatible": compatible,
            "/sys/class/thermal/thermal_zone0/type": "package-thermal\n",
            "/sys/class/thermal/thermal_zone0/temp": "44384\n",
            **nic("end1"),
        },
        {**network("end1", "192.168.1.77"), **by_curl(engine(arch="arm64"))},
        socket="/var/run/docker.sock",
    )


def alpine(machine: Machine, address: str) -> Machine:
    """The same under Alpine: BusyBox's date and ip, no getconf (the shell's own file has its bits), no systemd."""
    return machine.but(
        {
            "/etc/os-release": f'NAME="Alpine Linux"\nID=alpine\nPRETTY_NAME="{ALPINE}"\n',
            "/proc/self/exe": "\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\n",
        },
        {"date": says(f"{NOW}.%N"), **busybox_network("eth0", address)},
        without=["getconf", "systemd-detect-virt", "bash", "sudo", "python3"],
    )


DESKTOP = pc(DELL, "OptiPlex 9020", 3, core("i5-4570 CPU @ 3.20"), 16_271_524)
LAPTOP = pc(LENOVO, "20AN006VGE", 10, core("i7-4600M CPU @ 2.90"), 16_127_000)
SERVER = pc(DELL, "PowerEdge R710", 23, xeon("X5650 @ 2.67", 24, WESTMERE), 49_428_600)
PI_3B = pi("3 Model B Rev 1.2", "3-model-b", "bcm2837", "a02082", 931_040, throttled="0x50000")
PI_4B_4G = pi("4 Model B Rev 1.5", "4-model-b", "bcm2711", "c03115", 3_885_396, hostname="pi-07.home")
DENIED: dict[str, Any] = {"may_write": False}


def pis() -> dict[str, Machine]:
    """Every Pi from the third on, and some as they are found."""
    return {
        "pi-3a-plus": pi("3 Model A Plus Rev 1.0", "3-model-a-plus", "bcm2837", "9020e0", 426_020),
        "pi-3b": PI_3B,
        "pi-3b-plus": pi(
            "3 Model B Plus Rev 1.3",
            "3-model-b-plus",
            "bcm2837",
            "a020d3",
            931_036,
            throttled="0x80008",
            temperature=62_287,
        ),
        "pi-cm3": pi("Compute Module 3 Rev 1.0", "3-compute-module", "bcm2837", "a020a0", 931_040),
        "pi-cm3-plus": pi("Compute Module 3 Plus Rev 1.0", "3-plus-compute-module", "bcm2837", "a02100", 931_040),
        "pi-zero-2w": pi("Zero 2 W Rev 1.0", "model-zero-2-w", "bcm2837", "902120", 426_016),
        "pi-zero-2w-32-bit": pi(
            "Zero 2 W Rev 1.0",
            "model-zero-2-w",
            "bcm2837",
            "902120",
            438_400,
            arch="armv7l",
            bits=32,
            kernel="6.12.47+rpt-rpi-v7",
            pretty="Raspbian GNU/Linux 12 (bookworm)",
        ),
        "pi-4b-1g": pi("4 Model B Rev 1.1", "4-model-b", "bcm2711", "a03111", 927_796),
        "pi-4b-2g": pi("4 Model B Rev 1.2", "4-model-b", "bcm2711", "b03112", 1_892_352),
        "pi-4b-4g": PI_4B_4G,
        "pi-4b-4g-in-swarm": PI_4B_4G.but(
            {"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n", CERTIFICATE: certificate(-20, 70)},
            by_curl(engine(arch="arm64", swarm=in_swarm("192.168.1.27"))),
        ),
        "pi-4b-8g-ubuntu": pi(
            "4 Model B Rev 1.4",
            "4-model-b",
            "bcm2711",
            "d03114",
            7_998_716,
            kernel="6.8.0-1040-raspi",
            pretty="Ubuntu 24.04.3 LTS",
        ).but(
            {
                "/lib/modules/6.8.0-1040-raspi/modules.dep": "kernel/net/ipv4/udp_tunnel.ko.zst:\n",
                "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
            }
        ),
        "pi-4b-32-bit-userland": pi(
            "4 Model B Rev 1.4",
            "4-model-b",
            "bcm2711",
            "c03114",
            3_884_956,
            bits=32,
            kernel="6.1.21-v8+",
            pretty="Raspbian GNU/Linux 11 (bullseye)",
        ),
        "pi-400": pi("400 Rev 1.1", "400", "bcm2711", "c03131", 3_885_396),
        "pi-cm4": pi("Compute Module 4 Rev 1.1", "4-compute-module", "bcm2711", "d03141", 7_998_744, wireless=False),
        "pi-cm4s": pi("Compute Module 4S Rev 1.0", "4s-compute-module", "bcm2711", "b03150", 1_892_352),
        "pi-5-2g": pi("5 Model B Rev 1.1", "5-model-b", "bcm2712", "b04171", 2_054_416),
        "pi-5-4g": pi("5 Model B Rev 1.0", "5-model-b", "bcm2712", "c04170", 4_142_160),
        "pi-5-8g-under-voltage": pi(
            "5 Model B Rev 1.0",
            "5-model-b",
            "bcm2712",
            "d04170",
            8_256_608,
            throttled="0x50005",
            temperature=85_600,
            kernel="6.12.47+rpt-rpi-2712",
        ),
        "pi-5-16g": pi("5 Model B Rev 1.1", "5-model-b", "bcm2712", "e04171", 16_607_600, wireless=False),
        "pi-500": pi("500 Rev 1.0", "500", "bcm2712", "d04190", 8_256_608),
        "pi-cm5": pi("Compute Module 5 Rev 1.0", "5-compute-module", "bcm2712", "d04180", 8_256_608, wireless=False),
        "pi-4b-alpine": alpine(PI_4B_4G, "192.168.1.41").but(
            # The firmware's bits as the kernel shows them, since there is no vcgencmd; version 1 control groups.
            {
                "/sys/devices/platform/soc/soc:firmware/get_throttled": "60002\n",
                "/proc/cgroups": "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nmemory\t2\t1\t1\n",
            },
            without=["vcgencmd", "/sys/fs/cgroup"],
        ),
        "pi-4b-greeting": PI_4B_4G.but(
            greeting="Linux pi-07 6.12.47 aarch64\n\nhostname\tnot this one\nWelcome, you have mail.",
            noise="logout\n--- bye ---\n",
        ),
    }


def pcs() -> dict[str, Machine]:
    """Laptops, desktops, servers, and what else has DMI tables."""
    return {
        "laptop-battery": pc(
            LENOVO, "2325AR7", 10, core("i5-3320M CPU @ 2.60", IVY_BRIDGE), 7_873_380, wireless=True
        ).but(BATTERY),
        "laptop-no-battery": LAPTOP.but(supply("AC", type="Mains", online="1")),
        "laptop-battery-taken-out": pc(DELL, "Latitude E7440", 9, core("i5-4310U CPU @ 2.00"), 8_043_012).but(
            supply("BAT0", type="Battery", present="0")
        ),
        "laptop-battery-of-a-mouse-too": LAPTOP.but({**BATTERY, **MOUSE}),
        "convertible": pc(LENOVO, "20CD0038GE", 31, core("i5-5300U CPU @ 2.30"), 12_134_400, wireless=True).but(
            without=["/sys/class/power_supply"]
        ),
        "laptop-32-bit": pc(
            "Hewlett-Packard",
            "HP Compaq nx6325",
            10,
            ("AMD Turion(tm) 64 X2 Mobile Technology TL-56", "fpu vme tsc sse sse2 nx lm", 2),
            2_061_000,
            arch="i686",
            bits=32,
            kernel="6.1.0-40-686-pae",
        ).but(BATTERY),
        "desktop-3rd-gen": pc(DELL, "OptiPlex 7010", 6, core("i5-3470 CPU @ 3.20", IVY_BRIDGE), 8_042_936),
        "desktop-4th-gen": DESKTOP,
        "desktop-mouse-battery": pc("Gigabyte", "Z97X-Gaming 3", 3, core("i7-4790 CPU @ 3.60"), 32_805_000).but(MOUSE),
        "desktop-5th-gen": pc("ASUS", "All Series", 3, core("i7-5775C CPU @ 3.30", cores=8), 24_612_000),
        "desktop-32-bit-userland": pc(
            "FUJITSU", "ESPRIMO P700", 6, core("i3-2120 CPU @ 3.30", WESTMERE), 4_003_000, bits=32
        ),
        "workstation": pc(HP, "HP Z440 Workstation", 7, xeon("E5-1650 v4 @ 3.60", 12), 65_775_000),
        "desktop-128g": pc("ASUSTeK", "ESC500 G4", 7, xeon("W-2145 @ 3.70", 16, SKYLAKE_X), 131_700_000),
        "mini-pc": pc("Intel Corporation", "NUC5i5RYH", 35, core("i5-5250U CPU @ 1.60"), 7_998_000),
        "all-in-one": pc("Apple Inc.", "iMac14,2", 13, core("i5-4570 CPU @ 3.20"), 8_091_000),
        "server-rack-manager": SERVER.but(
            {CERTIFICATE: certificate(-40, 50)}, by_curl(engine(swarm=in_swarm(MANAGER, manager=True)))
        ),
        "server-blade": pc("HPE", "ProLiant BL460c Gen9", 28, xeon("E5-2640 v3 @ 2.60", 16), 32_880_000),
        "server-tower": pc("FUJITSU", "PRIMERGY TX1310 M1", 17, xeon("E3-1226 v3 @ 3.30", 4), 8_090_000),
        "vm-kvm": vm("QEMU", "Standard PC (Q35 + ICH9, 2009)", "kvm", 4_015_000),
        "vm-vmware-alpine": alpine(vm("VMware, Inc.", "VMware7,1", "vmware", 16_380_000), "192.168.1.61"),
        "vm-unknown": vm("Acme", "Acme Cloud", "", 2_010_000).but(without=["systemd-detect-virt"]),
        "container-lxc": SERVER.but(
            {"/proc/meminfo": "MemTotal:        2097152 kB\n", "/sys/devices/system/cpu/online": "0-1\n"},
            {"systemd-detect-virt": says("lxc")},
        ),
        "container-docker": DESKTOP.but(
            {
                "/.dockerenv": "",
                "/sys/fs/cgroup/memory.max": "1610612736\n",
                "/proc/1/cgroup": "0::/\n",
                "/sys/fs/cgroup/cgroup.controllers": "",
            },
            without=["systemd-detect-virt", "ip", "curl", "sudo", "ping", "python3"],
            socket="",
        ),
        "container-podman-cgroup-1": DESKTOP.but(
            {"/proc/1/cgroup": "12:memory:/machine.slice/libpod-1f2e.scope/x\n4:cpu:/libpod_parent/libpod-1f2e\n"},
            without=["systemd-detect-virt", "curl", "sudo", "/lib/modules"],
            socket="",
        ),
        "board-rock-5b": board("Radxa ROCK 5B", "radxa,rock-5b\0rockchip,rk3588\0", 16_080_000, 8),
        "board-orange-pi-5": board("Orange Pi 5", "xunlong,orangepi-5\0rockchip,rk3588s\0", 8_120_000, 8),
        "embedded-pc": pc("Advantech", "ARK-1124", 34, atom("E3940 @ 1.60"), 3_900_000),
        "iot-gateway": pc(DELL, "Edge Gateway 3001", 33, atom("E3805 @ 1.33", 2), 1_960_000),
    }


REFUSED = "curl: (7) Failed to connect to d port 80 after 0 ms: Couldn't connect to server"
DOWN = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
PODMAN = json.dumps(
    {
        "Platform": {"Name": "linux/amd64/debian-12"},
        "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}, {"Name": "OCI Runtime (crun)", "Version": "1.8"}],
        "Version": "4.3.1",
        "ApiVersion": "1.41",
        "Arch": "amd64",
    }
)


def engines() -> dict[str, Machine]:
    """Docker in reach or not, of all kinds, and in a swarm or not."""
    return {
        "engine-absent": DESKTOP.but(without=["curl"], socket=""),
        "engine-denied": LAPTOP.but(commands={"docker": "exit 1\n"}, without=["curl", "sudo"], **DENIED),
        "engine-not-a-sudoer": LAPTOP.but(
            commands={"docker": "exit 1\n", "sudo": says("", 1, "Sorry, user anna may not run sudo on pc-10.")},
            **DENIED,
        ),
        "engine-sudo": PI_3B.but(**DENIED),
        "engine-sudo-for-docker-only": PI_3B.but(
            commands={
                **by_docker(engine(arch="arm64", memory_limit=False)),
                "sudo": by_words({"'-n docker '*": 'shift; exec "$@"', "*": NO_PASSWORD}),
            },
            **DENIED,
        ),
        "engine-sudo-password": LAPTOP.but(commands=by_docker(engine()), **DENIED),
        "engine-sudo-down": PI_3B.but(
            commands={"curl": says("", 7, REFUSED), "docker": says("null", 1, DOWN)}, **DENIED
        ),
        "engine-down": DESKTOP.but(commands={"dockerd": "exit 1\n", "docker": "exit 1\n"}, socket=""),
        "engine-refuses": DESKTOP.but(
            commands={
                "curl": says("", 7, REFUSED),
                "docker": says("null", 1, DOWN),
            }
        ),
        "engine-hangs": DESKTOP.but(
            commands={
                "curl": says("", 28, "curl: (28) Operation timed out after 10000 milliseconds with 0 bytes received")
            }
        ),
        "engine-forbids": DESKTOP.but(commands=by_curl(['{"message":"authorization denied by plugin casbin"}'] * 2)),
        "engine-half-answers": DESKTOP.but(
            commands={"curl": says(engine()[0], 28, "curl: (28) Operation timed out after 10000 milliseconds")}
        ),
        "engine-without-curl": SERVER.but(commands=by_docker(engine()), without=["curl"]),
        "engine-old-curl": DESKTOP.but(
            commands={"curl": says("", 2, "curl: option --unix-socket: is unknown"), **by_docker(engine())}
        ),
        "engine-without-any-client": DESKTOP.but(without=["curl"]),
        "engine-rootless": DESKTOP.but(
            commands=by_curl(engine(root="/home/anna/.local/share/docker", security=("name=seccomp", "name=rootless"))),
            socket="/run/user/1000/docker.sock",
            environment={"XDG_RUNTIME_DIR": "/run/user/1000"},
        ),
        "engine-too-old": SERVER.but(commands=by_curl(engine("18.09.9", "1.39"))),
        "engine-podman-socket": DESKTOP.but(commands=by_curl((PODMAN, "{}"))),
        "engine-podman-shim": DESKTOP.but(commands={"docker": 'exec podman "$@"\n'}, without=["curl"], socket=""),
        "engine-other-socket": DESKTOP.but(
            socket="/srv/docker.sock", environment={"DOCKER_HOST": "unix:///srv/docker.sock"}
        ),
        "swarm-certificate-expired": PI_4B_4G.but(
            {CERTIFICATE: certificate(-95, -5)},
            by_curl(
                engine(
                    arch="arm64",
                    memory_limit=False,
                    swarm=in_swarm(
                        "192.168.1.27", state="error", error="certificate (1 - xq0u2l1) not valid after 4 Oct"
                    ),
                )
            ),
        ),
        "swarm-certificate-late": SERVER.but(
            {CERTIFICATE: certificate(-80, 10)}, by_curl(engine(swarm=in_swarm("192.168.1.30")))
        ),
        "swarm-certificate-short-lived": SERVER.but(
            {CERTIFICATE: certificate(-1, 6)}, by_curl(engine(swarm=in_swarm("192.168.1.30")))
        ),
        "swarm-certificate-by-sudo": PI_3B.but(
            {CERTIFICATE: "for root only"},
            {
                **by_curl(engine(arch="arm64", memory_limit=False, swarm=in_swarm("192.168.1.44"))),
                "sudo": by_words({"'-n cat '*": says(certificate(-80, 10)), "*": 'shift; exec "$@"'}),
            },
            secret=CERTIFICATE,
            **DENIED,
        ),
        "swarm-locked": SERVER.but(commands=by_curl(engine(swarm=no_swarm("locked")))),
    }


def others() -> dict[str, Machine]:
    """Clocks, disks, heat, and machines that show next to nothing."""
    df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
    return {
        "clock-days-behind": PI_4B_4G.but(commands={"date": says(f"{NOW - 250_000}.500000000")}),
        "clock-ahead": DESKTOP.but(commands={"date": says(f"{NOW + 4}.600000000")}),
        "clock-whole-seconds": DESKTOP.but(commands={"date": says(f"{NOW + 2}.%N")}),
        "disk-full": PI_4B_4G.but(
            commands={"df": says(f"{df}/dev/mmcblk0p2 28000000 26500000 1500000 95% /")},
        ),
        "disk-tenth": SERVER.but(
            {"/var/lib/docker": None},
            {"df": says(f"{df}/dev/mapper/vg with space 50000000 44000000 3000000 94% /var/lib/docker")},
        ),
        "hot": DESKTOP.but({"/sys/class/thermal/thermal_zone1/temp": "91000\n"}),
        "kernel-upgraded": DESKTOP.but(without=["/lib/modules"]),
        "missing-some": LAPTOP.but(
            {"/var/lib/dbus/machine-id": "0123456789abcdef0123456789abcdef\n"},
            without=["/etc/machine-id", "/proc/sys/kernel", "/sys/devices/system/cpu", "/etc/os-release", "df"],
        ),
        "missing-files": Machine({}, {"uname": by_words({"-m": says("x86_64")})}),
        "minimal-busybox": alpine(DESKTOP, "192.168.1.62").but(
            commands=by_docker(engine()), without=["curl", "ping", "/sys/class/power_supply", "/sys/class/thermal"]
        ),
    }


def machines() -> dict[str, Machine]:
    """All of them, by the name of their recording."""
    return {**pis(), **pcs(), **engines(), **others()}


# --- running the script on one ---

_PATHS = re.compile(r"(?<![\w}$*.])(/(?:sys|proc|etc|run|lib|var|\.dockerenv)\b)")
_REAL = ("cat", "grep", "id", "tr")


@contextmanager
def laid_out(machine: Machine) -> Iterator[tuple[Path, bytes]]:
    """The machine's folder, and the script with its paths turned to it."""
    root = Path(tempfile.mkdtemp(prefix="probed-", dir="/tmp"))
    listener = socket.socket(socket.AF_UNIX)
    try:
        for path, text in machine.files.items():
            target = root / path.lstrip("/")
            if text is None:
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text.encode("latin-1"))
        commands = root / "bin"
        commands.mkdir()
        for name in _REAL:
            (commands / name).symlink_to(shutil.which(name) or "")
        for name, body in machine.commands.items():
            (commands / name).write_text(f"#!/bin/sh\n{body.replace('/var/lib/docker', f'{root}/var/lib/docker')}")
            (commands / name).chmod(0o755)
        if machine.socket:
            place = root / machine.socket.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            listener.bind(str(place))
            place.chmod(0o666 if machine.may_write else 0o444)
        subprocess.run(["chmod", "-R", "a+rX", root], check=True)
        if machine.secret:
            (root / machine.secret.lstrip("/")).chmod(0)
        text = script(MANAGER).decode()
        text = re.sub(r"(?m)^PATH=.*$", f"PATH={commands}", text)
        yield root, _PATHS.sub(rf"{root}\1", text).encode()
    finally:
        listener.close()
        shutil.rmtree(root)


def run(machine: Machine, shell: Sequence[str] = ("dash",), prelude: str = "") -> bytes:
    """What the script writes on a machine under a shell; `prelude` is run in the same shell before."""
    with laid_out(machine) as (root, text):
        environment = {name: value.replace("unix://", f"unix://{root}") for name, value in machine.environment.items()}
        if "XDG_RUNTIME_DIR" in environment:
            environment["XDG_RUNTIME_DIR"] = f"{root}{environment['XDG_RUNTIME_DIR']}"
        done = subprocess.run(
            [*shell, "-s"],
            input=prelude.format(bin=root / "bin").encode() + text,
            capture_output=True,
            env={"PATH": "/usr/bin:/bin", **environment},
            cwd="/",
            # For root every socket is one to write to.
            user=NOBODY if os.geteuid() == 0 and not machine.may_write else None,
            timeout=60,
            check=True,
        )
        if done.stderr:
            raise AssertionError(f"the script complained: {done.stderr.decode()}")
        written = done.stdout.replace(str(root).encode(), b"")
    return machine.greeting.encode() + written + machine.noise.encode()


def main() -> None:
    """Write all recordings."""
    PROBES.mkdir(exist_ok=True)
    for old in PROBES.glob("*.txt"):
        old.unlink()
    for name, machine in machines().items():
        (PROBES / f"{name}.txt").write_bytes(run(machine))


if __name__ == "__main__":
    main()
