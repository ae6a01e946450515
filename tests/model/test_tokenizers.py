"""Both tokenizers: round trips, and the World one against the package `rwkv`."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm_agent.errors import ConfigError
from swarm_agent.tokenizers import ByteTokenizer, WorldTokenizer, get_tokenizer

TEXTS = [
    "",
    "Hello, world!\n\n\tTabs   and spaces.",
    "你好，世界。日本語の文章と한국어 문장",
    "😀👩‍👩‍👧‍👦🏴‍☠️🇩🇪 emojis 🎉🎉",
    "Ελληνικά, русский, العربية, עברית, हिन्दी, ไทย",
    "nul \x00, delete \x7f, byte order mark \ufeff, last \U0010ffff, private \ue000, combining e\u0301",
    'for (int i = 0; i < 10; i++) { printf("%d\\n", i); }  // 1234567890 0x7fff',
    "a" * 1000,
]


@pytest.fixture(scope="module")
def world() -> WorldTokenizer:
    pytest.importorskip("pyrwkv_tokenizer")
    return WorldTokenizer()


@pytest.fixture(scope="module")
def theirs() -> Any:
    rwkv = pytest.importorskip("rwkv")
    from rwkv.rwkv_tokenizer import TRIE_TOKENIZER

    return TRIE_TOKENIZER(str(Path(rwkv.__path__[0]) / "rwkv_vocab_v20230424.txt"))


@given(st.text())
def test_bytes_come_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.tolist() == [byte + 1 for byte in text.encode()]


@pytest.mark.parametrize("text", TEXTS)
def test_world_ids_are_those_of_the_rwkv_package(world: WorldTokenizer, theirs: Any, text: str) -> None:
    assert world.encode(text).tolist() == theirs.encode(text)
    assert world.decode(world.encode(text)) == text


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_world_ids_agree_on_any_text(world: WorldTokenizer, theirs: Any, text: str) -> None:
    ids = world.encode(text).tolist()
    assert ids == theirs.encode(text)
    assert world.decode(ids) == text


def test_world_tokens_stand_for_the_same_bytes_there(world: WorldTokenizer, theirs: Any) -> None:
    assert world.vocab_size == 65530
    assert len(theirs.idx2token) == 65529
    for number, token in theirs.idx2token.items():
        assert world.decode_bytes([number]) == token


@pytest.mark.parametrize("name", ["bytes", "world"])
def test_the_end_of_a_text_stands_for_nothing(name: str) -> None:
    if name == "world":
        pytest.importorskip("pyrwkv_tokenizer")
    tokenizer = get_tokenizer(name)
    assert tokenizer.decode_bytes([0, *tokenizer.encode("a"), 0]) == b"a"
    assert 0 not in tokenizer.encode("\x00 any text")


@pytest.mark.parametrize("name", ["bytes", "world"])
def test_half_a_character_is_shown_as_replaced(name: str) -> None:
    if name == "world":
        pytest.importorskip("pyrwkv_tokenizer")
    tokenizer = get_tokenizer(name)
    cut = [token for token in range(tokenizer.vocab_size) if tokenizer.decode_bytes([token]) == b"\xe4"]
    assert tokenizer.decode(cut) == "\ufffd"


@pytest.mark.parametrize("name", ["bytes", "world"])
def test_ids_outside_the_vocabulary_are_refused(name: str) -> None:
    if name == "world":
        pytest.importorskip("pyrwkv_tokenizer")
    tokenizer = get_tokenizer(name)
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"token {wrong} is outside the vocabulary"):
            tokenizer.decode_bytes([wrong])


@pytest.mark.parametrize("name", ["bytes", "world"])
def test_half_a_surrogate_pair_is_refused(name: str) -> None:
    if name == "world":
        pytest.importorskip("pyrwkv_tokenizer")
    with pytest.raises(UnicodeEncodeError):
        get_tokenizer(name).encode("\ud800")


def test_ids_are_small_integers_in_an_array() -> None:
    ids = ByteTokenizer().encode("abc")
    assert ids.dtype == np.int32
    assert ids.shape == (3,)


def test_an_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tokenizer 'words': choose 'bytes' or 'world'"):
        get_tokenizer("words")


def test_without_its_package_world_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "pyrwkv_tokenizer":
            raise ModuleNotFoundError(name)
        return real_import(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "pyrwkv_tokenizer", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="pip install pyrwkv-tokenizer"):
        get_tokenizer("world")
