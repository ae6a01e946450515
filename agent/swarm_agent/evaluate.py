"""Held-out loss of a checkpoint: how well a model predicts text that it was never trained on.

    python -m swarm_agent.evaluate CHECKPOINT [--data shakespeare|PATH] [--tokens N] [--json]

CHECKPOINT is a checkpoint's directory, a directory of checkpoints (its newest whole one), a .safetensors
file, or `init:rwkv-tiny` for a model as it is before training.

May import: `checkpoint`, `data`, `errors`, `logs`, `rwkv7`, `tokenizers`.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import logs
from .data import WindowSource, open_data
from .errors import AgentError, DataError, ModelError
from .models import open_model
from .rwkv7 import RWKV7
from .tokenizers import ByteTokenizer, get_tokenizer

CONTEXT = 128
TOKENS = 65536
BATCH_TOKENS = 2048  # predicted at once; bounds the memory that this takes


class Evaluation(NamedTuple):
    """A model's mean loss in nats per token, and over how many predicted tokens."""

    loss: float
    tokens: int


def evaluate(model: RWKV7, source: WindowSource, tokens: int = TOKENS) -> Evaluation:
    """Measure a model on a source's next windows, in the source's order.

    Args:
        model: What to measure.
        source: Where the text comes from; opened with the same arguments, it gives the same windows.
        tokens: How many tokens to predict, rounded up to whole windows; fewer if the pass is over before.

    Raises:
        DataError: The source's pass is over.
        ModelError: A token is outside the model's vocabulary.
    """
    total, predicted = 0.0, 0
    while predicted < tokens:
        missing = math.ceil((tokens - predicted) / source.context)
        batch = source.next_batch(min(missing, max(1, BATCH_TOKENS // source.context)))
        if batch is None:
            break
        count = len(batch) * source.context
        try:
            with np.errstate(all="ignore"):  # said below, in a sentence
                total += model.loss(batch) * count
        except ValueError as error:
            raise ModelError(f"the data does not fit the model: {error}.") from error
        if not math.isfinite(total):
            raise ModelError("the loss is not a finite number: the weights are damaged, or training had diverged.")
        predicted += count
    if not predicted:
        raise DataError("there is nothing to measure on: the pass over the data is over.")
    return Evaluation(total / predicted, predicted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m swarm_agent.evaluate", description="Measure a checkpoint's loss on held-out text."
    )
    parser.add_argument("checkpoint", help="a checkpoint, a folder of them, a .safetensors file, init:rwkv-tiny")
    parser.add_argument("--data", default="shakespeare", help="shakespeare, or a .txt, .jsonl or .bin file")
    parser.add_argument("--tokens", type=_positive, default=TOKENS, help="how many to predict (%(default)s)")
    parser.add_argument("--context", type=_positive, default=CONTEXT, help="tokens per window (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    logs.configure()
    try:
        facts = _evaluate_as_asked(options)
    except AgentError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(facts) if options.json else _sentence(facts))
    return 0


def _evaluate_as_asked(options: argparse.Namespace) -> dict[str, str | int | float]:
    model, found = open_model(options.checkpoint)
    byte_model = model.config.vocabulary == ByteTokenizer.vocab_size
    tokenizer = get_tokenizer("bytes" if byte_model else "world")
    source = open_data(options.data, tokenizer=tokenizer, context=options.context, split="held-out")
    loss, tokens = evaluate(model, source, options.tokens)
    return {
        "checkpoint": found,
        "parameters": model.num_parameters,
        "data": options.data,
        "tokenizer": tokenizer.name,
        "context": options.context,
        "tokens": tokens,
        "loss": loss,
    }


def _sentence(facts: dict[str, str | int | float]) -> str:
    unit = "byte" if facts["tokenizer"] == "bytes" else "token"
    return (
        f"{facts['checkpoint']}: {facts['loss']:.4f} nats per {unit} on {facts['tokens']} held-out {unit}s "
        f"of {facts['data']}"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
