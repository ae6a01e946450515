"""What a command says while it works, and how figures are written. Imports nothing of ours.

Results go to standard output; the story of what is being done and all errors go to standard error, so that a result
can be piped on.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape

# Where the output is not a terminal nothing knows its width, and a table cut at 80 columns helps nobody.
_WIDTH_OF_A_PIPE = 200


def output() -> Console:
    """The console for results."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE, highlight=False)


def overwrites(console: Console) -> bool:
    """Whether what a console shows can be shown anew in its place: not in a pipe, nor on a terminal that is dumb."""
    return console.is_terminal and not console.is_dumb_terminal


@contextmanager
def redrawn() -> Iterator[Callable[[RenderableType], None]]:
    """Show something that changes: in its place on a terminal, and anew below where nothing can be overwritten."""
    console = output()
    if not overwrites(console):
        yield console.print
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        yield lambda frame: live.update(frame, refresh=True)


def typeable(command: str) -> str:
    """A command as it can be typed here: where swarmctl is not on the path, as after ``make demo``, by its place."""
    if not command.startswith("swarmctl ") or shutil.which("swarmctl"):
        return command
    place = Path(sys.argv[0])
    if place.name != "swarmctl":
        return command
    with suppress(ValueError):
        place = place.absolute().relative_to(Path.cwd())
    return f"{place} {command.removeprefix('swarmctl ')}"


class _StoryConsole(Console):
    """A console that falls silent when nobody listens any more, as behind ``2>&1 | head``: the work goes on."""

    def on_broken_pipe(self) -> None:
        """Rich would end the program here, in the middle of a change."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


class Story:
    """Tells what is being done, a line for each thing done."""

    def __init__(self) -> None:
        """Tell it on standard error."""
        width = None if sys.stderr.isatty() else _WIDTH_OF_A_PIPE
        self.console = _StoryConsole(stderr=True, width=width, highlight=False)

    def title(self, text: str, detail: str = "") -> None:
        """Begin a story."""
        self.console.print(f"[bold]{escape(text)}[/]  [dim]{escape(detail)}[/]")

    def done(self, text: str, detail: str = "") -> None:
        """One thing is done."""
        more = f"  [dim]{escape(detail)}[/]" if detail else ""
        self.console.print(f"  [green]✓[/] {escape(text)}{more}", soft_wrap=True)

    def same(self, text: str) -> None:
        """One thing needed no doing."""
        self.console.print(f"  [dim]·[/] {escape(text)}")

    def warn(self, text: str) -> None:
        """Something that the user should know."""
        self.console.print(f"  [yellow]![/] {escape(text)}")

    def failed(self, text: str, *remedy: str) -> None:
        """One thing could not be done, and what to do about it."""
        self.console.print(f"  [red]✗[/] {escape(text)}", soft_wrap=True)
        self.remedy(*remedy)

    def remedy(self, *lines: str) -> None:
        """What to type or do about what was just told."""
        for line in lines:
            self.console.print(f"      [bold cyan]{escape(line)}[/]", soft_wrap=True)

    def change(self, sign: str, text: str) -> None:
        """Something that is to be made (+), changed (~) or removed (-)."""
        color = {"+": "green", "~": "yellow", "-": "red"}[sign]
        self.console.print(f"  [{color}]{sign}[/] {escape(text)}", soft_wrap=True)

    def field(self, name: str, old: str, new: str) -> None:
        """One field of what is to be changed."""
        self.console.print(f"      {escape(name)}: [red]{escape(old)}[/] → [green]{escape(new)}[/]", soft_wrap=True)

    def next(self, *commands: str) -> None:
        """What to type next."""
        for i, command in enumerate(commands):
            self.console.print(
                f"[dim]{'Next:' if i == 0 else '     '}[/] [bold cyan]{escape(typeable(command))}[/]", soft_wrap=True
            )

    @contextmanager
    def waiting(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show on a terminal what is waited for; call what is yielded when that changes."""
        with self.console.status(escape(text), spinner="dots") as status:
            yield lambda now: status.update(escape(now))


def print_json(facts: object) -> None:
    """Print facts for programs."""
    print(json.dumps(facts, indent=1))


def number(value: float | None, unit: str = "") -> str:
    """A figure with at most four digits and a metric prefix, or "-" for None: ``12.3 k``."""
    if value is None:
        return "-"
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if prefix == "k" else limit)
            return f"{scaled:.1f} {prefix}{' ' if len(unit) > 2 else ''}{unit}".rstrip()
    text = f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.1f}"
    return f"{text} {unit}".rstrip()


def times(count: int) -> str:
    """How often: ``once``, ``3 times``."""
    return "once" if count == 1 else f"{count} times"


def duration(seconds: float | None) -> str:
    """A length of time as people say it: ``4 min 10 s``."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
