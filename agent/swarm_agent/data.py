"""Training data: text, jsonl or token files, cut into windows and parted into shards without overlap.

`open_data` opens one shard of one split as a source of batches. A window is `context` + 1 tokens that begin
at a multiple of `context`, so each token is predicted once per pass; window i belongs to shard i mod
total_shards, and a shard's windows come in an order shuffled from (seed, pass, shard). About a twentieth of
the data, always the same, is held out from training. docs/data.md has the rules in full.

    python -m swarm_agent.data tokenize IN OUT.bin --tokenizer world
    python -m swarm_agent.data describe PATH

May import: `errors`, `logs`, `tokenizers`.
"""

import argparse
import json
import lzma
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from . import logs
from .errors import AgentError, DataError
from .tokenizers import ByteTokenizer, get_tokenizer

Split = Literal["train", "held-out", "all"]
OnBroken = Literal["refuse", "skip"]
SPLITS: tuple[Split, ...] = ("train", "held-out", "all")
BUILT_IN = ("shakespeare",)

HELD_OUT_EVERY = 20  # one part in twenty is never trained on
END_OF_TEXT = 0
BLOCK = 1 << 20  # bytes of text or tokens handled at once
WARNINGS = 10  # broken lines told one by one; the rest are only counted

log = structlog.get_logger()


class Tokenizer(Protocol):
    """What turns text into ids; id 0 is kept for the end of a text."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    def encode(self, text: str) -> Any:
        """Return the text's ids as a one-dimensional array or list of integers."""
        ...


class Position(NamedTuple):
    """Where a source is: which pass over its shard, and how many windows of that pass were given out."""

    pass_number: int
    window: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """A long row of tokens, kept as narrow and as unread as possible.

    `array` may be a memory map. The token at i is `array[i] + offset`, so that a text's bytes serve as they
    are.
    """

    array: NDArray[np.unsignedinteger[Any]]
    offset: int = 0

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self.array.size

    def part(self, start: int, stop: int) -> "Tokens":
        """Return the tokens from `start` to `stop`, as a view."""
        return Tokens(self.array[start:stop], self.offset)


class WindowSource:
    """Batches of windows of one shard; one pass gives each window once, in an order shuffled anew each pass.

    Attributes:
        windows: How many windows this shard has.
        context: Tokens predicted per window.
        skipped: How many broken lines were left out when it was opened.
    """

    def __init__(
        self,
        tokens: Tokens,
        windows: range,
        *,
        context: int,
        vocab_size: int,
        seed: int,
        shard: int,
        name: str,
        skipped: int = 0,
    ) -> None:
        """Start before the first batch of pass 0.

        Args:
            tokens: Where windows are cut from; window i begins at token i * context.
            windows: The numbers of this shard's windows.
            context: Tokens predicted per window.
            vocab_size: Ids from here on are refused.
            seed: Of the order.
            shard: Another part of the order's seed.
            name: Of the data, for messages.
            skipped: Broken lines left out.
        """
        self.windows = len(windows)
        self.skipped = skipped
        self._tokens: Tokens | None = tokens
        self._numbers = windows
        self.context = context
        self._vocab_size = vocab_size
        self._seed = (seed, shard)
        self._name = name
        self.seek(Position(0, 0))

    @property
    def position(self) -> Position:
        """Where it is; `seek` brings a source that was opened alike to the same place."""
        return self._position

    def seek(self, position: Position) -> None:
        """Go on from another place, such as one that was saved.

        Raises:
            DataError: There is no such place.
        """
        if position.pass_number < 0 or not 0 <= position.window <= self.windows:
            raise DataError(f"{self._name}: this shard has {self.windows} windows, so there is no {position}.")
        self._position = position
        seed, shard = self._seed
        rng = np.random.default_rng([seed, position.pass_number, shard])
        self._order = rng.permutation(np.arange(self.windows, dtype=np.uint32))

    def next_batch(self, batch_size: int) -> NDArray[np.int32] | None:
        """Give the next windows of this pass.

        Args:
            batch_size: Most windows to give; the last batch of a pass may have fewer, as nothing is left out.

        Returns:
            int32 of shape [windows, context + 1], at least one window; None when the pass is over.

        Raises:
            DataError: The source is closed, or the data holds an id that the vocabulary does not have.
        """
        if self._tokens is None:
            raise DataError(f"{self._name}: the data source is closed.")
        start = self._position.window
        chosen = self._order[start : start + batch_size]
        if batch_size < 1:
            raise DataError(f"a batch has 1 window or more, not {batch_size}.")
        if not chosen.size:
            return None
        batch = np.empty((chosen.size, self.context + 1), np.int32)
        for row, which in zip(batch, chosen.tolist(), strict=True):
            first = self._numbers[which] * self.context
            row[:] = self._tokens.array[first : first + self.context + 1]
        batch += self._tokens.offset
        self._refuse_unknown_ids(batch, chosen)
        self._position = Position(self._position.pass_number, start + chosen.size)
        return batch

    def _refuse_unknown_ids(self, batch: NDArray[np.int32], chosen: NDArray[np.uint32]) -> None:
        # Ids are unsigned on disk, so one beyond int32 shows as a negative one here.
        wrong = (batch < 0) | (batch >= self._vocab_size)
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            place = self._numbers[int(chosen[row])] * self.context + column
            raise DataError(
                f"{self._name}: token {place} of this split is id {batch[row, column]}, but the tokenizer "
                f"has {self._vocab_size} ids. Tokenise the text anew with the tokenizer that you train with."
            )

    def reset(self) -> None:
        """Begin the next pass, in another order."""
        self.seek(Position(self._position.pass_number + 1, 0))

    def close(self) -> None:
        """Let go of the data; a memory map is unmapped."""
        self._tokens = None


def open_data(
    path_or_name: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer,
    context: int,
    shard: int = 0,
    total_shards: int = 1,
    seed: int = 0,
    split: Split = "train",
    on_broken: OnBroken = "refuse",
) -> WindowSource:
    """Open one shard of a data set.

    Args:
        path_or_name: `shakespeare`, or a file that ends in .txt, .jsonl or .bin (made by `tokenize`).
        tokenizer: Turns text into ids; a .bin file must have been made with the same one.
        context: Tokens predicted per window.
        shard: Which shard, from 0.
        total_shards: Into how many the split is parted; each must get a window.
        seed: Of the order of windows.
        split: `train`, `held-out` (never in `train`), or `all`.
        on_broken: What to do with a broken line of jsonl: refuse the file, or skip and count the line.

    Raises:
        DataError: The data is missing, empty, broken, too short for so many shards, or made for another
            tokenizer; or an argument is outside its range. The message says what to do.
    """
    _check_arguments(context, shard, total_shards, seed, split, on_broken)
    name = str(path_or_name)
    kind = _kind_of(name)
    broken = BrokenLines(name, on_broken)
    if kind == "jsonl":
        # Records are shared out, so what is read here is this shard's alone.
        tokens = _gather(tokenizer, read_jsonl(broken, split, shard, total_shards), separate=True)
        windows = range(_window_count(tokens, context))
        enough = len(windows) > 0
    else:
        tokens = _split_of_file(name, tokenizer, split) if kind == "bin" else _split_of_text(name, tokenizer, split)
        windows = range(shard, _window_count(tokens, context), total_shards)
        enough = _window_count(tokens, context) >= total_shards
    if not enough:
        whose = f"shard {shard} of the {split} split" if kind == "jsonl" else f"the {split} split"
        raise DataError(
            f"{name}: {whose} holds {len(tokens)} tokens, too few for windows of {context} + 1 tokens in "
            f"{total_shards} shards. Use fewer shards, a shorter context or more data."
        )
    return WindowSource(
        tokens,
        windows,
        context=context,
        vocab_size=tokenizer.vocab_size,
        seed=seed,
        shard=shard,
        name=name,
        skipped=broken.count,
    )


def check(path_or_name: str | os.PathLike[str]) -> None:
    """Make sure that there is a data set, without reading it.

    Raises:
        DataError: There is none of that name, or it is of no kind that can be read.
    """
    _kind_of(str(path_or_name))


def exists(path: Path) -> bool:
    """Whether there is anything by this name.

    Raises:
        DataError: It can't be looked for.
    """
    try:
        return path.exists()
    except OSError as error:  # its name is too long, say
        raise DataError(f"can't look for {path}: {error.strerror}.") from error


def _check_arguments(context: int, shard: int, total_shards: int, seed: int, split: str, on_broken: str) -> None:
    if context < 1:
        raise DataError(f"the context must be 1 token or more, not {context}.")
    if total_shards < 1 or not 0 <= shard < total_shards:
        raise DataError(f"there is no shard {shard} of {total_shards}; shards count from 0.")
    if seed < 0:
        raise DataError(f"the seed must be 0 or more, not {seed}.")
    if split not in SPLITS:
        raise DataError(f"there is no split '{split}'; there are {', '.join(SPLITS)}.")
    if on_broken not in ("refuse", "skip"):
        raise DataError(f"broken lines can be met with 'refuse' or 'skip', not '{on_broken}'.")


def _kind_of(name: str) -> str:
    """Say how data is kept: `built-in`, `txt`, `jsonl` or `bin`; refuse what can't be read as such."""
    if name in BUILT_IN:
        return "built-in"
    path = Path(name)
    if not exists(path):
        raise DataError(f"there is no file {name}. Built in is {', '.join(BUILT_IN)}; see docs/data.md for formats.")
    if not path.is_file():
        raise DataError(f"{name} is not a file. Name one .txt, .jsonl or .bin file.")
    if path.suffix not in (".txt", ".jsonl", ".bin"):
        raise DataError(f"{name}: the name must end in .txt, .jsonl or .bin, which says how it is read.")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise DataError(f"can't read {name}: {error.strerror}.") from error
    if empty:
        raise DataError(f"{name} is empty.")
    return path.suffix[1:]


def _window_count(tokens: Tokens, context: int) -> int:
    return max(0, (len(tokens) - 1) // context)


def _bounds(split: Split, boundary: int, size: int) -> tuple[int, int]:
    return {"train": (0, boundary), "held-out": (boundary, size), "all": (0, size)}[split]


def _gather(tokenizer: Tokenizer, texts: Iterable[str], *, separate: bool) -> Tokens:
    """Encode texts into one narrow array, with the end-of-text id after each if they are `separate`."""
    kind = _narrowest(tokenizer.vocab_size)
    end = np.full(1, END_OF_TEXT, kind)
    pieces: list[NDArray[np.unsignedinteger[Any]]] = [end[:0]]
    for text in texts:
        pieces.append(np.asarray(tokenizer.encode(text)).astype(kind))
        if separate:
            pieces.append(end)
    return Tokens(np.concatenate(pieces))


def _narrowest(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


# ------------------------------------------------------------------------------------------------- plain text


@cache  # a worker opens shard after shard of it
def built_in_text(name: str) -> tuple[bytes, int]:
    """Return a built-in text as UTF-8, and the byte at which its held-out part begins."""
    folder = resources.files(__package__) / "corpus"
    facts = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return lzma.decompress((folder / f"{name}.txt.xz").read_bytes()), int(facts["held_out_from"])


def _text(name: str) -> tuple[NDArray[np.uint8], int]:
    """Return a text's bytes, from a file as a memory map, and where its held-out part begins."""
    if name in BUILT_IN:
        content, boundary = built_in_text(name)
        return np.frombuffer(content, np.uint8), boundary
    text: NDArray[np.uint8] = np.memmap(name, np.uint8, mode="r")
    return text, _text_boundary(text)


def _text_boundary(text: NDArray[np.uint8]) -> int:
    """The first start of a line in the last twentieth; in a text without one, the first whole character."""
    earliest = text.size - text.size // HELD_OUT_EVERY
    near = text[earliest : earliest + BLOCK].tobytes()
    newline = near.find(b"\n")
    if 0 <= newline < len(near) - 1:
        return earliest + newline + 1
    return earliest + len(near) - len(near.lstrip(bytes(range(0x80, 0xC0))))


def _split_of_text(name: str, tokenizer: Tokenizer, split: Split) -> Tokens:
    text, boundary = _text(name)
    start, stop = _bounds(split, boundary, text.size)
    if isinstance(tokenizer, ByteTokenizer):
        return Tokens(text[start:stop], offset=1)
    return _gather(tokenizer, _text_blocks(name, text, start, stop), separate=False)


def _text_blocks(name: str, text: NDArray[np.uint8], start: int, stop: int) -> Iterator[str]:
    """Decode a text in blocks that end with a line or, where lines are huge, with a whole character."""
    while start < stop:
        end = min(start + BLOCK, stop)
        while start + 1 < end < stop and text[end] & 0xC0 == 0x80:
            end -= 1
        block = text[start:end].tobytes()
        if end < stop:
            block = block[: block.rfind(b"\n") + 1] or block
        try:
            yield block.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}: byte {start + error.start} is not UTF-8 text. Convert the file to UTF-8, or train "
                "on its bytes with the tokenizer 'bytes'."
            ) from error
        start += len(block)


# ------------------------------------------------------------------------------------------------------ jsonl


class BrokenLines:
    """Meets broken lines of a file as asked: refuses the file, or reports, counts and leaves out the line."""

    def __init__(self, name: str, on_broken: OnBroken) -> None:
        """Begin with none."""
        self.name = name
        self.on_broken = on_broken
        self.count = 0

    def meet(self, line_number: int, reason: str) -> None:
        """Report one.

        Raises:
            DataError: Broken lines are to be refused.
        """
        if self.on_broken == "refuse":
            raise DataError(
                f"{self.name}:{line_number}: {reason}. Mend the line, or let broken ones be skipped: --on-broken skip, "
                'on_broken = "skip" under [data], or FDTC_DATA_ON_BROKEN=skip.'
            )
        self.count += 1
        if self.count <= WARNINGS:
            log.warning("broken line skipped", file=self.name, line=line_number, reason=reason)
        if self.count == WARNINGS:
            log.warning("further broken lines are only counted", file=self.name)


def read_jsonl(broken: BrokenLines, split: Split, shard: int, total_shards: int) -> Iterator[str]:
    """Yield the texts of one shard of a jsonl file.

    Records are numbered by their lines, leaving out blank ones, so that a broken line changes no other's
    shard and is met by one shard only. Every twentieth is held out; the i-th of a split belongs to shard i
    mod total_shards.

    Raises:
        DataError: A line of this shard is broken, and `broken` refuses it.
    """
    of_split = 0
    with Path(broken.name).open("rb") as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if not line.isspace())
        for record, (number, line) in enumerate(lines):
            held_out = record % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
            if split != "all" and held_out != (split == "held-out"):
                continue
            if of_split % total_shards == shard:
                try:
                    yield _text_of_record(line)
                except _BrokenLineError as error:
                    broken.meet(number, str(error))
            of_split += 1


class _BrokenLineError(Exception):
    pass


def _text_of_record(line: bytes) -> str:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _BrokenLineError(f"byte {error.start + 1} of the line is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise _BrokenLineError(f"not JSON: {error.msg} at column {error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise _BrokenLineError(f"not JSON that can be read: {error}") from error
    if not isinstance(record, dict) or "text" not in record:
        raise _BrokenLineError('no object with a "text" field')
    text = record["text"]
    if not isinstance(text, str):
        raise _BrokenLineError('"text" is not a string')
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _BrokenLineError('"text" holds half a surrogate pair')
    return text


# ------------------------------------------------------------------------------------------------ token files


class TokenFile(NamedTuple):
    """The header of a token file: 64 bytes, little-endian, after which the tokens follow without gaps.

    Bytes 0-7 the letters SWARMTOK; 8-11 format version 1; 12-15 bytes per token, 2 or 4; 16-23 number of
    tokens; 24-31 the token at which the held-out part begins; 32-35 size of the vocabulary; 36-63 the
    tokenizer's name, padded with zeros.
    """

    width: int
    tokens: int
    held_out_from: int
    vocab_size: int
    tokenizer: str

    @classmethod
    def read(cls, path: Path) -> "TokenFile":
        """Read and check a header.

        Raises:
            DataError: It is no token file, or not whole.
        """
        with path.open("rb") as file:
            raw = file.read(HEADER.size)
            size = os.fstat(file.fileno()).st_size
        if len(raw) < HEADER.size or not raw.startswith(MAGIC):
            raise DataError(f"{path} is no token file. Make one with `python -m swarm_agent.data tokenize`.")
        _, version, width, tokens, held_out_from, vocab_size, name = HEADER.unpack(raw)
        if version != 1 or width not in (2, 4) or held_out_from > tokens:
            raise DataError(f"{path}: the header is damaged or of a newer version. Tokenise the text again.")
        if size != HEADER.size + tokens * width:
            raise DataError(
                f"{path} should have {HEADER.size + tokens * width} bytes for {tokens} tokens but has {size}:"
                " it was cut short or changed. Copy it again, or tokenise the text again."
            )
        return cls(width, tokens, held_out_from, vocab_size, name.rstrip(b"\0").decode("ascii", "replace"))

    def pack(self) -> bytes:
        """Return the header's 64 bytes."""
        return HEADER.pack(MAGIC, 1, *self[:-1], self.tokenizer.encode("ascii"))

    def memory_map(self, path: Path) -> NDArray[np.unsignedinteger[Any]]:
        """Map the tokens into memory, to be read only."""
        if not self.tokens:
            return np.empty(0, np.uint16)
        return np.memmap(path, f"<u{self.width}", mode="r", offset=HEADER.size)

    def require_vocabulary(self, name: str, vocab_size: int) -> None:
        """Refuse a tokenizer that is not the one that made the file.

        Raises:
            DataError: The sizes of the vocabularies differ.
        """
        if self.vocab_size != vocab_size:
            raise DataError(
                f"{name} was made with the tokenizer '{self.tokenizer}' ({self.vocab_size} ids), but this "
                f"run's has {vocab_size}. Use that tokenizer, or tokenise the text again."
            )


MAGIC = b"SWARMTOK"
HEADER = struct.Struct("<8sIIQQI28s")


def _split_of_file(name: str, tokenizer: Tokenizer, split: Split) -> Tokens:
    header = TokenFile.read(Path(name))
    header.require_vocabulary(name, tokenizer.vocab_size)
    tokens = Tokens(header.memory_map(Path(name)))
    return tokens.part(*_bounds(split, header.held_out_from, len(tokens)))


def tokenize(source: str, target: Path, tokenizer_name: str, on_broken: OnBroken = "refuse") -> TokenFile:
    """Make a token file of a text or jsonl file or a built-in text; the target appears only when it is whole.

    The held-out part of a text is the same as without tokenising. Of jsonl it is what follows the first end
    of a record in the last twentieth, as one cut at one place.

    Raises:
        DataError: The source can't be read, or the target can't be written.
    """
    tokenizer: Tokenizer = get_tokenizer(tokenizer_name)
    kind = _kind_of(source)
    if kind == "bin":
        raise DataError(f"{source} is a token file already.")
    width = np.dtype(_narrowest(tokenizer.vocab_size)).itemsize
    beside = target.with_name(f"{target.name}.part{os.getpid()}")
    try:
        with beside.open("w+b") as file:
            file.write(bytes(HEADER.size))
            if kind == "jsonl":
                texts = read_jsonl(BrokenLines(source, on_broken), "all", 0, 1)
                count = _write_tokens(file, tokenizer, texts, separate=True)
                held_out_from = _first_end_in_last_part(file, count, width)
            else:
                text, boundary = _text(source)
                trained = _text_blocks(source, text, 0, boundary)
                held_out = _text_blocks(source, text, boundary, text.size)
                held_out_from = _write_tokens(file, tokenizer, trained, separate=False)
                count = held_out_from + _write_tokens(file, tokenizer, held_out, separate=False)
            if not count:
                raise DataError(f"{source} holds no text, so {target} is not made.")
            header = TokenFile(width, count, held_out_from, tokenizer.vocab_size, tokenizer_name)
            file.seek(0)
            file.write(header.pack())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except OSError as error:
        raise DataError(f"can't write {target}: {error.strerror}.") from error
    finally:
        with suppress(OSError):  # such as a name that is too long, which was never made
            beside.unlink(missing_ok=True)
    return header


def _write_tokens(file: BinaryIO, tokenizer: Tokenizer, texts: Iterable[str], *, separate: bool) -> int:
    kind = np.dtype(_narrowest(tokenizer.vocab_size)).newbyteorder("<")
    end = np.array([END_OF_TEXT] if separate else [], kind)
    count = 0
    for text in texts:
        ids = np.append(np.asarray(tokenizer.encode(text)).astype(kind), end)
        file.write(ids.tobytes())
        count += ids.size
    return count


def _first_end_in_last_part(file: BinaryIO, count: int, width: int) -> int:
    """The token after the first end of text in the last twentieth, or where that begins if there is none."""
    earliest = count - count // HELD_OUT_EVERY
    place = earliest
    file.seek(HEADER.size + earliest * width)
    while block := file.read(BLOCK * width):
        ends = np.flatnonzero(np.frombuffer(block, f"<u{width}") == END_OF_TEXT)
        if ends.size and place + int(ends[0]) + 1 < count:
            return place + int(ends[0]) + 1
        place += len(block) // width
    return earliest


# --------------------------------------------------------------------------------------------------- commands


def describe(name: str, tokenizer: Tokenizer) -> dict[str, int | str]:
    """Return what a data set holds: its kind, tokens in all and held out, vocabulary, broken lines of jsonl.

    Raises:
        DataError: It can't be read.
    """
    kind = _kind_of(name)
    if kind == "bin":
        header = TokenFile.read(Path(name))
        held_out = header.tokens - header.held_out_from
        return {
            "kind": "token file",
            "tokens": header.tokens,
            "held out": held_out,
            "vocabulary": header.vocab_size,
            "tokenizer": header.tokenizer,
        }
    facts: dict[str, int | str] = {"kind": kind}
    if kind == "jsonl":
        broken = BrokenLines(name, "skip")
        facts["tokens"] = len(_gather(tokenizer, read_jsonl(broken, "all", 0, 1), separate=True))
        held_out_texts = read_jsonl(BrokenLines(name, "skip"), "held-out", 0, 1)
        facts["held out"] = len(_gather(tokenizer, held_out_texts, separate=True))
        facts["broken lines"] = broken.count
    else:
        facts["held out"] = len(_split_of_text(name, tokenizer, "held-out"))
        facts["tokens"] = len(_split_of_text(name, tokenizer, "train")) + int(facts["held out"])
    return {**facts, "vocabulary": tokenizer.vocab_size}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m swarm_agent.data", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("tokenize", help="make a token file")
    making.add_argument("source", help="a .txt or .jsonl file, or a built-in text")
    making.add_argument("target", type=Path, help="the file to make; its name ends in .bin")
    making.add_argument("--on-broken", choices=["refuse", "skip"], default="refuse", help="broken lines of jsonl")
    telling = commands.add_parser("describe", help="say what a data set holds")
    telling.add_argument("source", metavar="path", help="a .txt, .jsonl or .bin file, or a built-in text")
    for command in (making, telling):
        command.add_argument("--tokenizer", choices=["bytes", "world"], default="bytes")
    options = parser.parse_args(arguments)
    logs.configure()
    try:
        if options.command == "describe":
            facts = describe(options.source, get_tokenizer(options.tokenizer))
            print("\n".join(f"{name}: {value}" for name, value in facts.items()))
        else:
            made = _tokenize_as_asked(options.source, options.target, options.tokenizer, options.on_broken)
            print(f"{options.target}: {made.tokens} tokens, {made.tokens - made.held_out_from} of them held out")
    except AgentError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


def _tokenize_as_asked(source: str, target: Path, tokenizer: str, on_broken: OnBroken) -> TokenFile:
    if target.suffix != ".bin":
        raise DataError(f"{target}: the name must end in .bin, or it could not be opened as a token file.")
    return tokenize(source, target, tokenizer, on_broken)


if __name__ == "__main__":
    sys.exit(main())
