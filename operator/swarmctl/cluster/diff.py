"""The difference between two raw specs, field by field. Pure; imports nothing of ours.

Only what is declared counts: keys that the engine adds by itself (versions, defaults) are not a difference, since the
wanted spec says nothing about them; what it once declared and does not any more is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Lists whose order means nothing, and the key that an entry is known by.
_KEYED: Mapping[str, str] = {
    "Mounts": "Target",
    "Secrets": "SecretName",
    "Configs": "ConfigName",
    "Networks": "Target",
    "Ports": "PublishedPort",
    "Ulimits": "Name",
}
_UNORDERED = {"Env", "Constraints", "CapabilityAdd", "CapabilityDrop", "Aliases", "Hosts"}
# Filled in when the spec is sent.
_NUMBERS = {"SecretID", "ConfigID", "ForceUpdate"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs; None: it is not there.

    Attributes:
        path: Such as ``TaskTemplate.ContainerSpec.Env.FDTC_DATA_PATH``.
        old: What it is.
        new: What it is to be.
    """

    path: str
    old: Any
    new: Any


def differences(old: Any, new: Any, declared: Any = None) -> list[Difference]:
    """What has to change for `old` to become `new`.

    Args:
        old: As observed.
        new: As wanted.
        declared: What was wanted when `old` was made, where that is known: what it declared and `new` does not is
            to be removed.
    """
    return list(_walk("", "", old, new, declared))


def _walk(path: str, key: str, old: Any, new: Any, declared: Any) -> Iterator[Difference]:
    if isinstance(new, Mapping):
        before = old if isinstance(old, Mapping) else {}
        once = declared if isinstance(declared, Mapping) else {}
        for name in sorted({*new, *(name for name in once if name in before)}):
            if name in _NUMBERS:
                continue
            here = f"{path}.{name}" if path else str(name)
            if name in new:
                yield from _walk(here, str(name), before.get(name), new[name], once.get(name))
            elif not _is_nothing(before[name]):
                yield Difference(here, before[name], None)
    elif isinstance(new, list | tuple) and (comparable := _by_name(key, new)) is not None:
        yield from _walk_entries(path, _by_name(key, old or []) or {}, comparable)
    elif not _same(old, new):
        yield Difference(path, old, new)


def _walk_entries(path: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """A list is declared whole: an entry that is not wanted is to go."""
    for name in sorted({*before, *after}):
        if name in after:
            yield from _walk(f"{path}.{name}", "", before.get(name), after[name], None)
        else:
            yield Difference(f"{path}.{name}", before[name], None)


def _by_name(key: str, entries: Sequence[Any]) -> dict[str, Any] | None:
    """The entries of an unordered list by what each is known by; None: it is an ordered list."""
    if key in _KEYED:
        return {str(entry.get(_KEYED[key], index)): entry for index, entry in enumerate(entries)}
    if key == "Env":
        return dict(entry.partition("=")[::2] for entry in entries)
    if key in _UNORDERED:
        return dict.fromkeys(map(str, entries), True)
    return None


def _same(old: Any, new: Any) -> bool:
    return old == new or (_is_nothing(old) and _is_nothing(new))


def _is_nothing(value: Any) -> bool:
    """The engine leaves out what is empty, zero or false."""
    return value is None or value == "" or value == 0 or value is False or value == [] or value == {}
