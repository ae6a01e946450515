"""What gets from one machine to another, for real: network namespaces as machines, on a switch of their own."""

import ast
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmctl.errors import SwarmctlError, UnreachableError
from swarmctl.fleet import pairs as testing
from swarmctl.fleet import pairs_remote
from swarmctl.fleet.checks import Machine, Observation, PairResult, reach
from swarmctl.fleet.connection import Completed, Connection
from swarmctl.fleet.docker_socket import DockerUrl
from swarmctl.fleet.facts import Probe, Route
from swarmctl.fleet.inventory import Host
from swarmctl.fleet.observation import (
    NO_ECHO,
    NO_PING,
    NO_PYTHON,
    NO_ROOT,
    NO_ROUTE,
    NO_TOOL,
    NOT_SENT,
    REFUSED,
    REJECTED,
    SILENT,
    SIMPLE_PING,
)
from swarmctl.fleet.pairs import End, PairsError, Report, edges, pairs, parse, script
from swarmctl.fleet.ssh_config import SshSettings

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces, which takes root")
_numbers = itertools.count()
_SETTLED_SEC = 10


# Machines ----------------------------------------------------------------------------------------------------------


def sh(command: str) -> None:
    done = subprocess.run(["sh", "-ec", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"


class Switch:
    """A switch with machines on it, all in namespaces of their own: the root namespace has no part in it."""

    def __init__(self) -> None:
        self.prefix = f"pair{os.getpid()}x{next(_numbers)}"
        self.nodes: dict[str, Node] = {}
        self._spaces: list[str] = []
        self.space("switch")
        sh(f"ip -n {self.prefix}switch link add br0 type bridge; ip -n {self.prefix}switch link set br0 up")

    def space(self, name: str) -> str:
        full = self.prefix + name
        sh(f"ip netns add {full}")
        self._spaces.append(full)
        sh(f"ip -n {full} link set lo up")
        return full

    def add(self, name: str) -> "Node":
        """A machine with an address, plugged in."""
        space, port = self.space(name), name
        address = f"10.66.0.{len(self.nodes) + 1}"
        sh(
            f"ip -n {space} link add eth0 type veth peer name {port} netns {self.prefix}switch;"
            f"ip -n {self.prefix}switch link set {port} master br0 up;"
            f"ip -n {space} addr add {address}/24 dev eth0; ip -n {space} link set eth0 up"
        )
        self.nodes[name] = Node(name, address, space, self)
        return self.nodes[name]

    def run(self, command: str) -> None:
        """In the switch's own namespace."""
        sh(f"nsenter --net=/run/netns/{self.prefix}switch sh -ec {shlex.quote(command)}")

    def close(self) -> None:
        for space in self._spaces:
            found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=True)
            for pid in found.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            sh(f"ip netns del {space}")


class Node:
    """A machine, which is also the connection to it: commands run in its namespace."""

    def __init__(self, name: str, address: str, space: str, switch: Switch) -> None:
        self.host, self.address, self.space, self.switch = Host(name), address, space, switch
        self.shell: Sequence[str] = ("sh",)
        self.as_user: Sequence[str] = ()
        self.path: str = os.environ["PATH"]

    def run(self, command: str, *, stdin: bytes = b"", timeout: float = 30, limit: int = 4 << 20) -> Completed:
        began = time.monotonic()
        words = [*self.as_user, *self.shell] if command == "sh -s" else [*self.as_user, "sh", "-c", command]
        argv = ["nsenter", f"--net=/run/netns/{self.space}", "env", f"PATH={self.path}", *words]
        argv[0] = shutil.which("nsenter") or argv[0]
        argv[2] = shutil.which("env") or argv[2]
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout, check=False)
        assert len(done.stdout) < limit
        return Completed(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def docker(self, sudo: bool = False) -> AbstractContextManager[DockerUrl]:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def firewall(self, rule: str) -> None:
        sh(f"nsenter --net=/run/netns/{self.space} iptables {rule}")

    @contextmanager
    def program(self, text: str, *arguments: object) -> Iterator[None]:
        """A Python program in the machine, for as long as the context lasts; it says "ready" when it is."""
        argv = ["nsenter", f"--net=/run/netns/{self.space}", sys.executable, "-c", text, *map(str, arguments)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout
                assert process.stdout.readline() == b"ready\n"
                yield
            finally:
                process.kill()

    def busy(self) -> list[str]:
        """Processes in the machine."""
        found = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, text=True, check=True)
        return found.stdout.split()


def at_once(nodes: Mapping[str, Node], *, missing: Sequence[str] = ()) -> testing.Everywhere:
    """What `everywhere` does, over these connections; those that are missing can't be reached."""

    def run(
        hosts: Sequence[Host],
        work: Callable[[Connection], Report],
        *,
        settings: SshSettings,
        deadline: float,
        on_done: Callable[[Host, Report | SwarmctlError], None] | None,
    ) -> Mapping[str, Report | SwarmctlError]:
        results: dict[str, Report | SwarmctlError] = {}

        def one(host: Host) -> None:
            try:
                if host.name in missing:
                    raise UnreachableError(f"{host.name}: connection timed out")
                results[host.name] = work(nodes[host.name])
            except SwarmctlError as error:
                results[host.name] = error
            if on_done:
                on_done(host, results[host.name])

        threads = [threading.Thread(target=one, args=(host,)) for host in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(deadline)
            assert not thread.is_alive()
        return results

    return run


@pytest.fixture(autouse=True)
def _less_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a machine that was heard of: nothing is lost or late on this switch."""
    monkeypatch.setattr(testing, "_PATIENCE_SEC", 1.5)


@pytest.fixture
def switch() -> Iterator[Switch]:
    made = Switch()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def three(switch: Switch) -> Switch:
    """A manager and two workers."""
    for name in ("boss", "one", "two"):
        switch.add(name)
    return switch


def measure(switch: Switch, missing: Sequence[str] = (), *, all_pairs: bool = False) -> "Results":
    ends = [End(node.host, node.address, manager=name == "boss") for name, node in switch.nodes.items()]
    run = at_once(switch.nodes, missing=missing)
    return Results(pairs(ends, SshSettings(), all_pairs=all_pairs, run=run))


def results_of(switch: Switch, *, missing: Sequence[str] = (), all_pairs: bool = False) -> "Results":
    """Test the machines, and look that it leaves nothing behind."""
    found = measure(switch, missing, all_pairs=all_pairs)
    for name, node in switch.nodes.items():
        assert node.busy() == [], f"{name}: something was left running"
    return found


class Results:
    """Pair results, to be asked for one."""

    def __init__(self, found: Sequence[PairResult]) -> None:
        self.all = found

    def __call__(self, source: str, target: str, what: str) -> PairResult:
        """Such as ``("one", "boss", "tcp 2377")``."""
        (found,) = [
            pair
            for pair in self.all
            if (pair.source, pair.target, f"{pair.protocol} {pair.port or ''}".strip()) == (source, target, what)
        ]
        return found

    @property
    def bad(self) -> list[PairResult]:
        return [pair for pair in self.all if pair.ok is not True]


# Somebody has the ports, as Docker's engine does: it takes what comes and answers nothing.
OWNER = """
import socket, sys
kept = []
for word in sys.argv[1:]:
    protocol, port = word.split("/")
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM)
    made.bind(("", int(port)))
    if protocol == "tcp":
        made.listen()
    kept.append(made)
print("ready", flush=True)
while True:
    for made in kept:
        made.settimeout(0.05)
        try:
            made.accept() if made.type == socket.SOCK_STREAM else made.recv(65535)
        except TimeoutError:
            pass
"""
ENGINE_PORTS = ("tcp/2377", "tcp/7946", "udp/7946", "udp/4789")


# Open ---------------------------------------------------------------------------------------------------------------


@needs_root
def test_between_machines_that_are_in_no_swarm_yet_all_is_proven(three: Switch) -> None:
    began = time.monotonic()
    found = results_of(three)
    assert found.bad == []
    assert time.monotonic() - began < 5, "it waited though all was known"
    assert found("one", "boss", "mtu").value == 1500
    assert {(pair.source, pair.target) for pair in found.all} == {
        *(("boss", "one"), ("boss", "two"), ("one", "boss"), ("two", "boss")),
        *(("one", "two"), ("two", "one")),
    }
    assert [pair.target for pair in found.all if pair.port == 2377] == ["boss", "boss"]


@needs_root
def test_ports_that_an_engine_has_are_proven_beside_it(three: Switch) -> None:
    with ExitStack() as stack:
        for node in three.nodes.values():
            stack.enter_context(node.program(OWNER, *ENGINE_PORTS))
        found = measure(three)
    assert found.bad == []


@needs_root
def test_what_the_kernels_vxlan_takes_is_seen_to_arrive(three: Switch) -> None:
    for node in three.nodes.values():
        sh(f"ip -n {node.space} link add vx0 type vxlan id 7 dstport 4789 local {node.address} dev eth0")
        sh(f"ip -n {node.space} link set vx0 up")
    assert results_of(three).bad == []


@needs_root
@pytest.mark.parametrize("shell", [("dash",), ("bash", "--posix"), ("busybox", "sh")], ids=lambda words: words[0])
def test_it_runs_under_the_shells_that_machines_have(three: Switch, shell: tuple[str, ...]) -> None:
    for node in three.nodes.values():
        node.shell = shell
    bad = results_of(three).bad
    # Busybox takes its own ping, whatever the PATH says.
    assert [pair for pair in bad if pair.protocol != "mtu" or not pair.detail.endswith(SIMPLE_PING)] == []
    assert not bad or shell[0] == "busybox"


@needs_root
def test_every_machine_with_every_other_if_wished(switch: Switch) -> None:
    for name in ("boss", "one", "two", "three"):
        switch.add(name)
    found = results_of(switch, all_pairs=True)
    assert len({(pair.source, pair.target) for pair in found.all}) == 12
    assert found.bad == []


# Shut ---------------------------------------------------------------------------------------------------------------


@needs_root
def test_a_dropped_port_is_silent_and_the_others_are_open(three: Switch) -> None:
    three.nodes["boss"].firewall("-A INPUT -p tcp --dport 2377 -j DROP")
    found = results_of(three)
    assert [(pair.source, pair.target, pair.port, pair.detail) for pair in found.bad] == [
        ("one", "boss", 2377, SILENT),
        ("two", "boss", 2377, SILENT),
    ]


@needs_root
@pytest.mark.parametrize("owned", [True, False], ids=["the engine has it", "nobody has it"])
def test_a_datagram_that_the_machines_own_firewall_drops_has_not_arrived(three: Switch, owned: bool) -> None:
    three.nodes["boss"].firewall("-A INPUT -p udp --dport 4789 -j DROP")
    with ExitStack() as stack:
        if owned:
            stack.enter_context(three.nodes["boss"].program(OWNER, *ENGINE_PORTS))
        found = measure(three)
    assert [(pair.source, pair.target, pair.protocol, pair.port, pair.detail) for pair in found.bad] == [
        ("one", "boss", "udp", 4789, SILENT),
        ("two", "boss", "udp", 4789, SILENT),
    ]


@needs_root
def test_a_datagram_counts_though_the_answer_to_it_is_lost(three: Switch) -> None:
    three.nodes["one"].firewall("-A INPUT -p udp --sport 7946 -j DROP")
    assert results_of(three).bad == []


@needs_root
@pytest.mark.parametrize(
    ("how", "word"),
    [("", REFUSED), (" --reject-with tcp-reset", REFUSED), (" --reject-with icmp-host-prohibited", REJECTED)],
)
def test_a_firewall_that_says_no_is_told_from_one_that_is_silent(three: Switch, how: str, word: str) -> None:
    three.nodes["boss"].firewall(f"-A INPUT -p tcp --dport 7946 -j REJECT{how}")
    found = results_of(three)
    assert {(pair.target, pair.port, pair.detail) for pair in found.bad} == {("boss", 7946, word)}


@needs_root
def test_a_firewall_that_lets_nothing_out_is_told_at_its_own_machine(three: Switch) -> None:
    three.nodes["one"].firewall("-A OUTPUT -p udp --dport 4789 -j DROP")
    found = results_of(three)
    assert {(pair.source, pair.port) for pair in found.bad} == {("one", 4789)}
    assert all(pair.detail == f"{NOT_SENT}: Operation not permitted" for pair in found.bad)


@needs_root
def test_a_port_that_nobody_has_is_not_called_shut_where_nobody_can_listen(three: Switch, tmp_path: Path) -> None:
    three.nodes["boss"].path = tools(tmp_path, "bash", "timeout")
    with three.nodes["boss"].program(OWNER, "tcp/7946"):
        found = measure(three)
    assert found("one", "boss", "tcp 7946").ok is True
    untold = found("one", "boss", "tcp 2377")
    assert (untold.ok, untold.detail) == (None, f"boss: {NO_PYTHON}")


@needs_root
def test_a_port_that_an_engine_has_and_a_firewall_refuses_is_shut_without_python_too(
    three: Switch, tmp_path: Path
) -> None:
    three.nodes["boss"].path = tools(tmp_path, "bash", "timeout")
    three.nodes["boss"].firewall("-A INPUT -p tcp --dport 2377 -j REJECT --reject-with tcp-reset")
    with three.nodes["boss"].program(OWNER, "tcp/2377"):
        found = measure(three)
    assert (found("one", "boss", "tcp 2377").ok, found("one", "boss", "tcp 2377").detail) == (False, REFUSED)


@needs_root
def test_a_machine_that_is_not_there_has_no_route(three: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "_PATIENCE_SEC", 5)  # the kernel asks for a neighbour for 3 s
    sh(f"ip -n {three.nodes['two'].space} link set eth0 down")
    found = results_of(three, missing=["two"])
    assert found("boss", "two", "tcp 7946").detail == NO_ROUTE
    assert found("boss", "two", "udp 4789").ok is None
    assert "two: could not be asked what arrived: two: connection timed out" in found("boss", "two", "udp 4789").detail
    assert found("two", "boss", "tcp 2377").ok is None
    assert found("boss", "two", "mtu").detail == f"two: {NO_ECHO}"
    assert [pair for pair in found.bad if "two" not in {pair.source, pair.target}] == []


@needs_root
def test_wifi_guests_that_are_kept_apart_are_found_to_be(switch: Switch) -> None:
    for name in ("boss", "one", "two", "three"):
        switch.add(name)
    switch.run("for port in one two three; do bridge link set dev $port isolated on; done")
    found = results_of(switch)
    assert {frozenset((pair.source, pair.target)) for pair in found.bad} == {
        frozenset(("one", "two")),
        frozenset(("two", "three")),
        frozenset(("one", "three")),
    }
    machines = tuple(
        Machine(name, probe=Probe(route=Route(device="wlan0", wireless=name != "boss"))) for name in switch.nodes
    )
    (finding,) = reach(Observation(None, machines, tuple(found.all)))
    assert finding.check == "wifi-isolation"
    assert "one, three and two" in finding.message


# Packet sizes -------------------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("size", [1420, 1400])
def test_a_link_with_small_packets_is_measured(three: Switch, size: int) -> None:
    sh(f"ip -n {three.nodes['one'].space} link set eth0 mtu {size}")
    found = results_of(three)
    # The other side of the link still takes large packets, but their echoes do not come back whole.
    assert {(pair.source, pair.target): pair.value for pair in found.bad} == {
        ("one", "boss"): size,
        ("one", "two"): size,
    } | dict.fromkeys((("boss", "one"), ("two", "one")), size)
    assert found("boss", "two", "mtu").value == 1500
    findings = reach(Observation(None, (), tuple(found.all)))
    assert [(finding.check, finding.where) for finding in findings] == [("mtu", "one")]
    assert f'com.docker.network.driver.mtu: "{size}"' in findings[0].remedy[0]


@needs_root
@pytest.mark.parametrize("silent", [False, True], ids=["a router that says so", "a router that says nothing"])
def test_a_narrow_link_in_the_middle_is_measured(switch: Switch, silent: bool) -> None:
    """Two machines with a tunnel between two routers; what is too long is told of, or is just gone."""
    near = switch.add("boss")
    far = switch.space("far")
    routers = [switch.space("router1"), switch.space("router2")]
    sh(
        f"ip -n {routers[0]} link add lan type veth peer name router netns {switch.prefix}switch;"
        f"ip -n {switch.prefix}switch link set router master br0 up;"
        f"ip -n {routers[0]} addr add 10.66.0.250/24 dev lan; ip -n {routers[0]} link set lan up;"
        f"ip -n {routers[0]} link add tunnel mtu 1400 type veth peer name tunnel mtu 1400 netns {routers[1]};"
        f"ip -n {routers[0]} addr add 10.67.0.1/30 dev tunnel; ip -n {routers[0]} link set tunnel up;"
        f"ip -n {routers[1]} addr add 10.67.0.2/30 dev tunnel; ip -n {routers[1]} link set tunnel up;"
        f"ip -n {routers[1]} link add lan type veth peer name eth0 netns {far};"
        f"ip -n {routers[1]} addr add 10.68.0.1/24 dev lan; ip -n {routers[1]} link set lan up;"
        f"ip -n {far} addr add 10.68.0.2/24 dev eth0; ip -n {far} link set eth0 up;"
        f"ip -n {routers[0]} route add 10.68.0.0/24 via 10.67.0.2;"
        f"ip -n {routers[1]} route add 10.66.0.0/24 via 10.67.0.1;"
        f"ip -n {near.space} route add 10.68.0.0/24 via 10.66.0.250; ip -n {far} route add default via 10.68.0.1"
    )
    for router in routers:
        sh(f"nsenter --net=/run/netns/{router} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'")
        if silent:
            sh(f"nsenter --net=/run/netns/{router} iptables -A OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP")
    switch.nodes["far"] = Node("far", "10.68.0.2", far, switch)
    found = results_of(switch)
    assert [(pair.source, pair.target, pair.value) for pair in found.bad] == [
        ("boss", "far", 1400),
        ("far", "boss", 1400),
    ]


# What can't be tested is said to be -----------------------------------------------------------------------------


def tools(folder: Path, *names: str) -> str:
    """A PATH with no more than these and what any system has."""
    for name in ("sh", "id", "date", "sleep", "env", "sudo", "cat", "grep", *names):
        if found := shutil.which(name):
            (folder / name).symlink_to(Path(found).resolve())
    return str(folder)


@needs_root
@pytest.mark.parametrize("tool", [("bash", "timeout"), ("nc",)], ids=["bash", "nc"])
def test_without_python_connections_are_made_and_datagrams_sent_all_the_same(
    three: Switch, tmp_path: Path, tool: tuple[str, ...]
) -> None:
    three.nodes["one"].path = tools(tmp_path, *tool)
    three.nodes["boss"].firewall("-A INPUT -p tcp --dport 2377 -j DROP")
    found = results_of(three)
    assert found("one", "boss", "tcp 7946").ok is True
    assert found("one", "boss", "udp 4789").ok is True
    assert found("one", "boss", "tcp 2377").detail == SILENT
    assert (found("boss", "one", "udp 7946").ok, found("boss", "one", "udp 7946").detail) == (None, f"one: {NO_PYTHON}")
    assert (found("one", "boss", "mtu").ok, found("one", "boss", "mtu").detail) == (None, f"one: {NO_PING}")


@needs_root
def test_without_any_tool_nothing_is_claimed(three: Switch, tmp_path: Path) -> None:
    three.nodes["one"].path = tools(tmp_path)
    found = results_of(three)
    sent = [pair for pair in found.all if pair.source == "one" and pair.protocol != "mtu"]
    assert {(pair.ok, pair.detail) for pair in sent} == {(None, f"one: {NO_TOOL}")}


@needs_root
def test_without_root_only_a_port_that_nobody_has_can_be_watched(three: Switch) -> None:
    setpriv = shutil.which("setpriv") or "setpriv"
    plain = (setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs")
    for name in ("one", "two"):
        three.nodes[name].as_user = plain
        three.nodes[name].path = "/usr/bin:/bin"  # a Python in root's home can't be run by anybody else
    with three.nodes["one"].program(OWNER, "tcp/7946", "udp/7946"):
        found = measure(three)
    assert found("boss", "one", "tcp 7946").ok is True
    assert found("boss", "one", "udp 4789").ok is True
    assert (found("boss", "one", "udp 7946").ok, found("boss", "one", "udp 7946").detail) == (None, f"one: {NO_ROOT}")
    assert {found("boss", "two", what).ok for what in ("tcp 7946", "udp 7946", "udp 4789")} == {True}


def test_who_is_late_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "_MEETING_SEC", 0.3)
    meeting = testing._Meeting(["early", "late"])
    began = time.monotonic()
    assert meeting.wait("early") == {"early"}
    assert time.monotonic() - began < _SETTLED_SEC
    with pytest.raises(PairsError, match="late took more than"):
        meeting.wait("late")


def test_who_can_not_come_is_not_waited_for() -> None:
    meeting = testing._Meeting(["here", "gone"])
    meeting.without("gone")
    assert meeting.wait("here") == {"here"}


# Pure -----------------------------------------------------------------------------------------------------------


def ends(count: int, managers: int = 1) -> list[End]:
    return [End(Host(f"host-{i}"), f"10.0.0.{i + 1}", manager=i < managers) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "managers", "expected"),
    [
        (1, 1, []),
        (2, 1, [(0, 1), (1, 0)]),
        (3, 1, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]),
        (4, 1, [(0, 1), (0, 2), (0, 3), (1, 0), (1, 2), (2, 0), (2, 3), (3, 0), (3, 1)]),
        (3, 0, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]),
        (3, 3, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]),
    ],
)
def test_who_sends_to_whom(count: int, managers: int, expected: list[tuple[int, int]]) -> None:
    assert edges(ends(count, managers)) == expected


def test_a_home_needs_no_more_than_a_few_hundred_pairs() -> None:
    assert len(edges(ends(45, 3))) == 2 * 3 * 42 + 3 * 2 + 42


def test_over_ipv6_connections_are_tested_and_datagrams_said_not_to_be() -> None:
    two = [End(Host("a"), "fd00::1", manager=True), End(Host("b"), "fd00::2")]
    assert b"'1 fd00::2 7946 - yes'" in script(0, two, [(0, 1), (1, 0)], {0, 1}, "token")
    report = Report(tcp={(1, 7946): "open"})
    found = Results(testing.merge(two, [(0, 1)], [report, Report()]))
    assert found("a", "b", "tcp 7946").ok is True
    assert found("a", "b", "udp 4789").ok is None
    assert "IPv6" in found("a", "b", "udp 4789").detail


def test_an_address_that_would_be_a_command_is_none() -> None:
    text = script(0, [End(Host("a"), "10.0.0.1"), End(Host("b"), "$(reboot)'; reboot; '")], [(0, 1)], {0, 1}, "token")
    assert shlex.quote("1 $(reboot)'; reboot; ' 7946 7946,4789 yes").encode() in text


def test_the_program_is_one_that_an_old_python_can_read() -> None:
    """Debian 10, the oldest with a Docker that is new enough, has Python 3.7."""
    ast.parse(Path(pairs_remote.__file__).read_text(encoding="utf-8"), feature_version=(3, 7))


WHOLE = b"Welcome\n\x1b[0m\nswarmctl-pairs\tbegin\t1\ntcp\t1\t7946\topen\nmtu\t1\t-\t1500\nswarmctl-pairs\tend\nbye\n"


def test_a_greeting_before_and_noise_after_do_no_harm() -> None:
    assert parse(WHOLE) == Report(tcp={(1, 7946): "open"}, mtu={1: "1500"})


@given(st.integers(0, len(WHOLE) - len(b"swarmctl-pairs\tend\nbye\n")))
def test_what_is_cut_off_is_not_taken_for_the_whole(length: int) -> None:
    with pytest.raises(PairsError):
        parse(WHOLE[:length], b"sh: killed\n")


@given(st.binary() | st.binary().map(lambda noise: b"swarmctl-pairs\tbegin\t1\n" + noise + b"\nswarmctl-pairs\tend\n"))
def test_any_output_is_read_or_refused(output: bytes) -> None:
    try:
        found = parse(output)
    except PairsError:
        return
    assert isinstance(found, Report)


def test_why_the_script_did_not_run_is_told() -> None:
    with pytest.raises(PairsError, match="sh: not found"):
        parse(b"", b"sh: not found\n")
