"""Which processes a stack needs on this machine, and how two such wishes differ. Pure: no I/O.

May import: ``stack``, ``settings``, ``local.state`` (records only).
"""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..settings import coordinator_sections, toml, worker_sections
from ..stack import Stack
from .state import COORDINATOR, Deployment, Folder, ServiceSpec

HOST = "127.0.0.1"
# One thread for each process: several workers share the cores of one machine.
THREADS = 1
ENVIRONMENT = {name: str(THREADS) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
# On one machine the coordinator is back in a moment, and waiting for it costs nothing.
NETWORK = {"reconnect_attempts": 0, "reconnect_delay_sec": 0.5}


@dataclass(frozen=True)
class Wanted:
    """A deployment and the configuration files that its processes read."""

    deployment: Deployment
    files: Mapping[str, str]  # text by path


@dataclass(frozen=True)
class Action:
    """One step from what is deployed to what is wanted."""

    kind: Literal["start", "restart", "stop"]
    process: str
    why: str = ""


def want(stack: Stack, folder: Folder, replicas: Mapping[str, int], port: int, http_port: int) -> Wanted:
    """Work out the processes of a stack.

    Args:
        stack: The stack.
        folder: Where it is to live.
        replicas: How many workers of each service.
        port: Where the coordinator listens for workers.
        http_port: Where it answers HTTP.
    """
    network = {"coordinator_host": HOST, "coordinator_port": port, **NETWORK}
    texts = {COORDINATOR: toml(coordinator_sections(stack))}
    for service, worker in stack.classes.items():
        texts[service] = toml({"network": network, **worker_sections(stack, worker)})
    paths = {service: str(folder.config / f"{service}.toml") for service in texts}
    deployment = Deployment(
        stack=stack.name,
        source=str(stack.path),
        model=stack.model,
        port=port,
        http_port=http_port,
        min_workers=stack.training.get("min_workers", 1),
        coordinator=_spec(
            _coordinator(paths[COORDINATOR], folder, port, http_port),
            texts[COORDINATOR],
        ),
        workers={service: _spec(_worker(paths[service]), texts[service]) for service in stack.classes},
        stack_replicas=stack.replicas,
        replicas=dict(replicas),
    )
    return Wanted(deployment, {paths[service]: text for service, text in texts.items()})


def difference(old: Deployment | None, new: Deployment) -> list[Action]:
    """What has to be done to get from one deployment to another, in the order in which it is done."""
    before = {process.name: process for process in old.processes} if old else {}
    after = {process.name: process for process in new.processes}
    stops = [Action("stop", name) for name in before if name not in after]
    starts = [Action("start", name) for name in after if name not in before]
    changed = [name for name in after if name in before and after[name].fingerprint != before[name].fingerprint]
    if COORDINATOR not in changed:
        return stops + [Action("restart", name, "its configuration changed") for name in changed] + starts
    # A coordinator that ends tells its workers that the run is over, so they begin again with the new one.
    restarts = [name for name in after if name in before]
    whys = {name: "its configuration changed" if name in changed else "the coordinator restarts" for name in restarts}
    return stops + [Action("restart", name, whys[name]) for name in restarts] + starts


def keep_scale(stack: Stack, old: Deployment | None) -> dict[str, int]:
    """How many workers a new deployment has: what `scale` asked for holds until the file's own figure changes."""
    replicas = stack.replicas
    if old:
        for service, count in old.replicas.items():
            if service in replicas and old.stack_replicas.get(service) == replicas[service]:
                replicas[service] = count
    return replicas


def _spec(argv: tuple[str, ...], config: str) -> ServiceSpec:
    content = "\0".join([*argv, *ENVIRONMENT.values(), config])
    return ServiceSpec(argv, ENVIRONMENT, hashlib.sha256(content.encode()).hexdigest()[:16])


def _coordinator(config: str, folder: Folder, port: int, http_port: int) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "swarm_agent.coordinator_command", "--config", config),
        *("--host", HOST, "--port", str(port), "--http-port", str(http_port)),
        *("--checkpoint-dir", str(folder.checkpoints)),
    )


def _worker(config: str) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "swarm_agent.worker_command", "--config", config),
        *("--threads", str(THREADS)),
    )
