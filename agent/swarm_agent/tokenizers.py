"""Text to token ids and back: plain bytes, and the RWKV World vocabulary.

In both, id 0 ends a text and stands for no bytes. Tokens are byte strings and may end inside a character, so whoever
prints them one by one must decode the bytes incrementally.

May import: `errors`.
"""

import ast
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError

WORLD_TABLE = "rwkv_vocab_v20230424.txt"


class ByteTokenizer:
    """Every byte of UTF-8 is a token: id = byte + 1."""

    name: ClassVar[str] = "bytes"
    vocab_size: int = 257

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the text's ids.

        Raises:
            UnicodeEncodeError: The text has half a surrogate pair, which UTF-8 cannot express.
        """
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 1

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that the ids stand for.

        Raises:
            ValueError: An id is outside the vocabulary.
        """
        return b"".join(bytes([token - 1]) if token else b"" for token in _checked(ids, self.vocab_size))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text; bytes that are no UTF-8 become U+FFFD.

        Raises:
            ValueError: An id is outside the vocabulary.
        """
        return self.decode_bytes(ids).decode(errors="replace")


class WorldTokenizer:
    """The vocabulary of the released RWKV models: 65,529 byte strings, the longest match first.

    The package `pyrwkv-tokenizer` brings the table and finds the matches. We decode ourselves, since it only decodes
    whole characters.
    """

    name: ClassVar[str] = "world"

    def __init__(self) -> None:
        """Load the vocabulary.

        Raises:
            ConfigError: `pyrwkv-tokenizer` is not installed.
        """
        try:
            import pyrwkv_tokenizer
        except ImportError as error:
            raise ConfigError(
                "the tokenizer 'world' needs a package that is not installed here: pip install pyrwkv-tokenizer"
            ) from error
        self._matcher = pyrwkv_tokenizer.RWKVTokenizer()
        self._table = _world_table()

    @property
    def vocab_size(self) -> int:
        """One more than the largest id. Models have room for 65,536."""
        return len(self._table)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the text's ids.

        Raises:
            UnicodeEncodeError: The text has half a surrogate pair, which UTF-8 cannot express.
        """
        text.encode()  # the Rust side would not say what is wrong
        return np.asarray(self._matcher.encode(text), np.int32)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that the ids stand for.

        Raises:
            ValueError: An id is outside the vocabulary.
        """
        return b"".join(self._table[token] for token in _checked(ids, self.vocab_size))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text; bytes that are no UTF-8 become U+FFFD.

        Raises:
            ValueError: An id is outside the vocabulary.
        """
        return self.decode_bytes(ids).decode(errors="replace")


def get_tokenizer(name: str) -> ByteTokenizer | WorldTokenizer:
    """Return the tokenizer of this name: "bytes" or "world".

    Raises:
        ConfigError: There is none of that name, or a package that it needs is not installed.
    """
    if name == ByteTokenizer.name:
        return ByteTokenizer()
    if name == WorldTokenizer.name:
        return WorldTokenizer()
    raise ConfigError(f"there is no tokenizer {name!r}: choose 'bytes' or 'world'")


@cache
def _world_table() -> tuple[bytes, ...]:
    """Read the byte string of every id. A line is `id literal length`, the literal a Python str or bytes."""
    lines = (resources.files("pyrwkv_tokenizer") / WORLD_TABLE).read_text(encoding="utf-8").split("\n")
    table = {0: b""}
    for line in filter(None, lines):
        number, rest = line.split(" ", 1)
        literal, length = rest.rsplit(" ", 1)
        value = ast.literal_eval(literal)
        token = value.encode() if isinstance(value, str) else value
        if len(token) != int(length):
            raise ConfigError(f"the table of pyrwkv-tokenizer is damaged at id {number}: pip install it again")
        table[int(number)] = token
    return tuple(table[number] for number in range(len(table)))


def _checked(ids: Iterable[int], vocab_size: int) -> list[int]:
    ids = [int(token) for token in ids]
    for token in ids:
        if not 0 <= token < vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary of {vocab_size}")
    return ids
