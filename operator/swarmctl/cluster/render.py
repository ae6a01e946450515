"""A stack as the Compose file that ``docker stack deploy`` takes unchanged. Pure.

May import: ``compose``, ``service_spec``; ``stack``, ``variables``, ``short_forms``, ``units``.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from ..short_forms import host
from ..stack import Stack
from ..stack_schema import SECTIONS
from ..units import size_bytes
from ..variables import escape
from .compose import agent_image, composed, data_in_containers
from .service_spec import declared_name, mode_bits

Keys = Mapping[str, Any]
_PLAIN = re.compile(r"[A-Za-z/][\w./@+-]*(?:[ :=][\w./@+=-]+)*", re.ASCII)
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_OLDEST_VERSION = "3.9"  # of the format, with all that we write; Docker 20.10 knows no later one
_NEWEST_VERSION = "3.13"  # Docker 25 and later


def as_data(stack: Stack, *, replicas: Mapping[str, int], registry: str | None = None) -> dict[str, Any]:
    """The Compose file as plain data, with all that ``x-fdtc`` means filled in.

    Args:
        stack: The stack.
        replicas: How many of each service; a number that follows the nodes is 1 where it is left out.
        registry: ``HOST:PORT`` that the agent's image comes from; None: as the file says.

    Raises:
        StackError: Its data is a file that a swarm can't bring to its nodes.
    """
    content = composed(stack, replicas=replicas, registry=registry)
    services = {name: _service(keys) for name, keys in content["services"].items()}
    declared = {
        section: {name: _declared(stack, section, name, keys or {}) for name, keys in content[section].items()}
        for section in SECTIONS
        if content.get(section)
    }
    ours = {**stack.ours(), "data": data_in_containers(stack)[0]}
    if stack.image:
        ours["image"] = agent_image(stack.image, registry)
    return {"version": _version(services), "x-fdtc": ours, "services": services, **declared}


def render(stack: Stack, *, replicas: Mapping[str, int], registry: str | None = None) -> str:
    """The same as text.

    Raises:
        StackError: As `as_data`.
    """
    data = _escaped(as_data(stack, replicas=replicas, registry=registry))
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return (
        f"# {stack.path.name} as `swarmctl config` renders it: docker stack deploy -c FILE {stack.name}\n"
        "# What x-fdtc says is in the services' environment already, which wins over it.\n"
        f"{text}"
    )


class _Dumper(yaml.SafeDumper):
    """Writes out what anchors stand for, and puts texts in quotes that some YAML could take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never refer to what was written before."""
        del data
        return True

    def text(self, text: str) -> yaml.ScalarNode:
        """A text, without quotes only where no version of YAML could take it for something else."""
        plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else "'")


_Dumper.add_representer(str, _Dumper.text)


def _version(services: Mapping[str, Keys]) -> str:
    """The oldest version of the format that has all keys, since an old docker knows old ones only."""
    attached = [
        network or {}
        for keys in services.values()
        for network in (keys["networks"].values() if isinstance(keys.get("networks"), dict) else ())
    ]
    late = any("start_interval" in (keys.get("healthcheck") or {}) for keys in services.values())
    return _NEWEST_VERSION if late or any("driver_opts" in network for network in attached) else _OLDEST_VERSION


def _service(keys: Keys) -> dict[str, Any]:
    """A service in the one form of each key that docker's command line knows."""
    written = dict(keys)
    if "volumes" in keys:
        written["volumes"] = [_mount(mount) for mount in keys["volumes"]]
    if "ports" in keys:
        written["ports"] = [
            {**port, **({"published": int(port["published"])} if port.get("published") else {})}
            for port in keys["ports"]
        ]
    for section in ("configs", "secrets"):
        if section in keys:
            written[section] = [
                {**mount, **({"mode": mode_bits(mount["mode"])} if "mode" in mount else {})} for mount in keys[section]
            ]
    if isinstance(keys.get("extra_hosts"), list):
        written["extra_hosts"] = [host(entry) for entry in keys["extra_hosts"]]
    return written


def _mount(mount: Keys) -> dict[str, Any]:
    written = dict(mount)
    if "bind" in mount:
        written["bind"] = {key: value for key, value in mount["bind"].items() if key != "create_host_path"}
    if "size" in mount.get("tmpfs", {}):
        written["tmpfs"] = {"size": size_bytes(mount["tmpfs"]["size"])}
    return {key: value for key, value in written.items() if value != {}}


def _declared(stack: Stack, section: str, name: str, keys: Keys) -> dict[str, Any]:
    written = {key: value for key, value in keys.items() if not key.startswith("x-") and value != {}}
    if written.get("external"):
        return {"external": True, "name": declared_name(stack.name, name, keys)}
    if section == "networks":
        return {"driver": "overlay", **written}
    return written


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    return value
