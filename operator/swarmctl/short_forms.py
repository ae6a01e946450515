"""What Compose lets one write as one text, taken apart: volumes, ports, mounted files, hosts, constraints. Pure.

Each function raises ValueError with what is wrong. May import: ``schema`` for its words.
"""

import re
import shlex
from typing import Any

from .schema import did_you_mean

PROPAGATIONS = ("rprivate", "private", "rshared", "shared", "rslave", "slave")
_CONSTRAINT = re.compile(r"\s*([\w.\-]+)\s*(==|!=)\s*(\S.*?)\s*")
_CONSTRAINT_KEYS = ("node.id", "node.hostname", "node.ip", "node.role", "node.platform.os", "node.platform.arch")


def words(text: str) -> list[str]:
    """A command line, split as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"can't be split into words: {error}") from error


def volume(text: str) -> dict[str, Any]:
    """``SOURCE:TARGET:OPTIONS``, or only a target; a source that begins like a path is one."""
    parts = text.split(":")
    if not all(parts) or len(parts) > 3:
        raise ValueError(f"{text!r} is no volume; write NAME:/path, /path/on/the/node:/path or NAME:/path:ro")
    if len(parts) == 1:
        return {"type": "volume", "target": text}
    source, target, *options = parts
    kind = "bind" if source.startswith(("/", ".", "~")) else "volume"
    mount: dict[str, Any] = {"type": kind, "source": source, "target": target}
    for option in options[0].split(",") if options else ():
        if option == "ro":
            mount["read_only"] = True
        elif option == "nocopy" and kind == "volume":
            mount["volume"] = {"nocopy": True}
        elif option in PROPAGATIONS and kind == "bind":
            mount["bind"] = {"propagation": option}
        elif option != "rw":
            known = ("ro", "rw", "nocopy") if kind == "volume" else ("ro", "rw", *PROPAGATIONS)
            raise ValueError(f"{option!r} is no option of a {kind}{did_you_mean(option, known)}")
    return mount


def port(text: str) -> dict[str, Any]:
    """``PUBLISHED:TARGET/PROTOCOL``, or only a target."""
    found = re.fullmatch(r"(?:(\d{1,5}):)?(\d{1,5})(?:/(tcp|udp|sctp))?", text)
    if not found:
        raise ValueError(f"{text!r} is no port; write 80, 8080:80 or 8080:80/udp, one a line, without an address")
    mapping: dict[str, Any] = {"target": int(found[2]), "protocol": found[3] or "tcp", "mode": "ingress"}
    if found[1]:
        mapping["published"] = int(found[1])
    if any(number > 65535 for number in mapping.values() if isinstance(number, int)):
        raise ValueError(f"{text!r}: ports go to 65535")
    return mapping


def published_port(text: str) -> int:
    """A port that may be written as a text, as ``docker compose config`` does."""
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"{text!r} is no port from 0 to 65535")
    return int(text)


def file_mode(text: str) -> int:
    """Permissions such as ``0444``; YAML has read a number without quotes as octal already."""
    if not re.fullmatch(r"(0o?)?[0-7]{1,4}", text):
        raise ValueError(f"{text!r} are no permissions; write them as 0444")
    return int(text.removeprefix("0o"), 8)


def host(text: str) -> str:
    """``NAME:ADDRESS`` or ``NAME=ADDRESS``, made ``NAME:ADDRESS``."""
    name, *address = re.split("[:=]", text, maxsplit=1)
    if not name or not address or not address[0]:
        raise ValueError(f"{text!r} is no host; write NAME:ADDRESS")
    return f"{name}:{address[0]}"


def constraint(text: str) -> tuple[str, str, str]:
    """Key, ``==`` or ``!=``, and value of a placement constraint."""
    found = _CONSTRAINT.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no constraint; write KEY == VALUE or KEY != VALUE")
    key = found[1]
    if key not in _CONSTRAINT_KEYS and not key.startswith(("node.labels.", "engine.labels.")):
        raise ValueError(f"{text!r}: no node has {key!r}{did_you_mean(key, (*_CONSTRAINT_KEYS, 'node.labels.NAME'))}")
    return key, found[2], found[3]
