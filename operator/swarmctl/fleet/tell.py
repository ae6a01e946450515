"""Tables of the fleet's commands, as wide as the console. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

Row = dict[str, Any]
Cell = str | Text
_RESULTS = {"same": "dim", "changed": "green", "would change": "yellow", "failed": "red"}
_RIGHT = {"MEMORY", "CORES"}
_GAP = 2
_LEAST_REMARK = 40  # narrower than this, a sentence is better read below the table
_ROOM_FOR_ALL_REASONS = 120


@dataclass(frozen=True)
class Fitting:
    """What is drawn once the console's width is known.

    Attributes:
        draw: Takes the width in characters.
    """

    draw: Callable[[int], RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.draw(options.max_width)


def fit(
    width: int,
    headings: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    spare: Sequence[str] = (),
    nothing: Cell = "",
) -> RenderableType:
    """A table whose last column is a remark; where there is no room for it, remarks stand below the table.

    Args:
        width: Of the console, in characters.
        headings: One for each column; the first column is what a row is called by.
        rows: A cell for each column.
        spare: Headings of columns that are left out where room is short, the first of them first.
        nothing: What to show for an empty remark; below the table there is nothing to show for it.
    """
    columns = {heading: [_plain(row[i]) for row in rows] for i, heading in enumerate(headings)}
    wide = {
        heading: max(cell_len(heading), *(text.cell_len for text in cells), 0) + _GAP
        for heading, cells in columns.items()
    }
    remarks, longest = columns.pop(headings[-1]), wide.pop(headings[-1]) - _GAP
    if sum(wide.values()) + min(longest, _LEAST_REMARK) <= width:
        shown = [remark or _plain(nothing) for remark in remarks]
        return _table({**columns, headings[-1]: shown}, whole=list(columns))
    for heading in spare:
        if sum(wide.values()) - _GAP > width:
            del columns[heading], wide[heading]
    table = _table(columns, whole=list(columns) if sum(wide.values()) - _GAP <= width else [])
    below = _below(columns[headings[0]], remarks)
    return Group(table, "", *below) if below else table


def _below(names: Sequence[Text], remarks: Sequence[Text]) -> list[Text]:
    """Each remark once, with all that it is about in front."""
    about: dict[str, list[str]] = {}
    for name, remark in zip(names, remarks, strict=True):
        about.setdefault(remark.plain, []).append(name.plain.partition(" ")[0])  # without the mark behind it
    remark_of = {remark.plain: remark for remark in remarks}
    return [Text.assemble(f"{', '.join(called)}: ", remark_of[text]) for text, called in about.items() if text]


def _plain(cell: Cell) -> Text:
    """A cell with brackets as they are: names and messages hold no markup."""
    return Text(cell) if isinstance(cell, str) else cell


def _table(columns: dict[str, list[Text]], whole: Sequence[str]) -> Table:
    """A table of columns; those that are `whole` are never broken into lines."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in columns:
        justify = "right" if heading in _RIGHT else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=heading in whole)  # type: ignore[arg-type]
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def first_line(error: str, name: str) -> str:
    """The first line of what went wrong with a machine, without its name in front, which stands beside it."""
    return error.partition("\n")[0].removeprefix(f"{name}: ")


def labels(rows: Sequence[Row]) -> Fitting:
    """What each node was taken for, and why."""
    headings = ("NODE", "CLASS", "PROFILE", "ARCH", "BY", "SURE", "RESULT", "EVIDENCE")

    def draw(width: int) -> RenderableType:
        most = None if width >= _ROOM_FOR_ALL_REASONS else 1
        return fit(width, headings, [_label_cells(row, most) for row in rows], ("SURE", "ARCH", "PROFILE"))

    return Fitting(draw)


def _label_cells(row: Row, most: int | None) -> list[Cell]:
    evidence = "; ".join(row["evidence"][:most]) or first_line(row["error"], row["node"])
    if row["by"] == "you" and row["probed_class"] and row["probed_class"] != row["class"]:
        evidence = f"you said so; the probe says {row['probed_class']}: {evidence}"
    return [
        row["node"],
        row["class"],
        row["profile"],
        row["arch"] or "-",
        row["by"],
        row["confidence"] or "-",
        Text(row["result"], style=_RESULTS[row["result"]]),
        Text(evidence),
    ]


def hosts(rows: Sequence[Row]) -> Table:
    """The hosts of the fleet file."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("HOST", "ADDRESS", "USER", "PORT", "JUMP", "CLASS", "ROLE"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(
            row["name"],
            row.get("address") or "-",
            row.get("user") or "-",
            str(row.get("port") or "-"),
            row.get("jump") or "-",
            row.get("class") or "-",
            row.get("role") or "worker",
        )
    return table


def scanned(rows: Sequence[Row]) -> Fitting:
    """Machines that were looked at."""
    headings = ("HOST", "CLASS", "PROFILE", "ARCH", "MEMORY", "CORES", "DOCKER", "SWARM", "WHAT IT IS")
    cells = [_scan_cells(row) for row in rows]
    return Fitting(lambda width: fit(width, headings, cells, ("PROFILE", "ARCH", "CORES", "DOCKER")))


def _scan_cells(row: Row) -> list[Cell]:
    if row["error"]:
        return [row["host"], *["-"] * 7, Text(first_line(row["error"], row["host"]), style="red")]
    return [
        row["host"],
        row["class"],
        row["profile"],
        row["arch"],
        f"{row['memory_mb'] / 1024:.1f} GiB",
        str(row["cores"]),
        row["docker"] or "-",
        row["swarm"] or "-",
        Text(row["what"]),
    ]
