"""Decides what to do for a swarm to have what a stack file wants. A pure function; no I/O, an import rule holds that.

May import: ``state``, ``diff``; ``fleet.swarm`` for the nodes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..fleet.swarm import Node
from .diff import Difference, differences
from .state import LOCK, NAMESPACE, REVISION, SERVICE, Observed, Raw, Service, Stored, Wanted

COORDINATOR = "coordinator"


@dataclass(frozen=True)
class CreateNetwork:
    """Make an overlay network."""

    name: str
    body: Raw


@dataclass(frozen=True)
class RemoveNetwork:
    """Remove a network of the stack that nothing uses any more."""

    name: str


@dataclass(frozen=True)
class StoreObject:
    """Store a config or secret of the stack."""

    kind: str
    stored: Stored


@dataclass(frozen=True)
class DropObject:
    """Remove a config or secret of the stack that nothing uses any more."""

    kind: str
    name: str


@dataclass(frozen=True)
class KeepCheckpoints:
    """Say by a label that a node has the coordinator's checkpoints, so that it runs there.

    Attributes:
        node_id: The swarm's.
        node: Its name, for people.
        label: To set.
    """

    node_id: str
    node: str
    label: str


@dataclass(frozen=True)
class CreateService:
    """Make a service."""

    service: str
    spec: Raw


@dataclass(frozen=True)
class UpdateService:
    """Change a service.

    Attributes:
        service: Short name.
        id: The swarm's.
        version: Of the service that was looked at; when another is found the plan is out of date.
        spec: The whole new spec.
        differences: Field by field.
        restarts: Whether its tasks are replaced.
    """

    service: str
    id: str
    version: int
    spec: Raw
    differences: tuple[Difference, ...]
    restarts: bool


@dataclass(frozen=True)
class RemoveService:
    """Remove a service that the stack file does not have."""

    service: str
    id: str


StackAction = (
    CreateNetwork
    | RemoveNetwork
    | StoreObject
    | DropObject
    | KeepCheckpoints
    | CreateService
    | UpdateService
    | RemoveService
)


def plan(wanted: Wanted, observed: Observed, declared: Mapping[str, Raw] | None = None) -> list[StackAction]:
    """What to do, in an order in which each step finds what it needs; the coordinator comes before its workers.

    Args:
        wanted: What there is to be.
        observed: What there is.
        declared: Specs of the last revision, by service: what they say and `wanted` does not is to go. What neither
            says is somebody else's, and stays.
    """
    once = declared or {}
    order = sorted(wanted.services, key=lambda name: name != COORDINATOR)
    # What somebody else made and counts to the stack is not ours to remove.
    ours = [name for name, present in observed.services.items() if SERVICE in (present.spec.get("Labels") or {})]
    gone = [name for name in ours if name not in wanted.services]
    return [
        *(CreateNetwork(name, body) for name, body in wanted.networks.items() if name not in observed.networks),
        *(StoreObject("config", it) for name, it in wanted.configs.items() if name not in observed.configs),
        *(StoreObject("secret", it) for name, it in wanted.secrets.items() if name not in observed.secrets),
        *(
            action
            for name in order
            for action in _service(name, wanted.services[name], observed.services.get(name), once.get(name, {}))
        ),
        *(RemoveService(name, observed.services[name].id) for name in gone),
        *_prune(wanted, observed),
    ]


def _service(name: str, wanted: Raw, present: Service | None, declared: Raw) -> list[StackAction]:
    if present is None:
        return [CreateService(name, wanted)]
    found = differences(present.spec, wanted, declared)
    if not found:
        return []
    restarts = any(difference.path.startswith("TaskTemplate.") for difference in found)
    spec = _merged(present.spec, wanted, declared)
    return [UpdateService(name, present.id, present.version, spec, tuple(found), restarts)]


def _merged(present: Any, wanted: Any, declared: Any) -> Any:
    """The wanted spec with what somebody else put into the present one; an update replaces the whole of it."""
    if not isinstance(wanted, Mapping) or not isinstance(present, Mapping):
        return wanted
    once = declared if isinstance(declared, Mapping) else {}
    theirs = {key: value for key, value in present.items() if key not in wanted and key not in once}
    ours = {key: _merged(present.get(key), value, once.get(key)) for key, value in wanted.items()}
    return {**theirs, **ours}


def _prune(wanted: Wanted, observed: Observed) -> Iterable[StackAction]:
    """What the stack brought along once and does not use any more."""
    needed = {*wanted.configs, *wanted.secrets}
    for kind, there in (("config", observed.configs), ("secret", observed.secrets)):
        for name, labels in there.items():
            # The past and the lock are configs too, and kept on purpose.
            if labels.get(NAMESPACE) == wanted.stack and name not in needed and not {REVISION, LOCK} & labels.keys():
                yield DropObject(kind, name)
    for name, network in observed.networks.items():
        if (network.get("Labels") or {}).get(NAMESPACE) == wanted.stack and name not in wanted.networks:
            yield RemoveNetwork(name)


def removal(observed: Observed) -> list[StackAction]:
    """What to do for a stack to be gone: workers first, so that the coordinator's last checkpoint has their work."""
    order = sorted(observed.services, key=lambda name: name == COORDINATOR)
    nothing = Wanted(observed.stack, {}, {}, {}, {}, (), {}, ())
    revisions = [
        DropObject("config", name)
        for name, labels in observed.configs.items()
        if labels.get(NAMESPACE) == observed.stack and REVISION in labels
    ]
    return [
        *(RemoveService(name, observed.services[name].id) for name in order),
        *_prune(nothing, observed),
        *revisions,
    ]


def missing(wanted: Wanted, observed: Observed) -> list[tuple[str, str]]:
    """Names that the stack expects to be there, and are not, with their kind."""
    there: Mapping[str, Mapping[str, Any]] = {
        "secret": observed.secrets,
        "config": observed.configs,
        "network": observed.networks,
    }
    return [(kind, name) for kind, name in wanted.external if name not in there[kind]]


# Replicas -------------------------------------------------------------------------------------------------------


def eligible(spec: Raw, nodes: Iterable[Node]) -> list[Node]:
    """The nodes that a service's constraints allow, whatever else runs on them."""
    constraints = (spec["TaskTemplate"].get("Placement") or {}).get("Constraints") or []
    return [
        node
        for node in nodes
        if node.state == "ready" and node.availability == "active" and all(holds(rule, node) for rule in constraints)
    ]


def holds(constraint: str, node: Node) -> bool:
    """Whether a constraint of the scheduler holds for a node."""
    key, operator, value = _parse(constraint)
    facts = {
        "node.id": node.id,
        "node.hostname": node.hostname,
        "node.role": node.role,
        "node.platform.arch": node.platform_arch,
        "node.platform.os": "linux",
    }
    actual = node.labels.get(key.removeprefix("node.labels."), "") if key.startswith("node.labels.") else facts.get(key)
    if actual is None:
        return True  # about engine labels, which the managers do not tell
    equal = actual.lower() == value.lower()
    return equal if operator == "==" else not equal


def _parse(constraint: str) -> tuple[str, str, str]:
    operator = "!=" if "!=" in constraint else "=="
    key, _, value = constraint.partition(operator)
    return key.strip(), operator, value.strip()


def replicas_of(spec: Raw) -> int | None:
    """How many tasks a service is to have; None: one on every node."""
    replicated = (spec.get("Mode") or {}).get("Replicated")
    return None if replicated is None else int(replicated.get("Replicas", 1))


def describe(action: StackAction) -> str:
    """The action in one line."""
    match action:
        case CreateNetwork():
            return f"make the network {action.name}"
        case RemoveNetwork():
            return f"remove the network {action.name}"
        case StoreObject():
            return f"store the {action.kind} {action.stored.name}"
        case DropObject():
            return f"remove the {action.kind} {action.name}, which nothing uses"
        case KeepCheckpoints():
            return f"keep the coordinator and its checkpoints on {action.node}"
        case CreateService():
            count = replicas_of(action.spec)
            return f"create {action.service}" + (f" with {count} replicas" if count is not None else "")
        case UpdateService():
            return f"update {action.service}" + ("" if action.restarts else ", without a restart")
        case RemoveService():
            return f"remove {action.service}"


def as_data(action: StackAction) -> dict[str, Any]:
    """The action for ``--json``."""
    facts: dict[str, Any] = {"action": type(action).__name__, "what": describe(action)}
    if isinstance(action, UpdateService):
        facts["service"] = action.service
        facts["restarts"] = action.restarts
        facts["changes"] = [{"field": d.path, "old": d.old, "new": d.new} for d in action.differences]
    return facts


def shown(value: Any) -> str:
    """A field's value in one line."""
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
