"""Adam and the norms that clipping needs, each in one pass over memory: compiled when the coordinator starts.

numpy makes nine to twelve passes over each piece of the vectors, these make one. Needs numba (the extra ``fast``);
without it the coordinator does the same in numpy. Adam's numbers come out the same to the last bit: its operations are
those of `optim.Adam` in their order, and numba neither reorders nor contracts them unless it is asked to.

Imports numba, numpy and ``optim``.

Nothing is cached on disk: compiling takes a second or two, and a container's root may not be written to.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from . import optim
from .optim import NORM_PIECE, Layout, Vector

if getattr(numba.config, "DISABLE_JIT", 0):
    raise ImportError("NUMBA_DISABLE_JIT is set")

_VECTOR = types.Array(types.float32, 1, "C")
# The gradient is a view of what was received: not for writing, and at any address.
_VIEW = types.Array(types.float32, 1, "C", readonly=True, aligned=False)
_PLACES = types.Array(types.int64, 2, "C", readonly=True)
_SUMS = types.Array(types.float64, 1, "C")
_NUMBER = types.float32
# Division by zero gives infinity as in numpy, instead of an exception that would keep loops from being vectorised.
_compiled = functools.partial(numba.njit, error_model="numpy", nogil=True)


class Adam(optim.Adam):
    """`optim.Adam`, with the same arguments and the same results; one thread suffices to be bound by memory."""

    def __init__(self, layout: Layout, *, threads: int = 1, **hyper: Any) -> None:  # noqa: ARG002
        """Compile the update rule; see `optim.Adam` for arguments and errors."""
        super().__init__(layout, **hyper)
        self._places = np.array([(piece.place.start, piece.place.stop) for piece in self._by_tensor], np.int64)
        self._rates = np.array([piece.multipliers.rate for piece in self._by_tensor])
        self._decays = self.weight_decay * np.array([piece.multipliers.decay for piece in self._by_tensor])
        self._tensors = np.array([piece.tensor for piece in self._by_tensor])
        self._kernel = _adam(bool(self.betas[0]))
        self._kernel(_NONE, _RECEIVED, _NONE, _NONE, _NOWHERE, np.empty((0, 6), np.float32), 0.0, 0.0, 0.0)

    def _apply(self, weights: Vector, gradient: Vector, learning_rate: float, scales: NDArray[np.float64]) -> None:
        beta1, beta2 = self.betas
        rates = learning_rate * self._rates
        scale = np.broadcast_to(scales, len(self.layout.tensors))[self._tensors]
        shrink, decay, before = np.ones_like(rates), np.zeros_like(rates), np.ones_like(rates)
        if self.decoupled:
            shrink = 1 - rates * self._decays
        else:
            # With decay of the older kind, the gradient is scaled before the decay is added to it.
            decay = self._decays
            before, scale = np.where(decay > 0, scale, 1.0), np.where(decay > 0, 1.0, scale)
        correction = math.sqrt(1 - beta2**self.steps)
        mean_scale = 1 / (1 - beta1**self.steps) if beta1 else scale
        factors = (
            shrink,
            before,
            decay,
            (1 - beta1) * scale,
            math.sqrt(1 - beta2) * scale,
            rates * correction * mean_scale,
        )
        table = np.stack(np.broadcast_arrays(*factors), axis=1).astype(np.float32)
        epsilon = self.epsilon * correction
        self._kernel(weights, gradient, self._mean, self._square, self._places, table, beta1, beta2, epsilon)


def sums_of_squares(gradient: Vector, layout: Layout) -> NDArray[np.float64]:
    """Do what `optim.sums_of_squares` does, the same but for rounding."""
    sums = np.empty(len(layout.tensors))
    _squares(gradient, layout.places, sums)
    for tensor in np.flatnonzero(~np.isfinite(sums)):
        start, stop = layout.places[tensor]
        sums[tensor] = optim.sum_of_large_squares(gradient[start:stop])
    return sums


@functools.cache
def _adam(has_mean: bool) -> Callable[..., None]:
    """Compile the loop; without a mean, what stands for it is never touched."""

    def piece(w, g, m, v, factors, beta1, beta2, epsilon):  # type: ignore[no-untyped-def]
        shrink, before, decay, for_mean, for_square, rate = factors
        for i in range(w.size):
            weight = w[i] * shrink
            x = g[i] * before + weight * decay
            root = x * for_square
            square = v[i] * beta2 + root * root
            v[i] = square
            if has_mean:
                x = m[i] * beta1 + x * for_mean
                m[i] = x
            w[i] = weight - x / (np.sqrt(square) + epsilon) * rate

    one = _compiled()(piece)

    def all_pieces(w, g, m, v, places, table, beta1, beta2, epsilon):  # type: ignore[no-untyped-def]
        for p in range(places.shape[0]):
            # Slices, so that the compiler knows that no index is negative, and can take many elements at once.
            a, b = places[p, 0], places[p, 1]
            t = table[p]
            factors = (t[0], t[1], t[2], t[3], t[4], t[5])
            one(w[a:b], g[a:b], m[a:b], v[a:b], factors, beta1, beta2, epsilon)

    table = types.Array(types.float32, 2, "C")
    signature = types.void(_VECTOR, _VIEW, _VECTOR, _VECTOR, _PLACES, table, _NUMBER, _NUMBER, _NUMBER)
    return _compiled(signature)(all_pieces)


def _make_squares() -> Callable[..., None]:
    def piece(values):  # type: ignore[no-untyped-def]
        total = np.float32(0)
        for i in range(values.size):
            total += values[i] * values[i]
        return total

    # Sums may be reordered: many lanes add up at once, which is also the more accurate way.
    one = _compiled(fastmath={"reassoc", "contract"})(piece)

    def all_tensors(values, places, sums):  # type: ignore[no-untyped-def]
        for t in range(places.shape[0]):
            start, stop = places[t, 0], places[t, 1]
            sums[t] = 0.0
            for a in range(start, stop, NORM_PIECE):
                sums[t] += one(values[a : min(a + NORM_PIECE, stop)])

    return _compiled(types.void(_VIEW, _PLACES, _SUMS))(all_tensors)


# What is compiled is also called once, with nothing, before the first gradient comes: either opens files, and later on,
# with as many workers as files may be open, that might not be possible.
_NONE = np.empty(0, np.float32)
_RECEIVED = np.frombuffer(b"", np.float32)
_NOWHERE = np.empty((0, 2), np.int64)
_squares = _make_squares()
_squares(_RECEIVED, _NOWHERE, np.empty(0))
FUSED = optim.Arithmetic("numba", Adam, sums_of_squares)
