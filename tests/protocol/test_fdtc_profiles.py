"""What a machine is: every row and every boundary of the table of hardware classes."""

import pytest

from fdtc import HARDWARE_CLASSES, PROFILES, Facts, Profile, classify, nearest_v1

GIB = 1024

TABLE = [
    (0, "RPI3", "rpi", 2, 16),
    (1, "RPI4_2G", "rpi", 4, 8),
    (2, "RPI4_4G", "rpi", 8, 4),
    (3, "RPI4_8G", "rpi", 8, 4),
    (4, "LAPTOP_LIGHT", "laptop", 16, 2),
    (5, "LAPTOP_MID", "laptop", 32, 1),
    (6, "DESKTOP_MID", "desktop", 32, 1),
    (7, "DESKTOP_HEAVY", "desktop", 64, 1),
    (8, "SERVER", "server", 128, 1),
    (10, "RPI5", "rpi", 16, 2),
    (11, "WORKSTATION", "desktop", 64, 1),
]


@pytest.mark.parametrize(("value", "name", "hardware_class", "batch", "accumulation"), TABLE)
def test_profiles_have_their_defaults(
    value: int, name: str, hardware_class: str, batch: int, accumulation: int
) -> None:
    spec = PROFILES[Profile(value)]
    assert (spec.profile.name, spec.hardware_class) == (name, hardware_class)
    assert (spec.batch_size, spec.accumulation_steps) == (batch, accumulation)


def test_unknown_has_its_batch_and_every_profile_a_class() -> None:
    assert (PROFILES[Profile.UNKNOWN].batch_size, PROFILES[Profile.UNKNOWN].accumulation_steps) == (8, 4)
    assert set(PROFILES) == set(Profile)
    assert {spec.hardware_class for spec in PROFILES.values()} == set(HARDWARE_CLASSES)


# MemTotal in MiB as the machines really report it, below their nominal size.
PIS = [
    ("Raspberry Pi 3 Model B Rev 1.2", "raspberrypi,3-model-b", 909, "RPI3"),
    ("Raspberry Pi 3 Model B Plus Rev 1.3", "raspberrypi,3-model-b-plus", 909, "RPI3"),
    ("Raspberry Pi 3 Model A Plus Rev 1.0", "raspberrypi,3-model-a-plus", 416, "RPI3"),
    ("Raspberry Pi Compute Module 3 Rev 1.0", "raspberrypi,3-compute-module", 909, "RPI3"),
    ("Raspberry Pi Compute Module 3 Plus Rev 1.0", "raspberrypi,3-plus-compute-module", 909, "RPI3"),
    ("Raspberry Pi Zero 2 W Rev 1.0", "raspberrypi,model-zero-2-w", 416, "RPI3"),
    ("Raspberry Pi 4 Model B Rev 1.1", "raspberrypi,4-model-b", 906, "RPI3"),
    ("Raspberry Pi 4 Model B Rev 1.2", "raspberrypi,4-model-b", 1848, "RPI4_2G"),
    ("Raspberry Pi 4 Model B Rev 1.4", "raspberrypi,4-model-b", 3794, "RPI4_4G"),
    ("Raspberry Pi 4 Model B Rev 1.5", "raspberrypi,4-model-b", 7811, "RPI4_8G"),
    ("Raspberry Pi 400 Rev 1.0", "raspberrypi,400", 3794, "RPI4_4G"),
    ("Raspberry Pi Compute Module 4 Rev 1.0", "raspberrypi,4-compute-module", 7811, "RPI4_8G"),
    ("Raspberry Pi Compute Module 4S Rev 1.0", "raspberrypi,4s-compute-module", 1848, "RPI4_2G"),
    ("Raspberry Pi 5 Model B Rev 1.0", "raspberrypi,5-model-b", 2006, "RPI4_2G"),
    ("Raspberry Pi 5 Model B Rev 1.0", "raspberrypi,5-model-b", 4045, "RPI5"),
    ("Raspberry Pi 5 Model B Rev 1.1", "raspberrypi,5-model-b", 16_218, "RPI5"),
    ("Raspberry Pi 500 Rev 1.0", "raspberrypi,500", 8063, "RPI5"),
    ("Raspberry Pi Compute Module 5 Rev 1.0", "raspberrypi,5-compute-module", 8063, "RPI5"),
]


@pytest.mark.parametrize(("model", "compatible", "memory_mb", "profile"), PIS)
def test_a_pi_is_known_by_either_of_its_names(model: str, compatible: str, memory_mb: int, profile: str) -> None:
    by_model = classify(Facts(model=model + "\0", memory_mb=memory_mb))
    by_compatible = classify(Facts(compatible=(compatible, "brcm,bcm2711"), memory_mb=memory_mb))
    assert by_model.profile.name == profile
    assert by_model.hardware_class == "rpi"
    assert model in by_model.reasons[0]
    assert (by_compatible.profile.name, by_compatible.hardware_class) == (profile, "rpi") or (
        not compatible.startswith("raspberrypi,5") and by_compatible.profile.name == profile
    )


def test_a_pi_of_another_kind_is_still_a_pi() -> None:
    for model in ("Raspberry Pi 9 Model Z", "Raspberry Pi 2 Model B Rev 1.1", "raspberrypi,6-model-b"):
        result = classify(Facts(model=model, memory_mb=7800))
        assert (result.hardware_class, result.profile) == ("rpi", Profile.RPI4_8G)


def test_a_pi_in_a_small_container_is_what_the_container_allows() -> None:
    assert classify(Facts(model="Raspberry Pi 5 Model B", memory_mb=1024)).profile is Profile.RPI3


@pytest.mark.parametrize(
    ("chassis", "hardware_class"),
    [
        *((chassis, "laptop") for chassis in (8, 9, 10, 14, 30, 31, 32)),
        *((chassis, "desktop") for chassis in (3, 4, 5, 6, 7, 13, 15, 16, 24, 35, 36)),
        *((chassis, "server") for chassis in (17, 23, 28, 29)),
    ],
)
def test_chassis_decides_the_class(chassis: int, hardware_class: str) -> None:
    result = classify(Facts(chassis_type=chassis, memory_mb=6 * GIB))
    assert result.hardware_class == hardware_class
    assert str(chassis) in result.reasons[0]


@pytest.mark.parametrize("chassis", [1, 2, 11, 12, 33, 34, 99, None])
def test_other_chassis_say_nothing(chassis: int | None) -> None:
    assert classify(Facts(chassis_type=chassis, memory_mb=6 * GIB)).profile is Profile.RPI5


@pytest.mark.parametrize(
    ("facts", "memory_mb", "profile"),
    [
        (Facts(has_battery=True), 12 * GIB - 1, "LAPTOP_LIGHT"),
        (Facts(has_battery=True), 12 * GIB, "LAPTOP_MID"),
        (Facts(has_battery=True), 128 * GIB, "LAPTOP_MID"),
        (Facts(has_battery=True), 0, "LAPTOP_LIGHT"),
        (Facts(has_battery=True, chassis_type=3), 16 * GIB, "LAPTOP_MID"),
        (Facts(chassis_type=9), 12 * GIB - 1, "LAPTOP_LIGHT"),
        (Facts(chassis_type=3), 1 * GIB, "DESKTOP_MID"),
        (Facts(chassis_type=3), 24 * GIB - 1, "DESKTOP_MID"),
        (Facts(chassis_type=3), 24 * GIB, "DESKTOP_HEAVY"),
        (Facts(chassis_type=3), 32 * GIB, "DESKTOP_HEAVY"),
        (Facts(chassis_type=3), 32 * GIB + 1, "WORKSTATION"),
        (Facts(chassis_type=3), 64 * GIB, "WORKSTATION"),
        (Facts(chassis_type=3), 64 * GIB + 1, "SERVER"),
        (Facts(chassis_type=23), 2 * GIB, "SERVER"),
        (Facts(model="Raspberry Pi 4 Model B"), 1536 - 1, "RPI3"),
        (Facts(model="Raspberry Pi 4 Model B"), 1536, "RPI4_2G"),
        (Facts(), 0, "UNKNOWN"),
        (Facts(), 1 * GIB - 1, "RPI3"),
        (Facts(), 1 * GIB, "RPI4_2G"),
        (Facts(), 3 * GIB - 1, "RPI4_2G"),
        (Facts(), 3 * GIB, "RPI4_4G"),
        (Facts(), 4 * GIB, "RPI4_4G"),
        (Facts(), 4 * GIB + 1, "RPI5"),
        (Facts(), 8 * GIB, "RPI5"),
        (Facts(), 8 * GIB + 1, "LAPTOP_LIGHT"),
        (Facts(), 12 * GIB, "LAPTOP_MID"),
        (Facts(), 16 * GIB, "LAPTOP_MID"),
        (Facts(), 16 * GIB + 1, "DESKTOP_MID"),
        (Facts(), 32 * GIB, "DESKTOP_HEAVY"),
        (Facts(), 32 * GIB + 1, "WORKSTATION"),
        (Facts(), 64 * GIB, "WORKSTATION"),
        (Facts(), 64 * GIB + 1, "SERVER"),
        (Facts(virtual=True, chassis_type=23, has_battery=True), 4 * GIB, "RPI4_4G"),
    ],
)
def test_memory_decides_the_tier(facts: Facts, memory_mb: int, profile: str) -> None:
    from dataclasses import replace

    result = classify(replace(facts, memory_mb=memory_mb))
    assert result.profile.name == profile
    assert result.hardware_class == PROFILES[result.profile].hardware_class
    assert profile in result.reasons[-1]


def test_a_version_1_peer_is_told_the_nearest_profile() -> None:
    assert nearest_v1(Profile.RPI5) is Profile.RPI4_8G
    assert nearest_v1(Profile.WORKSTATION) is Profile.DESKTOP_HEAVY
    assert all(nearest_v1(profile) is profile for profile in Profile if profile <= 9)
