"""Write text with a trained model.

    python -m swarm_agent.generate CHECKPOINT --prompt "ROMEO:" --tokens 200 --temperature 0.8 --top-p 0.9

CHECKPOINT is whatever `models.open_model` opens. Text goes to standard output as it is made.

May import: `errors`, `models`, `rwkv7`, `tokenizers`.
"""

import argparse
import codecs
import io
import os
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import AgentError, ModelError
from .models import open_model
from .rwkv7 import RWKV7
from .tokenizers import ByteTokenizer, WorldTokenizer, get_tokenizer

END_OF_TEXT = 0


def sample(logits: NDArray[np.floating], temperature: float, top_p: float, rng: np.random.Generator) -> int:
    """Choose the next token (nucleus sampling, Holtzman et al. 2020).

    Args:
        logits: [V]. Minus infinity is never chosen.
        temperature: Divides the logits; 0 takes the largest.
        top_p: Only the fewest tokens whose probability sums to at least this may be chosen, in (0, 1].
        rng: Source of chance.

    Raises:
        ValueError: The temperature is negative, top_p is outside its range, or a logit is not a number.
    """
    if not temperature >= 0:
        raise ValueError(f"temperature must be 0 or more, found {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, found {top_p}")
    if np.isnan(logits).any():
        raise ValueError("the model's logits are not numbers: its weights are damaged or training diverged")
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) - logits.max()
    with np.errstate(over="ignore"):  # next to no temperature: minus infinity is what is meant
        probabilities = np.exp(scaled / temperature)
    probabilities /= probabilities.sum()
    likeliest_first = np.argsort(-probabilities, kind="stable")
    cumulative = np.cumsum(probabilities[likeliest_first])
    kept = likeliest_first[: int(np.searchsorted(cumulative, min(top_p, cumulative[-1]))) + 1]
    weights = probabilities[kept]
    return int(rng.choice(kept, p=weights / weights.sum()))


def generate(
    model: RWKV7,
    tokenizer: ByteTokenizer | WorldTokenizer,
    prompt: str,
    *,
    tokens: int,
    temperature: float = 1.0,
    top_p: float = 0.9,
    seed: int | None = None,
) -> Iterator[str]:
    """Yield the text that follows the prompt, piece by piece, until `tokens` are made or the model ends the text.

    Raises:
        ModelError: The model has fewer tokens than the tokenizer.
        ValueError: An argument is outside its range; see `sample`.
    """
    known = tokenizer.vocab_size
    if model.config.vocabulary < known:
        raise ModelError(
            f"the model has {model.config.vocabulary} tokens and the tokenizer '{tokenizer.name}' {known}: "
            "it was trained with another one"
        )
    rng = np.random.default_rng(seed)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    state = model.initial_state(1)
    # A text begins where another ended.
    for token in [*tokenizer.encode(prompt)] or [END_OF_TEXT]:
        logits, state = model.step(np.array([token]), state)
    for _ in range(tokens):
        token = sample(logits[0, :known], temperature, top_p, rng)
        if token == END_OF_TEXT:
            break
        if text := decoder.decode(tokenizer.decode_bytes([token])):
            yield text
        logits, state = model.step(np.array([token]), state)
    if rest := decoder.decode(b"", final=True):
        yield rest


def _write(options: argparse.Namespace) -> None:
    model, _ = open_model(options.checkpoint)
    name = options.tokenizer or ("bytes" if model.config.vocabulary == ByteTokenizer.vocab_size else "world")
    pieces = generate(
        model,
        get_tokenizer(name),
        options.prompt,
        tokens=options.tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
    )
    print(options.prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _discard_output() -> None:
    """Python would else try to write the rest as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m swarm_agent.generate", description="Write text with a model.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint, folder of them, weights, or init:NAME")
    parser.add_argument("--prompt", default="\n", metavar="TEXT", help="what comes before (default: a new line)")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="at most so many (default 200)")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (default 1)")
    parser.add_argument("--top-p", type=float, default=0.9, metavar="P", help="of probability kept (default 0.9)")
    parser.add_argument("--seed", type=int, default=None, metavar="N", help="for the same text again")
    parser.add_argument("--tokenizer", choices=["bytes", "world"], help="default: by the size of the vocabulary")
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows ASCII only gets "?", and not half a text
    try:
        _write(options)
    except (AgentError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as head, has had enough
        _discard_output()
    except OSError as error:  # a full disk behind `> file`
        print(f"{parser.prog}: can't write the text: {error.strerror or error}", file=sys.stderr)
        _discard_output()
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
