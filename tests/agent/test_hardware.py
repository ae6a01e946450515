"""What a machine is and what a container may use of it, read from folders that stand for / ."""

from pathlib import Path

import pytest

from fdtc import Profile
from swarm_agent import hardware
from swarm_agent.config import Hardware
from swarm_agent.errors import ConfigError


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def test_a_pi_is_known_by_its_device_tree_and_a_container_by_its_limit(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "sys/firmware/devicetree/base/model": "Raspberry Pi 4 Model B Rev 1.4\0",
            "sys/firmware/devicetree/base/compatible": "raspberrypi,4-model-b\0brcm,bcm2711\0",
            "sys/fs/cgroup/memory.max": f"{2 << 30}\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
        },
    )
    found = hardware.detect(Hardware(), root)
    assert found.profile is Profile.RPI4_2G
    assert found.memory_mb == 2048
    assert found.cores == min(2, hardware.usable_cores(tmp_path / "none"))


def test_version_1_cgroups_count_too(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{1 << 30}",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert hardware.usable_memory_mb(root) == 1024
    assert hardware.usable_cores(root) == 1


@pytest.mark.parametrize("limit", ["max", str(0x7FFFFFFFFFFFF000), "", "garbage"])
def test_no_limit_means_the_machine(tmp_path: Path, limit: str) -> None:
    root = machine(tmp_path, {"sys/fs/cgroup/memory.max": limit, "sys/fs/cgroup/cpu.max": "max 100000"})
    nothing = tmp_path / "none"
    assert hardware.usable_memory_mb(root) == hardware.usable_memory_mb(nothing)
    assert hardware.usable_cores(root) == hardware.usable_cores(nothing)


def test_a_battery_makes_a_laptop_but_not_that_of_a_mouse_nor_one_that_was_taken_out(tmp_path: Path) -> None:
    mouse = machine(
        tmp_path / "desktop",
        {
            "sys/class/power_supply/hid/type": "Battery\n",
            "sys/class/power_supply/hid/scope": "Device\n",
            "sys/class/power_supply/BAT0/type": "Battery\n",
            "sys/class/power_supply/BAT0/present": "0\n",
            "sys/class/dmi/id/chassis_type": "3\n",
        },
    )
    laptop = machine(
        tmp_path / "laptop",
        {
            "sys/class/power_supply/BAT0/type": "Battery\n",
            "sys/class/power_supply/BAT0/present": "1\n",
            "sys/class/power_supply/AC/type": "Mains\n",
        },
    )
    wanted = Hardware(max_memory_mb=8192)
    assert hardware.detect(wanted, mouse).profile is Profile.DESKTOP_MID
    assert hardware.detect(wanted, laptop).profile is Profile.LAPTOP_LIGHT


def test_a_virtual_machine_goes_by_its_memory(tmp_path: Path) -> None:
    root = machine(tmp_path, {"proc/cpuinfo": "flags\t\t: fpu hypervisor\n", "sys/class/dmi/id/chassis_type": "9\n"})
    assert hardware.detect(Hardware(max_memory_mb=20_000), root).hardware_class == "desktop"


def test_the_configuration_overrules_what_is_found(tmp_path: Path) -> None:
    found = hardware.detect(Hardware(profile="rpi4_4g", num_threads=3, max_memory_mb=100), tmp_path)
    assert (found.profile, found.hardware_class, found.threads, found.memory_mb) == (Profile.RPI4_4G, "rpi", 3, 100)
    with pytest.raises(ConfigError, match="did you mean RPI4_4G"):
        hardware.detect(Hardware(profile="RPI4_4"), tmp_path)
