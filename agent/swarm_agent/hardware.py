"""What the machine under this process is, and how much of it the container may use.

Reads psutil, the cgroup file system and /sys; what it means is decided by ``fdtc.classify``. May import: ``config``,
``errors``, ``fdtc``.
"""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

import fdtc
from fdtc import Profile

from .config import Hardware
from .errors import ConfigError

# OpenBLAS loses speed on a Pi with more than two threads, and gains little elsewhere on matrices of this size.
MOST_THREADS = 2
# The kernel's placeholders for "no limit" are near 2^63 (cgroup v1) or the word max (v2).
NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Machine:
    """What a worker may use.

    Attributes:
        profile: What kind of machine it is.
        hardware_class: rpi, laptop, desktop or server.
        cores: That this process may run on.
        threads: That numpy should use.
        memory_mb: MiB that this process may use.
        reasons: Why the profile was chosen.
    """

    profile: Profile
    hardware_class: str
    cores: int
    threads: int
    memory_mb: int
    reasons: tuple[str, ...]


def detect(wanted: Hardware, root: Path = Path("/")) -> Machine:
    """Look at this machine, and let the configuration overrule what is found.

    Args:
        wanted: The [hardware] section.
        root: Where /sys and /proc are; another folder in tests.

    Raises:
        ConfigError: The configured profile does not exist.
    """
    cores = usable_cores(root)
    memory = wanted.max_memory_mb or usable_memory_mb(root)
    found = fdtc.classify(facts(root, memory))
    profile, hardware_class, reasons = found.profile, found.hardware_class, found.reasons
    if wanted.profile:
        profile = _named(wanted.profile)
        hardware_class = fdtc.PROFILES[profile].hardware_class
        reasons = ("as configured",)
    threads = wanted.num_threads or min(cores, MOST_THREADS)
    return Machine(profile, hardware_class, cores, threads, memory, reasons)


def facts(root: Path, memory_mb: int) -> fdtc.Facts:
    """Gather what tells the kind of a machine; what can't be read is left unknown."""
    compatible = _read(root / "sys/firmware/devicetree/base/compatible")
    chassis = _read(root / "sys/class/dmi/id/chassis_type").strip()
    return fdtc.Facts(
        model=_read(root / "sys/firmware/devicetree/base/model").strip("\0 \n"),
        compatible=tuple(part for part in compatible.split("\0") if part),
        chassis_type=int(chassis) if chassis.isdigit() else None,
        has_battery=_has_battery(root / "sys/class/power_supply"),
        virtual=_is_virtual(root),
        memory_mb=memory_mb,
    )


def usable_cores(root: Path = Path("/")) -> int:
    """Count the cores that this process may use: its affinity, and the container's CPU quota rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    group = root / "sys/fs/cgroup"
    quota, _, period = _read(group / "cpu.max").strip().partition(" ")
    if not period:  # cgroup v1
        quota = _read(group / "cpu/cpu.cfs_quota_us").strip()
        period = _read(group / "cpu/cpu.cfs_period_us").strip()
    if quota.isdigit() and period.isdigit() and int(period):
        cores = min(cores, -(-int(quota) // int(period)))
    return max(1, cores)


def usable_memory_mb(root: Path = Path("/")) -> int:
    """Memory that this process may use in MiB: the container's limit where it has one, else the machine's."""
    limits = [psutil.virtual_memory().total]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(root / "sys/fs/cgroup" / name).strip()
        if text.isdigit() and int(text) < NO_LIMIT:
            limits.append(int(text))
    return max(1, min(limits) // 2**20)


def _named(name: str) -> Profile:
    try:
        return Profile[name.upper()]
    except KeyError:
        close = difflib.get_close_matches(name.upper(), [p.name for p in Profile], n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(p.name for p in Profile)}."
        raise ConfigError(f"there is no hardware profile {name!r}; {hint}") from None


def _has_battery(supplies: Path) -> bool:
    """Whether a battery drives the machine; a mouse's has scope Device, and one that was taken out is not present."""
    if not supplies.is_dir():
        return False
    return any(
        _read(supply / "type").strip() == "Battery"
        and _read(supply / "scope").strip() != "Device"
        and _read(supply / "present").strip() != "0"
        for supply in supplies.iterdir()
    )


def _is_virtual(root: Path) -> bool:
    if (root / "sys/hypervisor/type").exists():
        return True
    flags = next((line for line in _read(root / "proc/cpuinfo").splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def _read(path: Path) -> str:
    """Read a small file of the kernel's; empty where it is missing or not for us."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
