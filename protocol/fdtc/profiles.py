"""What a machine is: wire profile, hardware class, and the batch that suits it, from plain facts.

Class by what the machine is (model string, battery, chassis), tier inside the class by memory; a machine that
gives no hint goes by memory alone. Nothing here looks at the machine: the caller gathers the `Facts`, counts
a container's memory limit as the memory, and lets a user's own label win.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from fdtc.constants import LAST_V1_PROFILE, Profile

HARDWARE_CLASSES = ("rpi", "laptop", "desktop", "server")

GIB = 1024  # MiB


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """What a profile stands for."""

    profile: Profile
    hardware_class: str
    batch_size: int
    accumulation_steps: int


# UNKNOWN says nothing of its class: `classify` with its memory tells. "rpi" asks the least of it.
PROFILES: Mapping[Profile, ProfileSpec] = MappingProxyType(
    {
        spec.profile: spec
        for spec in (
            ProfileSpec(Profile.RPI3, "rpi", 2, 16),
            ProfileSpec(Profile.RPI4_2G, "rpi", 4, 8),
            ProfileSpec(Profile.RPI4_4G, "rpi", 8, 4),
            ProfileSpec(Profile.RPI4_8G, "rpi", 8, 4),
            ProfileSpec(Profile.LAPTOP_LIGHT, "laptop", 16, 2),
            ProfileSpec(Profile.LAPTOP_MID, "laptop", 32, 1),
            ProfileSpec(Profile.DESKTOP_MID, "desktop", 32, 1),
            ProfileSpec(Profile.DESKTOP_HEAVY, "desktop", 64, 1),
            ProfileSpec(Profile.SERVER, "server", 128, 1),
            ProfileSpec(Profile.UNKNOWN, "rpi", 8, 4),
            ProfileSpec(Profile.RPI5, "rpi", 16, 2),
            ProfileSpec(Profile.WORKSTATION, "desktop", 64, 1),
        )
    }
)

_NEAREST_V1 = {Profile.RPI5: Profile.RPI4_8G, Profile.WORKSTATION: Profile.DESKTOP_HEAVY}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a machine; a default means "not known".

    Attributes:
        model: devicetree model or compatible string, or the DMI product name.
        compatible: devicetree compatible strings.
        chassis_type: DMI chassis_type (SMBIOS specification, table 17).
        has_battery: a battery that drives the machine itself, not a mouse.
        virtual: a virtual machine, whose DMI describes the hypervisor's invention, or a machine that is a
            container, whose DMI describes its host.
        memory_mb: MiB that the process may use: the container's limit when it has one.
    """

    model: str = ""
    compatible: tuple[str, ...] = ()
    chassis_type: int | None = None
    has_battery: bool = False
    virtual: bool = False
    memory_mb: int = 0


Basis = Literal["model", "form", "memory"]


@dataclass(frozen=True, slots=True)
class Classification:
    """What a machine was taken for.

    Attributes:
        profile: the wire profile.
        hardware_class: one of `HARDWARE_CLASSES`.
        reasons: why, one sentence per step of the decision.
        basis: what the class rests on: the machine's own name, its form (battery, chassis), or its memory alone.
    """

    profile: Profile
    hardware_class: str
    reasons: tuple[str, ...]
    basis: Basis


# Longest match first: "Raspberry Pi 5" is the beginning of "Raspberry Pi 500". All in lower case.
_PI_GENERATIONS: tuple[tuple[str, int], ...] = tuple(
    sorted(
        {
            "raspberrypi,3-model-b": 3,
            "raspberrypi,3-model-b-plus": 3,
            "raspberrypi,3-model-a-plus": 3,
            "raspberrypi,3-compute-module": 3,
            "raspberrypi,3-plus-compute-module": 3,
            "raspberrypi,model-zero-2-w": 3,
            "raspberrypi,4-model-b": 4,
            "raspberrypi,400": 4,
            "raspberrypi,4-compute-module": 4,
            "raspberrypi,4s-compute-module": 4,
            "raspberrypi,5-model-b": 5,
            "raspberrypi,500": 5,
            "raspberrypi,5-compute-module": 5,
            "brcm,bcm2837": 3,
            "brcm,bcm2711": 4,
            "brcm,bcm2712": 5,
            "raspberry pi 3": 3,
            "raspberry pi compute module 3": 3,
            "raspberry pi zero 2": 3,
            "raspberry pi 4": 4,
            "raspberry pi 400": 4,
            "raspberry pi compute module 4": 4,
            "raspberry pi 5": 5,
            "raspberry pi 500": 5,
            "raspberry pi compute module 5": 5,
        }.items(),
        key=lambda entry: -len(entry[0]),
    )
)
_ANY_PI = ("raspberry pi", "raspberrypi,")

_CHASSIS_CLASSES: Mapping[int, str] = MappingProxyType(
    {
        **dict.fromkeys((8, 9, 10, 14, 30, 31, 32), "laptop"),
        **dict.fromkeys((3, 4, 5, 6, 7, 13, 15, 16, 24, 35, 36), "desktop"),
        **dict.fromkeys((17, 23, 28, 29), "server"),
    }
)


def classify(facts: Facts) -> Classification:
    """Profile and class of a machine. Never fails: a machine of which nothing is known is UNKNOWN."""
    if (pi := _pi(facts)) is not None:
        generation, evidence = pi
        return _decide(_pi_tier(generation, facts.memory_mb), facts, evidence, "model")
    if facts.virtual:
        return _by_memory(facts, "a virtual machine or a container: battery and chassis are not its own")
    if facts.has_battery:
        return _decide(_laptop_tier(facts.memory_mb), facts, "has a battery: a laptop", "form")
    hardware_class = _CHASSIS_CLASSES.get(facts.chassis_type) if facts.chassis_type is not None else None
    evidence = f"chassis type {facts.chassis_type}: {hardware_class}"
    match hardware_class:
        case "laptop":
            return _decide(_laptop_tier(facts.memory_mb), facts, evidence, "form")
        case "desktop":
            return _decide(_desktop_tier(facts.memory_mb), facts, evidence, "form")
        case "server":
            return _decide(Profile.SERVER, facts, evidence, "form")
        case _:
            return _by_memory(facts, _silent(facts))


def nearest_v1(profile: Profile) -> Profile:
    """The profile to name to a peer that speaks version 1, which knows 0 to 9."""
    nearest = _NEAREST_V1.get(profile, profile)
    assert nearest <= LAST_V1_PROFILE
    return nearest


def _pi(facts: Facts) -> tuple[int, str] | None:
    """The generation of a Raspberry Pi (0: an unknown one) and the evidence, or None: not a Pi."""
    names = [name.strip("\0 ") for name in (*facts.compatible, facts.model)]
    for pattern, generation in _PI_GENERATIONS:
        for name in names:
            if name.lower().startswith(pattern):
                return generation, f"{name!r}: a Raspberry Pi {generation} or its kin"
    for name in names:
        if name.lower().startswith(_ANY_PI):
            return 0, f"{name!r}: a Raspberry Pi of a kind not in the table"
    return None


def _pi_tier(generation: int, memory_mb: int) -> Profile:
    """A Pi's firmware keeps up to a tenth of the memory, so its nominal sizes are told apart half-way."""
    if memory_mb < 1.5 * GIB:
        return Profile.RPI3
    if memory_mb < 3 * GIB:
        return Profile.RPI4_2G
    if generation == 5:
        return Profile.RPI5
    return Profile.RPI4_4G if memory_mb < 6 * GIB else Profile.RPI4_8G


def _laptop_tier(memory_mb: int) -> Profile:
    return Profile.LAPTOP_LIGHT if memory_mb < 12 * GIB else Profile.LAPTOP_MID


def _desktop_tier(memory_mb: int) -> Profile:
    if memory_mb < 24 * GIB:
        return Profile.DESKTOP_MID
    if memory_mb <= 32 * GIB:
        return Profile.DESKTOP_HEAVY
    return Profile.WORKSTATION if memory_mb <= 64 * GIB else Profile.SERVER


def _silent(facts: Facts) -> str:
    seen = [repr(facts.model)] if facts.model else []
    seen += [f"chassis type {facts.chassis_type}"] if facts.chassis_type is not None else []
    return f"{' and '.join(seen)}: no class follows from it" if seen else "no model, battery or chassis that tells"


def _by_memory(facts: Facts, evidence: str) -> Classification:
    memory_mb = facts.memory_mb
    if memory_mb <= 0:
        profile = Profile.UNKNOWN
    elif memory_mb < 1 * GIB:
        profile = Profile.RPI3
    elif memory_mb <= 4 * GIB:
        profile = Profile.RPI4_2G if memory_mb < 3 * GIB else Profile.RPI4_4G
    elif memory_mb <= 8 * GIB:
        profile = Profile.RPI5
    elif memory_mb <= 16 * GIB:
        profile = _laptop_tier(memory_mb)
    else:
        profile = _desktop_tier(memory_mb)  # its upper tiers are those of memory alone, too
    return _decide(profile, facts, evidence, "memory")


def _decide(profile: Profile, facts: Facts, evidence: str, basis: Basis) -> Classification:
    memory = f"{facts.memory_mb / GIB:.1f} GiB of memory" if facts.memory_mb > 0 else "memory not known"
    hardware_class = PROFILES[profile].hardware_class
    return Classification(profile, hardware_class, (evidence, f"{memory}: {profile.name}"), basis)
