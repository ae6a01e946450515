"""``${NAME}`` in the texts of a YAML file, as Compose fills it in. Pure; imports nothing of ours."""

import re
from collections.abc import Callable, Mapping

import yaml

Refuse = Callable[[yaml.Node, str, str], object]

# $$, $NAME, ${NAME}, ${NAME:-default}, ${NAME-default}, ${NAME:?message}, ${NAME?message}.
_VARIABLE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<bare>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-?])(?P<rest>[^}]*))?\}|)",
    re.ASCII,
)


class Substituted(yaml.ScalarNode):
    """A text that came out of variables: it is a number, true or false wherever one is needed."""


def escape(text: str) -> str:
    """The text, written so that it stands for itself where variables are filled in."""
    return text.replace("$", "$$")


def substitute(node: yaml.Node, path: str, values: Mapping[str, str], refuse: Refuse) -> yaml.Node:
    """Fill in variables everywhere below a node.

    Args:
        node: Mappings and lists are changed in place.
        path: Of the node, for what is refused.
        values: By name.
        refuse: Called with node, path and message for each variable that has no value or is written wrongly.

    Returns:
        The node to put in its place.
    """
    if isinstance(node, yaml.MappingNode):
        paths = [f"{path}.{key.value}" if path else str(key.value) for key, _ in node.value]
        node.value = [
            (key, substitute(value, at, values, refuse)) for at, (key, value) in zip(paths, node.value, strict=True)
        ]
    elif isinstance(node, yaml.SequenceNode):
        node.value = [substitute(item, f"{path}[{i}]", values, refuse) for i, item in enumerate(node.value)]
    elif "$" in node.value and node.tag.endswith(":str") and not isinstance(node, Substituted):
        text = _VARIABLE.sub(lambda found: _value(found, values, lambda why: refuse(node, path, why)), node.value)
        return Substituted(node.tag, text, node.start_mark, node.end_mark)
    return node


def _value(found: "re.Match[str]", values: Mapping[str, str], refuse: Callable[[str], object]) -> str:
    if found["dollar"]:
        return "$"
    name, how, rest = found["bare"] or found["name"], found["how"] or "", found["rest"]
    if not name:
        refuse(f"a dollar sign begins a variable; for the sign itself write $$ (in {found.string!r})")
        return ""
    value = values.get(name)
    if value is not None and not (how.startswith(":") and not value):
        return value
    if how.endswith("-"):
        return str(rest)
    refuse(
        f"the environment has no variable {name}" + (f": {rest}" if rest else f"; export it, or write ${{{name}:-…}}")
    )
    return ""
