"""A `schema` in the words of JSON schema (draft 7), which editors check and complete a file with.

May import: ``schema``.
"""

import math
from typing import Any

from .schema import (
    Anything,
    Boolean,
    Either,
    Integer,
    Keys,
    Kind,
    Listing,
    Nothing,
    Number,
    Optional,
    Pairs,
    Scalar,
    Short,
    Table,
    Text,
)

Schema = dict[str, Any]
_VARIABLE: Schema = {"type": "string", "pattern": r"\$"}


def json_schema(kind: Kind) -> Schema:
    """What a kind allows; what it checks beyond types and bounds is not in there.

    Raises:
        TypeError: JSON schema has no words for this kind.
    """
    match kind:
        case Text(choices=choices):
            return {"enum": list(choices)} if choices else {"type": "string"}
        case Scalar(nothing=nothing):
            return {"type": ["string", "number", "boolean", *(["null"] if nothing else [])]}
        case Boolean():
            return {"anyOf": [{"type": "boolean"}, _VARIABLE]}
        case Integer(least=least, most=most):
            return _number("integer", minimum=least, maximum=most)
        case Number(least=low, most=high, above=above):
            bound = "exclusiveMinimum" if above else "minimum"
            return _number("number", **{bound: low}, maximum=None if math.isinf(high) else high)
        case Anything():
            return {}
        case Nothing():
            return {"type": "null"}
        case Listing(of=of):
            return {"type": "array", "items": json_schema(of)}
        case Table(of=of):
            return {"type": "object", "additionalProperties": json_schema(of)}
        case Pairs():
            return {"anyOf": [json_schema(Table(Scalar(nothing=True))), json_schema(Listing(Text()))]}
        case Optional(of=of):
            return {"anyOf": [json_schema(of), {"type": "null"}]}
        case Short(long=long):
            return {"anyOf": [{"type": ["string", "number"]}, json_schema(long)]}
        case Either(kinds=kinds):
            return {"anyOf": [json_schema(one) for one in kinds]}
        case Keys():
            return _keys(kind)
    raise TypeError(f"JSON schema has no words for {type(kind).__name__}")


def _number(kind: str, **bounds: float | None) -> Schema:
    return {"anyOf": [{"type": kind, **{key: value for key, value in bounds.items() if value is not None}}, _VARIABLE]}


def _keys(kind: Keys) -> Schema:
    return {
        "type": "object",
        "properties": {key: json_schema(one) for key, one in kind.known.items()},
        **({"required": list(kind.required)} if kind.required else {}),
        "patternProperties": {"^(x-.*|<<)$" if kind.extensions else "^<<$": {}},  # << is YAML's merge key
        "additionalProperties": False,
    }
