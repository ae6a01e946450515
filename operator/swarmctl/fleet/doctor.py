"""What `swarmctl doctor` tells: its findings for people and for programs; `pairs` is where its tests come from.

May import: ``pairs``, ``facts``, ``console``.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from .facts import Finding
from .pairs import End, pairs

__all__ = ["End", "as_json", "pairs", "render"]

_MARKS = {"error": ("✗", "bold red"), "warning": ("!", "yellow")}
_NAMES_A_LINE = 8


def render(findings: Sequence[Finding]) -> Text:
    """The findings by machine; what several have alike, word by word, is told once for all of them.

    To be printed with ``soft_wrap=True``: a command that is copied must be whole.
    """
    if not findings:
        return Text("nothing found that is wrong", style="green")
    lines: list[Text] = []
    for places, found in _by_place(findings):
        lines.append(Text(_heading(places), style="bold"))
        lines += [line for finding in found for line in _told(finding)]
        lines.append(Text())
    return Text("\n").join([*lines, Text(summary(findings), style="dim")])


def summary(findings: Sequence[Finding]) -> str:
    """How many there are of what."""
    errors = sum(finding.severity == "error" for finding in findings)
    mendable = sum(bool(finding.fix) for finding in findings)
    text = f"{_count(errors, 'error')}, {_count(len(findings) - errors, 'warning')}"
    return f"{text}; swarmctl doctor --fix mends {mendable} of them" if mendable else text


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings for programs; the keys are those of `Finding`."""
    errors = sum(finding.severity == "error" for finding in findings)
    return {
        "errors": errors,
        "warnings": len(findings) - errors,
        "findings": [asdict(finding) for finding in findings],
    }


def _by_place(findings: Iterable[Finding]) -> list[tuple[tuple[str, ...], list[Finding]]]:
    """Findings with all places that have them; the swarm's first, then in the order in which they were found."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    example: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        key = (finding.severity, finding.check, finding.message, *finding.remedy)
        places[key].append(finding.where)
        example.setdefault(key, finding)
    blocks: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for key, finding in example.items():
        blocks[tuple(dict.fromkeys(places[key]))].append(finding)
    return sorted(blocks.items(), key=lambda block: block[0] != ("swarm",))


def _heading(places: Sequence[str]) -> str:
    if len(places) <= _NAMES_A_LINE:
        return ", ".join(places)
    return f"{', '.join(places[:_NAMES_A_LINE])} and {len(places) - _NAMES_A_LINE} more"


def _told(finding: Finding) -> Iterator[Text]:
    mark, style = _MARKS[finding.severity]
    mended = ("  (--fix mends it)", "dim") if finding.fix else ""
    yield Text.assemble("  ", (f"{mark} {finding.check}", style), "  ", finding.message, mended)
    for line in finding.remedy:
        yield Text.assemble("      ", (line, "dim" if line.startswith("#") else "cyan"))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
