"""What a stack's tasks are doing, and why one is not running: per service, and per node in words. Pure.

May import: ``state``, ``plan``; ``fleet.swarm`` for the nodes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..fleet.swarm import CLASS, MEMORY, Node, dockers_arch
from .plan import eligible, holds, replicas_of
from .state import CHECKPOINTS, MOVING, Observed, Raw, Service, Task

_STARTING = {"new", "pending", "assigned", "accepted", "preparing", "ready", "starting"}
_SENT_AWAY = "no longer meets constraints"
_MIB = 1 << 20


@dataclass(frozen=True)
class ServiceState:
    """How a service is doing.

    Attributes:
        service: Short name.
        wished: Replicas that it should have.
        running: Tasks that run, on nodes that answer.
        starting: Tasks on their way.
        waiting: Tasks that no node takes.
        failures: Tasks that have failed since the service's last change.
        why: What keeps it from being whole, one sentence each; empty when it is.
        tasks: The newest task of each slot.
    """

    service: str
    wished: int
    running: int
    starting: int
    waiting: int
    failures: int
    why: tuple[str, ...]
    tasks: tuple[Task, ...]

    @property
    def whole(self) -> bool:
        """Whether it has all that it should have."""
        return self.running >= self.wished and not self.starting


def judge(name: str, service: Service, observed: Observed, nodes: Sequence[Node]) -> ServiceState:
    """Judge one service by its tasks and the nodes."""
    ready = {node.id for node in nodes if node.state == "ready"}
    own = [task for task in observed.tasks if task.service_id == service.id]
    newest = _newest(own)
    wanted = [task for task in newest if task.wanted in {"running", "ready"}]
    # Tasks of a node that went down still read "running" for a day.
    running = [task for task in wanted if task.state == "running" and task.node_id in ready]
    starting = [task for task in wanted if task.state in _STARTING and task.node_id]
    waiting = [task for task in wanted if task.state in _STARTING and not task.node_id]
    # Those of an earlier spec say nothing about this one.
    failed = [task for task in own if has_failed(task) and task.current]
    count = replicas_of(service.spec)
    wished = len(eligible(service.spec, nodes)) if count is None else count
    return ServiceState(
        name,
        wished,
        len(running),
        len(starting),
        len(waiting),
        len(failed),
        tuple(_why(service.spec, wished, len(running), waiting, failed, observed, nodes)),
        tuple(newest),
    )


def has_failed(task: Task) -> bool:
    """Whether a task has failed by itself, and was not merely sent away when a node's label was changed."""
    return task.state in {"failed", "rejected"} and _SENT_AWAY not in task.error


def _newest(tasks: Sequence[Task]) -> list[Task]:
    """The newest task of each slot, the one that should run before those that should not."""
    found: dict[object, Task] = {}
    for task in sorted(tasks, key=lambda task: (task.wanted == "running", task.since)):
        found[task.slot if task.slot is not None else task.node_id] = task
    return sorted(found.values(), key=lambda task: (task.slot or 0, task.node_id))


def _why(
    spec: Raw,
    wished: int,
    running: int,
    waiting: Sequence[Task],
    failed: Sequence[Task],
    observed: Observed,
    nodes: Sequence[Node],
) -> list[str]:
    if running >= wished:
        return []
    said = []
    if waiting:
        refused = Counter(reason for node in nodes if (reason := unfit(spec, node, observed)))
        summary = ", ".join(f"{count} {reason}" for reason, count in refused.most_common())
        free = len(nodes) - sum(refused.values())
        said.append(f"{len(waiting)} wait: {short(spec, nodes)}" + (f"; of all nodes {summary}" if free == 0 else ""))
    if failed:
        last = max(failed, key=lambda task: task.since)
        where = next((node.hostname for node in nodes if node.id == last.node_id), last.node_id or "no node")
        code = f", exit code {last.exit_code}" if last.exit_code else ""
        said.append(f"{len(failed)} failed, the last on {where}: {last.error or last.message}{code}")
    return said


def short(spec: Raw, nodes: Sequence[Node]) -> str:
    """Why there is no more room, in a few words."""
    for key, _ in _label_rules(spec):
        home = next((node for node in nodes if key.startswith(CHECKPOINTS) and key in node.labels), None)
        if home and (home.state != "ready" or home.availability != "active"):
            state = home.state if home.state != "ready" else "drained"
            return f"its checkpoints are on {home.hostname}, which is {state}"
    classes = [value for key, value in _label_rules(spec) if key == CLASS]
    kind = f" of class {classes[0]}" if classes else ""
    return f"no free node{kind} ({len(eligible(spec, nodes))} there)"


def unfit(spec: Raw, node: Node, observed: Observed) -> str:
    """Why a node does not take one more task of a service; empty: nothing that can be told speaks against it."""
    if node.state != "ready":
        return f"{node.state}"
    if node.availability != "active":
        return "drained" if node.availability == "drain" else "paused"
    placement = spec["TaskTemplate"].get("Placement") or {}
    for rule in placement.get("Constraints") or []:
        if not holds(rule, node):
            if CHECKPOINTS in rule:
                return _where_its_checkpoints_are(rule, node)
            return f"without {rule.replace('node.labels.', 'label ').replace(' == ', '=').replace('==', '=')}"
    if (most := placement.get("MaxReplicas")) and _running_there(spec, node, observed) >= most:
        return f"with {most} of it already"
    return too_small(spec, node) or _other_platform(placement, node)


def _where_its_checkpoints_are(rule: str, node: Node) -> str:
    key = rule.partition("==")[0].strip().removeprefix("node.labels.")
    if node.labels.get(key) == MOVING:
        return "from which its checkpoints were to be moved (swarmctl reconcile: it goes on there)"
    return "without its checkpoints"


def _running_there(spec: Raw, node: Node, observed: Observed) -> int:
    ids = {service.id for service in observed.services.values() if service.name == spec["Name"]}
    return sum(
        task.service_id in ids and task.node_id == node.id and task.wanted == "running" for task in observed.tasks
    )


def too_small(spec: Raw, node: Node) -> str:
    """Why a node could not take a service even if nothing else ran there; empty: it could."""
    reserved = (spec["TaskTemplate"].get("Resources") or {}).get("Reservations") or {}
    memory_mb = int(reserved.get("MemoryBytes") or 0) // _MIB
    has_mb = node.memory_mb or int(node.labels.get(MEMORY) or 0)
    if memory_mb > has_mb > 0:
        return f"with {has_mb} MiB of memory, where {memory_mb} are reserved"
    cores = int(reserved.get("NanoCPUs") or 0) / 1e9
    if cores > node.cores > 0:
        return f"with {node.cores:g} cores, where {cores:g} are reserved"
    return ""


def _other_platform(placement: Raw, node: Node) -> str:
    platforms = placement.get("Platforms") or []
    if platforms and node.arch not in {dockers_arch(platform["Architecture"]) for platform in platforms}:
        return f"of {node.arch}, for which the image has nothing"
    return ""


def _label_rules(spec: Raw) -> list[tuple[str, str]]:
    placement = spec["TaskTemplate"].get("Placement") or {}
    rules = []
    for rule in placement.get("Constraints") or []:
        key, equals, value = rule.partition("==")
        if equals and key.strip().startswith("node.labels."):
            rules.append((key.strip().removeprefix("node.labels."), value.strip()))
    return rules


def states(observed: Observed, nodes: Sequence[Node]) -> Mapping[str, ServiceState]:
    """How each service is doing, the coordinator first."""
    order = sorted(observed.services, key=lambda name: (name != "coordinator", name))
    return {name: judge(name, observed.services[name], observed, nodes) for name in order}
