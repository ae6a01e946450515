"""Shows the logs of a local stack: human lines on a terminal, the agent's own JSON lines otherwise.

May import: ``local.state``.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.text import Text

FOLLOW_INTERVAL_SEC = 0.25
_COLOURS = ("cyan", "magenta", "blue", "green", "yellow", "bright_cyan", "bright_magenta", "bright_blue")
_LEVELS = {"warning": "yellow", "error": "bold red", "critical": "bold red"}
_HEADING = ("timestamp", "level", "event", "logger")


@dataclass
class Log:
    """A log file, and how far it has been read."""

    process: str
    path: Path
    offset: int = 0
    _inode: int = field(default=0, repr=False)

    def last_lines(self, count: int | None) -> list[str]:
        """The last lines, or all; what comes after them is for `new_lines`."""
        content = self._read_on()
        if count is None:
            return content
        return content[-count:] if count else []

    def new_lines(self) -> list[str]:
        """Whole lines that were written since."""
        return self._read_on()

    def _read_on(self) -> list[str]:
        try:
            with self.path.open("rb") as file:
                stat = self.path.stat()
                if stat.st_ino != self._inode or stat.st_size < self.offset:  # another file by this name
                    self.offset, self._inode = 0, stat.st_ino
                file.seek(self.offset)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content.rfind(b"\n") + 1
        self.offset += whole
        return content[:whole].decode("utf-8", "replace").splitlines()


def in_order(lines: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Sort lines of several processes by their time; a line without one stays behind the line before it."""
    stamped = []
    latest: dict[str, str] = {}
    for process, line in lines:
        latest[process] = str(_fields(line).get("timestamp") or latest.get(process, ""))
        stamped.append((latest[process], process, line))
    return [(process, line) for _, process, line in sorted(stamped, key=lambda item: item[0])]


def since(lines: Iterable[tuple[str, str]], begin: float) -> Iterator[tuple[str, str]]:
    """Those of `in_order` that were written at a time (seconds since the epoch) or later, with what belongs to them."""
    latest: dict[str, float] = {}
    for process, line in lines:
        latest[process] = _seconds(str(_fields(line).get("timestamp"))) or latest.get(process, 0.0)
        if latest[process] >= begin:
            yield process, line


def follow(logs: list[Log]) -> Iterator[tuple[str, str]]:
    """Yield lines as they are written, until the folder of the logs is gone."""
    while any(log.path.parent.exists() for log in logs):
        yield from in_order((log.process, line) for log in logs for line in log.new_lines())
        time.sleep(FOLLOW_INTERVAL_SEC)


def human(line: str, process: str = "", index: int = 0) -> Text:
    """One log line for people; what is not JSON is shown as it is."""
    text = Text()
    if process:
        text.append(f"{process} ", _COLOURS[index % len(_COLOURS)])
    fields = _fields(line)
    if not fields:
        return text.append(line)
    style = _LEVELS.get(str(fields.get("level")), "")
    text.append(f"{_clock(str(fields.get('timestamp', '')))} ", "dim")
    text.append(str(fields.get("event", "")), style or "bold")
    for key, value in fields.items():
        if key not in _HEADING and key != "exception":
            text.append(f"  {key}=", "dim").append(_shown(value))
    if "exception" in fields:
        text.append(f"\n{fields['exception']}", "red")
    return text


def _fields(line: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _seconds(timestamp: str) -> float | None:
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


def _clock(timestamp: str) -> str:
    try:
        return datetime.fromisoformat(timestamp).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return timestamp


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
