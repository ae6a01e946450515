"""Typed reading of a YAML file where every problem is found at once, each with its line and column.

A schema is built from the small classes below (`Text`, `Integer`, `Keys`, …). `read` walks it beside the YAML
nodes, so a problem knows where it stands; the result is plain Python data. May import: ``variables``.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import yaml

from .variables import Substituted, substitute

MOST_NODES = 50_000
Places = Mapping[str, tuple[int, int]]
# What YAML 1.1 takes for a text and everybody else, Compose too, for a number.
_EXPONENTIAL = re.compile(r"[-+]?(?:\.\d+|\d+\.?\d*)[eE][-+]?\d+", re.ASCII)


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong, and where; line and column count from 1."""

    line: int
    column: int
    path: str
    message: str


class Kind(Protocol):
    """What a value must be."""

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """Return the value, or add to `problems`; what is returned is None then, or lacks what is wrong."""
        ...


@dataclass(frozen=True)
class Reading:
    """A file that was read.

    Attributes:
        value: Plain data; where there are problems it is None, or lacks what is wrong.
        problems: In the file's order.
        places: Line and column of each key and list entry by its path, such as ``services.a.ports[0]``.
    """

    value: Any
    problems: list[Problem]
    places: Places = field(default_factory=dict)


def read(text: str, kind: Kind) -> tuple[Any, list[Problem]]:
    """Read YAML text by a schema.

    Returns:
        The value, which has a meaning only where there are no problems, and the problems in the file's order.
    """
    reading = read_whole(text, kind)
    return reading.value, reading.problems


def read_whole(text: str, kind: Kind, variables: Mapping[str, str] | None = None) -> Reading:
    """Read YAML text by a schema, and tell where everything stands.

    Args:
        text: The file.
        kind: What it must be.
        variables: Values for ``${NAME}`` in its texts, as Compose has it; None: a dollar sign is a dollar sign.
    """
    problems: list[Problem] = []
    places: dict[str, tuple[int, int]] = {}
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return Reading(None, [Problem(1, 1, "", "the file is empty")])
        if _size(node, {}) > MOST_NODES:
            return Reading(None, [Problem(1, 1, "", f"its anchors make more than {MOST_NODES} keys and values of it")])
        _merge(loader, node, set())
        if variables is not None:
            node = substitute(node, "", variables, lambda at, path, why: _refuse(at, path, why, problems))
        _find_places(node, "", places)
        value = kind.read(node, "", problems)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        return Reading(None, [Problem(line, column, "", f"not valid YAML: {error.problem or error.context}")])
    except yaml.YAMLError as error:
        return Reading(None, [Problem(1, 1, "", f"not valid YAML: {' '.join(str(error).split())}")])
    except RecursionError:
        return Reading(None, [Problem(1, 1, "", "not valid YAML: nested too deep, or an anchor contains itself")])
    finally:
        if loader:
            loader.dispose()
    return Reading(value, once(problems), places)


def once(problems: Iterable[Problem]) -> list[Problem]:
    """In the file's order, the first of each key; what several keys share through an anchor is told once."""
    firsts: dict[tuple[int, int, str], Problem] = {}
    for problem in problems:
        firsts.setdefault((problem.line, problem.column, problem.path), problem)
    shared: dict[tuple[int, int, str], Problem] = {}
    for problem in sorted(firsts.values()):
        shared.setdefault((problem.line, problem.column, problem.message), problem)
    return list(shared.values())


@dataclass(frozen=True)
class Text:
    """A text, one of `choices` where there are any.

    `check`, where it is given, takes the text and raises ValueError with what is wrong about it.
    """

    choices: tuple[str, ...] = ()
    check: Callable[[str], object] | None = None

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        # Quoted or not: Compose users write `replicas: "1"` and `image: 7`, but a number is not a name.
        if not isinstance(node, yaml.ScalarNode) or not node.tag.endswith(":str"):
            return _refuse(node, path, f"a text is needed, not {_shown(node)}", problems)
        if self.choices and node.value not in self.choices:
            nearest = did_you_mean(node.value, self.choices)
            return _refuse(node, path, f"{node.value!r} is not one of the values known here{nearest}", problems)
        return _checked(node, node.value, self.check, path, problems)


@dataclass(frozen=True)
class Scalar:
    """A text, a number, true or false, as the text that Compose makes of it; None for nothing, if `nothing` is set."""

    nothing: bool = False
    check: Callable[[str], object] | None = None

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        if not isinstance(node, yaml.ScalarNode):
            return _refuse(node, path, f"a text or a number is needed, not {_shown(node)}", problems)
        if node.tag.endswith(":null"):
            return None if self.nothing else _refuse(node, path, "a text or a number is needed, not nothing", problems)
        return _checked(node, _as_text(node), self.check, path, problems)


@dataclass(frozen=True)
class Integer:
    """A whole number within bounds."""

    least: int = 0
    most: int | None = None

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        if not isinstance(node, yaml.ScalarNode) or not _tag(node).endswith(":int"):
            return _refuse(node, path, f"a whole number is needed, not {_shown(node)}", problems)
        value = yaml.safe_load(node.value)
        if not isinstance(value, int) or value < self.least or (self.most is not None and value > self.most):
            bounds = f"at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
            return _refuse(node, path, f"must be {bounds}, not {node.value}", problems)
        return value


@dataclass(frozen=True)
class Number:
    """A number within bounds, the lower one excluded where `above` is set."""

    least: float = 0.0
    most: float = math.inf
    above: bool = False

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        value = _number(node)
        if value is None:
            return _refuse(node, path, f"a number is needed, not {_shown(node)}", problems)
        if not (self.least <= value <= self.most) or (self.above and value == self.least):
            low = f"{'above' if self.above else 'at least'} {self.least:g}"
            high = "" if math.isinf(self.most) else f" and at most {self.most:g}"
            return _refuse(node, path, f"must be {low}{high}, not {_shown(node)}", problems)
        return value


@dataclass(frozen=True)
class Boolean:
    """True or false."""

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        if not isinstance(node, yaml.ScalarNode) or not _tag(node).endswith(":bool"):
            return _refuse(node, path, f"true or false is needed, not {_shown(node)}", problems)
        return yaml.safe_load(node.value)


@dataclass(frozen=True)
class Anything:
    """Any value, taken as it is."""

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        del path, problems
        return plain(node)


@dataclass(frozen=True)
class Nothing:
    """No value at all, as in ``volumes: {checkpoints: }``."""

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        if not node.tag.endswith(":null"):
            _refuse(node, path, f"no value is needed, not {_shown(node)}", problems)


@dataclass(frozen=True)
class Optional:
    """A kind, or nothing at all, which stands for a key that is not there."""

    of: Kind

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        return None if node.tag.endswith(":null") else self.of.read(node, path, problems)


@dataclass(frozen=True)
class Listing:
    """A list of one kind."""

    of: Kind

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        if not isinstance(node, yaml.SequenceNode):
            return _refuse(node, path, f"a list is needed, not {_shown(node)}", problems)
        return [self.of.read(item, f"{path}[{i}]", problems) for i, item in enumerate(node.value)]


@dataclass(frozen=True)
class Table:
    """A mapping whose keys the user chooses."""

    of: Kind

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        if not isinstance(node, yaml.MappingNode):
            return _refuse(node, path, f"keys with values are needed, not {_shown(node)}", problems)
        return {
            key: self.of.read(value, _join(path, key), problems) for key, _, value in _entries(node, path, problems)
        }


@dataclass(frozen=True)
class Keys:
    """A mapping with known keys; keys that start with ``x-`` are let through where `extensions` is set."""

    known: Mapping[str, Kind]
    required: tuple[str, ...] = ()
    extensions: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)  # key: why not, and what instead

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        if not isinstance(node, yaml.MappingNode):
            return _refuse(node, path, f"keys with values are needed, not {_shown(node)}", problems)
        found: dict[str, Any] = {}
        for key, key_node, value in _entries(node, path, problems):
            where = _join(path, key)
            if key in self.known:
                found[key] = self.known[key].read(value, where, problems)
            elif key in self.refused:
                _refuse(key_node, where, self.refused[key], problems)
            elif self.extensions and key.startswith("x-"):
                found[key] = plain(value)
            else:
                _refuse(key_node, where, f"unknown key{did_you_mean(key, self.known)}", problems)
        for key in self.required:
            if key not in found and not any(p.path == _join(path, key) for p in problems):
                _refuse(node, _join(path, key), "this key is missing", problems)
        return found


@dataclass(frozen=True)
class Either:
    """The first of several kinds that fits the shape of the value."""

    kinds: tuple[Kind, ...]
    needed: str  # in words, for the message

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        attempts: list[list[Problem]] = []
        for kind in self.kinds:
            attempt: list[Problem] = []
            value = kind.read(node, path, attempt)
            if not attempt:
                return value
            attempts.append(attempt)
        # A problem inside the value says more than "the wrong shape".
        inner = [attempt for attempt in attempts if any(problem.path != path for problem in attempt)]
        if inner:
            problems.extend(inner[0])
            return None
        return _refuse(node, path, f"{self.needed} is needed, not {_shown(node)}", problems)


@dataclass(frozen=True)
class Pairs:
    """Texts by name: keys with values, or a list of ``NAME=VALUE``.

    A name without a value gives None if `nothing` is set, else an empty text.
    """

    separators: str = "="
    nothing: bool = False

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        if isinstance(node, yaml.MappingNode):
            named = Table(Scalar(nothing=True)).read(node, path, problems)
            return named if self.nothing else {key: value or "" for key, value in named.items()}
        if isinstance(node, yaml.SequenceNode):
            entries = Listing(Text()).read(node, path, problems)
            return dict(self._pair(entry) for entry in entries if entry is not None)
        return _refuse(node, path, f"a list or keys is needed, not {_shown(node)}", problems)

    def _pair(self, entry: str) -> tuple[str, str | None]:
        name, *value = re.split(f"[{self.separators}]", entry, maxsplit=1)
        return name, value[0] if value else (None if self.nothing else "")


@dataclass(frozen=True)
class Short:
    """Keys that may also be written as one text, of which `parse` makes them.

    `parse` raises ValueError with what is wrong about the text.
    """

    parse: Callable[[str], Any]
    long: Kind
    needed: str  # in words, for the message

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        if isinstance(node, yaml.ScalarNode) and not node.tag.endswith(":null"):
            return _parsed(node, _as_text(node), self.parse, path, problems)
        if type(node) is _SHAPES.get(type(self.long)):
            return self.long.read(node, path, problems)
        return _refuse(node, path, f"{self.needed} is needed, not {_shown(node)}", problems)


_SHAPES: Mapping[type[Any], type[yaml.Node]] = {
    Keys: yaml.MappingNode,
    Table: yaml.MappingNode,
    Listing: yaml.SequenceNode,
}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Words to put behind "unknown …": the nearest known name, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here: {', '.join(names)}" if names else ""


def plain(node: yaml.Node) -> Any:
    """The value of a node as plain Python data, numbers such as 1e-4 read as numbers."""
    if isinstance(node, yaml.MappingNode):
        return {key.value: plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [plain(item) for item in node.value]
    if node.tag.endswith(":str"):
        return node.value
    return yaml.safe_load(node.value)


# Helpers -------------------------------------------------------------------------------------------------------


def _find_places(node: yaml.Node, path: str, places: dict[str, tuple[int, int]]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = _join(path, str(key.value))
            places.setdefault(here, (key.start_mark.line + 1, key.start_mark.column + 1))
            _find_places(value, here, places)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            here = f"{path}[{i}]"
            places.setdefault(here, (item.start_mark.line + 1, item.start_mark.column + 1))
            _find_places(item, here, places)


def _tag(node: yaml.ScalarNode) -> str:
    """What the scalar is; a text that came out of a variable is whatever it looks like."""
    if not isinstance(node, Substituted):
        return str(node.tag)
    loader = yaml.SafeLoader("")
    try:
        return str(loader.resolve(yaml.ScalarNode, node.value, (True, False)))  # type: ignore[no-untyped-call]
    finally:
        loader.dispose()


def _as_text(node: yaml.ScalarNode) -> str:
    """The scalar as Compose prints it into a text: 1e3 and 0x10 as numbers, true and yes as true."""
    exponential = node.style is None and _EXPONENTIAL.fullmatch(node.value) is not None
    if node.tag.endswith(":str") and (not exponential or isinstance(node, Substituted)):
        return str(node.value)
    value = float(node.value) if exponential else yaml.safe_load(node.value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e21 else repr(value)
    return str(value) if isinstance(value, int) else str(node.value)


def _parsed(node: yaml.Node, text: str, parse: Callable[[str], Any], path: str, problems: list[Problem]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        return _refuse(node, path, str(error), problems)


def _checked(
    node: yaml.Node, text: str, check: Callable[[str], object] | None, path: str, problems: list[Problem]
) -> str | None:
    """The text, if there is nothing wrong about it."""
    before = len(problems)
    if "\0" in text:  # no program's argument and no variable can hold it
        _refuse(node, path, "there is a character of code 0 in it", problems)
    elif check is not None:
        _parsed(node, text, check, path, problems)
    return text if len(problems) == before else None


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """How many nodes there are below one, what anchors repeat counted each time: a short file can mean billions."""
    if id(node) not in known:
        known[id(node)] = 1  # an anchor that contains itself is refused elsewhere
        parts = node.value if isinstance(node, yaml.SequenceNode | yaml.MappingNode) else ()
        children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_size(child, known) for child in children)
    return known[id(node)]


def _merge(loader: yaml.SafeLoader, node: yaml.Node, seen: set[int]) -> None:
    """Resolve ``<<`` merge keys everywhere below a node."""
    if id(node) in seen:
        return
    seen.add(id(node))
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        own = [pair for pair in node.value if pair[0].tag != "tag:yaml.org,2002:merge"]
        own_names = {str(key.value) for key, _ in own}
        loader.flatten_mapping(node)  # puts what is merged before the node's own pairs
        merged = node.value[: len(node.value) - len(own)]
        inherited = {str(key.value): (key, value) for key, value in merged if str(key.value) not in own_names}
        node.value = [*inherited.values(), *own]
        children = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    for child in children:
        _merge(loader, child, seen)


def _entries(node: yaml.MappingNode, path: str, problems: list[Problem]) -> Iterable[tuple[str, yaml.Node, yaml.Node]]:
    first: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            _refuse(key, path, "a key must be a text", problems)
            continue
        if key.value in first:
            _refuse(key, _join(path, key.value), f"this key is already in line {first[key.value]}", problems)
            continue
        first[key.value] = key.start_mark.line + 1
        yield key.value, key, value


def _number(node: yaml.Node) -> float | None:
    # YAML 1.1, which Compose files are read by, takes 1e-4 for a text; nobody who writes it means one.
    if not isinstance(node, yaml.ScalarNode) or node.style is not None or node.tag.endswith((":bool", ":null")):
        return None
    try:
        value = float(node.value)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _refuse(node: yaml.Node, path: str, message: str, problems: list[Problem]) -> None:
    mark = node.start_mark
    problems.append(Problem(mark.line + 1, mark.column + 1, path, message))


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "keys with values"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "nothing" if node.tag.endswith(":null") else repr(node.value)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
