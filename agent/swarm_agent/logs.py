"""Structured logs on standard error: for people on a terminal, JSON lines everywhere else.

Imports nothing of ours. Every module logs through ``structlog.get_logger()``: an event in plain words, and the
facts as keys.
"""

import logging
import sys
from typing import TextIO, cast

import structlog


def configure(*, json: bool | None = None) -> None:
    """Set up logging for a command.

    Args:
        json: JSON lines or human lines; by default human where standard error is a terminal.
    """
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(pad_event_to=36)
    )
    stamp = structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            stamp,
            *([structlog.processors.format_exc_info] if as_json else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Sturdy(sys.stderr))),
        cache_logger_on_first_use=False,
    )


class _Sturdy:
    """A stream that a full disk or a closed pipe can't break: training must not end for want of a log line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0

    def write(self, text: str) -> None:
        try:
            if self._lost:
                self._stream.write(f"({self._lost} pieces of the log could not be written before this)\n")
            self._stream.write(text)
            self._lost = 0
        except (OSError, ValueError):  # full, broken or closed
            self._lost += 1

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._lost += 1
