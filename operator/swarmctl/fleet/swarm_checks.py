"""Doctor's checks of the swarm as a whole: managers, settings, address pools, versions. Pure.

May import: ``facts``, ``observation``, ``swarm``.
"""

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from cryptography import x509

from .facts import Finding
from .observation import Observation, some
from .swarm import CLASS, Swarm

_HEARTBEAT_SEC = 10.0
_CERTIFICATE_DAYS = 90  # moby's own default
_CA_DAYS = 60
_DAY_SEC = 86_400.0
_SERVERS = 3
_LEAST_ENGINE = (20, 10)


def managers(fleet: Observation) -> Iterator[Finding]:
    """Their number, their quorum, and each by itself."""
    if fleet.swarm is None:
        yield from _lost_quorum(fleet)
        return
    managers = fleet.swarm.managers
    reachable = [node for node in managers if node.reachability != "unreachable" and node.state != "down"]
    needed = len(managers) // 2 + 1
    servers = [node for node in fleet.nodes if node.labels.get(CLASS) == "server" and node.state == "ready"]
    candidates = [node.hostname for node in servers if node.role == "worker"]
    if len(reachable) < needed:
        yield Finding(
            "error",
            "quorum",
            "swarm",
            f"{len(reachable)} of {len(managers)} managers reach each other, and {needed} are needed: nothing can be "
            "changed until another is back",
            _FORCE_NEW,
        )
    elif len(reachable) == needed < len(managers):
        yield Finding(
            "warning",
            "quorum",
            "swarm",
            f"{len(reachable)} of {len(managers)} managers are up, as many as are needed: one more down, and nothing "
            "can be changed",
            ("# bring the missing one back, or have another in its place:", "docker node promote NAME"),
        )
    elif len(managers) % 2 == 0 and managers:
        yield Finding(
            "warning",
            "managers",
            "swarm",
            f"{len(managers)} managers stand no more failures than {len(managers) - 1}, and lose their quorum sooner",
            (
                f"docker node promote {candidates[0] if candidates else 'NAME'}   # one more",
                f"docker node demote {managers[-1].hostname}   # or one less",
            ),
        )
    if len(managers) == 1 and len(servers) >= _SERVERS:
        yield Finding(
            "warning",
            "managers",
            "swarm",
            f"{managers[0].hostname} is the only manager: if its disk dies, the swarm is lost; there are "
            f"{len(servers)} servers, and three managers stand one failure",
            (f"docker node promote {' '.join(candidates[:2])}",),
        )
    yield from _manager_nodes(fleet)


_FORCE_NEW = (
    "sudo systemctl start docker   # on the managers that are down",
    "docker swarm init --force-new-cluster   # on one of them, only if the others are lost for good",
)


def _lost_quorum(fleet: Observation) -> Iterator[Finding]:
    headless = [
        machine.host
        for machine in fleet.machines
        if machine.probe and machine.probe.engine.is_manager and "leader" in machine.probe.engine.swarm_error
    ]
    if headless:
        yield Finding(
            "error",
            "quorum",
            "swarm",
            f"{some(headless)} can't find enough other managers to choose a leader: what runs goes on, but nothing "
            "can be changed",
            _FORCE_NEW,
        )


def _manager_nodes(fleet: Observation) -> Iterator[Finding]:
    for node in fleet.nodes:
        machine = fleet.host_of_node.get(node.id)
        if node.role != "manager":
            continue
        if node.reachability == "unreachable" and node.state == "ready":
            yield Finding(
                "error",
                "manager-unreachable",
                fleet.name(node),
                f"the other managers don't reach it at {node.manager_address}, though its engine runs",
                (f"swarmctl doctor {fleet.name(node)}", "sudo systemctl restart docker"),
            )
        at = node.manager_address.rpartition(":")[0].strip("[]")
        addresses = machine.probe.addresses if machine and machine.probe else ()
        if any(address.address == at and address.dynamic for address in addresses):
            yield Finding(
                "warning",
                "manager-address",
                fleet.name(node),
                f"its address {at} is from DHCP; if the router gives it another, every node loses this manager",
                (
                    f"# reserve {at} for it in the router's settings (DHCP reservation, static lease)",
                    f"sudo nmcli connection modify NAME ipv4.method manual ipv4.addresses {at}/24 ipv4.gateway ROUTER"
                    "   # where the router can't",
                ),
            )


def settings(fleet: Observation) -> Iterator[Finding]:
    """The swarm's own settings and certificates."""
    if fleet.swarm is None:
        return
    heartbeat_sec = _setting(fleet.swarm, "Dispatcher", "HeartbeatPeriod") / 1e9
    on_wifi = [machine.host for machine in fleet.machines if machine.probe and machine.probe.route.wireless]
    if 0 < heartbeat_sec < _HEARTBEAT_SEC and on_wifi:
        yield Finding(
            "warning",
            "heartbeat",
            "swarm",
            f"nodes are given up after three missed heartbeats of {heartbeat_sec:.0f} s, too soon for the "
            f"{len(on_wifi)} on WiFi: their work would be started again at every hiccup",
            ("swarmctl doctor --fix", "docker swarm update --dispatcher-heartbeat 15s   # the same by hand"),
            fix="heartbeat",
        )
    expiry_days = _setting(fleet.swarm, "CAConfig", "NodeCertExpiry") / 1e9 / _DAY_SEC
    if 0 < expiry_days < _CERTIFICATE_DAYS:
        yield Finding(
            "warning",
            "certificate-expiry",
            "swarm",
            f"certificates of nodes last {expiry_days:.0f} days: a machine that is off for longer is not let in again",
            ("swarmctl doctor --fix", "docker swarm update --cert-expiry 8760h   # the same by hand"),
            fix="certificate",
        )
    if fleet.swarm.autolock:
        yield Finding(
            "warning",
            "autolock",
            "swarm",
            "managers are locked after each restart until someone types the key; without it the swarm is lost",
            (
                "docker swarm unlock-key   # on a manager: write the key down, elsewhere",
                "docker swarm update --autolock=false   # on a manager: does without",
            ),
        )
    yield from _root_certificate(fleet)


def _setting(swarm: Swarm, section: str, key: str) -> float:
    found = swarm.spec.get(section)
    value = found.get(key) if isinstance(found, dict) else None
    return float(value) if isinstance(value, int | float) else 0.0


def _root_certificate(fleet: Observation) -> Iterator[Finding]:
    if not fleet.ca_pem:
        return
    ends = x509.load_pem_x509_certificate(fleet.ca_pem.encode()).not_valid_after_utc
    left_days = (ends - datetime.fromtimestamp(fleet.now, UTC)).total_seconds() / _DAY_SEC
    if left_days < _CA_DAYS:
        yield Finding(
            "error" if left_days < 0 else "warning",
            "ca-certificate",
            "swarm",
            f"the swarm's root certificate {'ended' if left_days < 0 else 'ends'} on {ends:%Y-%m-%d}; nodes trust "
            "nobody after that",
            ("docker swarm ca --rotate   # on a manager, with all nodes up",),
        )


def subnets(fleet: Observation) -> Iterator[Finding]:
    """Overlay networks that take addresses which machines use for something else."""
    if fleet.swarm is None:
        return
    taken: dict[Network, set[str]] = defaultdict(set)
    for machine in fleet.machines:
        for text in machine.probe.networks if machine.probe else ():
            taken[_network(text)].add(machine.host)
    overlays = [(name, _network(text)) for name, texts in sorted(fleet.swarm.networks.items()) for text in texts]
    free = _free_subnet([*taken, *(subnet for _, subnet in overlays)])
    own = f"ipam: {{config: [{{subnet: {free}}}]}}   # for such a network in the stack file"
    overlapping = set()
    for name, subnet in overlays:
        for network, hosts in taken.items():
            if _overlap(subnet, network):
                overlapping.add(network)
                yield Finding(
                    "error",
                    "subnets",
                    "swarm",
                    f"the overlay network {name} is {subnet}, and {some(hosts)} reach {network} by another way: "
                    "containers there can't reach one of the two",
                    (own, "swarmctl rm; swarmctl deploy   # a network keeps the addresses that it was made with"),
                )
    for pool in map(_network, fleet.swarm.pool):
        for network, hosts in taken.items():
            if _overlap(pool, network) and network not in overlapping:
                yield Finding(
                    "warning",
                    "subnets",
                    "swarm",
                    f"overlay networks are cut out of {pool}, and {some(hosts)} reach {network} by another way: one "
                    "to come may overlap it",
                    (own,),
                )


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(text: str) -> Network:
    return ipaddress.ip_network(text, strict=False)


def _overlap(a: Network, b: Network) -> bool:
    return a.version == b.version and a.overlaps(b)


def _free_subnet(taken: Iterable[Network]) -> str:
    """A network of 254 addresses that nobody has."""
    known = list(taken)
    candidates = (_network(f"10.{number}.7.0/24") for number in range(254, 0, -1))
    return next((str(one) for one in candidates if not any(_overlap(one, other) for other in known)), "A.B.C.0/24")


def engine_versions(fleet: Observation) -> Iterator[Finding]:
    """Engines that are too old, or far apart."""
    by_major: dict[int, list[str]] = defaultdict(list)
    for node in fleet.nodes:
        if node.state == "ready" and (version := _version(node.engine_version)):
            by_major[version[0]].append(fleet.name(node))
    if len(by_major) > 1:
        parts = [f"{major} on {some(hosts)}" for major, hosts in sorted(by_major.items())]
        yield Finding(
            "warning",
            "engine-versions",
            "swarm",
            f"engines are of different major versions ({'; '.join(parts)}): they work together, but are not tested so",
            ("sudo apt update && sudo apt upgrade   # on the older ones, one machine at a time",),
        )
    for node in fleet.nodes:
        version = _version(node.engine_version)
        if version and version < _LEAST_ENGINE and not fleet.is_probed(fleet.name(node)):
            yield Finding(
                "error",
                "engine",
                fleet.name(node),
                f"Docker {node.engine_version} is too old: 20.10 is the least",
                ("curl -fsSL https://get.docker.com | sudo sh",),
            )


def _version(text: str) -> tuple[int, int] | None:
    """Major and minor."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None
