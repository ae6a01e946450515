"""The kinds of field that version 1's packed structs are made of, and how a struct is packed and unpacked.

A message class in `messages.py` states its struct by annotating its attributes, in wire order, with the
aliases of this file: ``local_step: U32``. To a type checker that is ``int``; `Layout` reads the rest. Each
kind has one rule, and the rule holds in both directions: what we refuse to read we also refuse to write.
"""

import math
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from fdtc.constants import ERROR_TEXT_SIZE, TENSOR_NAME_SIZE, WORKER_ID_SIZE, Compression, Profile
from fdtc.errors import ErrorCode, LocalProtocolError, RemoteProtocolError


@dataclass(frozen=True)
class Kind:
    """One kind of field: its `struct` code, and the value's way out to the wire and in from it.

    Both functions raise ValueError (or TypeError) with the reason when the value is not legal.
    """

    code: str
    to_wire: Callable[[Any], Any]
    from_wire: Callable[[Any], Any]


class Layout:
    """The packed little-endian struct that a message class declares: its annotated attributes, in order."""

    def __init__(self, message_class: type) -> None:
        """Reads the declaration; attributes whose annotation has no `Kind` are not part of the struct."""
        hints = get_type_hints(message_class, include_extras=True)
        self.message_class = message_class
        self.fields: tuple[tuple[str, Kind], ...] = tuple(
            (name, hint.__metadata__[0])
            for name, hint in hints.items()
            if isinstance(getattr(hint, "__metadata__", (None,))[0], Kind)
        )
        self._struct = struct.Struct("<" + "".join(kind.code for _, kind in self.fields))
        self.size = self._struct.size

    def pack(self, message: Any) -> bytes:
        """The struct's bytes. Raises LocalProtocolError when a field's value is not legal."""
        name = ""
        try:
            values = []
            for name, kind in self.fields:
                values.append(kind.to_wire(getattr(message, name)))
            return self._struct.pack(*values)
        except (ValueError, TypeError, OverflowError, struct.error) as error:
            raise LocalProtocolError(f"{self.message_class.__name__}.{name}: {error}") from error

    def unpack(self, payload: memoryview) -> list[Any]:
        """The fields' values from the first `size` bytes. Raises RemoteProtocolError (MALFORMED)."""
        values = list(self._struct.unpack_from(payload))
        for i, (name, kind) in enumerate(self.fields):
            try:
                values[i] = kind.from_wire(values[i])
            except ValueError as error:
                raise malformed(f"{self.message_class.__name__}.{name}: {error}") from error
        return values

    def offsets(self) -> dict[str, int]:
        """Where each field starts, for the documentation and the tests."""
        sizes = [struct.calcsize("<" + kind.code) for _, kind in self.fields]
        return {name: sum(sizes[:i]) for i, (name, _) in enumerate(self.fields)}


def malformed(message: str) -> RemoteProtocolError:
    """The error for a whole frame whose content breaks a rule."""
    return RemoteProtocolError(ErrorCode.MALFORMED, message)


def text_to_wire(text: str, size: int) -> bytes:
    """UTF-8 for a field of `size` bytes, not yet padded; a text may fill its field. Raises ValueError."""
    data = _str(text).encode("utf-8")  # UnicodeEncodeError is a ValueError
    if len(data) > size:
        raise ValueError(f"{len(data)} bytes of UTF-8, the field holds {size}")
    if b"\0" in data:
        raise ValueError("a NUL inside the text would end it")
    return data


def text_from_wire(field: bytes) -> str:
    """The text before the NUL padding. Raises ValueError if it is not UTF-8 or if the padding is not zero."""
    text = field.rstrip(b"\0")
    if b"\0" in text:
        raise ValueError("bytes after the first NUL are not all zero")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError("is empty")
    return text


def _name(size: int) -> Kind:
    return Kind(
        f"{size}s",
        to_wire=lambda text: text_to_wire(_not_empty(text), size),
        from_wire=lambda field: _not_empty(text_from_wire(field)),
    )


def _cut(text: str) -> bytes:
    """An ERROR's text, cut at a character so that it fits: a long reason must not prevent the report."""
    data = _str(text).replace("\0", " ").encode("utf-8", errors="replace")
    return data[:ERROR_TEXT_SIZE].decode("utf-8", errors="ignore").encode("utf-8")


def _unsigned(code: str, bits: int) -> Kind:
    def to_wire(value: Any) -> int:
        number = operator.index(value)  # a numpy integer is welcome, a float is not
        if not 0 <= number < 1 << bits:
            raise ValueError(f"{number} does not fit in {bits} bits without a sign")
        return number

    return Kind(code, to_wire, from_wire=int)


def _flag_to_wire(value: Any) -> int:
    if value not in (0, 1):
        raise ValueError(f"{value!r} is not a bool")
    return int(value)


def _flag_from_wire(byte: int) -> bool:
    if byte > 1:
        raise ValueError(f"a bool is 0 or 1, not {byte}")
    return bool(byte)


def _float(rule: Callable[[float], float]) -> Kind:
    def to_wire(value: Any) -> float:
        struct.pack("<f", value)  # OverflowError: a finite number beyond float32
        return rule(float(value))

    return Kind("f", to_wire, from_wire=rule)


def _not_negative(value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{value} is not a finite number of 0 or more")
    return value


def _fraction(value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{value} is not between 0 and 1")
    return value


def _error_code(value: int) -> int:
    """Ours by name, a stranger's as the plain number."""
    try:
        return ErrorCode(value)
    except ValueError:
        return value


_UNSIGNED_32 = _unsigned("I", 32)

WorkerId = Annotated[str, _name(WORKER_ID_SIZE)]
TensorName = Annotated[str, _name(TENSOR_NAME_SIZE)]
ErrorText = Annotated[str, Kind(f"{ERROR_TEXT_SIZE}s", to_wire=_cut, from_wire=text_from_wire)]
U8 = Annotated[int, _unsigned("B", 8)]
U32 = Annotated[int, _UNSIGNED_32]
U64 = Annotated[int, _unsigned("Q", 64)]
Flag = Annotated[bool, Kind("B", _flag_to_wire, _flag_from_wire)]  # not "?", which reads 2 as true
ProfileField = Annotated[Profile, Kind("I", Profile, Profile)]
CompressionField = Annotated[Compression, Kind("I", Compression, Compression)]
ErrorCodeField = Annotated[int, Kind("I", _UNSIGNED_32.to_wire, from_wire=_error_code)]

# A loss may be anything: a worker whose model has diverged must be able to say so, and one that has not taken
# a step yet has none. It is only shown, never computed with.
Loss = Annotated[float, _float(lambda value: value)]
# These steer the training or its schedule.
NotNegative = Annotated[float, _float(_not_negative)]
Fraction = Annotated[float, _float(_fraction)]
