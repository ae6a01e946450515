"""Looks at many machines at once: who answers, what it is, and which node of the swarm it is.

May import: ``everywhere``, ``probe``, ``evidence``, ``where``, ``facts``, ``swarm``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import SwarmctlError
from .engine import engine_on
from .everywhere import everywhere
from .evidence import evidence
from .facts import Evidence, Probe
from .inventory import Host
from .observation import Machine as ObservedMachine
from .pairs import End
from .plan import profile_in
from .probe import engine_facts, probe
from .ssh import Connection
from .swarm import IDENTITY, Node, Swarm
from .where import Manager, Settings, address_of, machine_host


@dataclass(frozen=True)
class Machine:
    """A machine that was looked at.

    Attributes:
        host: How it was reached, or should have been.
        node: The node that it is, or was; None: none.
        probe: What it said; None where it could not be asked.
        error: Why not.
    """

    host: Host
    node: Node | None
    probe: Probe | None
    error: SwarmctlError | None = None

    @property
    def name(self) -> str:
        """The node's name where there is one, else the host's."""
        return self.node.hostname if self.node else self.host.name

    @property
    def evidence(self) -> Evidence | None:
        """What it is taken for; the fleet file's word goes before the probe's."""
        if self.probe is None:
            return None
        found = evidence(self.probe)
        if self.host.hardware_class is None:
            return found
        profile = self.host.profile or profile_in(self.host.hardware_class, self.probe.memory_mb)
        why = (f"the fleet file says {self.host.hardware_class}", *found.reasons)
        return Evidence(self.host.hardware_class, profile, found.arch, "sure", why)


def look(
    found: Manager, settings: Settings, nodes: Sequence[Node], on_done: Callable[[Machine], None] | None = None
) -> list[Machine]:
    """Probe the machines behind `nodes`, all at once, in the nodes' order."""
    hosts = {node.id: machine_host(node, found, settings) for node in nodes}
    by_name = {hosts[node.id].name: node for node in nodes}
    target = address_of(found.swarm.managers[0]) if found.swarm.managers else None
    looked = examine(
        [hosts[node.id] for node in nodes if by_name[hosts[node.id].name] is node],
        settings,
        target,
        on_done=on_done,
        node_of=lambda host, _: by_name[host.name],
    )
    by_host = {machine.host.name: machine for machine in looked}
    # Two nodes may have one host: a machine that rejoined, and its ghost.
    return [replace(by_host[hosts[node.id].name], node=node) for node in nodes]


def examine(
    hosts: Sequence[Host],
    settings: Settings,
    target: str | None,
    *,
    on_done: Callable[[Machine], None] | None = None,
    node_of: Callable[[Host, Probe | None], Node | None] = lambda _host, _probe: None,
) -> list[Machine]:
    """Probe hosts, all at once, in their order.

    Args:
        hosts: Which.
        settings: How to reach them.
        target: The address whose route the probe tells of, a manager's.
        on_done: Told of each as it is done.
        node_of: Which node a host is, by what it said.
    """

    def ask(connection: Connection) -> Probe:
        return ask_machine(connection, target, settings)

    def done(host: Host, result: Probe | SwarmctlError) -> None:
        if on_done:
            on_done(machine_of(host, result))

    def machine_of(host: Host, result: Probe | SwarmctlError) -> Machine:
        if isinstance(result, SwarmctlError):
            return Machine(host, node_of(host, None), None, result)
        return Machine(host, node_of(host, result), result)

    results = everywhere(hosts, ask, settings=settings.ssh, deadline=settings.deadline, on_done=done)
    return [machine_of(host, results[host.name]) for host in hosts]


def ask_machine(connection: Connection, target: str | None, settings: Settings) -> Probe:
    """Probe one machine; its engine too, where sudo wants a password and one was given.

    Raises:
        SwarmctlError: It does not answer, or does not take the password.
    """
    found = probe(connection, target)
    if found.engine.access != "sudo-password" or settings.ssh.sudo_password is None:
        return found
    with engine_on(connection, sudo=True) as engine:
        return replace(found, engine=engine_facts(engine.info(), engine.version(), "sudo"))


def node_of_machine(probe: Probe | None, swarm: Swarm) -> Node | None:
    """The node that a machine is now (by its engine's word), or was (by its identity)."""
    if probe is None:
        return None
    if probe.engine.swarm_state == "active" and (node := swarm.node(probe.engine.node_id)):
        return node
    was = [node for node in swarm.nodes if probe.machine_id and node.labels.get(IDENTITY) == probe.machine_id]
    return max(was, key=lambda node: node.version, default=None)


def observed(machine: Machine) -> ObservedMachine:
    """The machine as the checks want it."""
    error = machine.error
    return ObservedMachine(
        host=machine.host.name,
        node_id=machine.node.id if machine.node else "",
        probe=machine.probe,
        evidence=machine.evidence,
        error=str(error) if error else "",
        remedy=tuple(error.next_steps) if error else (),
    )


def ends(machines: Sequence[Machine], swarm: Swarm | None) -> list[End]:
    """The machines that can take part in tests from one to another, with the address that the others know."""
    return [_end(machine, machine.probe, swarm) for machine in machines if machine.probe]


def _end(machine: Machine, probe: Probe, swarm: Swarm | None) -> End:
    node = machine.node if swarm else None
    # Where the managers remember a machine that is in no swarm any more is where it was before.
    is_node = node is not None and probe.engine.node_id in {"", node.id} and probe.engine.swarm_state != "inactive"
    own = machine.host.advertise or probe.route.source
    address = (address_of(node) if node and is_node else "") or own
    return End(machine.host, address, manager=bool(node and node.role == "manager"))
