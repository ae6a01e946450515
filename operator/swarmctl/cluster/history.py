"""Who changed what and when, the last revisions of a stack, and the lock: all kept in the swarm, as configs.

A config's name is unique in the swarm, so making one is a lock that needs nothing else, and its labels are read
without asking for what it holds. May import: ``state``; ``fleet.engine``.
"""

import getpass
import json
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psutil

from ..errors import SwarmctlError
from ..fleet.engine import Engine, EngineError
from .state import LOCK, NAMESPACE, REVISION, Raw

AUDIT = "fdtc.audit"
WHO, WHEN, WHAT, PROCESS = "fdtc.who", "fdtc.when", "fdtc.what", "fdtc.process"
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
def lock(engine: Engine, stack: str, what: str) -> Iterator[None]:
    """Be the only one who changes a stack.

    A lock that was left on this machine, by a process that does not live any more, is taken over.

    Args:
        engine: A manager's.
        stack: Its name.
        what: The command, for whoever finds it locked.

    Raises:
        LockedError: Somebody else is at it; the message says who, what and since when.
    """
    labels = {NAMESPACE: stack, LOCK: "1", WHO: who(), WHEN: _now(), WHAT: what, PROCESS: _this_process()}
    try:
        mine = engine.create_config(_lock_name(stack), b"locked", labels)
    except EngineError as error:
        if error.status != 409:
            raise
        found = _lock_labels(engine).get(stack, {})
        if not _is_left(found.get(PROCESS, "")):
            raise LockedError(
                f"{stack} is locked: {_at_work(found)}",
                "wait until that has ended, and type the same again",
                f"swarmctl unlock --stack {stack}   # if nobody is at it any more",
            ) from error
        unlock(engine, stack)
        mine = engine.create_config(_lock_name(stack), b"locked", labels)
    try:
        yield
    finally:
        _remove(engine, mine)  # by its id: if somebody took it away, the next one's is not ours to remove


def stacks(engine: Engine) -> set[str]:
    """Names of the stacks that have a past, whether they are still there or not."""
    every = [raw["Spec"].get("Labels") or {} for raw in engine.configs()]
    return {labels[NAMESPACE] for labels in every if AUDIT in labels}


def locks(engine: Engine) -> dict[str, str]:
    """Who is at work on what, by stack."""
    return {stack: _at_work(labels) for stack, labels in _lock_labels(engine).items()}


def unlock(engine: Engine, stack: str) -> None:
    """Take a stack's lock away, whoever has it."""
    _remove(engine, _lock_name(stack))


def _lock_name(stack: str) -> str:
    return f"{stack}.lock"


def _lock_labels(engine: Engine) -> dict[str, Mapping[str, str]]:
    every = [raw["Spec"].get("Labels") or {} for raw in engine.configs()]
    return {labels[NAMESPACE]: labels for labels in every if LOCK in labels}


def _at_work(labels: Mapping[str, str]) -> str:
    return (
        f"{labels.get(WHO, 'somebody')} has been at it since {labels.get(WHEN, 'now')} ({labels.get(WHAT, 'a change')})"
    )


def _this_process() -> str:
    """Names this process among those of all machines, also after its id was given to another."""
    return _named(psutil.Process())


def _named(process: psutil.Process) -> str:
    since_boot = process.create_time() - psutil.boot_time()  # the clock may be set meanwhile; this stays
    return f"{socket.gethostname()} {uuid.getnode():x} {process.pid} {since_boot:.2f}"


def _is_left(name: str) -> bool:
    """Whether it was a process of this machine, and is there no more."""
    *machine, process_id, _ = name.split() if name.count(" ") == 3 else ("", "", "0", "")
    if machine != _this_process().split()[:2]:
        return False
    try:
        return _named(psutil.Process(int(process_id))) != name
    except psutil.NoSuchProcess:
        return True


def _remove(engine: Engine, name_or_id: str) -> None:
    try:
        engine.remove_config(name_or_id)
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
