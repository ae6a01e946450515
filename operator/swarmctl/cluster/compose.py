"""What a stack file wants of a swarm: raw specs of services, networks, configs and secrets. Pure; no I/O.

Names and labels are those that ``docker stack deploy`` gives, so that ``docker stack ls``, ``ps`` and ``rm`` understand
them. May import: ``state``, ``service_spec``; ``stack``, ``settings``, ``schema``, ``errors``.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import StackError
from ..settings import coordinator_sections, worker_sections
from ..stack import Stack
from ..stack_checks import COORDINATOR
from ..stack_files import MOST_CONFIG_BYTES, looks_like_path
from ..units import size_text
from .service_spec import declared_name, service_spec
from .state import NAMESPACE, Raw, Stored, Wanted

Content = Mapping[str, Any]
DEFAULT_NETWORK = "default"
DATA = "fdtc-data"  # the name of the config that brings a small data file along
DATA_FOLDER = "/data"
# A worker that gives up is started again by the swarm, and counts as a failure there; waiting costs nothing.
_NETWORK = {"reconnect_attempts": 0}


@dataclass(frozen=True)
class Pin:
    """What a registry says of an image reference.

    Attributes:
        digest: Such as ``sha256:…``.
        platforms: (os, architecture, variant) of each image behind it.
    """

    digest: str
    platforms: tuple[tuple[str, str, str], ...]


def wanted(
    stack: Stack, *, replicas: Mapping[str, int], registry: str | None = None, pins: Mapping[str, Pin] | None = None
) -> Wanted:
    """Work out what a stack wants of a swarm.

    Args:
        stack: The stack.
        replicas: How many of each service; what is left out is as the file says, or 1.
        registry: ``HOST:PORT`` that the agent's image comes from; None: as the file says.
        pins: By image reference; an image that is not among them is left to the engine.

    Raises:
        StackError: Its data is a file that a swarm can't bring to its nodes.
    """
    content = composed(stack, replicas=replicas, registry=registry)
    services = {
        name: service_spec(stack.name, name, keys, content) for name, keys in _coordinator_first(content["services"])
    }
    images = {name: content["services"][name]["image"] for name in services}
    return Wanted(
        stack=stack.name,
        services={name: _pinned(spec, (pins or {}).get(images[name])) for name, spec in services.items()},
        networks=dict(_networks(stack.name, content)),
        configs=dict(_stored(stack, content, "configs")),
        secrets=dict(_stored(stack, content, "secrets")),
        external=tuple(_external(content)),
        images=images,
        auto=tuple(name for name, wish in stack.wishes.items() if wish is None),
    )


def composed(stack: Stack, *, replicas: Mapping[str, int], registry: str | None = None) -> dict[str, Any]:
    """The stack as a Compose file that says by itself what ``x-fdtc`` means for the agent, as plain data.

    Args, raises: As `wanted`.
    """
    content = {key: value for key, value in stack.content.items() if key != "name" and not key.startswith("x-")}
    data, brought = data_in_containers(stack)
    content["services"] = {
        name: _service(stack, name, keys, data, replicas.get(name), registry)
        for name, keys in stack.content["services"].items()
    }
    if brought:
        content["configs"] = {**content.get("configs", {}), DATA: {"file": stack.data}}
    for section in ("configs", "secrets"):
        if content.get(section):
            content[section] = {name: _named(stack, name, keys or {}) for name, keys in content[section].items()}
    return content


def _service(
    stack: Stack, name: str, keys: Content, data: str, replicas: int | None, registry: str | None
) -> dict[str, Any]:
    """One service: what it was, with image, environment and number filled in."""
    known = {key: value for key, value in keys.items() if not key.startswith("x-") and value is not None}
    if name != COORDINATOR and name not in stack.classes:
        return _with_replicas(known, replicas)
    own = known.get("environment", {})
    known["environment"] = {**_environment(stack, name, data), **own}
    known["image"] = agent_image(stack.image or known["image"], registry)
    if data != stack.data and name != COORDINATOR:  # which hands out shards, and reads none
        known["configs"] = [*known.get("configs", ()), {"source": DATA, "target": data}]
    wish = stack.wishes.get(name)
    return _with_replicas(known, wish if replicas is None else replicas)


def _with_replicas(keys: Content, replicas: int | None) -> dict[str, Any]:
    deploy = keys.get("deploy") or {}
    if deploy.get("mode") == "global":
        return dict(keys)
    return {**keys, "deploy": {"mode": "replicated", **deploy, "replicas": _first(replicas, deploy.get("replicas"), 1)}}


def _first(*numbers: int | None) -> int:
    return next(number for number in numbers if number is not None)


def agent_image(image: str, registry: str | None) -> str:
    """The agent's image as it is called in a registry; one that names a registry already stays as it is."""
    first, slash, _ = image.partition("/")
    has_one = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return f"{registry.rstrip('/')}/{image}" if registry and not has_one else image


def _environment(stack: Stack, service: str, data: str) -> dict[str, str]:
    """Settings of coordinator or worker as the variables that the agent reads."""
    if service == COORDINATOR:
        # The swarm starts it again whenever it ends, and its workers are to wait for it.
        sections = {"network": {"restarts": True}, **coordinator_sections(stack)}
    else:
        sections = {"network": _NETWORK, **worker_sections(stack, stack.classes[service])}
    sections["data"] = {**sections["data"], "path": data}
    return {
        f"FDTC_{section}_{key}".upper(): _text(value)
        for section, keys in sections.items()
        for key, value in keys.items()
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Data ------------------------------------------------------------------------------------------------------------


def data_in_containers(stack: Stack) -> tuple[str, bool]:
    """The data's name in the containers, and whether it is a file that is to be brought there.

    Raises:
        StackError: It can't be.
    """
    data = stack.data
    if not looks_like_path(data) or _is_mounted(stack, data):
        return data, False
    name = data.rpartition("/")[2]
    if data in stack.files:
        return f"{DATA_FOLDER}/{name}", True
    raise StackError(
        f"x-fdtc.data: {data} is no file of this machine that is at most {size_text(MOST_CONFIG_BYTES)}, so a swarm "
        "can't bring it to its nodes",
        "# copy it to one place on every node that runs coordinator or workers, such as /srv/fdtc, and write",
        f"#   volumes: [ /srv/fdtc:{DATA_FOLDER}:ro ]   # for each of these services",
        f"#   x-fdtc: data: {DATA_FOLDER}/{name}",
    )


def _is_mounted(stack: Stack, data: str) -> bool:
    """Whether a worker's own mounts bring the data, so that the path is one in the containers."""
    mounts = [
        mount["target"].rstrip("/")
        for service in stack.classes
        for key in ("volumes", "configs")
        for mount in stack.content["services"][service].get(key) or ()
        if mount.get("target") and mount.get("type") != "tmpfs"
    ]
    return any(data == target or data.startswith(f"{target}/") for target in mounts)


# Everything but services -----------------------------------------------------------------------------------------


def _named(stack: Stack, name: str, keys: Content) -> dict[str, Any]:
    """A config or secret with a name that tells its content, since the engine can't change what it keeps."""
    if keys.get("external"):
        return dict(keys)
    content = stack.files[keys["file"]]
    ending = f"-{hashlib.sha256(content).hexdigest()[:12]}"
    base = str(keys.get("name") or f"{stack.name}_{name}").removesuffix(ending)  # a rendered file has it already
    return {**keys, "name": base + ending}


def _stored(stack: Stack, content: Content, section: Literal["configs", "secrets"]) -> Iterator[tuple[str, Stored]]:
    for name, keys in (content.get(section) or {}).items():
        if not keys.get("external"):
            full = declared_name(stack.name, name, keys)
            labels = {**keys.get("labels", {}), NAMESPACE: stack.name}
            yield full, Stored(full, stack.files[keys["file"]], labels)


def _used_networks(content: Content) -> list[str]:
    used = (network for keys in content["services"].values() for network in keys.get("networks") or (DEFAULT_NETWORK,))
    return sorted(dict.fromkeys(used))


def _networks(stack: str, content: Content) -> Iterator[tuple[str, Raw]]:
    for name in _used_networks(content):
        keys = (content.get("networks") or {}).get(name) or {}
        if keys.get("external"):
            continue
        full = declared_name(stack, name, keys)
        body: Raw = {
            "Name": full,
            "Driver": keys.get("driver", "overlay"),
            "Labels": {**keys.get("labels", {}), NAMESPACE: stack},
            "Options": keys.get("driver_opts") or {},
            "Internal": keys.get("internal", False),
            "Attachable": keys.get("attachable", False),
        }
        ipam = keys.get("ipam") or {}
        if ipam.get("driver") or ipam.get("config"):
            subnets = [{"Subnet": entry["subnet"]} for entry in ipam.get("config") or ()]
            body["IPAM"] = {"Driver": ipam.get("driver", "default"), "Config": subnets}
        yield full, body


def _external(content: Content) -> Iterator[tuple[str, str]]:
    networks = content.get("networks") or {}
    for name in _used_networks(content):
        if (networks.get(name) or {}).get("external"):
            yield "network", declared_name("", name, networks[name])
    for section in ("configs", "secrets"):
        used = {mount["source"] for keys in content["services"].values() for mount in keys.get(section) or ()}
        for name, keys in (content.get(section) or {}).items():
            if keys.get("external") and name in used:
                yield section[:-1], declared_name("", name, keys)


def _pinned(spec: Raw, pin: Pin | None) -> Raw:
    """The spec with the image's digest, so that every node runs the same, and with where that can run."""
    template = spec["TaskTemplate"]
    image = template["ContainerSpec"]["Image"]
    if pin is None:
        return spec
    if "@" not in image:
        image = f"{image}@{pin.digest}"
    # The engine's own client leaves out "arm", whose variants the scheduler can't tell apart.
    platforms = [
        {"Architecture": "" if architecture == "arm" else architecture, "OS": os}
        for os, architecture, _ in pin.platforms
    ]
    placement = {**template["Placement"], **({"Platforms": platforms} if platforms else {})}
    container = {**template["ContainerSpec"], "Image": image}
    return {**spec, "TaskTemplate": {**template, "ContainerSpec": container, "Placement": placement}}


def _coordinator_first(services: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(services.items(), key=lambda item: item[0] != COORDINATOR)
