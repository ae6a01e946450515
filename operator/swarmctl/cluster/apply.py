"""The one gate through which a stack in a swarm is changed. May import: ``plan``, ``state``; ``fleet``."""

import time
from typing import Any, assert_never

from ..errors import SwarmctlError, WaitTimeoutError
from ..fleet.actions import UpdateNode
from ..fleet.apply import apply_one
from ..fleet.engine import Engine, EngineError
from ..stack import to_type
from .plan import (
    CreateNetwork,
    CreateService,
    DropObject,
    KeepCheckpoints,
    RemoveNetwork,
    RemoveService,
    StackAction,
    StoreObject,
    UpdateService,
)
from .state import HERE, NAMESPACE, Raw

_IN_USE_SEC = 60.0
_POLL_SEC = 0.3


class PlanOutdatedError(SwarmctlError):
    """Somebody else changed a service after it was looked at."""


def apply(action: StackAction, engine: Engine) -> None:
    """Carry out one action.

    Raises:
        PlanOutdatedError: The service is not as it was when the plan was made.
        EngineError: The engine refused.
        UnreachableError: It does not answer any more.
    """
    match action:
        case CreateNetwork():
            engine.create_network(action.name, action.body)
        case StoreObject():
            store = engine.create_secret if action.kind == "secret" else engine.create_config
            store(action.stored.name, action.stored.data, action.stored.labels)
        case KeepCheckpoints():
            set_node_label(engine, action.node_id, action.label, HERE)
        case CreateService():
            engine.create_service(with_ids(action.spec, engine))
        case UpdateService():
            _update(action, engine)
        case RemoveService():
            engine.remove_service(action.id)
        case RemoveNetwork():
            _when_unused(lambda: engine.remove_network(action.name), action.name)
        case DropObject():
            drop = engine.remove_secret if action.kind == "secret" else engine.remove_config
            _when_unused(lambda: drop(action.name), action.name)
        case _:
            assert_never(action)


def set_node_label(engine: Engine, node_id: str, label: str, value: str | None) -> None:
    """Give a node a label, or take it away with None."""
    apply_one(UpdateNode(node_id, node_id, {label: value}, ()), engine)


def _update(action: UpdateService, engine: Engine) -> None:
    present = engine.service(action.id)
    if present["Version"]["Index"] != action.version and _content(present["Spec"]) == _content(action.spec):
        return  # somebody else has done just this
    try:
        engine.update_service(action.id, action.version, with_ids(action.spec, engine))
    except EngineError as error:
        if "update out of sequence" in str(error):
            raise PlanOutdatedError(
                f"somebody else changed {action.service} just now; nothing of it was overwritten",
                "type the same again: it starts from what is there then",
            ) from error
        raise


def _content(spec: Raw) -> Any:
    return {key: value for key, value in spec.items() if key != "TaskTemplate"}, spec["TaskTemplate"]


def with_ids(spec: Raw, engine: Engine) -> Raw:
    """The spec with the ids that the engine wants beside the names of secrets and configs.

    Raises:
        SwarmctlError: One of them is not there.
    """
    container = dict(spec["TaskTemplate"]["ContainerSpec"])
    for key, name_key, id_key, listed in (
        ("Configs", "ConfigName", "ConfigID", engine.configs),
        ("Secrets", "SecretName", "SecretID", engine.secrets),
    ):
        if not container.get(key):
            continue
        ids = {raw["Spec"]["Name"]: raw["ID"] for raw in listed()}
        absent = [entry[name_key] for entry in container[key] if entry[name_key] not in ids]
        if absent:
            stack = spec["Labels"].get(NAMESPACE, "")
            brought = any(name.startswith(f"{stack}_") for name in absent)
            raise SwarmctlError(
                f"the swarm has no {key.lower()[:-1]} {', '.join(absent)}",
                f"swarmctl deploy --stack {to_type(stack)}   # brings them along again"
                if brought
                else "swarmctl init   # makes them",
            )
        container[key] = [{**entry, id_key: ids[entry[name_key]]} for entry in container[key]]
    return {**spec, "TaskTemplate": {**spec["TaskTemplate"], "ContainerSpec": container}}


def _when_unused(remove: Any, name: str) -> None:
    """Remove what a service that is going used: its tasks end some time after it."""
    end = time.monotonic() + _IN_USE_SEC
    while True:
        try:
            remove()
        except EngineError as error:
            if error.status == 404:
                return
            used = "in use" in str(error) or "active endpoints" in str(error)
            if not used:
                raise
            if time.monotonic() > end:
                raise WaitTimeoutError(f"{name} is still in use: {error}", "type the same again to go on") from error
            time.sleep(_POLL_SEC)
        else:
            return
