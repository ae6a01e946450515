"""Decides what to change about nodes: a pure function of what was observed. No I/O; an import rule in CI holds that.

May import: ``actions``, ``facts``, ``swarm``; ``fdtc`` for the profiles.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fdtc import Facts, classify

from .actions import Action, Change, RemoveNode, UpdateNode
from .facts import Evidence, Probe
from .swarm import ARCH, CLASS, CORES, IDENTITY, MEMORY, PROFILE, SOURCE, Node, Swarm, Task

OURS = (CLASS, PROFILE, ARCH, MEMORY, CORES, IDENTITY, SOURCE)
_CHOSEN = (CLASS, PROFILE)  # what a person may have decided; all else is measured
_CONSTRAINT = re.compile(r"\s*node\.labels\.(?P<key>[\w.\-]+)\s*(?P<op>==|!=)\s*(?P<value>.*?)\s*")


def labels_by_probe(node: Node, probe: Probe, evidence: Evidence) -> dict[str, str]:
    """The labels that a probe wants for a node; a person's own class and profile stay."""
    measured = {
        ARCH: evidence.arch,
        MEMORY: str(probe.memory_mb) if probe.memory_mb else "",
        CORES: str(probe.cores) if probe.cores else "",
        IDENTITY: probe.machine_id,
    }
    found = {key: value for key, value in measured.items() if value}  # what could not be read is left as it was
    if node.labels.get(SOURCE) != "user":
        found |= {CLASS: evidence.hardware_class, PROFILE: evidence.profile, SOURCE: "probe"}
    return found


def labels_by_user(node: Node, hardware_class: str, profile: str = "") -> dict[str, str]:
    """The labels for a class that a person chose; the profile is the class's tier for the node's memory."""
    memory_mb = int(node.labels.get(MEMORY) or node.memory_mb)
    return {CLASS: hardware_class, PROFILE: profile or profile_in(hardware_class, memory_mb), SOURCE: "user"}


def profile_in(hardware_class: str, memory_mb: int) -> str:
    """The profile of a class that suits this much memory."""
    # SMBIOS and devicetree values that make `classify` take the class for granted.
    facts = {
        "rpi": Facts(model="Raspberry Pi", memory_mb=memory_mb),
        "laptop": Facts(chassis_type=10, memory_mb=memory_mb),
        "desktop": Facts(chassis_type=3, memory_mb=memory_mb),
        "server": Facts(chassis_type=17, memory_mb=memory_mb),
    }[hardware_class]
    return classify(facts).profile.name


def set_labels(node: Node, labels: Mapping[str, str | None], swarm: Swarm, why: Iterable[str] = ()) -> list[Action]:
    """The action that gives a node these labels, or none where it has them; None removes one."""
    differing = {key: value for key, value in labels.items() if node.labels.get(key) != value}
    if not differing:
        return []
    after = {key: value for key, value in {**node.labels, **differing}.items() if value is not None}
    changes = tuple(Change(key, node.labels.get(key), value) for key, value in sorted(differing.items()))
    return [
        UpdateNode(node.id, node.hostname, differing, changes, dies=killed(node, after, swarm.tasks), why=tuple(why))
    ]


def clear_labels(node: Node, swarm: Swarm) -> list[Action]:
    """Take a node's class away, whoever gave it; its identity stays, by which it is known when it rejoins."""
    return set_labels(node, {key: None for key in OURS if key in node.labels and key != IDENTITY}, swarm)


def killed(node: Node, labels_after: Mapping[str, str], tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks on a node that the swarm stops once the node has other labels."""
    return tuple(
        task
        for task in tasks
        if task.node_id == node.id
        and any(_holds(rule, node.labels) and not _holds(rule, labels_after) for rule in task.constraints)
    )


def _holds(constraint: str, labels: Mapping[str, str]) -> bool:
    """Whether a constraint on a node's label holds; those on anything else do not change with labels."""
    rule = _CONSTRAINT.fullmatch(constraint)
    if rule is None:
        return True
    # moby compares without regard to case (manager/constraint).
    equal = labels.get(rule["key"], "").lower() == rule["value"].lower()
    return equal if rule["op"] == "==" else not equal


def ghosts_of(identity: str, swarm: Swarm, alive_id: str = "") -> tuple[Node, ...]:
    """Nodes that are down and were the machine with this identity, the latest first.

    A node that never got an identity, since plain Docker had it join, is known by having both name and address of the
    node that is alive.
    """
    alive = swarm.node(alive_id)
    found = [
        node for node in swarm.nodes if node.state == "down" and node.id != alive_id and _was(node, identity, alive)
    ]
    return tuple(sorted(found, key=lambda node: -node.version))


def _was(node: Node, identity: str, alive: Node | None) -> bool:
    if known := node.labels.get(IDENTITY):
        return known == identity
    return alive is not None and (node.hostname, node.address) == (alive.hostname, alive.address)


def twin_of(identity: str, swarm: Swarm, own_id: str) -> Node | None:
    """Another node that seems up and has the same identity.

    It is the machine's own past which the managers have not missed yet, or another machine with a copy of its disk.
    """
    same = (node for node in swarm.nodes if identity and node.labels.get(IDENTITY) == identity)
    return next((node for node in same if node.state == "ready" and node.id != own_id), None)


def settle(node: Node, identity: str, swarm: Swarm) -> list[Action]:
    """Give a node what its machine had before it rejoined, and forget what the machine was then."""
    return actions_for(node, inherited(node, identity, swarm), identity, swarm)


def inherited(node: Node, identity: str, swarm: Swarm) -> dict[str, str]:
    """The labels of a node together with those that its machine had before it rejoined."""
    before = ghosts_of(identity, swarm, alive_id=node.id)
    labels = {**(before[0].labels if before else {}), **node.labels}
    return {**labels, IDENTITY: identity} if identity else labels


def actions_for(
    node: Node, labels: Mapping[str, str | None], identity: str, swarm: Swarm, why: Iterable[str] = ()
) -> list[Action]:
    """Give a node its labels, and forget what its machine was before."""
    before = ghosts_of(identity, swarm, alive_id=node.id)
    actions = set_labels(node, labels, swarm, why)
    # A machine that was drained, say since it runs hot, stays so.
    if before and before[0].availability != node.availability:
        actions = [_with_availability(node, before[0].availability, actions)]
    return actions + [_forget(ghost, node) for ghost in before]


def _with_availability(node: Node, availability: str, actions: list[Action]) -> UpdateNode:
    base = next(
        (action for action in actions if isinstance(action, UpdateNode)), UpdateNode(node.id, node.hostname, {}, ())
    )
    change = Change("availability", node.availability, availability)
    return replace(base, changes=(*base.changes, change), availability=availability)


def remove_ghosts(swarm: Swarm) -> list[Action]:
    """Forget each node that is down while its machine is up as another node."""
    return [
        _forget(ghost, node)
        for node in swarm.nodes
        if node.state == "ready"
        for ghost in ghosts_of(node.labels.get(IDENTITY, ""), swarm, alive_id=node.id)
    ]


def _forget(ghost: Node, now: Node) -> RemoveNode:
    return RemoveNode(
        ghost.id,
        ghost.hostname,
        f"the machine is {now.hostname} ({now.id}) now",
        demote=ghost.role == "manager",
    )
