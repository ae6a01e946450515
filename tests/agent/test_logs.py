"""A log that can't be written stops nothing."""

import io

import pytest
import structlog

from swarm_agent import logs


class Flaky(io.StringIO):
    """A stream on a disk that is full for a while."""

    full = True

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_lines_that_can_not_be_written_are_counted_and_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Flaky()
    monkeypatch.setattr("sys.stderr", stream)
    before = structlog.get_config()
    try:
        logs.configure(json=True)
        log = structlog.get_logger()
        log.info("nobody hears this")
        stream.full = False
        log.info("space again")
    finally:
        structlog.configure(**before)
    told = stream.getvalue()
    assert "could not be written" in told
    assert '"space again"' in told
    assert "nobody hears this" not in told


def test_a_closed_stream_is_no_error_either() -> None:
    stream = io.StringIO()
    stream.close()
    sturdy = logs._Sturdy(stream)
    sturdy.write("text")
    sturdy.flush()
