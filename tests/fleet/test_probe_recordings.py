"""Recorded probes of every kind of machine: what it is taken for, and what is found wrong with it."""

import shutil
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from probed_machines import ANSWERED_AT, ASKED_AT, NOW, PROBES, Machine, machines, run, says

from swarmctl.fleet.evidence import evidence, health
from swarmctl.fleet.facts import Address, EngineFacts, Probe, Route
from swarmctl.fleet.probe import ProbeError, parse

EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((PROBES / "expected.yml").read_text())
NAMES = sorted(EXPECTED)
MACHINES = machines()


@cache
def recording(name: str) -> bytes:
    return (PROBES / f"{name}.txt").read_bytes()


@cache
def probed(name: str) -> Probe:
    return parse(recording(name), asked_at=ASKED_AT, answered_at=ANSWERED_AT)


def test_every_recording_has_its_expectation_and_its_machine() -> None:
    assert NAMES == sorted(path.stem for path in PROBES.glob("*.txt")) == sorted(MACHINES)


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_is_taken_for_what_it_is(name: str) -> None:
    found = evidence(probed(name))
    expected = EXPECTED[name]
    assert f"{found.hardware_class} {found.profile} {found.arch} {found.confidence}" == expected["is"]
    assert len(found.reasons) == len(expected["because"]), found.reasons
    for part, reason in zip(expected["because"], found.reasons, strict=True):
        assert part in reason


@pytest.mark.parametrize("name", NAMES)
def test_what_is_wrong_with_it_is_found_and_nothing_else(name: str) -> None:
    found = health(probed(name), now=NOW)
    assert [f"{finding.severity} {finding.check}" for finding in found] == EXPECTED[name]["findings"]
    for finding in found:
        assert finding.where == probed(name).hostname
        assert finding.remedy
        assert "\n" not in finding.message


# --- the recordings are what the script writes ---


@pytest.mark.parametrize("shell", [("dash",), ("bash", "--posix")], ids=" ".join)
@pytest.mark.parametrize("name", NAMES)
def test_the_script_writes_the_recording(name: str, shell: tuple[str, ...]) -> None:
    assert run(MACHINES[name], shell).decode("latin-1") == recording(name).decode("latin-1")


# Debian's BusyBox prefers its own commands to those on PATH; a function goes before them, but can't take one away.
OWN_COMMANDS = ("ip", "df", "date", "uname", "ping")


def has_all_own(machine: Machine) -> bool:
    return all(name in machine.commands for name in OWN_COMMANDS)


@pytest.mark.skipif(shutil.which("busybox") is None, reason="BusyBox is not installed")
@pytest.mark.parametrize("name", [name for name in NAMES if has_all_own(MACHINES[name])])
def test_the_script_writes_the_recording_under_busybox(name: str) -> None:
    prelude = "".join(f'{own}() {{{{ "{{bin}}/{own}" "$@"; }}}}\n' for own in OWN_COMMANDS)
    written = run(MACHINES[name], ("busybox", "sh"), prelude)
    assert written.decode("latin-1") == recording(name).decode("latin-1")


@pytest.mark.parametrize("shell", [("dash",), ("bash", "--posix")], ids=" ".join)
def test_a_command_s_words_are_taken_as_they_are(shell: tuple[str, ...]) -> None:
    odd = "/*\n* $(echo run) `echo run` \\n %s '\"\n~\n  two  spaces"
    written = run(MACHINES["desktop-4th-gen"].but(commands={"vcgencmd": says(odd)}), shell).decode()
    assert [line.partition("\t")[2] for line in written.splitlines() if line.startswith("throttled\t")] == odd.split(
        "\n"
    )


def test_commands_are_asked_to_speak_plain() -> None:
    machine = MACHINES["desktop-4th-gen"].but(commands={"uname": 'echo "$LC_ALL"\n'})
    assert parse(run(machine), asked_at=ASKED_AT, answered_at=ANSWERED_AT).kernel_arch == "C"


# --- single facts ---


def test_all_facts_of_a_pi_in_a_swarm() -> None:
    certificate = probed("pi-4b-4g-in-swarm").engine.certificate_pem
    assert certificate.startswith("-----BEGIN CERTIFICATE-----\n")
    assert certificate.endswith("\n-----END CERTIFICATE-----\n")
    assert probed("pi-4b-4g-in-swarm") == Probe(
        hostname="pi-07",
        machine_id="70692d30372e686f6d655a5a5a5a5a5a",
        kernel="6.12.47+rpt-rpi-v8",
        kernel_arch="aarch64",
        long_bit=64,
        system="Debian GNU/Linux 12 (bookworm)",
        model="Raspberry Pi 4 Model B Rev 1.5",
        compatible=("raspberrypi,4-model-b", "brcm,bcm2711"),
        revision="c03115",
        memory_mb=3794,
        cores=4,
        cpu_flags=("asimd",),
        has_battery=False,
        disk_path="/var/lib/docker",
        disk_total_mb=27343,
        disk_free_mb=18554,
        addresses=(Address("wlan0", probed("pi-4b-4g-in-swarm").route.source, 24, dynamic=True),),
        networks=("192.168.1.0/24", "172.17.0.0/16"),
        route=Route(probed("pi-4b-4g-in-swarm").addresses[0].address, "wlan0", wireless=True, mtu=1500),
        temperature_c=52.582,
        throttled=0,
        memory_cgroup=True,
        vxlan=True,
        clock_offset_sec=pytest.approx(-0.05),
        clock_doubt_sec=pytest.approx(0.2),
        uptime_sec=183422.17,
        tools=("python3", "ping", "bash", "curl", "sudo"),
        engine=EngineFacts(
            access="direct",
            version="28.5.2",
            api_version="1.51",
            arch="arm64",
            memory_limit=True,
            data_root="/var/lib/docker",
            swarm_state="active",
            node_id="xq0u2l1rwk6k9m5yk1h0c8b3d",
            node_address="192.168.1.27",
            managers=("192.168.1.10:2377", "192.168.1.11:2377"),
            certificate_pem=certificate,
        ),
    )


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("server-rack-manager", "cores", 24),
        ("server-rack-manager", "cpu_model", "Intel(R) Xeon(R) CPU X5650 @ 2.67GHz"),
        ("server-rack-manager", "cpu_flags", ("sse4_2",)),
        ("desktop-128g", "cpu_flags", ("sse4_2", "avx", "avx2", "fma", "avx512f")),
        ("pi-zero-2w-32-bit", "cpu_flags", ("neon",)),
        ("pi-zero-2w-32-bit", "long_bit", 32),
        ("laptop-battery", "has_battery", True),
        ("laptop-battery-taken-out", "has_battery", False),
        ("desktop-mouse-battery", "has_battery", False),
        ("convertible", "has_battery", None),
        ("desktop-4th-gen", "temperature_c", 47.0),  # the processor's, not the case's 27.8
        ("desktop-4th-gen", "model", "OptiPlex 9020"),
        ("desktop-4th-gen", "chassis_type", 3),
        ("desktop-4th-gen", "virtualization", ""),
        ("vm-kvm", "virtualization", "kvm"),
        ("vm-vmware-alpine", "virtualization", "vmware"),
        ("vm-vmware-alpine", "long_bit", 64),
        ("vm-vmware-alpine", "system", "Alpine Linux v3.22"),
        ("vm-vmware-alpine", "clock_doubt_sec", pytest.approx(0.7)),
        ("vm-vmware-alpine", "networks", ("192.168.1.0/24",)),
        ("vm-vmware-alpine", "route", Route("192.168.1.61", "eth0", wireless=False, mtu=1500)),
        ("vm-unknown", "virtualization", "vm-other"),
        ("container-lxc", "memory_mb", 2048),
        ("container-docker", "memory_mb", 1536),
        ("container-docker", "addresses", ()),
        ("container-docker", "notes", ("addresses and routes: there is no ip command",)),
        ("container-podman-cgroup-1", "virtualization", "podman"),
        ("container-podman-cgroup-1", "vxlan", None),
        ("kernel-upgraded", "vxlan", False),
        ("pi-4b-8g-ubuntu", "vxlan", False),
        ("pi-4b-alpine", "throttled", 0x60002),
        ("pi-4b-alpine", "memory_cgroup", True),
        ("pi-5-8g-under-voltage", "throttled", 0x50005),
        ("pi-4b-greeting", "hostname", "pi-07"),
        ("clock-whole-seconds", "clock_offset_sec", pytest.approx(2.3)),
        ("disk-tenth", "disk_path", "/var/lib/docker"),
        ("missing-some", "hostname", "pc-10"),
        ("missing-some", "machine_id", "0123456789abcdef0123456789abcdef"),
        ("missing-some", "kernel", ""),
        ("missing-some", "cores", 4),
        ("missing-some", "vxlan", None),
        ("missing-some", "disk_free_mb", None),
        ("missing-some", "notes", ("disk: there is no df command",)),
        ("missing-files", "hostname", ""),
        ("missing-files", "kernel_arch", "x86_64"),
        ("missing-files", "memory_cgroup", None),
        ("missing-files", "clock_offset_sec", None),
    ],
)
def test_a_fact_is_read(name: str, field: str, value: object) -> None:
    assert getattr(probed(name), field) == value


@pytest.mark.parametrize(
    ("name", "access", "error"),
    [
        ("pi-3b", "direct", ""),
        ("engine-absent", "absent", ""),
        ("engine-denied", "denied", "no right to write to /var/run/docker.sock"),
        ("engine-not-a-sudoer", "denied", "may not run sudo"),
        ("engine-sudo", "sudo", ""),
        ("engine-sudo-for-docker-only", "sudo", ""),
        ("engine-sudo-password", "sudo-password", "a password is required"),
        ("engine-sudo-down", "down", "Cannot connect to the Docker daemon"),
        ("engine-down", "down", "there is no socket"),
        ("engine-refuses", "down", "Is the docker daemon running?"),
        ("engine-hangs", "down", "timed out"),
        ("engine-forbids", "down", "authorization denied by plugin"),
        ("engine-half-answers", "direct", "timed out"),
        ("engine-without-curl", "direct", ""),
        ("engine-old-curl", "direct", ""),
        ("engine-without-any-client", "direct", "neither curl nor a docker command"),
        ("engine-podman-socket", "absent", "Podman"),
        ("engine-podman-shim", "absent", "no dockerd"),
        ("engine-other-socket", "direct", ""),
    ],
)
def test_the_way_to_the_engine_is_known(name: str, access: str, error: str) -> None:
    engine = probed(name).engine
    assert engine.access == access
    assert error in engine.error if error else engine.error == ""


def test_the_engine_of_a_manager_tells_its_swarm() -> None:
    engine = probed("server-rack-manager").engine
    assert (engine.is_manager, engine.cluster_id) == (True, "v8n2b6m1x0c9z7l5k3j4h2g1f")
    assert probed("engine-rootless").engine.rootless
    assert probed("swarm-locked").engine.swarm_state == "locked"
    assert "not valid after" in probed("swarm-certificate-expired").engine.swarm_error


@pytest.mark.parametrize(
    ("name", "check", "step"),
    [
        ("pi-4b-4g", "memory-cgroup", "cgroup_enable=memory cgroup_memory=1/' /boot/firmware/cmdline.txt"),
        ("pi-4b-32-bit-userland", "memory-cgroup", " /boot/cmdline.txt"),
        ("pi-4b-32-bit-userland", "userland", "64-bit"),
        ("container-docker", "memory-cgroup", "/etc/default/grub"),
        ("pi-4b-8g-ubuntu", "vxlan", "sudo apt install linux-modules-extra-raspi"),
        ("kernel-upgraded", "vxlan", "sudo reboot"),
        ("engine-absent", "engine", "https://get.docker.com"),
        ("engine-down", "engine", "systemctl enable --now docker"),
        ("engine-denied", "docker-access", 'usermod -aG docker "$USER"'),
        ("clock-ahead", "clock", "timedatectl set-ntp true"),
        ("swarm-certificate-late", "certificate", "docker swarm ca --rotate"),
        ("swarm-certificate-expired", "certificate", "docker swarm leave"),
    ],
)
def test_a_finding_names_its_remedy(name: str, check: str, step: str) -> None:
    finding = next(finding for finding in health(probed(name), now=NOW) if finding.check == check)
    assert any(step in line for line in finding.remedy)


# --- whatever arrives of them ---


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_cut_of_a_recording_is_refused_or_read(data: st.DataObject) -> None:
    whole = recording(data.draw(st.sampled_from(NAMES)))
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, len(whole)))
    try:
        found = parse(whole[begin:end], asked_at=ASKED_AT, answered_at=ANSWERED_AT)
    except ProbeError:
        return
    assert b"--- swarmctl probe 1\n" in whole[begin:end]
    assert b"--- swarmctl probe end" in whole[begin:end]
    evidence(found)
    health(found, now=NOW)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_damage_to_a_recording_is_refused_or_read(data: st.DataObject) -> None:
    damaged = bytearray(recording(data.draw(st.sampled_from(NAMES))))
    for _ in range(data.draw(st.integers(1, 20))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse(bytes(damaged), asked_at=ASKED_AT, answered_at=ANSWERED_AT)
    except ProbeError:
        return
    evidence(found)
    health(found, now=NOW)


def test_every_lost_line_leaves_the_others() -> None:
    lines = recording("pi-4b-4g-in-swarm").splitlines(keepends=True)
    for lost in range(2, len(lines) - 1):
        found = parse(b"".join(lines[:lost] + lines[lost + 1 :]), asked_at=ASKED_AT, answered_at=ANSWERED_AT)
        assert evidence(found).hardware_class == "rpi"
        health(found, now=NOW)
