"""The hardware that a lab node seems to have: the files that a kernel would show there, written into a folder.

The folder is bind-mounted piece by piece into the node (see node.sh), so writing it again changes the machine while it
runs. Imports nothing of ours.
"""

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MIB = 1024  # kB
# What a node's /usr/bin has from this folder's bin/. A name that is not there is a program that the machine lacks.
PROGRAMS = ("date", "uname", "systemd-detect-virt", "vcgencmd")


@dataclass(frozen=True)
class Hardware:
    """A kind of machine.

    Attributes:
        memory_mb: MemTotal, as its kernel would say: some of the memory is the firmware's.
        cores: CPUs online.
        cpu: Model name.
        machine: `uname -m`.
        chassis: DMI chassis_type; None: a machine without DMI.
        product: DMI vendor and product.
        battery: Whether it has one.
        wireless: Whether its network device is a radio.
        model: devicetree model.
        compatible: devicetree compatible strings.
        revision: A Pi's.
        virtual: What `systemd-detect-virt` says.
    """

    memory_mb: int
    cores: int = 4
    cpu: str = ""
    machine: str = "x86_64"
    chassis: int | None = None
    product: tuple[str, str] = ("", "")
    battery: bool = False
    wireless: bool = False
    model: str = ""
    compatible: tuple[str, ...] = ()
    revision: str = ""
    virtual: str = ""


def _pi(model: str, compatible: str, soc: str, memory_mb: int, revision: str, *, wireless: bool = True) -> Hardware:
    return Hardware(
        memory_mb,
        machine="aarch64",
        wireless=wireless,
        model=f"Raspberry Pi {model}",
        compatible=(f"raspberrypi,{compatible}", f"brcm,{soc}"),
        revision=revision,
    )


_PI_4 = ("4 Model B Rev 1.5", "4-model-b", "bcm2711")
_LAPTOP = ("Intel(R) Core(TM) i5-8250U CPU @ 1.60GHz", "x86_64", 10, ("LENOVO", "ThinkPad T480"))
_DESKTOP = ("Intel(R) Core(TM) i5-4570 CPU @ 3.20GHz", "x86_64", 3, ("Dell Inc.", "OptiPlex 9020"))

KINDS: Mapping[str, Hardware] = {
    "rpi3": _pi("3 Model B Rev 1.2", "3-model-b", "bcm2837", 906, "a02082"),
    "rpi4-2g": _pi(*_PI_4, 1847, "b03115"),
    "rpi4-4g": _pi(*_PI_4, 3794, "c03115"),
    "rpi4-8g": _pi(*_PI_4, 7811, "d03115"),
    "rpi5": _pi("5 Model B Rev 1.0", "5-model-b", "bcm2712", 8052, "d04170"),
    "laptop": Hardware(7711, 4, *_LAPTOP, battery=True, wireless=True),
    "laptop-16g": Hardware(15731, 8, *_LAPTOP, battery=True, wireless=True),
    "desktop": Hardware(7862, 4, *_DESKTOP),
    "desktop-32g": Hardware(32012, 8, *_DESKTOP),
    "server": Hardware(
        64238, 16, "Intel(R) Xeon(R) E-2288G CPU @ 3.70GHz", "x86_64", 23, ("HPE", "ProLiant DL20 Gen10")
    ),
    "vm": Hardware(3920, 2, "QEMU Virtual CPU", "x86_64", 1, ("QEMU", "Standard PC (Q35 + ICH9, 2009)"), virtual="kvm"),
}


def write(folder: Path, kind: str) -> None:
    """Write, or change, the files of a kind of machine."""
    hardware = KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    # In place, not replaced: these files are bind-mounted while the node runs.
    (folder / "meminfo").write_text(_meminfo(hardware))
    (folder / "cpuinfo").write_text(_cpuinfo(hardware))
    (folder / "online").write_text(f"0-{hardware.cores - 1}\n")
    _write_programs(folder, hardware)
    if hardware.wireless or (folder / "net").exists():
        _radio(folder / "net", hardware.wireless)
    _devicetree(_emptied(folder / "firmware"), hardware)
    _classes(folder / "class", hardware)


def set_clock(folder: Path, seconds: float) -> None:
    """Let the machine's `date` be so many seconds ahead."""
    _program(folder / "bin" / "date", seconds and (
        '#!/bin/sh\ncase "$*" in *-d*|*-r*|*-s*|*--*) exec date.real "$@" ;; esac\n'
        f'exec date.real -d "{seconds:f} seconds" "$@"\n'
    ))  # fmt: skip


def set_throttled(folder: Path, bits: int) -> None:
    """Let a Pi's `vcgencmd get_throttled` say these bits."""
    _program(
        folder / "bin" / "vcgencmd",
        f'#!/bin/sh\ncase $1 in\nget_throttled) echo throttled={bits:#x} ;;\nmeasure_temp) echo "temp=48.3\'C" ;;\n'
        "*) echo 'error=1 error_msg=\"Command not registered\"'; exit 1 ;;\nesac\n",
    )


def _write_programs(folder: Path, hardware: Hardware) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    here, there = platform.machine(), hardware.machine
    _program(folder / "bin" / "uname", here != there and (
        f'#!/bin/sh\nsaid=$(uname.real "$@") || exit\n'
        f'case $said in *{here}*) said=${{said%%{here}*}}{there}${{said#*{here}}} ;; esac\necho "$said"\n'
    ))  # fmt: skip
    virtual = hardware.virtual or "none"
    _program(folder / "bin" / "systemd-detect-virt", f"#!/bin/sh\necho {virtual}\n[ {virtual} != none ]\n")
    if hardware.revision:
        set_throttled(folder, 0)
    else:
        (folder / "bin" / "vcgencmd").unlink(missing_ok=True)


def _program(path: Path, text: str | float) -> None:
    """A program of the machine's own; without text, the system's."""
    path.unlink(missing_ok=True)
    if text:
        path.write_text(str(text))
        path.chmod(0o755)
    else:
        path.symlink_to(f"/usr/bin/{path.name}.real")


def _emptied(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    return folder


def _meminfo(hardware: Hardware) -> str:
    total = hardware.memory_mb * MIB
    figures = {
        "MemTotal": total,
        "MemFree": total * 6 // 10,
        "MemAvailable": total * 8 // 10,
        "Buffers": total // 50,
        "Cached": total // 5,
        "SwapCached": 0,
        "Active": total // 10,
        "Inactive": total // 5,
        "SwapTotal": 0,
        "SwapFree": 0,
        "Shmem": total // 100,
        "Slab": total // 50,
        "SReclaimable": total // 100,
    }
    return "".join(f"{name + ':':<15} {figure:>9} kB\n" for name, figure in figures.items())


def _cpuinfo(hardware: Hardware) -> str:
    if hardware.machine == "aarch64":
        cpu = {"BogoMIPS": "108.00", "Features": "fp asimd evtstrm crc32 cpuid", "CPU implementer": "0x41"}
        board = {"Revision": hardware.revision, "Serial": f"10000000{hardware.revision:0>8}", "Model": hardware.model}
    else:
        cpu = {
            "vendor_id": "GenuineIntel",
            "model name": hardware.cpu,
            "cpu cores": str(hardware.cores),
            "flags": "fpu sse sse2 ssse3 fma sse4_1 sse4_2 avx avx2" + (" hypervisor" if hardware.virtual else ""),
        }
        board = {}
    blocks = [{"processor": str(number), **cpu} for number in range(hardware.cores)]
    return "\n".join(
        "".join(f"{name}\t: {value}\n" for name, value in block.items()) for block in [*blocks, board] if block
    )


def _devicetree(firmware: Path, hardware: Hardware) -> None:
    if not hardware.model:
        return
    base = firmware / "devicetree" / "base"
    base.mkdir(parents=True)
    (base / "model").write_text(hardware.model + "\0")
    (base / "compatible").write_text("".join(name + "\0" for name in hardware.compatible))


def _classes(folder: Path, hardware: Hardware) -> None:
    """What becomes /sys/class: links to the real one, but for what tells the machine's make."""
    folder.mkdir(exist_ok=True)
    ours = ("dmi", "net", "power_supply", "thermal")
    for name in os.listdir("/sys/class"):  # noqa: PTH208 - names, not paths
        if name not in ours and not (folder / name).is_symlink():
            (folder / name).symlink_to(f"/run/lab/sys/class/{name}")
    (folder / "net").mkdir(exist_ok=True)  # node.sh mounts the node's devices there
    dmi = _emptied(folder / "dmi")
    if hardware.chassis is not None:
        vendor, product = hardware.product
        _tree(dmi / "id", chassis_type=str(hardware.chassis), sys_vendor=vendor, product_name=product)
    power = _emptied(folder / "power_supply")
    if hardware.battery:
        _tree(power / "BAT0", type="Battery", present="1", capacity="87", status="Full")
        _tree(power / "AC", type="Mains", online="1")
    _tree(_emptied(folder / "thermal") / "thermal_zone0", type="cpu-thermal", temp="48300")


def _radio(net: Path, wireless: bool) -> None:
    net.mkdir(exist_ok=True)
    if wireless:
        (net / "wireless").mkdir(exist_ok=True)
        (net / "phy80211").mkdir(exist_ok=True)
    elif (net / "wireless").exists():
        (net / "wireless").rmdir()
        (net / "phy80211").rmdir()


def _tree(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
