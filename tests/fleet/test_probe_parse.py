"""The reader of probes by itself: frames, clocks, networks, engines, and where each finding begins."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmctl.fleet import probe as reader
from swarmctl.fleet.evidence import evidence, health
from swarmctl.fleet.facts import Address, EngineFacts, Finding, Probe, Route
from swarmctl.fleet.probe import ProbeError, parse

SCRIPT = resources.files("swarmctl.fleet").joinpath("probe.sh").read_text()
KEYS = sorted(set(re.findall(r"\b(?:put|record|find_line) ([a-z_0-9]+)", SCRIPT)) - {"key"})
GIB = 1024


def frame(*records: tuple[str, str]) -> bytes:
    lines = ["--- swarmctl probe 1", *(f"{key}\t{value}" for key, value in records), "--- swarmctl probe end"]
    return "\n".join(["", *lines, ""]).encode()


def read(*records: tuple[str, str], asked_at: float = 1000.0, answered_at: float = 1001.0) -> Probe:
    return parse(frame(*records), asked_at=asked_at, answered_at=answered_at)


def each(key: str, text: str) -> Iterable[tuple[str, str]]:
    return ((key, line) for line in text.splitlines())


# --- the frame ---


@pytest.mark.parametrize(
    ("stdout", "message"),
    [
        (b"", "its first line is missing"),
        (b"This account is currently not available.\n", "its first line is missing"),
        (b"--- swarmctl probe 2\n--- swarmctl probe end\n", "its first line is missing"),
        (frame(("hostname", "a"))[:-10], "broke off"),
        (b"--- swarmctl probe end\n--- swarmctl probe 1\nhostname\ta\n", "broke off"),
    ],
)
def test_what_is_not_a_whole_probe_is_refused(stdout: bytes, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        parse(stdout, asked_at=0, answered_at=1)


def test_a_terminal_between_does_no_harm() -> None:
    assert parse(frame(("hostname", "a")).replace(b"\n", b"\r\n"), asked_at=0, answered_at=1).hostname == "a"


def test_an_empty_frame_is_a_machine_of_which_nothing_is_known() -> None:
    empty = read()
    assert empty.notes
    assert replace(empty, notes=()) == Probe()
    assert evidence(empty).profile == "UNKNOWN"
    assert health(empty) == ()


def test_every_key_that_is_read_is_one_that_the_script_writes() -> None:
    source = resources.files("swarmctl.fleet").joinpath("probe.py").read_text()
    wanted = set(re.findall(r'(?:_one\(records, |records\.get\()"([a-z_0-9]+)"', source))
    wanted |= set(re.findall(r'"([a-z_0-9]+)" in records', source))
    assert len(wanted) > 25
    assert wanted <= set(KEYS), wanted - set(KEYS)


_TEXT = st.one_of(
    st.text(max_size=40),
    st.from_regex(r"[0-9.\-]{1,30}"),
    st.sampled_from(["Device 1 x", "  inet 999.1.1.1/99 x", "2: eth0: <> mtu 99999999999", "0-3,5-", "throttled=0x"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["Swarm", "Version", "ApiVersion", "Components", "RemoteManagers", "message", "Cluster"]
                ),
                inner,
                max_size=4,
            )
        ),
    ).map(json.dumps),
)


@settings(deadline=None, max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(KEYS), _TEXT), max_size=30), st.floats(0, 1e10), st.floats(0, 1e10))
def test_any_values_are_read(records: list[tuple[str, str]], asked_at: float, answered_at: float) -> None:
    found = parse(frame(*records), asked_at=asked_at, answered_at=answered_at)
    evidence(found)
    health(found, now=0.0)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(content: bytes) -> None:
    with pytest.raises(ProbeError):
        parse(content, asked_at=0.0, answered_at=1.0)
    parse(b"--- swarmctl probe 1\n" + content + b"\n--- swarmctl probe end", asked_at=0.0, answered_at=1.0)


def test_nested_answers_of_an_engine_are_refused_not_followed() -> None:
    deep = '{"Swarm":' * 5000 + "1" + "}" * 5000
    assert read(("access", "direct"), ("engine", deep)).engine.version == ""
    assert read(("engine", '{"Swarm": "active", "ServerVersion": 3}')).notes[-1].startswith("engine: ")


# --- the clock ---


def stamped(start: str, end: str = "") -> tuple[float | None, float]:
    records = [("started", start), *([("ended", end)] if end else [])]
    found = read(*records, asked_at=1000.0, answered_at=1004.0)
    return found.clock_offset_sec, found.clock_doubt_sec


def test_a_clock_is_compared_at_the_middle_of_the_exchange() -> None:
    assert stamped("1002.0") == (0.0, 2.0)
    assert stamped("1012.5") == (10.5, 2.0)
    assert stamped("992.0") == (-10.0, 2.0)


def test_the_time_that_the_script_took_is_no_doubt() -> None:
    # 3 s of the 4 were the script's own: it began between 1000 and 1001.
    assert stamped("1000.5", "1003.5") == (0.0, 0.5)
    assert stamped("1100.5", "1103.5") == (100.0, 0.5)


def test_a_clock_that_was_set_meanwhile_has_the_whole_doubt() -> None:
    assert stamped("1002.0", "900.0") == (0.0, 2.0)
    assert stamped("1002.0", "9000.0") == (0.0, 2.0)


@pytest.mark.parametrize("stamp", ["1002", "1002.", "1002.%N", "1002.N"])
def test_a_clock_of_whole_seconds_has_half_a_second_more_doubt(stamp: str) -> None:
    assert stamped(stamp, stamp) == (0.5, 2.5)


def test_what_stands_behind_a_stamp_is_no_part_of_it() -> None:
    assert stamped("1002.0:") == (0.0, 2.0)


@pytest.mark.parametrize("stamp", ["", "now", "-5", "99999999999999"])
def test_a_clock_that_says_no_time_is_not_known(stamp: str) -> None:
    assert stamped(stamp) == (None, 0.0)


@given(st.floats(-1e6, 1e6), st.floats(0, 30), st.floats(0, 30), st.floats(0, 30))
def test_the_true_offset_is_within_the_doubt(offset: float, there: float, script: float, back: float) -> None:
    asked = 1e9
    start, end = asked + there + offset, asked + there + script + offset
    found = read(
        ("started", f"{start:.9f}"),
        ("ended", f"{end:.9f}"),
        asked_at=asked,
        answered_at=asked + there + script + back,
    )
    assert found.clock_offset_sec is not None
    assert abs(found.clock_offset_sec - offset) <= found.clock_doubt_sec + 1e-5


# --- the network ---

ADDRESSES = """\
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    inet 127.0.0.1/8 scope host lo
    inet 10.1.2.3/32 scope global lo
    inet6 ::1/128 scope host
2: enp3s0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc fq_codel state UP group default qlen 1000
    inet 10.0.0.5/16 brd 10.0.255.255 scope global enp3s0
    inet 10.0.0.6/32 scope global secondary dynamic enp3s0
    inet6 2001:db8::5/64 scope global dynamic mngtmpaddr noprefixroute
    inet6 fe80::1/64 scope link
3: tun0: <POINTOPOINT,MULTICAST,NOARP,UP,LOWER_UP> mtu 1400 qdisc fq_codel state UNKNOWN group default qlen 500
    inet 10.8.0.2 peer 10.8.0.1/32 scope global tun0
4: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN group default
    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0
5: docker_gwbridge: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP group default
    inet 172.18.0.1/16 brd 172.18.255.255 scope global docker_gwbridge
6: br-0123456789ab: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP group default
    inet 172.19.0.1/16 brd 172.19.255.255 scope global br-0123456789ab
7: veth1234567@if8: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue master docker0 state UP group default
    inet 169.254.3.4/16 scope link veth1234567
8: br-lan: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP group default
    inet 192.168.7.1/24 scope global br-lan
9: vlan5@enp3s0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1496 qdisc noqueue state UP group default
    inet 169.254.3.5/16 scope link vlan5
    inet 10.5.0.1/24 scope global vlan5"""

ROUTES = """\
default via 10.0.0.1 dev enp3s0 proto dhcp
10.0.0.0/16 dev enp3s0 proto kernel scope link src 10.0.0.5
10.8.0.1 dev tun0 proto kernel scope link src 10.8.0.2
unreachable 10.99.0.0/16 metric 1024
172.17.0.0/16 dev docker0 proto kernel scope link src 172.17.0.1 linkdown
172.17.0.0/16 dev docker0 proto kernel scope link src 172.17.0.1 metric 9
0.0.0.0/1 via 10.8.0.1 dev tun0
not a route"""


def network(route: str, *more: tuple[str, str]) -> Probe:
    return read(*each("address", ADDRESSES), *each("network", ROUTES), ("route", route), *more)


def test_addresses_are_those_that_another_machine_could_use() -> None:
    assert network("").addresses == (
        Address("enp3s0", "10.0.0.5", 16),
        Address("enp3s0", "10.0.0.6", 32, dynamic=True),
        Address("enp3s0", "2001:db8::5", 64, dynamic=True),
        Address("tun0", "10.8.0.2", 32),
        Address("br-lan", "192.168.7.1", 24),
        Address("vlan5", "169.254.3.5", 16),
        Address("vlan5", "10.5.0.1", 24),
    )


def test_networks_are_those_of_the_routing_table() -> None:
    assert network("").networks == ("10.0.0.0/16", "10.8.0.1/32", "10.99.0.0/16", "172.17.0.0/16", "0.0.0.0/1")


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("", Route()),
        ("10.0.9.9 dev enp3s0 src 10.0.0.5 uid 0", Route("10.0.0.5", "enp3s0", wireless=False, mtu=9000)),
        ("10.9.0.1 via 10.8.0.1 dev tun0 src 10.8.0.2 mtu 1300", Route("10.8.0.2", "tun0", wireless=False, mtu=1300)),
        # To the machine itself: through lo, but the address is the other device's.
        ("local 10.0.0.5 dev lo src 10.0.0.5 uid 0", Route("10.0.0.5", "enp3s0", wireless=False, mtu=9000)),
        ("unreachable 10.99.0.1 dev lo table unspec src 10.0.0.5", Route()),
    ],
)
def test_a_route_tells_source_device_and_mtu(route: str, expected: Route) -> None:
    assert network(route, ("radios", "known")).route == expected


def test_a_radio_is_told_and_a_machine_without_sys_says_nothing() -> None:
    route = "10.0.9.9 dev enp3s0 src 10.0.0.5"
    assert network(route, ("radios", "known"), ("radio", "enp3s0")).route.wireless is True
    assert network(route).route.wireless is None


# --- single readings ---


@pytest.mark.parametrize(
    ("listed", "cores"), [("0-3", 4), ("0", 1), ("0-1,4-7", 6), ("0,2,4", 3), ("", 0), ("3-0", 0), ("none", 0)]
)
def test_cores_are_counted(listed: str, cores: int) -> None:
    assert read(("cores", listed)).cores == cores


def test_cores_fall_back_to_what_a_command_counted() -> None:
    assert read(("cores_count", "8")).cores == 8


@pytest.mark.parametrize(
    ("limits", "memory_mb"),
    [((), 4000), (("max",), 4000), (("1073741824",), 1024), (("9223372036854771712",), 4000), (("0", "x"), 4000)],
)
def test_a_containers_limit_counts_where_it_is_less(limits: tuple[str, ...], memory_mb: int) -> None:
    records = [("memory", "MemTotal:        4096000 kB"), *(("memory_limit", limit) for limit in limits)]
    assert read(*records).memory_mb == memory_mb


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ((("virtualization", "none"), ("hypervisor", "xen")), ""),  # Xen's first domain is the machine itself
        ((("virtualization", "microsoft"),), "microsoft"),
        ((("container", "lxc"),), "lxc"),
        ((("init_cgroup", "1:name=systemd:/docker/0123"),), "docker"),
        ((("init_cgroup", "3:cpu:/lxc/web"),), "lxc"),
        ((("init_cgroup", "3:cpu:/kubepods/besteffort/pod1"),), "container-other"),
        ((("hypervisor", "xen"),), "xen"),
        ((("dmi_vendor", "innotek GmbH"), ("dmi_product", "VirtualBox")), "oracle"),
        ((("dmi_vendor", "Microsoft Corporation"), ("dmi_product", "Virtual Machine")), "microsoft"),
        ((("dmi_vendor", "Microsoft Corporation"), ("dmi_product", "Surface Pro 4")), ""),
        ((("dmi_vendor", "QEMU"),), "kvm"),
        ((("cpu", "flags\t\t: fpu hypervisor avx"),), "vm-other"),
        ((("cpu", "flags\t\t: fpu avx"),), ""),
    ],
)
def test_virtualization_is_told_in_systemds_words(records: tuple[tuple[str, str], ...], expected: str) -> None:
    assert read(*records).virtualization == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [((), None), (("48300",), 48.3), (("48300", "61000"), 61.0), (("-273200", "0", "27"), None), (("900000",), None)],
)
def test_a_temperature_is_the_hottest_that_can_be(values: tuple[str, ...], expected: float | None) -> None:
    assert read(*(("temperature", value) for value in values)).temperature_c == expected


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ((("throttled", "throttled=0x50005"),), 0x50005),
        ((("throttled", "error=1 error_msg"), ("throttled_hex", "20002")), 0x20002),
        ((("throttled", "VCHI initialization failed"),), None),
        ((), None),
    ],
)
def test_throttling_is_read_from_either(records: tuple[tuple[str, str], ...], expected: int | None) -> None:
    assert read(*records).throttled == expected


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ((("cgroup2", "cpu memory pids"), ("cgroup1", "memory\t0\t1\t0")), True),
        ((("cgroup2", "cpu pids"), ("engine", '{"MemoryLimit": true}')), False),
        ((("cgroup1", "memory\t4\t17\t1"),), True),
        ((("cgroup1", "memory\t0\t1\t0"),), False),
        ((("engine", '{"MemoryLimit": false}'),), False),
        ((), None),
    ],
)
def test_the_memory_controller_is_looked_for_in_three_places(
    records: tuple[tuple[str, str], ...], expected: bool | None
) -> None:
    assert read(*records).memory_cgroup is expected


def test_a_battery_that_is_there_and_the_machines_own() -> None:
    assert read(("power_supplies", "known"), ("battery", "- 1 BAT0")).has_battery is True
    assert read(("power_supplies", "known"), ("battery", "System - BAT1")).has_battery is True
    assert read(("power_supplies", "known"), ("battery", "Device 1 hid")).has_battery is False
    assert read(("power_supplies", "known"), ("battery", "- 0 BAT0")).has_battery is False
    assert read(("power_supplies", "known")).has_battery is False
    assert read().has_battery is None


# --- the userland ---


@pytest.mark.parametrize(
    ("kernel", "bits", "engine", "arch"),
    [
        ("x86_64", 64, "", "amd64"),
        ("x86_64", 32, "", "386"),
        ("i686", 32, "", "386"),
        ("aarch64", 64, "", "arm64"),
        ("aarch64", 32, "", "arm"),
        ("armv7l", 32, "", "arm"),
        ("armv6l", None, "", "arm"),
        ("riscv64", 64, "", "riscv64"),
        ("aarch64", 64, "arm", "arm"),  # the engine's word counts: its containers are of its kind
        ("aarch64", None, "arm64", "arm64"),
        ("loongarch64", 64, "", "loongarch64"),
        ("", None, "", ""),
    ],
)
def test_the_architecture_is_the_userlands(kernel: str, bits: int | None, engine: str, arch: str) -> None:
    found = evidence(Probe(kernel_arch=kernel, long_bit=bits, engine=EngineFacts(arch=engine)))
    assert found.arch == arch
    assert arch in found.reasons[-1]


# --- where findings begin ---

FIT = Probe(hostname="a", long_bit=64, engine=EngineFacts(access="direct", version="28.5.2"))


def told(found: Probe) -> list[tuple[str, str]]:
    return [(finding.severity, finding.check) for finding in health(found, now=0.0)]


def only(found: Probe) -> Finding:
    (finding,) = health(found, now=0.0)
    return finding


def test_a_fit_machine_has_no_finding() -> None:
    assert told(FIT) == []


@pytest.mark.parametrize(
    ("offset", "doubt", "severity"),
    [
        (2.0, 0.0, None),
        (2.1, 0.0, "warning"),
        (-2.1, 0.0, "warning"),
        (4.0, 2.5, None),  # may be less than 2
        (30.0, 0.0, "warning"),
        (-30.1, 0.0, "error"),
        (32.0, 2.5, "warning"),
        (None, 0.0, None),
    ],
)
def test_a_clock_is_wrong_by_what_is_certain(offset: float | None, doubt: float, severity: str | None) -> None:
    found = told(replace(FIT, clock_offset_sec=offset, clock_doubt_sec=doubt))
    assert found == ([(severity, "clock")] if severity else [])


@pytest.mark.parametrize(
    ("free", "total", "low"),
    [
        (2 * GIB, 15 * GIB, False),
        (2 * GIB - 1, 15 * GIB, True),
        (10 * GIB, 100 * GIB, False),
        (10 * GIB - 1, 100 * GIB, True),
        (0, 0, False),
        (None, None, False),
    ],
)
def test_a_disk_is_low_below_two_gib_or_a_tenth(free: int | None, total: int | None, low: bool) -> None:
    found = told(replace(FIT, disk_path="/", disk_free_mb=free, disk_total_mb=total))
    assert found == ([("warning", "disk")] if low else [])


@pytest.mark.parametrize(
    ("bits", "checks", "words"),
    [
        (0x0, [], ""),
        (0x1, ["power"], "now"),
        (0x10000, ["power"], "since it booted"),
        (0x10001, ["power"], "now"),
        (0x2, ["throttled"], "now: frequency capped"),
        (0x4, ["throttled"], "now: throttled"),
        (0x8, ["throttled"], "now: soft temperature limit"),
        (0x20000, ["throttled"], "since it booted: frequency capped"),
        (0x40000, ["throttled"], "since it booted: throttled"),
        (0x80000, ["throttled"], "since it booted: soft temperature limit"),
        (0xE0006, ["throttled"], "now: frequency capped, throttled"),
        (0x50005, ["power", "throttled"], "now"),
    ],
)
def test_the_firmwares_bits_are_told(bits: int, checks: list[str], words: str) -> None:
    found = health(replace(FIT, throttled=bits), now=0.0)
    assert [finding.check for finding in found] == checks
    assert all(words in finding.message for finding in found)


@pytest.mark.parametrize(("degrees", "hot"), [(80.0, False), (80.1, True), (None, False)])
def test_hot_is_above_80_degrees(degrees: float | None, hot: bool) -> None:
    assert told(replace(FIT, temperature_c=degrees)) == ([("warning", "temperature")] if hot else [])


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("20.10.0", False),
        ("20.10.24+dfsg1", False),
        ("28.5.2", False),
        ("20.9.9", True),
        ("19.03.15", True),
        ("1.13.1", True),
        ("dev", False),
        ("", False),
    ],
)
def test_an_engine_is_too_old_below_20_10(version: str, old: bool) -> None:
    found = told(replace(FIT, engine=EngineFacts(access="direct", version=version)))
    assert found == ([("error", "engine")] if old else [])


def test_an_engine_that_is_not_dockers_is_not_called_too_old_as_well() -> None:
    finding = only(replace(FIT, engine=EngineFacts(access="absent", version="4.3.1", error="Podman")))
    assert "Podman" in finding.message


def test_a_certificate_that_is_none_is_told() -> None:
    pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    finding = only(replace(FIT, engine=replace(FIT.engine, certificate_pem=pem)))
    assert (finding.severity, finding.check) == ("warning", "certificate")


def test_the_script_text_carries_the_manager_quoted() -> None:
    assert reader.script(None).startswith(b"manager='' manager_name=''\n")
    assert reader.script("10.0.0.1").startswith(b"manager=10.0.0.1 manager_name=''\n")
    assert reader.script("fd00::1").startswith(b"manager=fd00::1 manager_name=''\n")
    assert reader.script("pi-1.home").startswith(b"manager='' manager_name=pi-1.home\n")
    assert reader.script("a'; reboot #").startswith(b"manager='' manager_name='a'\"'\"'; reboot #'\n")
