"""What the shape of a stack file can't say: names that must fit to each other, and what a swarm could never do.

Works on what the schema has read; where that found problems, parts are None or missing, and are passed over. Pure; may
import: ``schema``, ``stack_schema`` for the profiles, ``short_forms``, ``units``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .schema import Places, Problem, did_you_mean
from .short_forms import constraint
from .stack_schema import profiles
from .units import size_bytes, size_text

COORDINATOR = "coordinator"
WORKER = "worker-"
CLASS_LABEL = "node.labels.fdtc.class"
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_SERVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_MOST_NAME = 63  # characters; the engine's, for a service
# What the largest machine of each profile has, in MiB: its firmware and kernel keep a little of a Pi's.
_MOST_MEMORY_MB: Mapping[str, int] = {
    "RPI3": 950,
    "RPI4_2G": 1900,
    "RPI4_4G": 3800,
    "RPI4_8G": 7800,
    "RPI5": 16000,
    "LAPTOP_LIGHT": 12 * 1024,
    "DESKTOP_MID": 24 * 1024,
    "DESKTOP_HEAVY": 32 * 1024,
    "WORKSTATION": 64 * 1024,
}

Keys = Mapping[str, Any]


@dataclass
class Findings:
    """What is wrong, and what is only odd."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class _File:
    """What is checked, and where its keys stand."""

    content: Keys
    places: Places
    found: Findings

    def refuse(self, path: str, message: str) -> None:
        self.found.problems.append(self._problem(path, message))

    def warn(self, path: str, message: str) -> None:
        self.found.warnings.append(self._problem(path, message))

    def _problem(self, path: str, message: str) -> Problem:
        at = path
        while at and at not in self.places:  # a key that is missing is told where it should be
            at = at.rpartition(".")[0] if not at.endswith("]") else at.rpartition("[")[0]
        return Problem(*self.places.get(at, (1, 1)), path, message)

    def section(self, *path: str) -> Keys:
        return _get(self.content, *path)

    @property
    def services(self) -> Iterator[tuple[str, Keys]]:
        return ((name, keys) for name, keys in self.section("services").items() if isinstance(keys, dict))


def check(content: Keys, name: str, places: Places) -> Findings:
    """Check a stack.

    Args:
        content: The file as plain data.
        name: The stack's.
        places: Where keys stand.
    """
    file = _File(content, places, Findings())
    _check_names(file, name)
    _check_classes(file)
    for service, keys in file.services:
        path = f"services.{service}"
        _check_used_names(file, path, keys)
        _check_mounts(file, path, keys)
        _check_ports(file, path, keys)
        _check_healthcheck(file, path, keys)
        if _get(keys, "deploy").get("mode") == "global" and "replicas" in _get(keys, "deploy"):
            file.refuse(f"{path}.deploy.replicas", "a global service has one on every node; leave replicas out")
        if service == COORDINATOR:
            _check_coordinator(file, path, keys)
        elif service in file.section("x-fdtc", "classes"):
            _check_worker(file, path, service, keys)
    _check_declared(file)
    return file.found


def _check_names(file: _File, stack: str) -> None:
    if not _NAME.fullmatch(stack):
        file.refuse("name", f"{stack!r} is no name for a stack: small letters, digits, - and _, a letter first")
    if "services" in file.content and COORDINATOR not in file.section("services"):
        file.refuse("services", f"there is no service {COORDINATOR!r}")
    for service in file.section("services"):
        full = f"{stack}_{service}"
        if not _SERVICE_NAME.fullmatch(service):
            file.refuse(f"services.{service}", f"{service!r} is no name for a service")
        elif len(full) > _MOST_NAME:
            file.refuse(f"services.{service}", f"{full} has {len(full)} characters; the engine takes {_MOST_NAME}")


def _check_classes(file: _File) -> None:
    services, classes = file.section("services"), file.section("x-fdtc", "classes")
    for service, keys in classes.items():
        path = f"x-fdtc.classes.{service}"
        if services and service not in services:
            file.refuse(path, f"there is no service of this name{did_you_mean(service, services)}")
        profile = _get(keys).get("profile")
        if profile and service != (wanted := WORKER + profiles()[profile].hardware_class):
            file.refuse(f"{path}.profile", f"{profile} is a profile of {wanted}, not of {service}")
    for service in services:
        if service.startswith(WORKER) and service not in classes and "x-fdtc" in file.content:
            file.refuse(f"services.{service}", f"x-fdtc.classes says nothing about {service}")


def _check_used_names(file: _File, path: str, keys: Keys) -> None:
    networks = keys.get("networks") or ()
    for i, network in enumerate(networks):
        if network and network != "default" and network not in file.section("networks"):
            place = f"{path}.networks[{i}]" if isinstance(networks, list) else f"{path}.networks.{network}"
            _refuse_undeclared(file, place, "networks", network)
    for section in ("configs", "secrets"):
        for i, mounted in enumerate(keys.get(section) or ()):
            source = _get(mounted).get("source")
            if source and source not in file.section(section):
                _refuse_undeclared(file, f"{path}.{section}[{i}]", section, source)


def _refuse_undeclared(file: _File, place: str, section: str, name: str) -> None:
    known = file.section(section)
    near = did_you_mean(name, known) if known else f"; declare it below the top-level key {section}"
    file.refuse(place, f"there is no {section[:-1]} {name!r}{near}")


def _check_mounts(file: _File, path: str, keys: Keys) -> None:
    targets: dict[str, int] = {}
    for i, mount in enumerate(keys.get("volumes") or ()):
        place, mount = f"{path}.volumes[{i}]", _get(mount)
        kind, source, target = mount.get("type"), mount.get("source"), mount.get("target")
        if kind == "volume" and source and source not in file.section("volumes"):
            _refuse_undeclared(file, place, "volumes", source)
        if kind == "bind" and not source:
            file.refuse(place, "a bind needs a source, a path on the node")
        if kind == "tmpfs" and source:
            file.refuse(place, "a tmpfs has no source")
        for options in {"volume", "bind", "tmpfs"} & set(mount) - {str(kind)}:
            file.refuse(place, f"{options} is for a mount of type {options}, and this one's is {kind}")
        if target and not target.startswith("/"):
            file.refuse(place, f"{target!r} must be a path in the container, which begins with /")
        if target and target in targets:
            file.refuse(place, f"{target} is mounted twice")
        targets[str(target)] = i


def _check_ports(file: _File, path: str, keys: Keys) -> None:
    mode = _get(keys, "deploy").get("endpoint_mode")
    for i, port in enumerate(keys.get("ports") or ()):
        if mode == "dnsrr" and _get(port).get("mode", "ingress") != "host":
            file.refuse(
                f"{path}.ports[{i}]",
                "endpoint_mode dnsrr has no virtual address to publish on; write the port with keys and mode: host",
            )
    if mode == "vip":
        file.warn(
            f"{path}.deploy.endpoint_mode",
            "a virtual address drops connections that are idle for 15 minutes; dnsrr does not",
        )


def _check_healthcheck(file: _File, path: str, keys: Keys) -> None:
    health = _get(keys, "healthcheck")
    test, place = health.get("test"), f"{path}.healthcheck.test"
    if test is not None and health.get("disable"):
        file.refuse(place, "there is a test, and disable: true")
    if test is not None and (not test or test[0] not in {"NONE", "CMD", "CMD-SHELL"}):
        file.refuse(place, "a list begins with CMD, CMD-SHELL or NONE")


def _check_coordinator(file: _File, path: str, keys: Keys) -> None:
    deploy = _get(keys, "deploy")
    if deploy.get("replicas", 1) not in {1, None}:
        file.refuse(f"{path}.deploy.replicas", "there is one coordinator, which holds the weights: replicas must be 1")
    _refuse_global(file, path, deploy, "there is one coordinator, which holds the weights")
    _check_order(file, path, deploy, "two coordinators would write into one folder of checkpoints")
    _check_memory(file, path, deploy, None)


def _check_worker(file: _File, path: str, service: str, keys: Keys) -> None:
    deploy = _get(keys, "deploy")
    placement = _get(deploy, "placement")
    wanted = f"{CLASS_LABEL} == {service.removeprefix(WORKER)}"
    rules = [rule for rule in map(_rule, placement.get("constraints") or ()) if rule and rule[0] == CLASS_LABEL]
    if not rules:
        file.refuse(f"{path}.deploy.placement.constraints", f"a worker runs on its own class only: add {wanted}")
    elif not all(f"{key} {operator} {value}" == wanted for key, operator, value in rules):
        file.refuse(f"{path}.deploy.placement.constraints", f"a {service} runs on its own class only: {wanted}")
    if placement.get("max_replicas_per_node") != 1:
        file.refuse(
            f"{path}.deploy.placement.max_replicas_per_node",
            "must be 1: a worker uses all of its machine, and two on one would only share it",
        )
    _refuse_global(file, path, deploy, "workers are counted, and scaled; x-fdtc's replicas: auto follows the nodes")
    _check_order(file, path, deploy, "a new worker can't start beside the old one with one worker a node")
    _check_memory(file, path, deploy, _get(file.section("x-fdtc", "classes", service)).get("profile"))
    _check_meeting(file, path, keys)


def _refuse_global(file: _File, path: str, deploy: Keys, why: str) -> None:
    if deploy.get("mode") == "global":
        file.refuse(f"{path}.deploy.mode", f"can't be global: {why}")


def _check_order(file: _File, path: str, deploy: Keys, why: str) -> None:
    for config in ("update_config", "rollback_config"):
        if _get(deploy, config).get("order") == "start-first":
            file.refuse(f"{path}.deploy.{config}.order", f"must be stop-first: {why}")


def _check_memory(file: _File, path: str, deploy: Keys, profile: str | None) -> None:
    reserved = _get(deploy, "resources", "reservations").get("memory")
    limit = _get(deploy, "resources", "limits").get("memory")
    if reserved and limit and size_bytes(limit) < size_bytes(reserved):
        file.refuse(f"{path}.deploy.resources.limits.memory", f"{limit} is less than the {reserved} that are reserved")
    most = _MOST_MEMORY_MB.get(profile or "", 0) * 1024**2
    if most and reserved and size_bytes(reserved) > most:
        file.refuse(
            f"{path}.deploy.resources.reservations.memory",
            f"{reserved} is more than any {profile} has ({size_text(most)}): it would never run there",
        )


def _check_meeting(file: _File, path: str, keys: Keys) -> None:
    """Worker and coordinator need a network in common."""
    coordinator = file.section("services", COORDINATOR)
    if not coordinator or "networks" not in {*keys, *coordinator}:
        return
    ours, its = (set(service.get("networks") or ("default",)) for service in (keys, coordinator))
    if not ours & its:
        file.refuse(f"{path}.networks", f"shares no network with the coordinator, which is in {', '.join(sorted(its))}")


def _check_declared(file: _File) -> None:
    for section, needed in (("configs", "file"), ("secrets", "file"), ("networks", ""), ("volumes", "")):
        for name, keys in file.section(section).items():
            path, known = f"{section}.{name}", _get(keys)
            external = known.get("external")
            if external:
                _check_external(file, path, known)
            elif needed and f"{path}.{needed}" not in file.places:
                file.refuse(path, f"says neither {needed} nor external: true")


def _check_external(file: _File, path: str, known: Keys) -> None:
    if isinstance(known["external"], dict) and known.get("name"):
        file.refuse(f"{path}.name", "external has a name already")
    for key in known:
        if key not in {"name", "external"} and not key.startswith("x-"):
            file.refuse(f"{path}.{key}", "what is external was made elsewhere; only its name can be said here")


def _rule(text: str | None) -> tuple[str, str, str] | None:
    if text is None:
        return None
    return constraint(text)


def _get(keys: Any, *path: str) -> Keys:
    """A mapping within another, or an empty one."""
    for key in path:
        keys = keys.get(key) if isinstance(keys, dict) else None
    return keys if isinstance(keys, dict) else {}
