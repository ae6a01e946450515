"""The agent: a coordinator and workers that train one model together.

The same powers as the commands, for any numpy model and data::

    from swarm_agent import Coordinator, CoordinatorConfig, Worker, WorkerConfig

Names are loaded when first used: a worker on a small machine never pays for the coordinator's HTTP server.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import CoordinatorConfig, WorkerConfig
    from .coordinator import Coordinator
    from .errors import AgentError, CheckpointError, ConfigError, DataError, ModelError, RefusedError, UnreachableError
    from .models import DataSource, TrainableModel
    from .worker import Worker

__all__ = [
    "AgentError",
    "CheckpointError",
    "ConfigError",
    "Coordinator",
    "CoordinatorConfig",
    "DataError",
    "DataSource",
    "ModelError",
    "RefusedError",
    "TrainableModel",
    "UnreachableError",
    "Worker",
    "WorkerConfig",
]

_HOMES = {
    "Config": "config",
    "Coordinator": "coordinator",
    "Error": "errors",
    "DataSource": "models",
    "TrainableModel": "models",
    "Worker": "worker",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next(home for ending, home in _HOMES.items() if name.endswith(ending))
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
