"""Typed reading of a YAML file where every problem is found at once, each with its line and column.

A schema is built from the small classes below (`Text`, `Integer`, `Keys`, …). `read` walks it beside the YAML
nodes, so a problem knows where it stands; the result is plain Python data. Imports nothing of ours.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import yaml


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
        """Return the value, or add to `problems`; what is returned then has no meaning."""


def read(text: str, kind: Kind) -> tuple[Any, list[Problem]]:
    """Read YAML text by a schema.

    Returns:
        The value, which has a meaning only where there are no problems, and the problems in the file's order.
    """
    loader = yaml.SafeLoader(text)
    problems: list[Problem] = []
    try:
        node = loader.get_single_node()
        if node is None:
            return None, [Problem(1, 1, "", "the file is empty")]
        _merge(loader, node, set())
        value = kind.read(node, "", problems)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        return None, [Problem(line, column, "", f"not valid YAML: {error.problem or error.context}")]
    except yaml.YAMLError as error:
        return None, [Problem(1, 1, "", f"not valid YAML: {error}")]
    finally:
        loader.dispose()
    return value, sorted(problems)


@dataclass(frozen=True)
class Text:
    """A text, one of `choices` where there are any."""

    choices: tuple[str, ...] = ()

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        # Quoted or not: Compose users write `replicas: "1"` and `image: 7`, but a number is not a name.
        if not isinstance(node, yaml.ScalarNode) or not node.tag.endswith(":str"):
            return _refuse(node, path, f"a text is needed, not {_shown(node)}", problems)
        if self.choices and node.value not in self.choices:
            nearest = did_you_mean(node.value, self.choices)
            return _refuse(node, path, f"{node.value!r} is not one of the values known here{nearest}", problems)
        return node.value


@dataclass(frozen=True)
class Integer:
    """A whole number within bounds."""

    least: int = 0
    most: int | None = None

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        """See `Kind`."""
        if not isinstance(node, yaml.ScalarNode) or not node.tag.endswith(":int"):
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
        if not isinstance(node, yaml.ScalarNode) or not node.tag.endswith(":bool"):
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


def _merge(loader: yaml.SafeLoader, node: yaml.Node, seen: set[int]) -> None:
    """Resolve ``<<`` merge keys everywhere below a node."""
    if id(node) in seen:
        return
    seen.add(id(node))
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        own = [pair for pair in node.value if pair[0].tag != "tag:yaml.org,2002:merge"]
        own_names = {key.value for key, _ in own}
        loader.flatten_mapping(node)  # puts what is merged before the node's own pairs
        merged = node.value[: len(node.value) - len(own)]
        inherited = {key.value: (key, value) for key, value in merged if key.value not in own_names}
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
