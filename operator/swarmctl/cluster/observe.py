"""Reads what a swarm has of a stack. May import: ``state``; ``fleet.engine``."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from ..fleet.engine import Engine
from .state import NAMESPACE, Observed, Raw, Service, Task


def observe_stack(engine: Engine, stack: str) -> Observed:
    """All of one stack.

    Raises:
        EngineError: The engine is no manager, or the managers have lost their quorum.
        UnreachableError: It does not answer.
    """
    label = {"label": f"{NAMESPACE}={stack}"}
    with ThreadPoolExecutor(5) as pool:  # the way there may be a slow link; what is asked does not depend on each other
        services = pool.submit(engine.services, label)
        tasks = pool.submit(engine.tasks, label)
        networks = pool.submit(engine.overlay_networks)
        configs = pool.submit(engine.configs)
        secrets = pool.submit(engine.secrets)
        return build(
            stack,
            services=services.result(),
            tasks=tasks.result(),
            networks=networks.result(),
            configs=configs.result(),
            secrets=secrets.result(),
        )


def observe_again(engine: Engine, before: Observed) -> Observed:
    """One stack as it is now, but for networks, configs and secrets, which are as they were seen before.

    Raises:
        EngineError: The engine is no manager, or the managers have lost their quorum.
        UnreachableError: It does not answer.
    """
    label = {"label": f"{NAMESPACE}={before.stack}"}
    names = {network["Id"]: name for name, network in before.networks.items()}
    services = engine.services(label)
    found = [_service(raw, names) for raw in services]
    return replace(before, services=_by_name(found, before.stack), tasks=tuple(_tasks(engine.tasks(label), services)))


def stacks(engine: Engine) -> list[str]:
    """Names of the stacks whose services are ours."""
    found = {
        service["Spec"]["Labels"][NAMESPACE]
        for service in engine.services({"label": NAMESPACE})
        if any(key.startswith("fdtc.") for key in service["Spec"]["Labels"])
    }
    return sorted(found)


def build(
    stack: str,
    *,
    services: list[Raw],
    tasks: list[Raw],
    networks: list[Raw],
    configs: list[Raw],
    secrets: list[Raw],
) -> Observed:
    """Make plain data of the engine's answers; pure."""
    network_names = {network["Id"]: network["Name"] for network in networks}
    found = [_service(raw, network_names) for raw in services]
    return Observed(
        stack=stack,
        services=_by_name(found, stack),
        tasks=tuple(_tasks(tasks, services)),
        networks={network["Name"]: network for network in networks},
        configs=_labels(configs),
        secrets=_labels(secrets),
    )


def _by_name(services: list[Service], stack: str) -> dict[str, Service]:
    return {service.name.removeprefix(f"{stack}_"): service for service in services}


def _service(raw: Raw, network_names: Mapping[str, str]) -> Service:
    return Service(
        id=raw["ID"],
        version=raw["Version"]["Index"],
        name=raw["Spec"]["Name"],
        spec=with_network_names(raw["Spec"], network_names),
        previous=with_network_names(raw["PreviousSpec"], network_names) if raw.get("PreviousSpec") else None,
        update=raw.get("UpdateStatus") or {},
    )


def with_network_names(spec: Raw, names: Mapping[str, str]) -> Raw:
    """The spec with networks by name, as they are written, not by id, as the engine keeps them."""
    template = dict(spec["TaskTemplate"])
    if template.get("Networks"):
        template["Networks"] = [
            {**network, "Target": names.get(network["Target"], network["Target"])} for network in template["Networks"]
        ]
    return {**spec, "TaskTemplate": template}


def _tasks(tasks: list[Raw], services: list[Raw]) -> Iterator[Task]:
    templates = {raw["ID"]: _program(raw["Spec"]["TaskTemplate"]) for raw in services}
    for raw in tasks:
        yield _task(raw, current=_program(raw["Spec"]) == templates.get(raw.get("ServiceID", "")))


def _program(template: Raw) -> list[Any]:
    """What of a spec replaces tasks when it changes; the API does not tell which version a task was made from.

    Placement is not among it: a task whose node still fits stays.
    """
    return [template.get(key) or None for key in ("ContainerSpec", "Resources", "Networks", "LogDriver", "ForceUpdate")]


def _task(raw: Raw, *, current: bool) -> Task:
    status: Mapping[str, Any] = raw.get("Status") or {}
    container: Mapping[str, Any] = status.get("ContainerStatus") or {}
    return Task(
        id=raw["ID"],
        service_id=raw.get("ServiceID", ""),
        slot=raw.get("Slot"),
        node_id=raw.get("NodeID", ""),
        state=status.get("State", ""),
        wanted=raw.get("DesiredState", ""),
        message=status.get("Message", ""),
        error=status.get("Err", ""),
        since=status.get("Timestamp", ""),
        container_id=container.get("ContainerID", ""),
        exit_code=container.get("ExitCode"),
        current=current,
        image=(raw["Spec"].get("ContainerSpec") or {}).get("Image", ""),
    )


def _labels(stored: list[Raw]) -> dict[str, dict[str, str]]:
    return {raw["Spec"]["Name"]: {**(raw["Spec"].get("Labels") or {}), "": raw["ID"]} for raw in stored}
