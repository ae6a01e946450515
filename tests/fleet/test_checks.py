"""What doctor finds: each check fires where it should, keeps still where it should not, and is on the page."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from fleet_examples import manager, node, probe, swarm

from swarmctl.fleet import observation as words
from swarmctl.fleet.checks import Finding, Machine, Observation, PairResult, findings, reach
from swarmctl.fleet.evidence import evidence
from swarmctl.fleet.facts import Address, Probe, Route
from swarmctl.fleet.plan import labels_by_probe
from swarmctl.fleet.swarm import CLASS, IDENTITY, MEMORY, SOURCE, Node

NOW = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
GIB = 1024


# A fleet with nothing wrong ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fleet:
    """A fleet that a case changes; the observation of it is what the checks see."""

    nodes: tuple[Node, ...]
    machines: tuple[Machine, ...]
    pairs: tuple[PairResult, ...] = ()
    swarm: dict[str, Any] | None = None
    no_swarm: bool = False
    more: dict[str, Any] | None = None

    def observation(self) -> Observation:
        seen = None if self.no_swarm else swarm(*self.nodes, **(self.swarm or {}))
        return Observation(seen, self.machines, self.pairs, NOW, **(self.more or {}))

    def findings(self) -> tuple[Finding, ...]:
        return findings(self.observation())

    def with_machine(self, host: str, **keys: Any) -> "Fleet":
        """Change what a machine's probe says; keys that begin with `engine_` go to its engine."""
        engine = {key.removeprefix("engine_"): keys.pop(key) for key in list(keys) if key.startswith("engine_")}
        changed = []
        for machine in self.machines:
            if machine.host == host:
                assert machine.probe
                new = replace(machine.probe, **keys, engine=replace(machine.probe.engine, **engine))
                machine = replace(machine, probe=new)
            changed.append(machine)
        return replace(self, machines=tuple(changed))

    def with_node(self, name: str, **keys: Any) -> "Fleet":
        return replace(self, nodes=tuple(replace(n, **keys) if n.hostname == name else n for n in self.nodes))

    def with_labels(self, name: str, **labels: str) -> "Fleet":
        keys = {f"fdtc.{key.replace('_', '-')}": value for key, value in labels.items()}
        return replace(
            self,
            nodes=tuple(replace(n, labels={**n.labels, **keys}) if n.hostname == name else n for n in self.nodes),
        )

    def unreachable(self, host: str, error: str = "connection timed out") -> "Fleet":
        dumb = Machine(host, f"id-{host}", error=error, remedy=(f"ping {host}",))
        return replace(self, machines=tuple(dumb if m.host == host else m for m in self.machines))

    def with_pairs(self, spoil: Callable[[PairResult], PairResult] = lambda pair: pair) -> "Fleet":
        """All pair tests, well but for what `spoil` makes of them."""
        hosts = [machine.host for machine in self.machines]
        managers = {n.hostname for n in self.nodes if n.role == "manager"}
        results = []
        for source in hosts:
            for target in hosts:
                if source != target:
                    ports = [("tcp", 7946), ("udp", 7946), ("udp", 4789)]
                    ports += [("tcp", 2377)] if target in managers else []
                    results += [PairResult(source, target, port, protocol, ok=True) for protocol, port in ports]
                    results.append(PairResult(source, target, None, "mtu", ok=True, value=1500))
        return replace(self, pairs=tuple(map(spoil, results)))


def fleet(*names: str) -> Fleet:
    """A manager and some Pis, all of them well."""
    nodes, machines = [], []
    for number, name in enumerate(("server-1", *(names or ("pi-1", "pi-2", "pi-3"))), 2):
        address = f"10.77.0.{number}"
        kind = {"model": "", "compatible": (), "chassis_type": 17, "memory_mb": 32 * GIB} if number == 2 else {}
        said = probe(
            name,
            addresses=(Address("eth0", address, 24),),
            route=Route(address, "eth0", wireless=False, mtu=1500),
            **kind,
        )
        engine = replace(
            said.engine,
            swarm_state="active",
            node_id=f"id-{name}",
            node_address=address,
            is_manager=number == 2,
            managers=("10.77.0.2:2377",),
        )
        said = replace(said, engine=engine)
        bare = manager(name, address) if number == 2 else node(name, address=address)
        nodes.append(replace(bare, labels=labels_by_probe(bare, said, evidence(said))))
        machines.append(Machine(name, f"id-{name}", said, evidence(said)))
    return Fleet(tuple(nodes), tuple(machines))


def test_a_fleet_that_is_well_has_no_findings() -> None:
    assert fleet().with_pairs().findings() == ()
    assert replace(fleet(), no_swarm=True).findings() == ()
    assert Observation(None, ()).swarm is None
    assert findings(Observation(None, ())) == ()


# Each check: where it fires, and the nearest that it does not ----------------------------------------------------


@cache
def certificate(days: float) -> str:
    """A certificate that ends so many days from now."""
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([])
    now = datetime.fromtimestamp(NOW, UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=400))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, None)
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def spec(heartbeat_sec: float = 15, expiry_days: float = 365) -> dict[str, Any]:
    return {
        "spec": {
            "Dispatcher": {"HeartbeatPeriod": int(heartbeat_sec * 1e9)},
            "CAConfig": {"NodeCertExpiry": int(expiry_days * 86400e9)},
        }
    }


def on_wifi(some: Fleet, *hosts: str) -> Fleet:
    for host in hosts:
        some = some.with_machine(host, route=Route("", "wlan0", wireless=True, mtu=1500))
    return some


def with_ghost(some: Fleet, **keys: Any) -> Fleet:
    past = node("pi-1", id="id-past", state="down", labels=some.nodes[1].labels)
    return replace(some, nodes=(*some.nodes, replace(past, **keys)))


def managers(count: int, **keys: Any) -> Fleet:
    """Several managers, of which the last has other values."""
    some = fleet(*(f"pi-{i}" for i in range(1, count)))
    nodes = [
        replace(n, role="manager", reachability="reachable", manager_address=f"{n.address}:2377") for n in some.nodes
    ]
    nodes[-1] = replace(nodes[-1], **keys)
    return replace(some, nodes=tuple(nodes))


def servers(count: int) -> Fleet:
    some = fleet()
    for name in ["server-1", "pi-1", "pi-2"][:count]:
        some = some.with_labels(name, source="user", **{"class": "server"})
    return some


def blocked(target: str, *ports: int, source: str = "", word: str = words.SILENT) -> Callable[[PairResult], PairResult]:
    """Ports of a machine, or all of them, that nobody or one machine reaches."""

    def spoil(pair: PairResult) -> PairResult:
        hit = pair.target == target and source in {"", pair.source} and pair.protocol != "mtu"
        return replace(pair, ok=False, detail=word) if hit and (not ports or pair.port in ports) else pair

    return spoil


def dead_between(*hosts: str, echo: bool = False) -> Callable[[PairResult], PairResult]:
    """Nothing gets from one of these to another; pings do, if `echo`."""

    def spoil(pair: PairResult) -> PairResult:
        if not {pair.source, pair.target} <= set(hosts):
            return pair
        if pair.protocol == "mtu":
            return pair if echo else replace(pair, ok=None, value=None, detail=f"{pair.target}: {words.NO_ECHO}")
        return replace(pair, ok=False, detail=words.SILENT)

    return spoil


def cut_off(host: str, *, both_ways: bool = True) -> Callable[[PairResult], PairResult]:
    """Nothing gets from a machine, and nothing to it."""

    def spoil(pair: PairResult) -> PairResult:
        if pair.source != host and not (both_ways and pair.target == host):
            return pair
        if pair.protocol == "mtu":
            return replace(pair, ok=None, value=None, detail=f"{pair.target}: {words.NO_ECHO}")
        return replace(pair, ok=False, detail=words.SILENT)

    return spoil


def narrow(size: int, *hosts: str) -> Callable[[PairResult], PairResult]:
    """Links to and from these carry packets of this size only."""

    def spoil(pair: PairResult) -> PairResult:
        hit = pair.protocol == "mtu" and {pair.source, pair.target} & set(hosts)
        return replace(pair, ok=size >= 1500, value=size) if hit else pair

    return spoil


def untested(host: str, why: str) -> Callable[[PairResult], PairResult]:
    def spoil(pair: PairResult) -> PairResult:
        hit = pair.target == host and pair.protocol == "udp"
        return replace(pair, ok=None, detail=f"{host}: {why}") if hit else pair

    return spoil


VIRTUAL = Address("virbr0", "192.168.122.1", 24)


def with_address(some: Fleet, host: str, address: Address) -> Fleet:
    said = next(machine.probe for machine in some.machines if machine.host == host)
    assert said
    return some.with_machine(host, addresses=(*said.addresses, address))


def cloned(some: Fleet, **keys: Any) -> Fleet:
    return some.with_machine("pi-2", machine_id="machine-pi-1", **keys)


@dataclass(frozen=True)
class Case:
    """A fleet in which one check fires, and one that is as near as can be in which it does not."""

    check: str
    severity: str
    where: str
    says: str
    fires: Fleet
    still: Fleet
    remedy: str
    fix: str = ""
    subject: str = ""


WELL = fleet()
CASES = [
    # what evidence.health finds, by the machine's own name here
    Case("power", "warning", "pi-1", "under-voltage", WELL.with_machine("pi-1", throttled=0x1),
         WELL.with_machine("pi-1", throttled=0), "supply"),
    Case("throttled", "warning", "pi-1", "slowed", WELL.with_machine("pi-1", throttled=0x4),
         WELL.with_machine("pi-1", throttled=0), "vcgencmd"),
    Case("temperature", "warning", "pi-1", "85", WELL.with_machine("pi-1", temperature_c=85.0),
         WELL.with_machine("pi-1", temperature_c=79.0), "air"),
    Case("disk", "warning", "pi-1", "free", WELL.with_machine("pi-1", disk_free_mb=1000),
         WELL.with_machine("pi-1", disk_free_mb=5000), "docker system prune"),
    Case("memory-cgroup", "warning", "pi-1", "memory", WELL.with_machine("pi-1", memory_cgroup=False),
         WELL.with_machine("pi-1", memory_cgroup=None), "cgroup_enable=memory"),
    Case("userland", "error", "pi-1", "32-bit", WELL.with_machine("pi-1", long_bit=32),
         WELL.with_machine("pi-1", long_bit=None), "64-bit"),
    Case("vxlan", "error", "pi-1", "vxlan", WELL.with_machine("pi-1", vxlan=False),
         WELL.with_machine("pi-1", vxlan=None), "modprobe"),
    Case("certificate", "warning", "pi-1", "was not renewed",
         WELL.with_machine("pi-1", engine_certificate_pem=certificate(9)),
         WELL.with_machine("pi-1", engine_certificate_pem=certificate(30)), "docker swarm ca --rotate"),
    Case("engine", "error", "pi-1", "does not answer",
         WELL.with_machine("pi-1", engine_access="down", engine_swarm_state="", engine_node_id=""),
         WELL, "systemctl enable --now docker"),
    Case("docker-access", "error", "pi-1", "may not use Docker", WELL.with_machine("pi-1", engine_access="denied"),
         WELL.with_machine("pi-1", engine_access="sudo"), "usermod -aG docker"),
    Case("clock", "error", "pi-1", "45", WELL.with_machine("pi-1", clock_offset_sec=45.0, clock_doubt_sec=0.1),
         WELL.with_machine("pi-1", clock_offset_sec=2.5, clock_doubt_sec=1.0), "timedatectl set-ntp true"),
    # machines beside each other
    Case("docker-access", "warning", "pi-1", "password", WELL.with_machine("pi-1", engine_access="sudo-password"),
         WELL, "usermod -aG docker"),
    Case("clock", "warning", "pi-1", "5.0 s behind", WELL.with_machine("pi-1", clock_offset_sec=-5.0),
         WELL.with_machine("pi-1", clock_offset_sec=None), "timedatectl set-ntp true"),
    Case("certificate", "error", "pi-1", "ended", WELL.with_machine("pi-1", engine_certificate_pem=certificate(-3)),
         WELL, "join it again"),
    Case("unreachable", "error", "laptop", "no route",
         replace(WELL, machines=(*WELL.machines, Machine("laptop", error="no route", remedy=("ping laptop",)))),
         WELL, "ping laptop"),
    Case("unreachable", "warning", "pi-1", "timed out", WELL.unreachable("pi-1"), WELL, "ping pi-1"),
    Case("machine-id", "error", "pi-2", "machine-pi-1", cloned(WELL), WELL, "systemd-machine-id-setup"),
    Case("listed-twice", "warning", "pi-1", "pi-1 and pi-2 are one machine",
         cloned(WELL, addresses=(Address("eth0", "10.77.0.3", 24),)), WELL, "keep one"),
    Case("hostname", "warning", "pi-2", "raspberrypi",
         WELL.with_machine("pi-1", hostname="raspberrypi").with_machine("pi-2", hostname="raspberrypi"),
         WELL.with_machine("pi-1", hostname="raspberrypi"), "hostnamectl"),
    Case("address", "error", "pi-2", "10.77.0.3",
         WELL.with_machine("pi-2", addresses=(Address("eth0", "10.77.0.3", 24),)),
         with_address(with_address(WELL, "pi-1", VIRTUAL), "pi-2", VIRTUAL),
         "VPN"),
    # nodes
    Case("membership", "error", "pi-1", "key", WELL.with_machine("pi-1", engine_swarm_state="locked"),
         WELL, "docker swarm unlock"),
    Case("membership", "error", "pi-1", "was removed", WELL.with_machine("pi-1", engine_node_id="id-gone"),
         WELL, "swarmctl join pi-1"),
    Case("membership", "error", "pi-1", "certificate is not valid",
         WELL.with_machine("pi-1", engine_swarm_state="error", engine_swarm_error="certificate is not valid"),
         WELL, "swarmctl join pi-1"),
    Case("membership", "warning", "pi-1", "not in the swarm",
         WELL.with_machine("pi-1", engine_swarm_state="inactive", engine_node_id=""),
         replace(WELL.with_machine("pi-1", engine_swarm_state="inactive", engine_node_id=""), no_swarm=True),
         "swarmctl join pi-1"),
    Case("other-swarm", "warning", "pi-1", "another swarm",
         WELL.with_machine("pi-1", engine_node_id="id-gone", engine_managers=("10.9.9.9:2377",)),
         WELL.with_machine("pi-1", engine_node_id="id-gone"), "docker swarm leave"),
    Case("node-address", "warning", "pi-1", "at 10.77.0.3, but it is at 10.77.0.99",
         WELL.with_machine("pi-1", addresses=(Address("eth0", "10.77.0.99", 24),),
                           route=Route("10.77.0.99", "eth0", wireless=False, mtu=1500)),
         with_address(WELL, "pi-1", Address("wlan0", "10.77.0.99", 24)),
         "swarmctl join pi-1"),
    Case("node-address", "error", "server-1", "10.77.0.2",
         WELL.with_machine("server-1", addresses=(Address("eth0", "10.77.0.99", 24),)),
         WELL.with_node("server-1", address="0.0.0.0"), "docker node demote"),
    Case("node-down", "error", "pi-1", "heartbeat failure",
         WELL.with_node("pi-1", state="down", message="heartbeat failure"), WELL, "docker node rm id-pi-1"),
    Case("ghost", "warning", "pi-1", "id-past", with_ghost(WELL),
         with_ghost(WELL, labels={IDENTITY: "another"}), "docker node rm id-past", "remove-node", "id-past"),
    Case("availability", "warning", "pi-1", "drained", WELL.with_node("pi-1", availability="drain"),
         WELL.with_node("server-1", availability="drain"), "swarmctl activate pi-1"),
    Case("label", "warning", "pi-1", "fdtc.class is laptop, and should be rpi",
         WELL.with_labels("pi-1", **{"class": "laptop"}),
         WELL.with_labels("pi-1", source="user", **{"class": "laptop"}), "swarmctl label --auto", "label", "id-pi-1"),
    Case("label", "warning", "pi-1", "no class", WELL.with_node("pi-1", labels={}),
         WELL.with_labels("pi-1", memory_mb="3700"), "swarmctl label --auto", "label", "id-pi-1"),
    # the swarm
    Case("quorum", "warning", "swarm", "2 of 3 managers are up", managers(3, reachability="unreachable"),
         managers(3), "docker node promote"),
    Case("quorum", "error", "swarm", "1 of 2", managers(2, reachability="unreachable"),
         managers(5, reachability="unreachable"), "--force-new-cluster"),
    Case("quorum", "error", "swarm", "leader",
         replace(WELL.with_machine("server-1", engine_swarm_state="error",
                                   engine_swarm_error="rpc error: The swarm does not have a leader"), no_swarm=True),
         replace(WELL, no_swarm=True), "--force-new-cluster"),
    Case("managers", "warning", "swarm", "4 managers stand no more failures than 3", managers(4), managers(3),
         "docker node demote"),
    Case("managers", "warning", "swarm", "only manager", servers(3), servers(2), "docker node promote pi-1 pi-2"),
    Case("manager-unreachable", "error", "pi-2", "10.77.0.4:2377", managers(3, reachability="unreachable"),
         managers(3), "systemctl restart docker"),
    Case("manager-address", "warning", "server-1", "DHCP",
         WELL.with_machine("server-1", addresses=(Address("eth0", "10.77.0.2", 24, dynamic=True),)),
         WELL.with_machine("pi-1", addresses=(Address("eth0", "10.77.0.3", 24, dynamic=True),)), "reserve 10.77.0.2"),
    Case("heartbeat", "warning", "swarm", "5 s", replace(on_wifi(WELL, "pi-1"), swarm=spec(heartbeat_sec=5)),
         replace(WELL, swarm=spec(heartbeat_sec=5)), "--dispatcher-heartbeat 15s", "heartbeat"),
    Case("certificate-expiry", "warning", "swarm", "30 days", replace(WELL, swarm=spec(expiry_days=30)),
         replace(WELL, swarm=spec(expiry_days=90)), "--cert-expiry 8760h", "certificate"),
    Case("ca-certificate", "warning", "swarm", "ends on 2026-03-31", replace(WELL, more={"ca_pem": certificate(30)}),
         replace(WELL, more={"ca_pem": certificate(3000)}), "docker swarm ca --rotate"),
    Case("ca-certificate", "error", "swarm", "ended on", replace(WELL, more={"ca_pem": certificate(-1)}),
         WELL, "docker swarm ca --rotate"),
    Case("autolock", "warning", "swarm", "key", replace(WELL, swarm={"autolock": True}), WELL,
         "docker swarm unlock-key"),
    Case("subnets", "error", "swarm", "training is 10.77.0.0/24",
         replace(WELL, swarm={"networks": {"training": ("10.77.0.0/24",)}}),
         replace(WELL, swarm={"networks": {"training": ("10.78.0.0/24",)}}), "10.254.7.0/24"),
    Case("subnets", "warning", "swarm", "cut out of 10.0.0.0/8", replace(WELL, swarm={"pool": ("10.0.0.0/8",)}),
         WELL, "ipam"),
    Case("engine-versions", "warning", "swarm", "20 on pi-1; 28 on",
         WELL.with_node("pi-1", engine_version="20.10.24"), WELL.with_node("pi-1", engine_version="28.0.1"), "upgrade"),
    Case("engine", "error", "pi-1", "19.03.8 is too old",
         WELL.with_node("pi-1", engine_version="19.03.8").unreachable("pi-1"),
         WELL.with_node("pi-1", engine_version="dev").unreachable("pi-1"), "get.docker.com"),
    # what gets from one machine to another
    Case("ports", "error", "pi-1", "no other machine reaches its TCP 7946, UDP 4789, UDP 7946 (no answer)",
         WELL.with_pairs(blocked("pi-1")), WELL.with_pairs(), "sudo ufw allow 4789/udp && sudo ufw allow 7946 "),
    Case("ports", "error", "server-1", "TCP 2377 (refused)",
         WELL.with_pairs(blocked("server-1", 2377, word=words.REFUSED)), WELL.with_pairs(), "LocalNodeState"),
    Case("ports", "error", "server-1", "TCP 2377 (rejected by a firewall)",
         WELL.with_pairs(blocked("server-1", 2377, word=words.REJECTED)), WELL.with_pairs(),
         "sudo firewall-cmd --permanent --add-port=2377/tcp && sudo firewall-cmd --reload"),
    Case("ports", "error", "pi-1 -> server-1", "pi-1 can't reach TCP 2377 (no answer) of server-1; other machines can",
         WELL.with_pairs(blocked("server-1", 2377, source="pi-1")), WELL.with_pairs(), "2377/tcp"),
    Case("ports", "error", "pi-1", "reaches none of pi-2, pi-3 and server-1 and is reached by none",
         WELL.with_pairs(cut_off("pi-1")), WELL.with_pairs(), "192.168.1.1"),
    Case("wifi-isolation", "error", "swarm", "pi-1, pi-2 and pi-3 are on WiFi",
         on_wifi(WELL, "pi-1", "pi-2", "pi-3").with_pairs(dead_between("pi-1", "pi-2", "pi-3")),
         on_wifi(WELL, "pi-1", "pi-2").with_pairs(dead_between("pi-1", "pi-2", echo=True)), "client isolation"),
    Case("mtu", "warning", "pi-1", "more than 1420 bytes do not arrive whole to or from pi-1",
         WELL.with_pairs(narrow(1420, "pi-1")),
         replace(WELL.with_pairs(narrow(1420, "pi-1")), more={"overlay_mtu": 1420}),
         'com.docker.network.driver.mtu: "1420"'),
    Case("untested", "warning", "swarm", "6 of 51 tests between machines could not be made (pi-1: only root",
         WELL.with_pairs(untested("pi-1", words.NO_ROOT)), WELL.with_pairs(), "log in there as root"),
]  # fmt: skip
IDS = [f"{case.check}-{case.where}-{number}" for number, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_check_fires_with_what_mends_it(case: Case) -> None:
    found = [finding for finding in case.fires.findings() if finding.check == case.check]
    assert [(one.severity, one.where, one.fix, one.subject) for one in found] == [
        (case.severity, case.where, case.fix, case.subject)
    ]
    assert case.says in found[0].message
    assert case.remedy in "\n".join(found[0].remedy)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_check_keeps_still_where_it_has_no_reason(case: Case) -> None:
    assert case.check not in {finding.check for finding in case.still.findings()}


# A cause is told once --------------------------------------------------------------------------------------------


def told(some: Fleet) -> list[tuple[str, str]]:
    return [(finding.check, finding.where) for finding in some.findings()]


def test_a_machine_that_is_off_is_told_once_and_not_with_each_pair() -> None:
    off = WELL.with_pairs(cut_off("pi-1")).unreachable("pi-1").with_node("pi-1", state="down")
    assert told(off) == [("node-down", "pi-1")]
    assert "connection timed out" in off.findings()[0].message
    assert "ping pi-1" in off.findings()[0].remedy


def test_a_node_that_is_down_since_its_ports_are_shut_is_told_with_the_ports() -> None:
    shut = WELL.with_pairs(blocked("pi-1")).with_node("pi-1", state="down")
    assert told(shut) == [("ports", "pi-1")]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"engine_access": "down", "engine_swarm_state": "", "engine_node_id": ""}, "engine"),
        ({"engine_swarm_state": "locked"}, "membership"),
        ({"engine_swarm_state": "inactive", "engine_node_id": ""}, "membership"),
        ({"addresses": (Address("eth0", "10.77.0.99", 24),)}, "node-address"),
    ],
)
def test_a_node_that_is_down_for_a_known_cause_is_told_by_the_cause(change: dict[str, Any], cause: str) -> None:
    ports = blocked("pi-1", word=words.REFUSED) if cause != "membership" else lambda pair: pair
    lost = WELL.with_pairs(ports).with_node("pi-1", state="down").with_machine("pi-1", **change)
    assert told(lost) == [(cause, "pi-1")]


def test_an_expired_certificate_is_told_without_what_the_engine_makes_of_it() -> None:
    expired = WELL.with_machine(
        "pi-1",
        engine_certificate_pem=certificate(-3),
        engine_swarm_state="error",
        engine_swarm_error="certificate has expired",
    ).with_node("pi-1", state="down")
    assert told(expired) == [("certificate", "pi-1")]


def test_when_all_clocks_disagree_with_ours_ours_is_the_one_that_is_off() -> None:
    wrong = WELL
    for host in ("server-1", "pi-1", "pi-2", "pi-3"):
        wrong = wrong.with_machine(host, clock_offset_sec=40.0 if host != "pi-3" else -20.0)
    assert [(f.check, f.where, f.severity) for f in wrong.findings()] == [
        ("clock", "this machine", "error"),
        ("clock", "pi-3", "error"),
    ]
    assert "40 s behind that of 3 of 4 machines" in wrong.findings()[0].message
    assert "60 s behind" in wrong.findings()[1].message


def test_when_no_machine_can_be_reached_the_network_is_told_once() -> None:
    offline = fleet()
    for machine in offline.machines:
        offline = offline.unreachable(machine.host)
    assert told(replace(offline, no_swarm=True)) == [("unreachable", "swarm")]


def test_copied_cards_with_one_name_are_told_once() -> None:
    both = cloned(WELL, hostname="pi-1")
    assert [check for check, _ in told(both) if check in {"hostname", "machine-id"}] == ["machine-id"]
    assert "all are called pi-1" in both.findings()[0].message


def test_a_port_that_some_machines_do_not_reach_is_told_once_for_all_of_them() -> None:
    def spoil(pair: PairResult) -> PairResult:
        return blocked("server-1", 2377, source="pi-1")(blocked("server-1", 2377, source="pi-2")(pair))

    assert told(WELL.with_pairs(spoil)) == [("ports", "server-1")]


def test_two_firewalls_of_which_one_machine_has_each_are_two_findings() -> None:
    def spoil(pair: PairResult) -> PairResult:
        return blocked("pi-1", 4789)(blocked("pi-2", 4789)(pair))

    assert told(WELL.with_pairs(spoil)) == [("ports", "pi-1"), ("ports", "pi-2")]


def test_with_two_machines_the_one_that_does_not_answer_is_told_of() -> None:
    pair = fleet("pi-1").with_pairs(blocked("server-1", 2377))
    assert told(pair) == [("ports", "server-1")]
    assert "pi-1 can't reach its TCP 2377" in pair.findings()[0].message


# Hard to tell apart -----------------------------------------------------------------------------------------------


def test_wifi_guests_that_reach_no_manager_on_the_radio_either_are_still_kept_apart() -> None:
    radio = on_wifi(fleet(), "server-1", "pi-1", "pi-2", "pi-3")
    assert told(radio.with_pairs(dead_between("server-1", "pi-1", "pi-2", "pi-3"))) == [("wifi-isolation", "swarm")]


def test_a_firewall_on_one_of_two_wireless_machines_is_not_taken_for_the_access_point() -> None:
    found = on_wifi(WELL, "pi-1", "pi-2").with_pairs(blocked("pi-2"))
    assert told(found) == [("ports", "pi-2")]


def test_a_machine_behind_another_router_is_not_taken_for_a_firewall_at_its_targets() -> None:
    assert told(WELL.with_pairs(cut_off("pi-1", both_ways=False))) == [("ports", "pi-1")]


def test_a_copied_card_whose_machine_is_only_off_is_no_ghost() -> None:
    """Removing it would throw out a machine that comes back."""
    off = with_ghost(WELL, hostname="pi-9")
    known = replace(off, machines=(*off.machines, Machine("pi-9", "id-past", error="no route to host")))
    assert ("ghost", "pi-1") in told(off)
    assert ("ghost", "pi-1") not in told(known)
    assert ("node-down", "pi-9") in told(known)


def test_a_manager_that_is_a_ghost_is_demoted_first() -> None:
    found = with_ghost(WELL, role="manager", reachability="unreachable").findings()
    remedy = next(finding.remedy for finding in found if finding.check == "ghost")
    assert remedy.index("docker node demote id-past   # the same by hand") < remedy.index(
        "docker node rm id-past   # the same by hand"
    )


def test_carrier_grade_nat_is_told_by_name() -> None:
    behind = WELL.with_node("pi-1", address="100.72.3.4")
    (found,) = behind.findings()
    assert found.check == "node-address"
    assert "carrier-grade NAT" in found.message
    assert "VPN" in "\n".join(found.remedy)


def test_machines_in_two_networks_that_are_numbered_alike_are_told_so() -> None:
    both = (Address("eth0", "192.168.1.40", 24),)
    twins = WELL.with_machine("pi-1", addresses=both).with_machine("pi-2", addresses=both)
    message = next(finding.message for finding in twins.findings() if finding.check == "address")
    assert "192.168.1.40" in message
    assert "Starlink" in message


def test_pairs_alone_can_be_judged_before_machines_join() -> None:
    outside = WELL.with_pairs(blocked("server-1", 2377)).observation()
    (found,) = reach(replace(outside, swarm=None))
    assert (found.check, found.where) == ("ports", "server-1")


def test_a_label_that_differs_only_by_what_a_kernel_keeps_is_left() -> None:
    near, far = str(int(3790 * 0.97)), str(int(3790 * 0.9))
    assert told(WELL.with_node("pi-1", labels={**WELL.nodes[1].labels, MEMORY: near})) == []
    assert told(WELL.with_node("pi-1", labels={**WELL.nodes[1].labels, MEMORY: far})) == [("label", "pi-1")]


def test_what_doctor_mends_by_label_is_mended() -> None:
    """The finding goes away when the labels are what the fix sets."""
    case = next(case for case in CASES if case.fix == "label")
    broken: Node = next(n for n in case.fires.nodes if n.id == case.subject)
    said: Probe | None = next(m.probe for m in case.fires.machines if m.node_id == case.subject)
    assert said
    mended = {**broken.labels, **labels_by_probe(broken, said, evidence(said))}
    assert mended[SOURCE] == "probe"
    assert mended[CLASS] == "rpi"
    assert told(case.fires.with_node(broken.hostname, labels=mended)) == []


# The page ----------------------------------------------------------------------------------------------------------


def documented() -> dict[str, tuple[str, str]]:
    """What the page says of each check: its severities, and whether --fix mends it."""
    rows = re.findall(
        r"^\| `([a-z-]+)` \|[^|]*\|[^|]*\| ([a-z, ]+) \|[^|]*\| (yes|no) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert len(rows) == len({name for name, _, _ in rows}), "a check is on the page twice"
    return {name: (severities, fix) for name, severities, fix in rows}


def test_the_page_has_every_check_as_it_is_and_no_other() -> None:
    severities: dict[str, set[str]] = {}
    mended: dict[str, bool] = {}
    for case in CASES:
        severities.setdefault(case.check, set()).add(case.severity)
        mended[case.check] = bool(case.fix)
    page = documented()
    assert set(page) == set(severities)
    assert {name: set(told.split(", ")) for name, (told, _) in page.items()} == severities
    assert {name: fix == "yes" for name, (_, fix) in page.items()} == mended


def test_every_finding_says_what_to_do() -> None:
    for case in CASES:
        for finding in case.fires.findings():
            assert finding.remedy, finding
            assert finding.message, finding
            assert all(line.strip() == line and "\n" not in line for line in finding.remedy), finding


@pytest.mark.parametrize("size", [0, 1, 2, 45])
def test_any_number_of_machines_is_judged(size: int) -> None:
    names = [f"pi-{i:02}" for i in range(size)]
    assert (fleet(*names) if names else fleet()).with_pairs().findings() == ()
