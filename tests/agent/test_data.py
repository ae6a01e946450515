"""Data sources: shards cover a split exactly once, what is held out stays out, and broken data is named."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm_agent import data
from swarm_agent.data import Position, TokenFile, WindowSource, main, open_data, tokenize
from swarm_agent.errors import DataError
from swarm_agent.tokenizers import get_tokenizer

BYTES = get_tokenizer("bytes")
TEXT = "".join(f"Line {number} of a text that is long enough to be cut.\n" for number in range(400))
fresh = count()


class Numbers:
    """A tokenizer for token files whose every token is another number."""

    vocab_size = 1 << 20

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def text_file(folder: Path, content: bytes | str) -> Path:
    path = folder / f"{next(fresh)}.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl_file(folder: Path, lines: list[bytes]) -> Path:
    path = folder / f"{next(fresh)}.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def numbers_file(folder: Path, size: int, held_out_from: int | None = None) -> Path:
    path = folder / f"{next(fresh)}.bin"
    header = TokenFile(4, size, size if held_out_from is None else held_out_from, Numbers.vocab_size, "numbers")
    path.write_bytes(header.pack() + np.arange(size, dtype="<u4").tobytes())
    return path


def record(text: str) -> bytes:
    return json.dumps({"text": text}).encode()


def batches(source: WindowSource, batch_size: int = 3) -> Iterator[np.ndarray]:
    while (batch := source.next_batch(batch_size)) is not None:
        yield batch


def windows(source: WindowSource, batch_size: int = 3) -> list[tuple[int, ...]]:
    return [tuple(row) for batch in batches(source, batch_size) for row in batch.tolist()]


# ------------------------------------------------------------------------------------------------ sharding


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(2, 700),
    context=st.integers(1, 20),
    total_shards=st.integers(1, 12),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)
def test_shards_of_a_token_file_cover_every_window_exactly_once(
    folder: Path, size: int, context: int, total_shards: int, batch_size: int, seed: int
) -> None:
    path = numbers_file(folder, size)
    expected = [tuple(range(first, first + context + 1)) for first in range(0, size - context, context)]

    def shard(number: int) -> WindowSource:
        return open_data(path, tokenizer=Numbers(), context=context, shard=number, total_shards=total_shards, seed=seed)

    if len(expected) < total_shards:
        with pytest.raises(DataError, match="fewer shards"):
            shard(0)
        return
    seen = [window for number in range(total_shards) for window in windows(shard(number), batch_size)]
    assert sorted(seen) == expected


@settings(max_examples=30, deadline=None)
@given(text=st.text(min_size=60, max_size=400), total_shards=st.integers(1, 4), name=st.sampled_from(data.SPLITS))
def test_shards_of_a_text_cover_its_split_exactly_once(
    folder: Path, text: str, total_shards: int, name: data.Split
) -> None:
    path = text_file(folder, text)
    ids = [byte + 1 for byte in path.read_bytes()]
    context = 4
    boundary = len(ids) - len(held_out_bytes(path))
    part = {"train": ids[:boundary], "held-out": ids[boundary:], "all": ids}[name]
    expected = Counter(tuple(part[first : first + context + 1]) for first in range(0, len(part) - context, context))
    if sum(expected.values()) < total_shards:
        with pytest.raises(DataError, match="fewer shards"):
            open_data(path, tokenizer=BYTES, context=context, total_shards=total_shards, split=name)
        return
    seen = Counter(
        window
        for shard in range(total_shards)
        for window in windows(
            open_data(path, tokenizer=BYTES, context=context, shard=shard, total_shards=total_shards, split=name)
        )
    )
    assert seen == expected


def held_out_bytes(path: Path) -> bytes:
    """The end of the text that windows of one byte show to be held out; its first byte is not predicted."""
    whole = path.read_bytes()
    train = open_data(path, tokenizer=BYTES, context=1, split="train")
    return whole[train.windows + 1 :]


@settings(max_examples=40, deadline=None)
@given(records=st.integers(0, 130), total_shards=st.integers(1, 9))
def test_shards_of_jsonl_cover_every_record_exactly_once(folder: Path, records: int, total_shards: int) -> None:
    path = jsonl_file(folder, [record(f"{number}") for number in range(records)])
    seen = {
        split: sorted(
            int(text)
            for shard in range(total_shards)
            for text in data.read_jsonl(data.BrokenLines(str(path), "refuse"), split, shard, total_shards)
        )
        for split in data.SPLITS
    }
    assert seen["all"] == list(range(records))
    assert sorted(seen["train"] + seen["held-out"]) == seen["all"]
    assert len(seen["held-out"]) == records // data.HELD_OUT_EVERY


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=300))
def test_a_text_is_cut_between_characters_about_a_twentieth_from_its_end(text: str) -> None:
    content = text.encode()
    boundary = data._text_boundary(np.frombuffer(content, np.uint8))
    assert content[:boundary].decode() + content[boundary:].decode() == text
    assert len(content) - boundary <= len(content) / data.HELD_OUT_EVERY


def test_a_text_is_cut_at_the_start_of_a_line(folder: Path) -> None:
    held_out = held_out_bytes(text_file(folder, TEXT)).decode()
    assert held_out.startswith("Line ")
    assert 0.04 < len(held_out) / len(TEXT) <= 0.05


# ------------------------------------------------------------------------------------------------ batches


def test_batches_are_int32_with_one_token_more_than_the_context_and_the_last_one_is_smaller(folder: Path) -> None:
    source = open_data(numbers_file(folder, 71), tokenizer=Numbers(), context=10)
    shapes = [(batch.shape, batch.dtype) for batch in batches(source, 3)]
    assert shapes == [((3, 11), np.int32), ((3, 11), np.int32), ((1, 11), np.int32)]
    assert source.next_batch(3) is None


def test_bytes_of_a_text_become_ids_one_higher(folder: Path) -> None:
    path = text_file(folder, "€" * 50)
    (batch,) = batches(open_data(path, tokenizer=BYTES, context=149, split="all"), 1)
    assert bytes((batch[0] - 1).astype(np.uint8)).decode() == "€" * 50


def test_each_pass_has_its_own_order_and_the_same_seed_gives_the_same_orders(folder: Path) -> None:
    path = numbers_file(folder, 1001)
    one, same, other = (open_data(path, tokenizer=Numbers(), context=10, seed=seed) for seed in (1, 1, 2))
    first = windows(one)
    assert windows(same) == first
    assert windows(other) != first
    one.reset()
    same.reset()
    second = windows(one)
    assert windows(same) == second
    assert second != first
    assert sorted(second) == sorted(first)


def test_a_source_goes_on_from_a_saved_position(folder: Path) -> None:
    path = numbers_file(folder, 501)
    straight = open_data(path, tokenizer=Numbers(), context=10)
    windows(straight)
    straight.reset()
    straight.next_batch(4)
    resumed = open_data(path, tokenizer=Numbers(), context=10)
    resumed.seek(straight.position)
    assert resumed.position == Position(1, 4)
    assert windows(resumed) == windows(straight)


@pytest.mark.parametrize("position", [Position(-1, 0), Position(0, -1), Position(0, 51)])
def test_a_position_that_does_not_exist_is_refused(folder: Path, position: Position) -> None:
    source = open_data(numbers_file(folder, 501), tokenizer=Numbers(), context=10)
    with pytest.raises(DataError, match="50 windows"):
        source.seek(position)


def test_a_closed_source_gives_nothing_more(folder: Path) -> None:
    source = open_data(numbers_file(folder, 50), tokenizer=Numbers(), context=10)
    source.close()
    with pytest.raises(DataError, match="closed"):
        source.next_batch(1)


def test_texts_of_jsonl_are_parted_by_the_end_of_text(folder: Path) -> None:
    path = jsonl_file(folder, [record("ab"), b"", record("c"), record("")])
    source = open_data(path, tokenizer=BYTES, context=5, split="all")
    assert windows(source) == [(98, 99, 0, 100, 0, 0)]


# ------------------------------------------------------------------------------------------------ token files


@pytest.mark.parametrize(("name", "block"), [("bytes", 100), ("bytes", 1 << 20), ("world", 1 << 20)])
def test_a_tokenised_text_gives_the_same_windows_as_the_text(
    name: str, block: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "BLOCK", block)
    path = text_file(folder, TEXT + "Ünïcödé — €\n" * 20)
    made = path.with_suffix(".bin")
    header = tokenize(str(path), made, name)
    assert header == TokenFile.read(made)
    tokenizer = get_tokenizer(name)
    for split in data.SPLITS:
        from_text, from_file = (
            open_data(source, tokenizer=tokenizer, context=16, split=split) for source in (path, made)
        )
        assert windows(from_text) == windows(from_file)


def test_tokenised_jsonl_is_held_out_by_whole_records(folder: Path) -> None:
    path = jsonl_file(folder, [record(f"record {number:03d}") for number in range(100)])
    made = path.with_suffix(".bin")
    tokenize(str(path), made, "bytes")
    held_out = open_data(made, tokenizer=BYTES, context=11, split="held-out")
    (batch,) = batches(held_out, 100)
    assert {bytes(row[:10].astype(np.uint8) - 1)[:8] for row in batch} == {b"record 0"}
    assert 3 <= len(batch) <= 5


def test_text_without_any_line_is_tokenised_by_whole_characters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "BLOCK", 64)
    text = "€" * 300
    path = text_file(folder, text)
    header = tokenize(str(path), path.with_suffix(".bin"), "bytes")
    tokens = np.fromfile(path.with_suffix(".bin"), "<u2", offset=64)
    assert bytes((tokens - 1).astype(np.uint8)).decode() == text
    assert header.tokens == 900


def test_a_failed_tokenising_leaves_no_file(folder: Path) -> None:
    path = jsonl_file(folder, [record("good"), b"broken"])
    made = path.with_suffix(".bin")
    with pytest.raises(DataError, match=r"jsonl:2: "):
        tokenize(str(path), made, "bytes")
    assert not list(folder.glob(f"{made.name}*"))


DAMAGES = {
    "cut short": (lambda good: good[:-1], "cut short"),
    "too long": (lambda good: good + b"more", "cut short or changed"),
    "half a header": (lambda good: good[:30], "no token file"),
    "something else": (lambda _: b"x" * 500, "no token file"),
    "a newer version": (lambda good: good[:8] + b"\x02" + good[9:], "newer version"),
    "a width of 3": (lambda good: good[:12] + b"\x03" + good[13:], "damaged"),
    "a cut after the end": (lambda good: good[:24] + b"\xff" + good[25:], "damaged"),
    "a huge count": (lambda good: good[:16] + b"\xff" * 7 + good[23:], "cut short"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_token_file_is_refused(case: str, folder: Path) -> None:
    damage, message = DAMAGES[case]
    path = numbers_file(folder, 100)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        open_data(path, tokenizer=Numbers(), context=5)


def test_a_token_file_of_another_tokenizer_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="'numbers'"):
        open_data(numbers_file(folder, 100), tokenizer=BYTES, context=5)


@pytest.mark.parametrize("wrong", [Numbers.vocab_size, 2**31, 2**32 - 1])
def test_an_id_beyond_the_vocabulary_is_refused_with_its_place(wrong: int, folder: Path) -> None:
    path = numbers_file(folder, 100)
    content = bytearray(path.read_bytes())
    content[64 + 4 * 42 : 64 + 4 * 43] = wrong.to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"token 42 .* 1048576 ids"):
        windows(open_data(path, tokenizer=Numbers(), context=5))


# ------------------------------------------------------------------------------------------------ what is broken

BROKEN = {
    "not JSON": (b'{"text": "cut', "not JSON"),
    "no object": (b'["text"]', 'no object with a "text" field'),
    "no text": (b'{"title": "x"}', 'no object with a "text" field'),
    "no string": (b'{"text": 5}', '"text" is not a string'),
    "not UTF-8": (b'{"text": "\xff"}', "not UTF-8"),
    "half a pair": (b'{"text": "\\ud800"}', "surrogate"),
    "too deep": (b"[" * 200_000, "not JSON"),
    "a number too long": (b"1" * 10_000, "not JSON"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_line_is_refused_with_file_and_line(case: str, folder: Path) -> None:
    line, reason = BROKEN[case]
    path = jsonl_file(folder, [record("first"), b"", line, record("last")])
    with pytest.raises(DataError) as caught:
        open_data(path, tokenizer=BYTES, context=3, split="all")
    assert f"{path}:3: " in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_line_is_skipped_told_and_counted_if_asked(
    case: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = jsonl_file(folder, [record("first"), BROKEN[case][0], record("last")])
    source = open_data(path, tokenizer=BYTES, context=10, split="all", on_broken="skip")
    (window,) = windows(source)
    assert bytes(max(0, token - 1) for token in window) == b"first\0last\0"
    assert source.skipped == 1
    told = capsys.readouterr()
    assert "line=2" in told.out + told.err


def test_missing_empty_and_unreadable_data_is_named(folder: Path) -> None:
    (folder / "folder.txt").mkdir()
    (folder / "image.png").write_bytes(b"x")
    cases = {
        "nowhere.txt": "there is no file",
        "folder.txt": "not a file",
        "image.png": r"must end in \.txt, \.jsonl or \.bin",
        text_file(folder, "").name: "is empty",
        text_file(folder, "short").name: "fewer shards, a shorter context or more data",
        jsonl_file(folder, [record("short")]).name: "shard 0 .* fewer shards",
    }
    for name, message in cases.items():
        with pytest.raises(DataError, match=message) as caught:
            open_data(folder / name, tokenizer=BYTES, context=100)
        assert name in str(caught.value)


def test_text_that_is_not_utf8_is_refused_with_its_place_where_characters_matter(folder: Path) -> None:
    path = text_file(folder, TEXT.encode() + b"caf\xe9\n" + TEXT.encode())
    place = len(TEXT) + 3
    with pytest.raises(DataError, match=f"byte {place} is not UTF-8"):
        open_data(path, tokenizer=get_tokenizer("world"), context=16)
    assert open_data(path, tokenizer=BYTES, context=16).windows > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "context"),
        ({"shard": 2, "total_shards": 2}, "no shard 2 of 2"),
        ({"shard": -1}, "no shard -1"),
        ({"total_shards": 0}, "no shard 0 of 0"),
        ({"seed": -1}, "seed"),
        ({"split": "test"}, "no split 'test'"),
        ({"on_broken": "mend"}, "'refuse' or 'skip'"),
    ],
)
def test_arguments_outside_their_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_data("shakespeare", **{"tokenizer": BYTES, "context": 8, **options})  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ commands


def test_the_commands_make_and_describe_a_token_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = text_file(folder, TEXT)
    made = path.with_suffix(".bin")
    assert main(["tokenize", str(path), str(made)]) == 0
    assert f"{len(TEXT)} tokens" in capsys.readouterr().out
    assert main(["describe", str(made)]) == 0
    of_file = capsys.readouterr().out
    assert f"tokens: {len(TEXT)}\n" in of_file
    assert "tokenizer: bytes" in of_file
    assert main(["describe", str(path)]) == 0
    of_text = capsys.readouterr().out
    held_out = [line for line in of_text.splitlines() if line.startswith("held out")]
    assert held_out
    assert held_out[0] in of_file.splitlines()


def test_the_commands_tell_an_error_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = text_file(folder, TEXT)
    for arguments in (
        ["describe", "nowhere.txt"],
        ["tokenize", str(path), str(path.with_suffix(".tokens"))],
        ["tokenize", str(path), str(folder / "nowhere" / "x.bin")],
        ["tokenize", str(path), str(path / "x.bin")],
    ):
        assert main(arguments) == 1
        told = capsys.readouterr().err
        assert told.startswith("python -m swarm_agent.data: ")
        assert told.count("\n") == 1
