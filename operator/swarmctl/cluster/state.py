"""A stack in a swarm as plain data: what is wanted and what was observed. Imports nothing of ours; no I/O.

A raw spec is what Docker's API takes and gives for a service, a network, a secret or a config: a dictionary with the
API's own keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Raw = dict[str, Any]

NAMESPACE = "com.docker.stack.namespace"
IMAGE = "com.docker.stack.image"
# Ours, on services and configs.
SERVICE = "fdtc.service"
REVISION = "fdtc.revision"
WISH = "fdtc.replicas"
LOCK = "fdtc.lock"
# Ours, on nodes, with the stack's name behind it.
CHECKPOINTS = "fdtc.checkpoints."
HERE, MOVING = "here", "moving"


@dataclass(frozen=True)
class Stored:
    """A secret or config whose name ends with a hash of what it holds.

    Attributes:
        name: Full name in the swarm.
        data: What it holds.
        labels: Of the object.
    """

    name: str
    data: bytes
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Wanted:
    """What a stack file wants of a swarm.

    Attributes:
        stack: The stack's name, the prefix of all names in the swarm.
        services: Raw service specs by the service's short name, such as ``worker-rpi``; secrets, configs and
            networks are named in them, not numbered. The coordinator's is the first.
        networks: Bodies of network creation by full name.
        configs: Configs that the stack brings along, by full name.
        secrets: Secrets that the stack brings along, by full name.
        external: Names that must be there already, with their kind: ``secret``, ``config`` or ``network``.
        images: Image reference by the service's short name, as written in the file.
        auto: Short names of services whose number of replicas follows the number of eligible nodes.
    """

    stack: str
    services: Mapping[str, Raw]
    networks: Mapping[str, Raw]
    configs: Mapping[str, Stored]
    secrets: Mapping[str, Stored]
    external: tuple[tuple[str, str], ...]
    images: Mapping[str, str]
    auto: tuple[str, ...]


@dataclass(frozen=True)
class Service:
    """A service as the swarm has it.

    Attributes:
        id: The swarm's.
        version: Index that an update has to name.
        name: Full name.
        spec: Raw; secrets, configs and networks in it have names again.
        previous: Raw spec before the last update, or None.
        update: ``UpdateStatus`` as the engine has it, or empty.
    """

    id: str
    version: int
    name: str
    spec: Raw
    previous: Raw | None
    update: Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """One task of a service.

    Attributes:
        id: The swarm's.
        service_id: Whose.
        slot: Number among the replicas; None for a global service.
        node_id: Where; empty: not placed yet.
        state: What it is: new, pending, assigned, accepted, preparing, starting, running, complete, failed,
            rejected, orphaned, shutdown, remove.
        wanted: What it should be: running, shutdown, remove.
        message: The engine's.
        error: The engine's, such as ``no suitable node (…)``.
        since: When the state was entered, RFC 3339.
        container_id: Empty where there is none.
        exit_code: Of the container, where it has ended.
        current: Whether it was made from what the service's spec says now.
        image: Reference.
    """

    id: str
    service_id: str
    slot: int | None
    node_id: str
    state: str
    wanted: str
    message: str
    error: str
    since: str
    container_id: str
    exit_code: int | None
    current: bool
    image: str


@dataclass(frozen=True)
class Observed:
    """What a swarm has of one stack.

    Attributes:
        stack: Its name.
        services: By the service's short name.
        tasks: Of all its services, those that have ended too, as far as the swarm keeps them.
        networks: Raw networks by full name.
        configs: Labels of each config of the whole swarm, by full name, with its id under ``""``.
        secrets: The same of secrets.
    """

    stack: str
    services: Mapping[str, Service]
    tasks: tuple[Task, ...]
    networks: Mapping[str, Raw]
    configs: Mapping[str, Mapping[str, str]]
    secrets: Mapping[str, Mapping[str, str]]
