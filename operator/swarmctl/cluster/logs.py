"""Logs of a stack in a swarm: of each live task by itself, merged by time, and never stuck on a dead node.

``service logs`` of the engine hangs as soon as one node is down, so it is not used. May import: ``state``; ``fleet``
for the engine and the nodes.
"""

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from ..errors import SwarmctlError
from ..fleet.engine import Engine
from ..fleet.swarm import Node
from .state import Observed, Task

_HEADER = struct.Struct(">BxxxL")
_ENGINE = 3  # kind of frame; 1 and 2 are the program's two streams
_FOLLOW_SEC = 1.0
_DEADLINE_SEC = 5.0


@dataclass(frozen=True, order=True)
class Line:
    """One line of a log.

    Attributes:
        at: When it was written, RFC 3339 with nanoseconds: text that sorts by time.
        name: Task's name, such as ``worker-rpi.3``.
        node: Where.
        text: The line.
    """

    at: str
    name: str
    node: str
    text: str


@dataclass(frozen=True)
class Source:
    """A task whose log can be read."""

    task: Task
    name: str
    node: str


def sources(
    observed: Observed, nodes: Sequence[Node], service: str, *, ended: bool = True
) -> tuple[list[Source], list[str]]:
    """The tasks whose logs answer, and a line for each that does not.

    Args:
        observed: The stack.
        nodes: All nodes.
        service: A short name, a task's name such as ``worker-rpi.3``, or ``all``.
        ended: Tasks that have ended, too.
    """
    by_id = {node.id: node for node in nodes}
    found, skipped = [], []
    for name, present in observed.services.items():
        for task in sorted(observed.tasks, key=lambda task: task.since):
            label = f"{name}.{task.slot}" if task.slot is not None else f"{name}.{task.node_id[:5]}"
            if task.service_id != present.id or service not in {"all", name, label} or not task.container_id:
                continue
            node = by_id.get(task.node_id)
            if node is None or node.state != "ready":
                skipped.append(
                    f"{label} on {node.hostname if node else 'a node that is gone'}: its node does not answer"
                )
            elif ended or task.state == "running":
                found.append(Source(task, label, node.hostname))
    return found, skipped


def read(
    engine: Engine, chosen: Sequence[Source], *, since: float, tail: int | None, on_skip: Callable[[str], None]
) -> list[Line]:
    """Lines of all tasks, in the order in which they were written.

    Args:
        engine: A manager's.
        chosen: The tasks.
        since: Seconds since the epoch; 0: from the beginning.
        tail: So many of the last lines of each task.
        on_skip: Told why a task's log could not be read.
    """

    def one(source: Source) -> list[Line]:
        try:
            raw = engine.task_logs(source.task.id, since=since, tail=tail, timeout=_DEADLINE_SEC)
        except SwarmctlError as error:
            on_skip(f"{source.name} on {source.node}: {error}")
            return []
        for said in _engines_words(raw):
            on_skip(f"{source.name} on {source.node}: {said}")
        return list(lines(raw, source))

    with ThreadPoolExecutor(8) as pool:
        return sorted(line for found in pool.map(one, chosen) for line in found)


def lines(raw: bytes, source: Source) -> Iterator[Line]:
    """The lines of a task, a time before each."""
    for text in written(raw).splitlines():
        at, _, rest = text.partition(" ")
        yield Line(at, source.name, source.node, rest)


def written(raw: bytes) -> str:
    """What a task's program wrote, out of what the engine answers."""
    return b"".join(payload for kind, payload in _frames(raw) if kind != _ENGINE).decode(errors="replace")


def _engines_words(raw: bytes) -> list[str]:
    """What the engine itself says in between, such as that the task's node does not answer any more."""
    said = b"".join(payload for kind, payload in _frames(raw) if kind == _ENGINE).decode(errors="replace")
    return [line for line in said.splitlines() if line]


def _frames(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of the engine's stream format (``attach`` in its API); text of a terminal has no frames."""
    position = 0
    while position + _HEADER.size <= len(raw):
        kind, size = _HEADER.unpack_from(raw, position)
        if kind > _ENGINE:
            yield 1, raw[position:]
            return
        position += _HEADER.size
        yield kind, raw[position : position + size]
        position += size


def follow(
    engine: Engine, look: Callable[[], tuple[list[Source], list[str]]], since: float, on_skip: Callable[[str], None]
) -> Iterator[Line]:
    """Lines as they are written, of tasks that come up later, too; ends only when it is interrupted."""
    seen: set[Line] = set()
    told: set[str] = set()
    while True:
        chosen, skipped = look()
        for why in skipped:
            if why not in told:
                told.add(why)
                on_skip(why)
        newest = since
        for line in read(engine, chosen, since=since, tail=None, on_skip=on_skip):
            if line not in seen:
                yield line
            seen.add(line)
            newest = max(newest, seconds(line.at))
        # Another task's line may come a little late; what was printed already is known by `seen`.
        since = max(since, newest - 10)
        seen = {line for line in seen if seconds(line.at) >= since}
        time.sleep(_FOLLOW_SEC)


def seconds(at: str) -> float:
    """Seconds since the epoch of a line's time."""
    try:
        return datetime.fromisoformat(f"{at[:26].rstrip('Z')}Z").timestamp()
    except ValueError:
        return 0.0
