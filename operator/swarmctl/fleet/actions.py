"""What a command is going to change, as plain data. Pure: imports nothing but ``swarm``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .swarm import Task


@dataclass(frozen=True, slots=True)
class Change:
    """One field's old and new value; None: there is none."""

    field: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class CreateSwarm:
    """Make the engine a manager of a swarm of its own."""

    advertise: str
    pool: str
    subnet_size: int
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UpdateSwarm:
    """Change settings of the swarm; `path` is where each lies in its spec."""

    settings: Mapping[tuple[str, ...], Any]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Store a secret or, for what is public, a config."""

    name: str
    data: bytes = field(repr=False)
    labels: Mapping[str, str]
    secret: bool = True


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove a secret or a config."""

    name: str
    secret: bool
    why: str


@dataclass(frozen=True, slots=True)
class UpdateNode:
    """Change a node's labels and availability.

    Attributes:
        node_id: The swarm's.
        node: Its name, for people.
        labels: To set; None removes one.
        availability: To set, or None to leave it.
        changes: The same, field by field.
        dies: Tasks that the swarm will stop because their constraint holds no longer.
        why: One sentence for each reason.
    """

    node_id: str
    node: str
    labels: Mapping[str, str | None]
    changes: tuple[Change, ...]
    availability: str | None = None
    dies: tuple[Task, ...] = ()
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Forget a node that is down; a manager is made a worker first, as the engine wants it."""

    node_id: str
    node: str
    why: str
    demote: bool = False


Action = CreateSwarm | UpdateSwarm | Store | Discard | UpdateNode | RemoveNode


def describe(action: Action) -> str:
    """The action in one line."""
    match action:
        case CreateSwarm():
            return f"make a swarm, advertised at {action.advertise}, overlay networks out of {action.pool}"
        case UpdateSwarm():
            return "change the swarm's settings"
        case Store():
            return f"store the {_kind(action)} {action.name}"
        case Discard():
            return f"remove the {_kind(action)} {action.name}: {action.why}"
        case UpdateNode():
            return f"change node {action.node}"
        case RemoveNode():
            return f"remove the node {action.node} ({action.node_id}): {action.why}"


def as_data(action: Action) -> dict[str, Any]:
    """The action for ``--json``."""
    facts: dict[str, Any] = {"action": type(action).__name__, "what": describe(action)}
    if isinstance(action, UpdateNode):
        facts["node"] = action.node
        facts["node_id"] = action.node_id
        facts["stops"] = [f"{task.service}.{task.slot}" if task.slot else task.service for task in action.dies]
        facts["why"] = list(action.why)
    if isinstance(action, UpdateNode | UpdateSwarm):
        facts["changes"] = [{"field": c.field, "old": c.old, "new": c.new} for c in action.changes]
    return facts


def _kind(action: Store | Discard) -> str:
    return "secret" if action.secret else "config"
