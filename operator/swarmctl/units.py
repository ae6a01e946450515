"""Durations, sizes and processors as Compose files write them. Pure; imports nothing of ours.

The notations are those of Go's ``time.ParseDuration``, of docker's ``go-units`` (binary units) and of its ``--cpus``.
"""

import re
from decimal import Decimal

NANO = 10**9
_DURATION_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": NANO, "m": 60 * NANO, "h": 3600 * NANO}
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|ms|s|m|h)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_MOST = 2**63 - 1


def nanoseconds(text: str) -> int:
    """Read a duration such as ``1m30s``.

    Raises:
        ValueError: It is none.
    """
    parts = _DURATION.findall(text)
    if text != "0" and (not parts or "".join(parts) != text):
        raise ValueError(f"{text!r} is no duration; write one as 30s, 1m30s or 500ms")
    total = sum(_with_unit(part) for part in parts)
    if total > _MOST:
        raise ValueError(f"{text!r} is longer than any machine lives")
    return int(total)


def _with_unit(part: str) -> Decimal:
    number = part.rstrip("nuµmsh")
    return Decimal(number) * _DURATION_UNITS[part[len(number) :]]


def size_bytes(text: str) -> int:
    """Read a size such as ``512M`` or ``1.5gb``; units count in 1024s.

    Raises:
        ValueError: It is none.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no size; write one as 512M or 2G")
    size = int(Decimal(found[1]) * 1024 ** " kmgtp".index(found[2].lower() or " "))
    if size > _MOST:
        raise ValueError(f"{text!r} is more than there is")
    return size


def nano_cpus(text: str) -> int:
    """Read a number of processors such as ``0.5``.

    Raises:
        ValueError: It is none.
    """
    if not re.fullmatch(r"\d+(?:\.\d{1,9})?", text):
        raise ValueError(f"{text!r} is no number of processors; write one as 2 or 0.5")
    return int(Decimal(text) * NANO)


def size_text(size: int) -> str:
    """A size as a person says it: ``512 MB``, ``1.8 GB`` (in 1024s)."""
    for unit, power in (("GB", 3), ("MB", 2), ("kB", 1)):
        if size >= 1024**power:
            return f"{size / 1024**power:.3g} {unit}"
    return f"{size} bytes"
