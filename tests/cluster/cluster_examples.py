"""A stack in a swarm as plain data, for the tests of what is decided about it."""

import copy
from collections.abc import Mapping
from typing import Any

from swarmctl.cluster.state import NAMESPACE, SERVICE, Observed, Raw, Service, Task, Wanted
from swarmctl.fleet.swarm import CLASS, Node

STACK = "tiny"


def spec(name: str, *, replicas: int = 1, image: str = "agent:1", hardware_class: str = "rpi", **container: Any) -> Raw:
    return {
        "Name": f"{STACK}_{name}",
        "Labels": {NAMESPACE: STACK, SERVICE: name},
        "TaskTemplate": {
            "ContainerSpec": {"Image": image, "Env": ["A=1", "B=2"], **container},
            "Placement": {"Constraints": [f"node.labels.{CLASS}=={hardware_class}"], "MaxReplicas": 1},
            "Networks": [{"Target": f"{STACK}_fdtc", "Aliases": [name]}],
        },
        "Mode": {"Replicated": {"Replicas": replicas}},
    }


def as_the_engine_keeps_it(raw: Raw) -> Raw:
    """The same with what an engine adds by itself."""
    kept = copy.deepcopy(raw)
    kept["TaskTemplate"]["ContainerSpec"].update({"Isolation": "default", "DNSConfig": {}})
    kept["TaskTemplate"].update({"ForceUpdate": 3, "Runtime": "container"})
    kept["EndpointSpec"] = {"Mode": "vip"}
    kept["TaskTemplate"]["ContainerSpec"]["Env"].reverse()
    return kept


def wanted(services: Mapping[str, Raw], **keys: Any) -> Wanted:
    base: dict[str, Any] = {
        "networks": {f"{STACK}_fdtc": {"Driver": "overlay"}}, "configs": {}, "secrets": {}, "external": (),
        "images": {}, "auto": (),
    }  # fmt: skip
    return Wanted(stack=STACK, services=services, **{**base, **keys})


def observed(services: Mapping[str, Raw], tasks: tuple[Task, ...] = (), **keys: Any) -> Observed:
    base: dict[str, Any] = {
        "networks": {f"{STACK}_fdtc": {"Id": "net", "Labels": {NAMESPACE: STACK}}}, "configs": {}, "secrets": {},
    }  # fmt: skip
    present = {
        name: Service(f"id-{name}", 7, raw["Name"], as_the_engine_keeps_it(raw), None, {})
        for name, raw in services.items()
    }
    return Observed(stack=STACK, services=present, tasks=tasks, **{**base, **keys})


def task(service: str, slot: int = 1, node: str = "n1", state: str = "running", **keys: Any) -> Task:
    base: dict[str, Any] = {
        "wanted": "running", "message": "", "error": "", "since": f"2026-01-01T00:00:{slot:02}Z", "container_id": "c",
        "exit_code": None, "current": True, "image": "agent:1",
    }  # fmt: skip
    return Task(f"{service}-{slot}-{state}", f"id-{service}", slot, node, state, **{**base, **keys})


def node(id_: str, hardware_class: str = "rpi", **keys: Any) -> Node:
    base: dict[str, Any] = {
        "version": 1, "hostname": f"host-{id_}", "address": "10.0.0.1", "role": "worker", "availability": "active",
        "state": "ready", "labels": {CLASS: hardware_class}, "memory_mb": 4096, "cores": 4.0,
        "platform_arch": "aarch64",
    }  # fmt: skip
    return Node(id=id_, **{**base, **keys})
