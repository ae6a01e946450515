"""Where a stack's coordinator is: on the node that has its checkpoints. Pure.

A volume is on one node. Docker Swarm knows nothing of that: it starts a coordinator on any node that fits, where it
begins anew. So a label of the node says whose checkpoints it has, and the coordinator's constraint asks for it. With a
label a stack that was removed finds its checkpoints when it is deployed again, a machine that rejoins has them back,
and no kept revision says where the coordinator was then. May import: ``plan``, ``tasks``, ``state``; ``fleet.swarm``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..fleet.swarm import Node
from .plan import COORDINATOR, KeepCheckpoints, StackAction, eligible
from .state import CHECKPOINTS, HERE, Observed, Raw, Wanted
from .tasks import too_small


def label(stack: str) -> str:
    """The node label that says that a stack's checkpoints are there, or, with another value, are being moved."""
    return f"{CHECKPOINTS}{stack}"


def volume(spec: Raw) -> Mapping[str, str] | None:
    """The coordinator's own volume, ``Source`` and ``Target``; None where what it writes is not bound to a node."""
    for mount in spec["TaskTemplate"]["ContainerSpec"].get("Mounts") or ():
        driver = (mount.get("VolumeOptions") or {}).get("DriverConfig") or {}
        if mount.get("Type") == "volume" and mount.get("Source") and not driver.get("Options"):
            return {"Source": mount["Source"], "Target": mount["Target"]}
    return None


def bound(services: Mapping[str, Raw], stack: str) -> dict[str, Raw]:
    """The services, with the coordinator only where its checkpoints are."""
    spec = services.get(COORDINATOR)
    if spec is None or volume(spec) is None:
        return dict(services)
    return {**services, COORDINATOR: _with(spec, [*_constraints(spec), _rule(stack)])}


def is_bound(spec: Raw, stack: str) -> bool:
    """Whether the coordinator runs only where its checkpoints are."""
    return _rule(stack) in _constraints(spec)


def home(stack: str, nodes: Sequence[Node]) -> Node | None:
    """The node that has a stack's checkpoints, or had them last while they were moved."""
    having = [node for node in nodes if label(stack) in node.labels]
    return min(having, key=lambda node: (node.labels[label(stack)] != HERE, node.state != "ready"), default=None)


def places(spec: Raw, stack: str, nodes: Sequence[Node]) -> list[Node]:
    """Nodes that can take the coordinator, wherever its checkpoints are; the best first."""
    free = _with(spec, [rule for rule in _constraints(spec) if rule != _rule(stack)])
    fitting = [node for node in eligible(free, nodes) if not too_small(spec, node)]
    return sorted(fitting, key=lambda node: (-node.memory_mb, -node.cores, node.hostname))


def keeping(wanted: Wanted, observed: Observed, nodes: Sequence[Node]) -> tuple[list[StackAction], list[Node]]:
    """What is to be done for the coordinator to have a place, and the nodes as they are then."""
    spec = wanted.services.get(COORDINATOR)
    if spec is None or volume(spec) is None:
        return [], list(nodes)
    node = home(wanted.stack, nodes) or _first(spec, wanted.stack, observed, nodes)
    if node is None or node.labels.get(label(wanted.stack)) == HERE:
        return [], list(nodes)
    with_label = replace(node, labels={**node.labels, label(wanted.stack): HERE})
    action = KeepCheckpoints(node.id, node.hostname, label(wanted.stack))
    return [action], [with_label if other.id == node.id else other for other in nodes]


def _first(spec: Raw, stack: str, observed: Observed, nodes: Sequence[Node]) -> Node | None:
    """Where a coordinator ran last that has no place, or has lost it; else the best place there is."""
    service = observed.services.get(COORDINATOR)
    own = [task for task in observed.tasks if service and task.service_id == service.id]
    by_id = {node.id: node for node in nodes}
    for task in sorted(own, key=lambda task: (task.state == "running", task.since), reverse=True):
        if node := by_id.get(task.node_id):
            return node
    return next(iter(places(spec, stack, nodes)), None)


def _rule(stack: str) -> str:
    return f"node.labels.{label(stack)}=={HERE}"


def _constraints(spec: Raw) -> list[str]:
    return list((spec["TaskTemplate"].get("Placement") or {}).get("Constraints") or [])


def _with(spec: Raw, constraints: list[str]) -> Raw:
    template = spec["TaskTemplate"]
    placement = {**(template.get("Placement") or {}), "Constraints": constraints}
    return {**spec, "TaskTemplate": {**template, "Placement": placement}}
