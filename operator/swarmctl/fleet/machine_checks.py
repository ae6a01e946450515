"""Doctor's checks of machines by themselves and beside each other. Pure.

May import: ``evidence``, ``facts``, ``observation``.
"""

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import median

from .evidence import health
from .facts import Address, Finding, Probe
from .observation import Machine, Observation, some

_CLOCK_WARNING_SEC, _CLOCK_ERROR_SEC = 2.0, 30.0
# Networks that each machine has for itself, so the same address on two of them is no mistake.
_PRIVATE_DEVICES = ("docker", "br-", "veth", "virbr", "lxdbr", "lxcbr", "incusbr", "cni", "podman", "vmnet", "vboxnet")


def unreachable(fleet: Observation) -> Iterator[Finding]:
    """Machines that could not be asked; where the swarm has lost one, too, `node_checks.node_down` tells of it."""
    dumb = [machine for machine in fleet.machines if machine.error]
    if len(dumb) == len(fleet.machines) > 1 and not any(node.state == "ready" for node in fleet.nodes):
        yield Finding(
            "error",
            "unreachable",
            "swarm",
            f"none of the {len(dumb)} machines can be reached; is this one in their network? The first says: "
            f"{dumb[0].error}",
            dumb[0].remedy,
        )
        return
    for machine in dumb:
        node = fleet.node_of(machine)
        if node is None:
            yield Finding("error", "unreachable", machine.host, machine.error, machine.remedy)
        elif node.state == "ready":
            message = f"{machine.error} (the swarm has it as ready: only doctor can't look at it)"
            yield Finding("warning", "unreachable", machine.host, message, machine.remedy)


def by_themselves(fleet: Observation) -> list[Finding]:
    """What each machine has by itself; a clock that all disagree with is ours."""
    found = [
        replace(finding, where=machine.host)
        for machine in fleet.machines
        if machine.probe
        for finding in health(machine.probe, now=fleet.now)
    ]
    clocks = {
        machine.host: (probe.clock_offset_sec, probe.clock_doubt_sec)
        for machine in fleet.machines
        if (probe := machine.probe) and probe.clock_offset_sec is not None
    }
    if len(clocks) < 2:
        return found
    common = median(offset for offset, _ in clocks.values())
    agreeing = {host for host, (offset, doubt) in clocks.items() if abs(offset - common) <= _CLOCK_WARNING_SEC + doubt}
    doubt = max(doubt for _, doubt in clocks.values())
    if abs(common) <= _CLOCK_WARNING_SEC + doubt or len(agreeing) * 2 <= len(clocks):
        return found
    # Told by the machines' majority, not by our own clock.
    found = [finding for finding in found if finding.check != "clock"]
    found.append(_clock("this machine", -common, f"that of {len(agreeing)} of {len(clocks)} machines"))
    found += [
        _clock(host, offset - common, "that of most machines")
        for host, (offset, _) in clocks.items()
        if host not in agreeing
    ]
    return found


def _clock(where: str, offset_sec: float, other: str) -> Finding:
    return Finding(
        "error" if abs(offset_sec) > _CLOCK_ERROR_SEC else "warning",
        "clock",
        where,
        f"its clock is {abs(offset_sec):.0f} s {'ahead of' if offset_sec > 0 else 'behind'} {other}",
        ("sudo timedatectl set-ntp true",),
    )


def alike(fleet: Observation) -> Iterator[Finding]:
    """Machines that are told apart by nothing, or by too little: copied cards, equal names, one listed twice."""
    probed = [(machine, machine.probe) for machine in fleet.machines if machine.probe]
    told: set[str] = set()
    for identity, group in _alike((probe.machine_id, (machine, probe)) for machine, probe in probed).items():
        hosts = [machine.host for machine, _ in group]
        told.update(hosts)
        if _are_one([probe for _, probe in group]):
            yield Finding(
                "warning",
                "listed-twice",
                hosts[0],
                f"{some(hosts)} are one machine",
                ("# keep one of them in the fleet file",),
            )
            continue
        names = {probe.hostname for _, probe in group}
        same_name = f", and all are called {names.pop()}" if len(names) == 1 else ""
        yield Finding(
            "error",
            "machine-id",
            hosts[1],
            f"{some(hosts)} have one machine-id ({identity}){same_name}: their disks or SD cards are copies, and a "
            "machine that comes back is taken for another",
            of_a_copy(hosts[1], rename=bool(same_name)),
        )
    for name, group in _alike((probe.hostname, (machine, probe)) for machine, probe in probed).items():
        hosts = [machine.host for machine, _ in group if machine.host not in told]
        if len(hosts) > 1:
            yield Finding(
                "warning",
                "hostname",
                hosts[1],
                f"{some(hosts)} are all called {name}: in lists and logs they can't be told apart",
                ("sudo hostnamectl set-hostname NEW-NAME && sudo systemctl restart docker",),
            )


def _are_one(probes: Iterable[Probe]) -> bool:
    """Whether these are probes of one machine, by the addresses that it has."""
    own = [frozenset((a.device, a.address) for a in _outside(probe)) for probe in probes]
    return bool(own[0]) and all(addresses == own[0] for addresses in own)


def addresses(fleet: Observation) -> Iterator[Finding]:
    """Two machines with one address."""
    for address, hosts in shared_addresses(fleet):
        yield Finding(
            "error",
            "address",
            hosts[1],
            f"{some(hosts)} have one address, {address}: either it is set by hand twice, or they are in networks that "
            "are numbered alike (many routers use 192.168.1.0/24, Starlink's too)",
            (
                "ip address   # if it is set by hand, give one of them another, or let DHCP do it",
                "# put both in one network: one router's, or a VPN (WireGuard, Tailscale) between the two",
            ),
        )


def shared_addresses(fleet: Observation) -> list[tuple[str, list[str]]]:
    """Addresses that several machines have, with those machines."""
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    for machine in fleet.machines:
        if probe := machine.probe:
            for address in _outside(probe):  # by machine-id: one that is listed twice shares with itself
                owners[address.address].setdefault(probe.machine_id or machine.host, machine.host)
    return [(address, sorted(hosts.values())) for address, hosts in owners.items() if len(hosts) > 1]


def _outside(probe: Probe) -> list[Address]:
    """The addresses that others could reach a machine by."""
    return [
        address
        for address in probe.addresses
        if not address.device.startswith(_PRIVATE_DEVICES) and _is_unique(address.address)
    ]


def _is_unique(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _alike(keyed: Iterable[tuple[str, tuple[Machine, Probe]]]) -> dict[str, list[tuple[Machine, Probe]]]:
    """Machines that have one key in common, by the key; the empty key is none."""
    groups: dict[str, list[tuple[Machine, Probe]]] = defaultdict(list)
    for key, machine in keyed:
        if key:
            groups[key].append(machine)
    return {key: group for key, group in groups.items() if len(group) > 1}


def of_a_copy(host: str, *, rename: bool) -> tuple[str, ...]:
    """What makes a machine of its own of one whose disk is a copy of another's; to type on it, but for the last.

    Args:
        host: The copy.
        rename: Whether it has the other's host name, too.
    """
    return (
        "sudo docker swarm leave --force; sudo rm -f /etc/docker/key.json   # the engine's identity",
        "sudo rm -f /etc/machine-id /var/lib/dbus/machine-id && sudo systemd-machine-id-setup",
        "sudo rm -f /etc/ssh/ssh_host_* && sudo ssh-keygen -A   # these were copied, too",
        *(("sudo hostnamectl set-hostname NEW-NAME",) if rename else ()),
        "sudo reboot",
        f"swarmctl join {host}",
    )
