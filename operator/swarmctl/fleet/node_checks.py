"""Doctor's checks of nodes: what the swarm thinks of a machine beside what the machine says. Pure.

May import: ``plan``, ``facts``, ``observation``, ``swarm``.
"""

import ipaddress
from collections.abc import Collection, Iterator

from .facts import Finding
from .observation import Machine, Observation
from .plan import labels_by_probe, twin_of
from .swarm import CLASS, IDENTITY, MEMORY, Node, Swarm

_MEMORY_TOLERANCE = 0.05  # a new kernel keeps a little more or less for itself
_NO_ADDRESS = {"", "0.0.0.0", "127.0.0.1", "::", "::1"}  # noqa: S104  # compared, not listened on
_CARRIER_NAT = ipaddress.IPv4Network("100.64.0.0/10")


def membership(fleet: Observation) -> list[Finding]:
    """What an engine says of its own place in a swarm."""
    found = []
    for machine in fleet.machines:
        engine = machine.probe.engine if machine.probe else None
        if engine is None or not engine.swarm_state:
            continue
        state = engine.swarm_state
        if state == "locked":
            found.append(
                Finding(
                    "error",
                    "membership",
                    machine.host,
                    "its engine was restarted, and waits for the key that unlocks the swarm",
                    (
                        "docker swarm unlock-key   # on another manager: tells the key",
                        f"docker swarm unlock   # on {machine.host}",
                    ),
                )
            )
        elif state == "error" and not ("leader" in engine.swarm_error and engine.is_manager):
            found.append(
                Finding(
                    "error",
                    "membership",
                    machine.host,
                    f"its engine can't take its place in the swarm: {engine.swarm_error or 'it does not say why'}",
                    ("docker swarm leave --force", f"swarmctl join {machine.host}   # its labels come back"),
                )
            )
        elif fleet.swarm is None:
            continue
        elif state == "active" and fleet.swarm.node(engine.node_id) is None:
            found.append(_stranger(machine, fleet.swarm))
        elif state == "inactive":
            node = fleet.node_of(machine)
            was = f"; it was the node {node.id}, which is {node.state}" if node else ""
            found.append(
                Finding(
                    "warning",
                    "membership",
                    machine.host,
                    f"it is not in the swarm{was}",
                    (f"swarmctl join {machine.host}",),
                )
            )
    return found


def _stranger(machine: Machine, swarm: Swarm) -> Finding:
    assert machine.probe
    engine = machine.probe.engine
    ours = {node.manager_address for node in swarm.managers}
    if engine.is_manager or not ours & set(engine.managers):
        return Finding(
            "warning",
            "other-swarm",
            machine.host,
            f"it is in another swarm{', as a manager' if engine.is_manager else ''}",
            (
                "docker swarm leave --force   # takes it out of that one",
                f"swarmctl join {machine.host}",
            ),
        )
    return Finding(
        "error",
        "membership",
        machine.host,
        f"it takes itself for the node {engine.node_id}, which was removed from the swarm",
        ("docker swarm leave --force", f"swarmctl join {machine.host}"),
    )


def node_address(fleet: Observation) -> list[Finding]:
    """Nodes that the swarm looks for at an address that they do not have."""
    found = []
    for machine, node in _known_nodes(fleet):
        assert machine.probe
        own = {address.address for address in machine.probe.addresses}
        told = {node.address, node.manager_address.rpartition(":")[0].strip("[]"), machine.probe.engine.node_address}
        lost = sorted(address for address in told - own - _NO_ADDRESS if own)
        if not lost:
            continue
        at_nat = any(_in_carrier_nat(address) for address in lost)
        nat = " (carrier-grade NAT, as Starlink and mobile networks have)" if at_nat else ""
        now = machine.probe.route.source or ", ".join(sorted(own))
        rejoin: tuple[str, ...] = (f"swarmctl join {machine.host}   # its labels come back",)
        if node.role == "manager":
            # The others know a manager by its address only, so it has to go and come.
            rejoin = (
                f"# give it {lost[0]} back: reserve that address for it in the router's settings",
                f"docker node demote {node.id}   # or, on another manager, and then:",
                "docker swarm leave --force",
                f"swarmctl join {machine.host} --role manager",
            )
        found.append(
            Finding(
                "error" if node.role == "manager" or node.state != "ready" else "warning",
                "node-address",
                machine.host,
                f"the swarm looks for it at {' and '.join(lost)}{nat}, but it is at {now}: its address changed, or a "
                "NAT is between; overlay networks don't reach it so",
                (*rejoin, *(("# put it and the managers in one VPN (WireGuard, Tailscale)",) if at_nat else ())),
            )
        )
    return found


def _in_carrier_nat(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return address.version == 4 and address in _CARRIER_NAT


def _known_nodes(fleet: Observation) -> Iterator[tuple[Machine, Node]]:
    """Machines that answered, with the node that they say they are."""
    for machine in fleet.machines:
        node = fleet.node_of(machine)
        if node and machine.probe and machine.probe.engine.node_id == node.id:
            yield machine, node


def node_down(fleet: Observation, explained: Collection[str]) -> list[Finding]:
    """Nodes that the managers have lost, as far as nothing else says why."""
    ghosts = {ghost.id for ghost, _ in _ghosts_of(fleet)}
    found = []
    for node in fleet.nodes:
        name = fleet.name(node)
        if node.state == "ready" or node.id in ghosts or name in explained:
            continue
        if "leadership" in node.message:  # the managers' own words for it
            found.append(
                Finding(
                    "warning",
                    "node-down",
                    name,
                    "the managers have just changed their leader, and don't know yet how it is",
                    ("swarmctl doctor   # again in some seconds",),
                )
            )
            continue
        machine = fleet.host_of_node.get(node.id)
        message = f"the node is {node.state}: {node.message or 'its engine does not call'}"
        remedy: tuple[str, ...] = ("# switch it on, and look whether its network is up",)
        if machine and machine.error:
            message += f"; and {machine.error}"
            remedy = (*remedy, *machine.remedy)
        elif machine and machine.probe:
            message += "; the machine answers, though"
            remedy = ("sudo systemctl restart docker", f"swarmctl join {machine.host}   # if that does not help")
        gone = f"docker node rm {node.id}   # if it is gone for good"
        found.append(Finding("error", "node-down", name, message, (*remedy, gone)))
    return found


def ghosts(fleet: Observation) -> Iterator[Finding]:
    """Nodes that are down because their machine is another node now."""
    for ghost, now in _ghosts_of(fleet):
        sure = _is_sure(ghost, now)
        by_hand = "the same by hand" if sure else "if it was this machine"
        yield Finding(
            "warning",
            "ghost",
            fleet.name(now),
            f"the node {ghost.id}, which is down, {_why_ghost(ghost, now)}",
            (
                *(("swarmctl doctor --fix",) if sure else ()),
                *((f"docker node demote {ghost.id}   # {by_hand}",) if ghost.role == "manager" else ()),
                f"docker node rm {ghost.id}   # {by_hand}",
            ),
            fix="remove-node" if sure else "",
            subject=ghost.id,
        )


def _is_sure(ghost: Node, now: Node) -> bool:
    """Whether the one was the other: two machines may be called alike, but not be at one address, too."""
    return bool(ghost.labels.get(IDENTITY)) or _at_one_address(ghost, now)


def _why_ghost(ghost: Node, now: Node) -> str:
    if ghost.labels.get(IDENTITY):
        return f"is what this machine was before it joined again as {now.id}"
    if _at_one_address(ghost, now):
        return (
            f"has this machine's name and address: it is what it was before it joined again as {now.id} "
            "(no label tells, since it was never labelled)"
        )
    return (
        f"has this machine's name, though another address ({ghost.address or 'none'}): it is what it was before, or "
        "another machine that is called the same and is off"
    )


def _at_one_address(ghost: Node, now: Node) -> bool:
    return ghost.address == now.address and ghost.address not in _NO_ADDRESS


def _ghosts_of(fleet: Observation) -> list[tuple[Node, Node]]:
    """Nodes that are down, each with the node that its machine is now.

    Copied disks have one machine-id, so a node that the fleet knows another machine for is none: that one is only off.
    """
    up = [node for node in fleet.nodes if node.state == "ready"]
    by_identity = {_identity(fleet, node): node for node in up}
    by_identity.pop("", None)
    pairs = [
        # One that was never labelled has only its name to be known by.
        (node, by_identity.get(identity) if (identity := _identity(fleet, node)) else _called_like(node, up))
        for node in fleet.nodes
        if node.state == "down"
    ]
    return [(ghost, now) for ghost, now in pairs if now and not _are_apart(fleet, ghost, now)]


def _called_like(ghost: Node, up: Collection[Node]) -> Node | None:
    """A node that is up and has the name, rather one that has the address, too."""
    alike = [node for node in up if ghost.hostname and node.hostname == ghost.hostname]
    return max(alike, key=lambda node: _at_one_address(ghost, node), default=None)


def _identity(fleet: Observation, node: Node) -> str:
    machine = fleet.host_of_node.get(node.id)
    is_it = machine and machine.probe and machine.probe.engine.node_id == node.id
    known = node.labels.get(IDENTITY, "")
    return known or (machine.probe.machine_id if is_it and machine and machine.probe else "")


def _are_apart(fleet: Observation, ghost: Node, now: Node) -> bool:
    """Whether two nodes are known to be two machines."""
    before, after = fleet.host_of_node.get(ghost.id), fleet.host_of_node.get(now.id)
    if before and before.probe:
        return before.probe.engine.node_id not in {"", now.id}
    return bool(before and after) and ghost.hostname != now.hostname


def availability(fleet: Observation) -> Iterator[Finding]:
    """A manager that takes no work is usual; a worker that takes none was perhaps forgotten."""
    for node in fleet.nodes:
        if node.availability != "active" and node.role == "worker" and node.state == "ready":
            word = {"drain": "drained", "pause": "paused"}[node.availability]
            yield Finding(
                "warning",
                "availability",
                fleet.name(node),
                f"it is {word}, and gets no {'new ' if word == 'paused' else ''}work",
                (f"swarmctl activate {node.hostname}",),
            )


def labels(fleet: Observation) -> Iterator[Finding]:
    """Labels that are not what the machine is; a class that a person chose is right by definition."""
    for machine, node in _known_nodes(fleet):
        if fleet.swarm is None or machine.probe is None or machine.evidence is None or node.state != "ready":
            continue
        wanted = labels_by_probe(node, machine.probe, machine.evidence)
        if twin_of(machine.probe.machine_id, fleet.swarm, node.id):
            wanted.pop(IDENTITY, None)
        wrong = [key for key, value in wanted.items() if not _fits(key, node.labels.get(key), value)]
        if not wrong:
            continue
        if CLASS not in node.labels:
            message = f"it has no class, so no worker is started on it; it seems to be of class {wanted.get(CLASS)}"
        else:
            told = [f"{key} is {node.labels.get(key, 'missing')}, and should be {wanted[key]}" for key in sorted(wrong)]
            message = f"its labels don't fit: {'; '.join(told)}"
        yield Finding(
            "warning",
            "label",
            machine.host,
            message,
            ("swarmctl doctor --fix", "swarmctl label --auto   # the same by hand"),
            fix="label",
            subject=node.id,
        )


def _fits(key: str, value: str | None, wanted: str) -> bool:
    if key == MEMORY and value and value.isdigit():
        return abs(int(value) - int(wanted)) <= _MEMORY_TOLERANCE * int(wanted)
    return value == wanted
