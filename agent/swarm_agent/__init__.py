"""The agent: a coordinator and workers that train one model together.

The same powers as the commands, for any numpy model and data::

    from swarm_agent import Coordinator, CoordinatorConfig, Worker, WorkerConfig
"""

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
