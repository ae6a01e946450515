"""What a probed machine is taken for, and what is wrong with it by itself.

Pure functions of a `Probe`; the only clock that is read is ours, to tell when a certificate ends. May import:
``fdtc``, ``fleet.facts``, ``console``.
"""

import re
import time
from collections.abc import Iterator
from typing import Literal

from cryptography import x509

import fdtc

from ..console import duration
from .facts import Evidence, Finding, Probe

GIB = 1024  # MiB
DAY = 86_400.0

# Docker's names for what `uname -m` says, of a 64-bit and of a 32-bit userland.
_ARCHES = {
    "x86_64": ("amd64", "386"),
    "aarch64": ("arm64", "arm"),
    "arm64": ("arm64", "arm"),
    "riscv64": ("riscv64", "riscv32"),
    "ppc64le": ("ppc64le", "ppc64le"),
    "s390x": ("s390x", "s390"),
}
_CONFIDENCE: dict[str, Literal["sure", "likely", "guess"]] = {"model": "sure", "form": "likely", "memory": "guess"}

_LEAST_DISK_MB = 2 * GIB
_LEAST_ENGINE = (20, 10)
_HOT_C = 80.0
_CLOCK_WARNING_SEC, _CLOCK_ERROR_SEC = 2.0, 30.0
_CERTIFICATE_DAYS = 14


def evidence(probe: Probe) -> Evidence:
    """Class and profile of a machine, with the reasons."""
    found = fdtc.classify(
        fdtc.Facts(
            model=probe.model,
            compatible=probe.compatible,
            chassis_type=probe.chassis_type,
            has_battery=bool(probe.has_battery),
            virtual=bool(probe.virtualization),
            memory_mb=probe.memory_mb,
        )
    )
    arch, arch_reason = _arch(probe)
    reasons = [f"it runs in {probe.virtualization}"] if probe.virtualization else []
    reasons += [*found.reasons, arch_reason]
    return Evidence(found.hardware_class, found.profile.name, arch, _CONFIDENCE[found.basis], tuple(reasons))


def _arch(probe: Probe) -> tuple[str, str]:
    """Docker's word for the userland, and the evidence."""
    if probe.engine.arch:
        return probe.engine.arch, f"its Docker engine was built for {probe.engine.arch}"
    machine = probe.kernel_arch
    if machine in _ARCHES:
        arch = _ARCHES[machine][probe.long_bit == 32]
        bits = f"a {probe.long_bit}-bit userland" if probe.long_bit else "the userland's bits are not known"
        return arch, f"kernel {machine}, {bits}: {arch}"
    if machine.startswith("arm"):
        return "arm", f"kernel {machine}: arm"
    if re.fullmatch(r"i[3-6]86", machine):
        return "386", f"kernel {machine}: 386"
    return machine, f"kernel {machine}" if machine else "the processor's architecture is not known"


def health(probe: Probe, *, now: float | None = None) -> tuple[Finding, ...]:
    """What is wrong with a machine by itself.

    Args:
        probe: What it said.
        now: Seconds since 1970 that certificates are held against; None: our clock.

    Returns:
        What was found; `Finding.where` is its host name, and remedies are to be typed on that machine. What could not
        be read is no finding.
    """
    return (
        *_engine(probe),
        *_userland(probe),
        *_vxlan(probe),
        *_memory_cgroup(probe),
        *_disk(probe),
        *_clock(probe),
        *_certificate(probe, time.time() if now is None else now),
        *_throttled(probe),
        *_temperature(probe),
    )


def _engine(probe: Probe) -> Iterator[Finding]:
    engine, where = probe.engine, probe.hostname
    said = f": {engine.error}" if engine.error else ""
    match engine.access:
        case "absent":
            install = (
                "curl -fsSL https://get.docker.com | sudo sh",
                "# or the system's own: sudo apt install docker.io",
            )
            yield Finding("error", "engine", where, f"Docker is not installed{said}", install)
        case "down":
            steps = ("sudo systemctl enable --now docker", "sudo journalctl -u docker -n 50   # if it does not stay up")
            yield Finding("error", "engine", where, f"Docker's engine does not answer{said}", steps)
        case "denied":
            yield Finding("error", "docker-access", where, f"this user may not use Docker{said}", _JOIN_DOCKER_GROUP)
        case "sudo-password":
            message = "this user may use Docker only through sudo with a password, if at all"
            ask = "--ask-sudo   # with swarmctl's commands: it asks for the password once"
            yield Finding("warning", "docker-access", where, message, (ask, *_JOIN_DOCKER_GROUP))
        case "direct" | "sudo" if engine.error:
            message = f"Docker's engine did not tell all{said}"
            yield Finding("warning", "engine", where, message, ("docker info   # must answer within seconds",))
    if engine.rootless:
        steps = ("dockerd-rootless-setuptool.sh uninstall", "sudo systemctl enable --now docker")
        yield Finding("error", "engine", where, "Docker runs rootless, and such an engine can't be in a swarm", steps)
    version = re.match(r"(\d{1,6})\.(\d{1,6})", engine.version)
    if engine.access != "absent" and version and (int(version[1]), int(version[2])) < _LEAST_ENGINE:
        message = f"Docker {engine.version} is too old: 20.10 is the least"
        yield Finding("error", "engine", where, message, ("curl -fsSL https://get.docker.com | sudo sh",))


_JOIN_DOCKER_GROUP = ('sudo usermod -aG docker "$USER"', "# then log out and in again: a session keeps its groups")


def _userland(probe: Probe) -> Iterator[Finding]:
    if probe.long_bit != 32 and probe.engine.arch not in {"arm", "386"}:
        return
    if probe.kernel_arch in {"x86_64", "aarch64"}:
        message = f"a 32-bit system under a 64-bit kernel ({probe.kernel_arch}): numpy has no wheels for it"
    else:
        message = f"a 32-bit system ({probe.kernel_arch}): numpy has no wheels for it"
    if "raspberry pi" in probe.model.lower():
        steps = (
            '# with Raspberry Pi Imager, write "Raspberry Pi OS Lite (64-bit)" to its card; every Pi from 3 on runs it',
        )
    else:
        steps = ("# install a 64-bit system, where its processor can run one (on a PC, its flags then have lm)",)
    yield Finding("error", "userland", probe.hostname, message, steps)


def _vxlan(probe: Probe) -> Iterator[Finding]:
    if probe.vxlan is not False:
        return
    if "ubuntu" in probe.system.lower() and "raspberry pi" in probe.model.lower():
        steps: tuple[str, ...] = ("sudo apt install linux-modules-extra-raspi", "sudo reboot")
    else:
        steps = (
            "sudo modprobe vxlan   # says why not",
            "sudo reboot   # where it finds no folder of modules: the kernel was upgraded since it booted",
        )
    message = f"kernel {probe.kernel} can't load the vxlan module, which overlay networks need"
    yield Finding("error", "vxlan", probe.hostname, message, steps)


def _memory_cgroup(probe: Probe) -> Iterator[Finding]:
    if probe.memory_cgroup is not False:
        return
    if "raspberry pi" in probe.model.lower():
        # Up to Debian 11 the boot partition was mounted one folder higher.
        old = re.search(r"buster|bullseye", probe.system)
        file = "/boot/cmdline.txt" if old else "/boot/firmware/cmdline.txt"
        steps: tuple[str, ...] = (f"sudo sed -i '1 s/$/ cgroup_enable=memory cgroup_memory=1/' {file}", "sudo reboot")
    else:
        steps = (
            "# add cgroup_enable=memory to GRUB_CMDLINE_LINUX in /etc/default/grub",
            "sudo update-grub",
            "sudo reboot",
        )
    message = "the kernel's memory controller is off: a container's memory limit is not kept"
    yield Finding("warning", "memory-cgroup", probe.hostname, message, steps)


def _disk(probe: Probe) -> Iterator[Finding]:
    free, total = probe.disk_free_mb, probe.disk_total_mb
    if free is None or not total or (free >= _LEAST_DISK_MB and free >= total / 10):
        return
    message = f"{probe.disk_path}: {free / GIB:.1f} of {total / GIB:.1f} GiB free ({100 * free // total} %)"
    steps = ("docker system df", "docker system prune   # asks; removes stopped containers and unused images")
    yield Finding("warning", "disk", probe.hostname, message, steps)


def _clock(probe: Probe) -> Iterator[Finding]:
    if probe.clock_offset_sec is None:
        return
    offset, doubt = probe.clock_offset_sec, probe.clock_doubt_sec
    certain = abs(offset) - doubt
    if certain <= _CLOCK_WARNING_SEC:
        return
    way = "ahead of" if offset > 0 else "behind"
    severity: Literal["error", "warning"] = "error" if certain > _CLOCK_ERROR_SEC else "warning"
    amount = duration(abs(offset)) if abs(offset) >= 60 else f"{abs(offset):.1f} s"
    message = f"its clock is {amount} {way} this machine's (known to {doubt:.1f} s)"
    steps = ("sudo timedatectl set-ntp true", "timedatectl timesync-status   # here, too: which of the two is wrong?")
    yield Finding(severity, "clock", probe.hostname, message, steps)


def _certificate(probe: Probe, now: float) -> Iterator[Finding]:
    if not probe.engine.certificate_pem:
        return
    try:
        certificate = x509.load_pem_x509_certificate(probe.engine.certificate_pem.encode())
    except ValueError as error:
        yield Finding(
            "warning", "certificate", probe.hostname, f"its swarm certificate can't be read: {error}",
            ("sudo ls -l /var/lib/docker/swarm/certificates",),
        )  # fmt: skip
        return
    ends = certificate.not_valid_after_utc.timestamp()
    lifetime = ends - certificate.not_valid_before_utc.timestamp()
    # An engine renews its certificate at half to four fifths of the lifetime; a short-lived one is not late before.
    if ends - now < 0:
        steps: tuple[str, ...] = ("docker swarm leave", "# then join it again")
        message = f"its swarm certificate ended {(now - ends) / DAY:.0f} days ago"
        yield Finding("error", "certificate", probe.hostname, message, steps)
    elif ends - now < min(_CERTIFICATE_DAYS * DAY, lifetime / 5):
        message = f"its swarm certificate ends in {(ends - now) / DAY:.0f} days and was not renewed"
        steps = (
            "sudo systemctl restart docker",
            "docker swarm ca --rotate   # on a manager: renews those of all nodes",
        )
        yield Finding("warning", "certificate", probe.hostname, message, steps)


# https://www.raspberrypi.com/documentation/computers/os.html#get_throttled; 16 bits higher: since it booted.
_UNDER_VOLTAGE = 1 << 0
_SLOWED = {1 << 1: "frequency capped", 1 << 2: "throttled", 1 << 3: "soft temperature limit"}
_SINCE_BOOT = 16


def _throttled(probe: Probe) -> Iterator[Finding]:
    bits = probe.throttled or 0
    supply = (
        "# use the supply made for this model, and a short thick cable; take USB devices off",
        "vcgencmd get_throttled",
    )
    if bits & _UNDER_VOLTAGE:
        message = "under-voltage now: it may crash, or damage what is on its card"
        yield Finding("warning", "power", probe.hostname, message, supply)
    elif bits >> _SINCE_BOOT & _UNDER_VOLTAGE:
        yield Finding("warning", "power", probe.hostname, "under-voltage at some time since it booted", supply)
    cooler = ("vcgencmd measure_temp", "# give it a heat sink, a fan or more air")
    if now := [word for bit, word in _SLOWED.items() if bits & bit]:
        yield Finding("warning", "throttled", probe.hostname, f"slowed down now: {', '.join(now)}", cooler)
    elif past := [word for bit, word in _SLOWED.items() if bits >> _SINCE_BOOT & bit]:
        message = f"slowed down at some time since it booted: {', '.join(past)}"
        yield Finding("warning", "throttled", probe.hostname, message, cooler)


def _temperature(probe: Probe) -> Iterator[Finding]:
    if probe.temperature_c is not None and probe.temperature_c > _HOT_C:
        message = f"its processor is at {probe.temperature_c:.0f} °C"
        yield Finding("warning", "temperature", probe.hostname, message, ("# clean the fan, give it more air",))
