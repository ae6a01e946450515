"""What a task has written, out of what an engine answers."""

import struct

from cluster_examples import task
from hypothesis import given
from hypothesis import strategies as st

from swarmctl.cluster import logs
from swarmctl.cluster.logs import Source

OUT, ERR, ENGINE = 1, 2, 3


def frame(kind: int, text: str) -> bytes:
    return struct.pack(">BxxxL", kind, len(text.encode())) + text.encode()


class _Engine:
    """Answers as if these were the logs of its tasks."""

    def __init__(self, **raw: bytes) -> None:
        self.raw = raw

    def task_logs(self, task_id: str, **_: object) -> bytes:
        return self.raw[task_id.partition("-")[0]]


def source(name: str) -> Source:
    return Source(task(name), f"{name}.1", f"on-{name}")


def test_lines_of_several_tasks_come_in_the_order_in_which_they_were_written() -> None:
    first = frame(OUT, "2026-01-01T00:00:01Z one\n") + frame(ERR, "2026-01-01T00:00:03Z three\n")
    second = frame(OUT, "2026-01-01T00:00:02Z two\n")
    found = logs.read(
        _Engine(a=first, b=second),  # type: ignore[arg-type]
        [source("a"), source("b")],
        since=0,
        tail=None,
        on_skip=lambda why: None,
    )
    assert [(line.name, line.text) for line in found] == [("a.1", "one"), ("b.1", "two"), ("a.1", "three")]


def test_what_the_engine_says_in_between_is_told_and_is_no_line_of_the_program() -> None:
    raw = frame(OUT, "2026-01-01T00:00:01Z one\n") + frame(ENGINE, "error grabbing logs: incomplete log stream\n\n")
    told: list[str] = []
    found = logs.read(_Engine(a=raw), [source("a")], since=0, tail=None, on_skip=told.append)  # type: ignore[arg-type]
    assert [line.text for line in found] == ["one"]
    assert told == ["a.1 on on-a: error grabbing logs: incomplete log stream"]
    assert logs.written(raw) == "2026-01-01T00:00:01Z one\n"


def test_the_text_of_a_terminal_has_no_frames() -> None:
    assert logs.written(b"2026-01-01T00:00:01Z hello from a terminal") == "2026-01-01T00:00:01Z hello from a terminal"


@given(st.binary(max_size=200))
def test_any_bytes_are_read_somehow(raw: bytes) -> None:
    assert isinstance(logs.written(raw), str)
