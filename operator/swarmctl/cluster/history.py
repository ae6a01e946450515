"""Who changed what and when, the last revisions of a stack, and the lock: all kept in the swarm, as configs.

A config's name is unique in the swarm, so making one is a lock that needs nothing else, and its labels are read
without asking for what it holds. May import: ``state``; ``fleet.engine``.
"""

import getpass
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..errors import SwarmctlError
from ..fleet.engine import Engine, EngineError
from .state import LOCK, NAMESPACE, REVISION, Raw

AUDIT = "fdtc.audit"
WHO, WHEN, WHAT = "fdtc.who", "fdtc.when", "fdtc.what"
KEPT_REVISIONS = 10
KEPT_AUDIT = 50
_MOST_LABEL = 400  # characters of a label; what was done is told in short


class LockedError(SwarmctlError):
    """Somebody else is at work on the stack."""


@dataclass(frozen=True, order=True)
class Entry:
    """A change in the past.

    Attributes:
        number: Counts up, per stack.
        when: RFC 3339, UTC.
        who: ``user@host``.
        what: The command, and what came of it.
        revision: Its number, where it made one; else 0.
        config: Name of the config that keeps it.
    """

    number: int
    when: str
    who: str
    what: str
    revision: int
    config: str


def who() -> str:
    """Whoever types, and where."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname().partition('.')[0]}"


@contextmanager
def lock(engine: Engine, stack: str, what: str, *, steal: bool = False) -> Iterator[None]:
    """Be the only one who changes a stack.

    Args:
        engine: A manager's.
        stack: Its name.
        what: The command, for whoever finds it locked.
        steal: Take a lock away that somebody who is gone has left.

    Raises:
        LockedError: Somebody else is at it; the message says who, what and since when.
    """
    name = f"{stack}.lock"
    if steal:
        _remove(engine, name)
    labels = {NAMESPACE: stack, LOCK: "1", WHO: who(), WHEN: _now(), WHAT: what}
    try:
        engine.create_config(name, b"locked", labels)
    except EngineError as error:
        if error.status != 409:
            raise
        raise _locked(engine, stack, name) from error
    try:
        yield
    finally:
        _remove(engine, name)


def _locked(engine: Engine, stack: str, name: str) -> LockedError:
    labels: Mapping[str, str] = next(
        (raw["Spec"].get("Labels") or {} for raw in engine.configs() if raw["Spec"]["Name"] == name), {}
    )
    return LockedError(
        f"{stack} is locked: {labels.get(WHO, 'somebody')} has been at it since {labels.get(WHEN, 'now')} "
        f"({labels.get(WHAT, 'a change')})",
        "wait until that has ended, and type the same again",
        f"swarmctl deploy --stack {stack} --break-lock   # if nobody is at it any more",
    )


def _remove(engine: Engine, name: str) -> None:
    try:
        engine.remove_config(name)
    except EngineError as error:
        if error.status != 404:
            raise


def record(engine: Engine, stack: str, what: str, revision: Raw | None = None) -> int:
    """Keep that something was changed; with a revision, what to go back to.

    Returns:
        The revision's number, or 0.
    """
    past = entries(engine, stack)
    number = max((entry.number for entry in past), default=0) + 1
    made = max((entry.revision for entry in past), default=0) + 1 if revision is not None else 0
    labels = {
        NAMESPACE: stack, REVISION: str(made), AUDIT: str(number), WHO: who(), WHEN: _now(), WHAT: what[:_MOST_LABEL],
    }  # fmt: skip
    data = json.dumps(revision or {}, sort_keys=True).encode()
    engine.create_config(f"{stack}.audit-{number}", data, labels)
    _prune(engine, [*past, Entry(number, "", "", "", made, "")])
    return made


def _prune(engine: Engine, past: list[Entry]) -> None:
    revisions = sorted((entry for entry in past if entry.revision), reverse=True)[:KEPT_REVISIONS]
    latest = sorted(past, reverse=True)[:KEPT_AUDIT]
    for entry in past:
        old = entry not in revisions if entry.revision else entry not in latest
        if old and entry.config:
            _remove(engine, entry.config)


def entries(engine: Engine, stack: str) -> list[Entry]:
    """All that is kept of a stack's past, oldest first."""
    found = []
    for raw in engine.configs():
        labels = raw["Spec"].get("Labels") or {}
        if labels.get(NAMESPACE) == stack and AUDIT in labels:
            found.append(
                Entry(
                    int(labels[AUDIT]),
                    labels.get(WHEN, ""),
                    labels.get(WHO, ""),
                    labels.get(WHAT, ""),
                    int(labels.get(REVISION, "0")),
                    raw["Spec"]["Name"],
                )
            )
    return sorted(found)


def revision(engine: Engine, entry: Entry) -> dict[str, Any]:
    """What a revision holds."""
    found: dict[str, Any] = json.loads(engine.config_data(entry.config))
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
