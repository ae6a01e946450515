"""The built-in text is what its facts say, is English, and is packed with the agent."""

import hashlib
import json
from importlib import resources
from typing import Any

import pytest

from swarm_agent.data import built_in_text, open_data
from swarm_agent.tokenizers import get_tokenizer

FOLDER = resources.files("swarm_agent") / "corpus"


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "shakespeare.json").read_text())
    return found


def test_the_text_is_the_one_whose_checksum_is_written_down(facts: dict[str, Any]) -> None:
    text, held_out_from = built_in_text("shakespeare")
    assert hashlib.sha256(text).hexdigest() == facts["sha256"]
    assert facts["sha256"] in (FOLDER / "README.md").read_text()
    assert len(text) == facts["bytes"] > 1_000_000
    assert held_out_from == facts["held_out_from"]
    assert text.decode("ascii")


def test_the_packed_text_stays_small() -> None:
    assert len((FOLDER / "shakespeare.txt.xz").read_bytes()) < 1_400_000


def test_whole_plays_are_held_out(facts: dict[str, Any]) -> None:
    text, held_out_from = built_in_text("shakespeare")
    trained, held_out = text[:held_out_from].decode(), text[held_out_from:].decode()
    assert held_out.startswith("MACBETH\n")
    assert "TWELFTH NIGHT; OR, WHAT YOU WILL\n" in held_out
    assert "Macduff" not in trained
    assert "Malvolio" not in trained
    assert 0.03 < len(held_out) / len(text) < 0.06


def test_nothing_but_the_plays_is_in_it() -> None:
    text = built_in_text("shakespeare")[0].decode().lower()
    for trace in ("gutenberg", " etext", "copyright", "<", "http"):
        assert trace not in text


def test_it_opens_by_name_in_as_many_shards_as_a_coordinator_makes() -> None:
    options = {"tokenizer": get_tokenizer("bytes"), "context": 128, "total_shards": 64}
    for shard in (0, 63):
        source = open_data("shakespeare", shard=shard, **options)  # type: ignore[arg-type]
        assert source.windows > 400
        batch = source.next_batch(4)
        assert batch is not None
        assert batch.shape == (4, 129)
