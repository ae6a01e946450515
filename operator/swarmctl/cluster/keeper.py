"""`swarmctl reconcile --install`: the keeper, a service of the swarm that reconciles for as long as the swarm is there.

It runs on a manager, with the engine's socket, in the image that ``swarmctl push`` makes of swarmctl itself. Of several
only one acts at a time: there is one replica, and every change takes the stack's lock. May import: ``agent_image``,
``converge``, ``diff``, ``images``; ``fleet`` for the engine.
"""

import time
from collections.abc import Mapping
from importlib import metadata

from ..console import Story
from ..errors import SwarmctlError
from ..fleet.engine import Engine
from ..fleet.where import Manager
from .agent_image import AgentImage
from .converge import until
from .diff import differences
from .images import pins
from .state import SERVICE, Raw

NAME = "swarmctl-reconcile"
_SOCKET = "/var/run/docker.sock"
_SECOND = 1_000_000_000


def spec(image: str) -> Raw:
    """The keeper's raw service spec.

    Args:
        image: Reference with its digest.
    """
    return {
        "Name": NAME,
        "Labels": {SERVICE: "reconcile"},
        "TaskTemplate": {
            "ContainerSpec": {
                "Image": image,
                "Command": ["swarmctl", "reconcile", "--watch"],
                # What it remembers of the way to a manager is not worth a volume: it is on one.
                "Env": ["HOME=/tmp", "SWARMCTL_STATE=/tmp/swarmctl"],
                "Mounts": [
                    {"Type": "bind", "Source": _SOCKET, "Target": _SOCKET},
                    {"Type": "tmpfs", "Target": "/tmp"},  # noqa: S108  # in a container of its own
                ],
                "ReadOnly": True,
            },
            "Placement": {"Constraints": ["node.role==manager"]},
            "RestartPolicy": {"Condition": "any", "Delay": 5 * _SECOND},
        },
        "Mode": {"Replicated": {"Replicas": 1}},
    }


def install(found: Manager, registry: str, story: Story, *, timeout: float, dry_run: bool) -> bool:
    """Make the keeper, or bring it to this version; returns whether anything changed.

    Raises:
        SwarmctlError: Its image is in no registry.
        WaitTimeoutError: It does not run in time.
    """
    image = AgentImage((), metadata.version("swarmctl"), registry).operator
    pinned = pins([image], found.engine, story, allow_unpinned=False)[image]
    wanted = spec(f"{image}@{pinned.digest}")
    present = _present(found.engine)
    if present and not differences(present["Spec"], wanted):
        story.same(f"{NAME} is there; nothing to change")
        return False
    story.change("~" if present else "+", f"{'update' if present else 'create'} the service {NAME}")
    if dry_run:
        return True
    if present:
        found.engine.update_service(present["ID"], present["Version"]["Index"], wanted)
    else:
        found.engine.create_service(wanted)
    until(lambda: _runs(found.engine), deadline=time.monotonic() + timeout, what=f"{NAME} does not run")
    story.done(f"{NAME} runs", "what it does is in swarmctl history")
    return True


def uninstall(found: Manager, story: Story, *, dry_run: bool) -> bool:
    """Remove the keeper; returns whether it was there."""
    present = _present(found.engine)
    if present is None:
        story.same(f"{NAME} is not there; nothing to change")
        return False
    story.change("-", f"remove the service {NAME}")
    if not dry_run:
        found.engine.remove_service(present["ID"])
    return True


def _present(engine: Engine) -> Raw | None:
    # The engine's filter finds all names that begin so.
    return next((raw for raw in engine.services({"name": NAME}) if raw["Spec"]["Name"] == NAME), None)


def _runs(engine: Engine) -> bool:
    tasks = engine.tasks({"service": NAME, "desired-state": "running"})
    failed = [task for task in engine.tasks({"service": NAME}) if _state(task) in {"failed", "rejected"}]
    if len(failed) > 2:
        raise SwarmctlError(
            f"{NAME} does not start: {failed[-1]['Status'].get('Err', '')}", f"docker service logs {NAME}"
        )
    return any(_state(task) == "running" for task in tasks)


def _state(task: Raw) -> str:
    status: Mapping[str, str] = task["Status"]
    return status["State"]
