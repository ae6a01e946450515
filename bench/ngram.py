"""What counting alone can predict: byte n-gram models of the built-in text, measured on its held-out plays.

    python bench/ngram.py

These are the figures that a neural model has to beat. Each model is trained on the part of the text that
training uses and predicts every byte of the held-out part. Smoothing is interpolated Witten-Bell (Witten
and Bell 1991, as in Chen and Goodman 1998): the seen followers of a context share its probability with the
next shorter context,

    P(w | h) = (c(hw) + t(h) P(w | h')) / (c(h) + t(h)),

with c counts, t(h) the number of different bytes seen after h, h' = h without its first byte, and below
order 0 the uniform distribution over 256 bytes.
"""

import math
import time

import numpy as np
from numpy.typing import NDArray

from swarm_agent.data import built_in_text

HIGHEST_ORDER = 5  # a context and its follower, six bytes, fit in one 64-bit key

Keys = NDArray[np.uint64]


def main() -> None:
    started = time.perf_counter()
    text, held_out_from = built_in_text("shakespeare")
    codes = np.frombuffer(text, np.uint8)
    held_out = len(text) - held_out_from
    print(f"trained on {held_out_from} bytes, measured on {held_out} held-out bytes\n")
    print("model       nats per byte  bits per byte   contexts")
    probability = np.full(held_out, 1 / 256)
    print_row("uniform", probability, 0)
    for order in range(HIGHEST_ORDER + 1):
        probability, contexts = interpolate(codes, held_out_from, order, probability)
        print_row(f"order {order}", probability, contexts)
    print(f"\n{time.perf_counter() - started:.1f} seconds")


def interpolate(
    codes: NDArray[np.uint8], held_out_from: int, order: int, shorter: NDArray[np.float64]
) -> tuple[NDArray[np.float64], int]:
    """Return P(w | h) for each held-out byte, given the next shorter context's, and the number of contexts seen."""
    grams, counts = np.unique(keys(codes[:held_out_from], order), return_counts=True)
    contexts, first = np.unique(grams >> np.uint64(8), return_index=True)
    followers = np.diff(np.append(first, grams.size))
    totals = np.add.reduceat(counts, first)
    wanted = keys(codes[held_out_from - order :], order)
    seen = look_up(wanted, grams, counts)
    total = look_up(wanted >> np.uint64(8), contexts, totals)
    different = look_up(wanted >> np.uint64(8), contexts, followers)
    known = total > 0
    mixed = (seen + different * shorter) / np.where(known, total + different, 1)
    return np.where(known, mixed, shorter), contexts.size


def keys(codes: NDArray[np.uint8], order: int) -> Keys:
    """Write each byte, with the `order` bytes before it, as one number; the byte itself is the lowest."""
    count = codes.size - order
    result = np.zeros(count, np.uint64)
    for place in range(order + 1):
        result = result << np.uint64(8) | codes[place : place + count]
    return result


def look_up(wanted: Keys, known: Keys, values: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return the value of each wanted key, 0 where it is not known; `known` is sorted."""
    place = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return np.where(known[place] == wanted, values[place], 0)


def print_row(name: str, probability: NDArray[np.float64], contexts: int) -> None:
    nats = float(-np.log(probability).mean())
    print(f"{name:<10}  {nats:13.3f}  {nats / math.log(2):13.3f}  {contexts:9d}")


if __name__ == "__main__":
    main()
