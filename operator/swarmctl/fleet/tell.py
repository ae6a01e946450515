"""Tables of the fleet's commands. Pure."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

Row = dict[str, Any]
_RESULTS = {"same": "dim", "changed": "green", "failed": "red"}


def labels(rows: Sequence[Row]) -> Table:
    """What each node was taken for, and why."""
    table = _table("NODE", "CLASS", "PROFILE", "ARCH", "BY", "SURE", "EVIDENCE", "")
    for row in rows:
        evidence = "; ".join(row["evidence"]) or row["error"].partition("\n")[0]
        if row["by"] == "you" and row["probed_class"] and row["probed_class"] != row["class"]:
            evidence = f"you said so; the probe says {row['probed_class']}: {evidence}"
        table.add_row(
            row["node"],
            row["class"],
            row["profile"],
            row["arch"] or "-",
            row["by"],
            row["confidence"] or "-",
            evidence,
            Text(row["result"], style=_RESULTS[row["result"]]),
        )
    return table


def hosts(rows: Sequence[Row]) -> Table:
    """The hosts of the fleet file."""
    table = _table("HOST", "ADDRESS", "USER", "PORT", "JUMP", "CLASS", "ROLE")
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


def scanned(rows: Sequence[Row]) -> Table:
    """Machines that were looked at."""
    table = _table("HOST", "CLASS", "PROFILE", "ARCH", "MEMORY", "CORES", "DOCKER", "SWARM", "WHAT IT IS")
    for row in rows:
        if row["error"]:
            table.add_row(row["host"], *["-"] * 7, Text(row["error"].partition("\n")[0], style="red"))
            continue
        table.add_row(
            row["host"],
            row["class"],
            row["profile"],
            row["arch"],
            f"{row['memory_mb'] / 1024:.1f} GiB",
            str(row["cores"]),
            row["docker"] or "-",
            row["swarm"] or "-",
            row["what"],
        )
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
