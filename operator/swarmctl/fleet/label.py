"""`swarmctl label`: what each machine is taken for, and the labels that say so.

Pure; may import: ``plan``, ``machines``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fdtc import HARDWARE_CLASSES

from ..errors import UsageError
from ..schema import did_you_mean
from .actions import Action, UpdateNode
from .machines import Machine
from .plan import actions_for, inherited, labels_by_probe, twin_of
from .swarm import CLASS, IDENTITY, SOURCE, Node, Swarm


@dataclass(frozen=True)
class Labelling:
    """What was decided about one node.

    Attributes:
        machine: The node's machine, as it was looked at.
        actions: What changes; none: it is as it should be, or could not be asked.
        by_user: A person chose its class, so the probe's word does not count.
    """

    machine: Machine
    actions: tuple[Action, ...]
    by_user: bool

    @property
    def update(self) -> UpdateNode | None:
        """The change of the node itself."""
        return next((action for action in self.actions if isinstance(action, UpdateNode)), None)


def decide(machines: Sequence[Machine], swarm: Swarm) -> list[Labelling]:
    """Decide for each node that could be asked, by its probe and by what its machine was before."""
    return [_decide(machine, swarm) for machine in machines]


def _decide(machine: Machine, swarm: Swarm) -> Labelling:
    node, probe, evidence = machine.node, machine.probe, machine.evidence
    assert node
    if probe is None or evidence is None or _is_somebody_else(node, machine):
        return Labelling(machine, (), node.labels.get(SOURCE) == "user")
    identity = "" if twin_of(probe.machine_id, swarm, node.id) else probe.machine_id
    known = inherited(node, identity, swarm)
    labels = {**known, **labels_by_probe(replace(node, labels=known), probe, evidence)}
    if not identity:
        labels.pop(IDENTITY, None)
    actions = actions_for(node, labels, identity, swarm, why=evidence.reasons)
    return Labelling(machine, tuple(actions), known.get(SOURCE) == "user")


def _is_somebody_else(node: Node, machine: Machine) -> bool:
    """Whether the machine that answered at a node's address is not the node: addresses wander."""
    assert machine.probe
    engine = machine.probe.engine
    return bool(engine.node_id) and engine.node_id != node.id


def named_node(name: str, swarm: Swarm) -> Node:
    """The node that a person means by a host name, an address or (the beginning of) an id.

    Raises:
        UsageError: There is none, or there are several.
    """
    up_first = sorted(swarm.nodes, key=lambda node: node.state == "down")
    found = [node for node in up_first if name in {node.hostname, node.address, node.id}]
    found = found or [node for node in up_first if len(name) >= 4 and node.id.startswith(name)]
    up = [node for node in found if node.state != "down"]
    if len(up or found) > 1:
        raise UsageError(
            f"{len(up or found)} nodes are called {name!r}; say which by its id",
            *(f"{node.id}   # {node.hostname} at {node.address}" for node in up or found),
        )
    if not found:
        known = sorted({node.hostname for node in swarm.nodes})
        raise UsageError(
            f"there is no node {name!r} in the swarm{did_you_mean(name, known)}",
            f"swarmctl nodes   # there are {', '.join(known)}",
            f"swarmctl join {name}",
        )
    return (up or found)[0]


def checked_class(name: str) -> str:
    """A hardware class that a person typed.

    Raises:
        UsageError: It is none.
    """
    if name not in HARDWARE_CLASSES:
        raise UsageError(
            f"{name!r} is no hardware class{did_you_mean(name, HARDWARE_CLASSES)}",
            f"one of {', '.join(HARDWARE_CLASSES)}",
        )
    return name


def class_of(node: Node) -> str:
    """A node's class, or a dash."""
    return node.labels.get(CLASS, "-")
