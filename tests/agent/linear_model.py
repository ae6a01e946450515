"""A linear regression in numpy: the smallest model of one's own, for ``--model linear_model:model``.

Settings come from the environment, since a factory takes no arguments: LINEAR_SIZE, the number of weights;
LINEAR_SECONDS, how long a batch takes (a stand-in for computing, so that tests do not burn two cores);
LINEAR_POISON, the number of the batch whose gradient is not finite.
"""

import os
import time

import numpy as np
from numpy.typing import NDArray

ROWS = 400  # in one shard
Batch = NDArray[np.float32]


class Linear:
    """y = x · weight + bias under half the mean squared error."""

    def __init__(self, size: int) -> None:
        self.parameters = {"weight": np.zeros(size, np.float32), "bias": np.zeros(1, np.float32)}
        self.seconds = float(os.environ.get("LINEAR_SECONDS", "0.02"))
        self.poison = int(os.environ.get("LINEAR_POISON", "0"))
        self.batches = 0

    def loss_and_gradients(self, batch: Batch) -> tuple[float, dict[str, NDArray[np.float32]]]:
        time.sleep(self.seconds)
        self.batches += 1
        x, y = batch[:, :-1], batch[:, -1]
        error = x @ self.parameters["weight"] + self.parameters["bias"] - y
        weight = x.T @ error / np.float32(len(batch))
        if self.batches == self.poison:
            weight[0] = np.nan
        return float(0.5 * np.mean(error**2)), {"weight": weight, "bias": error.mean(keepdims=True)}


class Rows:
    """Rows (x, y) of one shard; y is the sum of x over the root of its length, plus 1."""

    def __init__(self, shard: int, total_shards: int) -> None:
        self.size = _size()
        self.shard = shard
        self.next = 0

    def next_batch(self, batch_size: int) -> Batch | None:
        count = min(batch_size, ROWS - self.next)
        if count == 0:
            return None
        x = np.random.default_rng((self.shard, self.next)).standard_normal((count, self.size), np.float32)
        self.next += count
        return np.hstack([x, x.sum(axis=1, keepdims=True) / np.float32(self.size**0.5) + 1])

    def reset(self) -> None:
        self.next = 0

    def close(self) -> None:
        pass


def model() -> Linear:
    return Linear(_size())


def _size() -> int:
    return int(os.environ.get("LINEAR_SIZE", "8"))
