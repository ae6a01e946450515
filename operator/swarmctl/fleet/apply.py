"""The one gate through which a swarm is changed. May import: ``actions``, ``engine``."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from .actions import Action, CreateSwarm, Discard, RemoveNode, Store, UpdateNode, UpdateSwarm
from .engine import Engine, Raw


def apply(actions: Iterable[Action], engine: Engine) -> None:
    """Carry out `actions` in their order; the first that fails ends it.

    Raises:
        EngineError: The engine refused one.
        UnreachableError: It does not answer any more.
    """
    for action in actions:
        apply_one(action, engine)


def apply_one(action: Action, engine: Engine) -> None:
    """Carry out one action; for the errors see `apply`."""
    match action:
        case CreateSwarm():
            engine.init_swarm(
                advertise=action.advertise,
                pool=action.pool,
                subnet_size=action.subnet_size,
                spec=dict(action.spec),
            )
        case UpdateSwarm():
            engine.update_swarm(lambda spec: _with_settings(spec, action.settings))
        case Store():
            store = engine.create_secret if action.secret else engine.create_config
            store(action.name, action.data, action.labels)
        case Discard():
            (engine.remove_secret if action.secret else engine.remove_config)(action.name)
        case UpdateNode():
            engine.update_node(action.node_id, lambda spec: _with_labels(spec, action))
        case RemoveNode():
            if action.demote:
                engine.update_node(action.node_id, lambda spec: {**spec, "Role": "worker"})
            engine.remove_node(action.node_id)
        case _:
            assert_never(action)


def _with_settings(spec: Raw, settings: Mapping[tuple[str, ...], Any]) -> Raw:
    changed = copy.deepcopy(spec)
    for path, value in settings.items():
        section = changed
        for key in path[:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value
    return changed


def _with_labels(spec: Raw, action: UpdateNode) -> Raw:
    """The whole spec again, since an update replaces it whole: role and foreign labels would be lost."""
    labels = {**(spec.get("Labels") or {}), **action.labels}
    return {
        **spec,
        "Labels": {key: value for key, value in labels.items() if value is not None},
        "Availability": action.availability or spec["Availability"],
    }
