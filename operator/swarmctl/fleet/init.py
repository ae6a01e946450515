"""`swarmctl init`: makes a swarm on one engine, or brings the one it has to what training needs.

May import: ``apply``, ``authority``, ``engine``, ``plan``, ``probe``, ``where``, ``facts``, ``swarm``.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SwarmctlError, UsageError
from . import authority
from .actions import Action, Change, CreateSwarm, UpdateSwarm
from .facts import Address, Probe
from .plan import set_labels
from .swarm import IDENTITY, Swarm

# A worker is given up after three missed heartbeats; moby's 5 s would drop one at every hiccup of a WiFi.
HEARTBEAT_NS = 15_000_000_000
# A machine may lie in the cupboard for this long and still be let in; moby's 90 days are a school holiday.
CERTIFICATE_NS = 365 * 24 * 3600 * 1_000_000_000
SUBNET_SIZE = 24
# None of them what home routers, Docker's bridges (172.17 to 172.31, 192.168) or Starlink (100.64/10) hand out.
POOLS = ("10.201.0.0/16", "10.217.0.0/16", "10.233.0.0/16", "10.249.0.0/16", "172.30.0.0/16", "192.168.128.0/17")
_SETTINGS: Mapping[tuple[str, ...], int] = {
    ("Dispatcher", "HeartbeatPeriod"): HEARTBEAT_NS,
    ("CAConfig", "NodeCertExpiry"): CERTIFICATE_NS,
}


@dataclass(frozen=True)
class Choice:
    """An address to advertise.

    Attributes:
        address: It.
        why: How it was come by, for people.
        dynamic: It is from DHCP, so a manager may lose it.
    """

    address: str
    why: str
    dynamic: bool


def choose_address(probe: Probe, wished: str | None) -> Choice:
    """The address that the other machines will find this manager by.

    Raises:
        UsageError: The wished one is not the machine's, or it has none that others could reach.
    """
    own = {address.address: address for address in probe.addresses}
    if wished:
        if wished not in own:
            raise UsageError(
                f"{wished} is not an address of {probe.hostname}; it has {', '.join(own) or 'none'}",
                *(f"--advertise-addr {address}" for address in own),
            )
        return Choice(wished, "as told", own[wished].dynamic)
    source = probe.route.source
    if source in own:
        return Choice(source, f"what {probe.route.device} sends from", own[source].dynamic)
    usable = [address for address in probe.addresses if _reaches_others(address)]
    if len(usable) == 1:
        return Choice(usable[0].address, f"the only address, on {usable[0].device}", usable[0].dynamic)
    if not usable:
        raise UsageError(f"{probe.hostname} has no address that other machines could reach; is its network up?")
    raise UsageError(
        f"{probe.hostname} has several addresses and no default route; say which the other machines reach",
        *(f"--advertise-addr {address.address}   # {address.device}" for address in usable),
    )


def choose_pool(networks: Sequence[str], wished: str | None) -> str:
    """The address pool for overlay networks: one that overlaps no network that the machine knows.

    Raises:
        UsageError: The wished one does, or is no network; or all of ours do.
    """
    known = [ipaddress.ip_network(network, strict=False) for network in networks]
    if wished:
        overlaps = _overlap(_network(wished), known)
        if overlaps:
            raise UsageError(
                f"the pool {wished} overlaps {overlaps}, a network that this machine reaches; packets for one would go "
                "to the other",
                *(f"--pool {pool}" for pool in POOLS if not _overlap(_network(pool), known)),
            )
        return wished
    for pool in POOLS:
        if not _overlap(_network(pool), known):
            return pool
    raise UsageError(
        f"each of {', '.join(POOLS)} overlaps a network of this machine; name a free one", "--pool A.B.C.0/20"
    )


def plan_new(choice: Choice, pool: str) -> list[Action]:
    """What makes a swarm on a machine whose engine is in none."""
    spec: dict[str, Any] = {}
    for path, value in _SETTINGS.items():
        spec.setdefault(path[0], {})[path[1]] = value
    return [CreateSwarm(choice.address, pool, SUBNET_SIZE, spec)]


def plan_existing(swarm: Swarm, machine_id: str) -> list[Action]:
    """What brings a swarm that exists to what training needs."""
    actions: list[Action] = []
    differing = {path: value for path, value in _SETTINGS.items() if _setting(swarm.spec, path) < value}
    if differing:
        changes = tuple(
            Change(".".join(path), _seconds(_setting(swarm.spec, path)), _seconds(value))
            for path, value in differing.items()
        )
        actions.append(UpdateSwarm(differing, changes))
    actions += authority.plan(swarm.secrets, swarm.configs)
    node = swarm.node(swarm.via_node_id)
    if node and machine_id:
        actions += set_labels(node, {IDENTITY: machine_id}, swarm)
    return actions


def refuse_unfit(probe: Probe, choice: Choice | None, *, yes: bool) -> None:
    """Refuse what would come to grief.

    Raises:
        UsageError: The engine is in another swarm already as a worker, or has an address that may change.
        SwarmctlError: Its swarm state is broken.
    """
    state = probe.engine.swarm_state
    if state == "active" and not probe.engine.is_manager:
        managers = [address.rpartition(":")[0] for address in probe.engine.managers]
        raise UsageError(
            f"{probe.hostname} is a worker of a swarm already",
            *(f"swarmctl nodes --manager {address}   # its manager" for address in managers),
            "docker swarm leave   # on that machine, to make a swarm of its own instead",
        )
    if state == "locked":
        raise SwarmctlError(
            f"the swarm on {probe.hostname} is locked: its engine was restarted and wants the unlock key",
            "docker swarm unlock   # on that machine",
        )
    if state in {"error", "pending"}:
        raise SwarmctlError(
            f"the swarm state of {probe.hostname} is {state}: {probe.engine.swarm_error or 'it joins one'}",
            "docker swarm leave --force   # on that machine: it forgets that swarm",
        )
    if choice is not None and choice.dynamic and not yes:
        raise UsageError(
            f"{choice.address} was given to {probe.hostname} by DHCP and may change; a manager that loses its address "
            "is lost to its workers. Reserve it for this machine in the router's settings first",
            "swarmctl init --yes                      # it is reserved",
            "swarmctl init --advertise-addr ADDRESS   # there is a better one",
        )


def _setting(spec: Mapping[str, Any], path: tuple[str, ...]) -> int:
    section: Any = spec
    for key in path:
        section = (section or {}).get(key)
    return int(section or 0)


def _seconds(nanoseconds: int) -> str:
    seconds = nanoseconds // 1_000_000_000
    return f"{seconds // 86400} days" if seconds >= 86400 else f"{seconds} s"


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise UsageError(f"--pool {text}: {error}", f"--pool {POOLS[0]}") from error


def _overlap(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network,
    known: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network],
) -> str:
    return next((str(other) for other in known if other.version == network.version and other.overlaps(network)), "")


def _reaches_others(address: Address) -> bool:
    found = ipaddress.ip_address(address.address)
    return not (found.is_loopback or found.is_link_local)
