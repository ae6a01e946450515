"""Optimizers, learning-rate schedules and clipping on one flat float32 vector.

The coordinator keeps all tensors of a model one after the other in a single vector, as they travel on the
wire. A `Layout` says which part belongs to which tensor, and how much of the learning rate and of the weight
decay that tensor gets. Optimizers change the weights in place, walk the vector in pieces that fit the
processor's cache, and never write to the gradient: it is usually a view of the receive buffer. Imports numpy
and the standard library only.

Clipping makes no copy either: `clip_global_norm` and `clip_each_tensor` return factors, to be passed to
`Optimizer.step` as `scale` (multiplied with any other weight, such as the one for staleness).
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

# Elements handled at once: few enough for the second-level cache, enough to hide the cost of numpy's calls.
PIECE = 65536
# Short enough for OpenBLAS to stay on this thread, and for a float32 sum of squares to be accurate.
NORM_PIECE = 8192
# Pieces (two million elements) below which a busy machine takes longer to wake another thread than that one saves.
WORTH_SHARING = 32


class Multipliers(NamedTuple):
    """How much of the learning rate and of the weight decay a tensor gets; 1 is all of it."""

    rate: float = 1.0
    decay: float = 1.0


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """One tensor's place in the flat vector: elements `start` to `stop`, in C order."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    multipliers: Multipliers


def same_for_all(name: str, shape: tuple[int, ...]) -> Multipliers:  # noqa: ARG001
    """Give every tensor all of the learning rate and of the weight decay, as PyTorch does without groups."""
    return Multipliers()


def rwkv_multipliers(name: str, shape: tuple[int, ...]) -> Multipliers:
    """Follow RWKV-7's training recipe: decay only 2-D `*.weight`, and train `att.w0` at twice the rate."""
    return Multipliers(
        rate=2.0 if name.endswith("att.w0") else 1.0,
        decay=1.0 if name.endswith(".weight") and len(shape) == 2 else 0.0,
    )


@dataclass(frozen=True)
class Layout:
    """The tensors of a model in the order of the flat vector, without gaps."""

    tensors: tuple[TensorSlice, ...]

    @classmethod
    def from_shapes(
        cls,
        shapes: Mapping[str, tuple[int, ...]],
        multipliers: Callable[[str, tuple[int, ...]], Multipliers] = same_for_all,
    ) -> "Layout":
        """Lay tensors out in the mapping's order.

        Args:
            shapes: Each tensor's name and shape; `()` is one element.
            multipliers: Called with name and shape; says how much of rate and decay the tensor gets.
        """
        tensors = []
        start = 0
        for name, shape in shapes.items():
            stop = start + math.prod(shape)
            tensors.append(TensorSlice(name, start, stop, tuple(shape), multipliers(name, shape)))
            start = stop
        return cls(tuple(tensors))

    @property
    def size(self) -> int:
        """Number of elements of the flat vector."""
        return self.tensors[-1].stop if self.tensors else 0

    @functools.cached_property
    def places(self) -> NDArray[np.int64]:
        """Start and stop of each tensor: int64, shape [number of tensors, 2]."""
        return np.array([(t.start, t.stop) for t in self.tensors], np.int64).reshape(-1, 2)

    def views(self, flat: Vector) -> dict[str, Vector]:
        """Return each tensor as a shaped view of `flat` (a writable one if `flat` is).

        Raises:
            ValueError: `flat` does not have this layout's size.
        """
        _check_vector("flat", flat, self.size)
        return {t.name: flat[t.start : t.stop].reshape(t.shape) for t in self.tensors}


# ------------------------------------------------------------------------------------------------- optimizers


class _Piece(NamedTuple):
    """A cache-sized part of the vector whose elements are all treated alike."""

    place: slice
    multipliers: Multipliers
    tensor: int


class _Rates(NamedTuple):
    """What one piece's update needs to know, with the tensor's multipliers already in it."""

    learning_rate: float
    decay: float
    scale: float


class Optimizer(ABC):
    """An update rule with its state, for one vector of `layout.size` elements."""

    def __init__(self, layout: Layout, *, weight_decay: float = 0.0, threads: int = 1) -> None:
        """Start with a state of zeros.

        Args:
            layout: Which part of the vector is which tensor.
            weight_decay: Decay per unit of learning rate, for tensors with multiplier 1.
            threads: How many threads share the work; numpy releases the interpreter's lock while it computes.

        Raises:
            ValueError: A hyperparameter is outside its range.
        """
        _require(weight_decay >= 0, f"weight_decay must be 0 or more, not {weight_decay}")
        _require(threads >= 1, f"threads must be 1 or more, not {threads}")
        self.layout = layout
        self.weight_decay = weight_decay
        self.steps = 0
        self._whole = tuple(_pieces(layout, by_tensor=False))
        self._by_tensor = tuple(_pieces(layout, by_tensor=True))
        helpers = threads - 1 if len(self._whole) >= WORTH_SHARING else 0
        self._scratches = [np.empty((2, PIECE), np.float32) for _ in range(1 + helpers)]
        self._pool = ThreadPoolExecutor(helpers, "optimizer") if helpers else None

    def step(
        self,
        weights: Vector,
        gradient: Vector,
        learning_rate: float,
        scale: float | NDArray[np.floating[Any]] = 1.0,
    ) -> None:
        """Update `weights` in place; `gradient` is only read.

        Args:
            weights: Flat float32 vector of the layout's size.
            gradient: The same, pointing uphill.
            learning_rate: For this step, from a schedule.
            scale: Multiplies the gradient: one factor, or one for each tensor of the layout.

        Raises:
            ValueError: A vector's type or size is wrong, or a rate or factor is not finite; nothing changed.
        """
        _check_vector("weights", weights, self.layout.size)
        _check_vector("gradient", gradient, self.layout.size)
        _require(math.isfinite(learning_rate), f"the learning rate is {learning_rate}")
        scales = np.asarray(scale, np.float64)
        _require(bool(np.isfinite(scales).all()), "a factor for the gradient is not finite")
        _require(
            scales.ndim == 0 or scales.shape == (len(self.layout.tensors),),
            f"expected one factor or {len(self.layout.tensors)}, one per tensor; got shape {scales.shape}",
        )
        self.steps += 1
        self._apply(weights, gradient, learning_rate, scales)

    def _apply(self, weights: Vector, gradient: Vector, learning_rate: float, scales: NDArray[np.float64]) -> None:
        pieces, factors = (self._whole, None) if scales.ndim == 0 else (self._by_tensor, scales.tolist())

        def run(scratch: Vector) -> None:
            for place, (rate, decay), tensor in waiting:
                rates = _Rates(
                    learning_rate * rate,
                    self.weight_decay * decay,
                    float(scales) if factors is None else factors[tensor],
                )
                self._update(place, weights[place], gradient[place], scratch[:, : place.stop - place.start], rates)

        # All threads take from one supply, so that one which the system wakes late holds up nobody.
        waiting = iter(pieces)
        helpers: list[Future[None]] = []
        if self._pool is not None:
            helpers = [self._pool.submit(run, scratch) for scratch in self._scratches[1:]]
        run(self._scratches[0])
        for helper in helpers:
            if not helper.cancel():
                helper.result()

    @abstractmethod
    def _update(self, place: slice, weights: Vector, gradient: Vector, scratch: Vector, rates: _Rates) -> None:
        """Update the elements at `place`; the vectors hold just these, `scratch` is two rows as long."""

    @abstractmethod
    def _vectors(self) -> dict[str, Vector]:
        """Name the state vectors, each of the layout's size."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what a checkpoint needs: `steps` (int64, shape [1]) and the state vectors (float32, flat).

        The vectors are the live ones, not copies: save or copy them before the next step.
        """
        return {"steps": np.array([self.steps], np.int64), **self._vectors()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over a state that `state` returned, copying it.

        Raises:
            ValueError: Names, types, sizes or values do not fit this optimizer. Nothing was changed.
        """
        mine = self._vectors()
        _require(
            set(state) == {"steps", *mine},
            f"the optimizer's state holds {sorted(state)}, but should hold {sorted(['steps', *mine])}",
        )
        steps = state["steps"]
        _require(
            steps.shape == (1,) and steps.dtype == np.int64 and steps[0] >= 0,
            f"'steps' must be one int64 of 0 or more, not {steps.dtype} {steps.tolist()}",
        )
        for name in mine:
            _check_vector(f"optimizer state '{name}'", state[name], self.layout.size)
            _require(
                bool(np.isfinite(state[name]).all()),
                f"optimizer state '{name}' holds a value that is not finite",
            )
        for name, vector in mine.items():
            np.copyto(vector, state[name])
        self.steps = int(steps[0])


class Sgd(Optimizer):
    """Stochastic gradient descent with momentum and L2 decay, in PyTorch's form: v = mu v + g; w -= rate * v.

    With `nesterov` the step is g + mu v (Sutskever et al. 2013, as `torch.optim.SGD` writes it).
    """

    def __init__(
        self,
        layout: Layout,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        threads: int = 1,
    ) -> None:
        """Start with no velocity.

        Args:
            layout: Which part of the vector is which tensor.
            momentum: mu, at least 0 and below 1; with 0 there is no state vector.
            nesterov: Look ahead by one momentum step; needs a momentum.
            weight_decay: Times the weights, added to the gradient.
            threads: How many threads share the work.

        Raises:
            ValueError: A hyperparameter is outside its range.
        """
        super().__init__(layout, weight_decay=weight_decay, threads=threads)
        _require(0 <= momentum < 1, f"momentum must be at least 0 and below 1, not {momentum}")
        _require(momentum > 0 or not nesterov, "Nesterov's step needs a momentum above 0")
        self.momentum = momentum
        self.nesterov = nesterov
        self._velocity = np.zeros(layout.size if momentum else 0, np.float32)

    def _vectors(self) -> dict[str, Vector]:
        return {"velocity": self._velocity} if self.momentum else {}

    def _update(self, place: slice, weights: Vector, gradient: Vector, scratch: Vector, rates: _Rates) -> None:
        spare, step = scratch
        gradient = _scaled_with_decay(weights, gradient, spare, step, rates)
        if self.momentum:
            velocity = self._velocity[place]
            velocity *= self.momentum
            velocity += gradient
            if not self.nesterov:
                gradient = velocity
            else:
                np.multiply(velocity, self.momentum, out=step)
                gradient = np.add(gradient, step, out=step)
        np.multiply(gradient, rates.learning_rate, out=step)
        weights -= step


class Adam(Optimizer):
    """Adam (arXiv 1412.6980) with bias correction, or AdamW (arXiv 1711.05101) with `decoupled` weight decay.

    At step t: m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g²;
    w -= rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon).
    Plain Adam adds decay * w to g; AdamW first shrinks w by the factor 1 - rate * decay.
    With b1 = 0, m is the gradient itself and not kept: a third less state, and a quarter fewer passes.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        threads: int = 1,
    ) -> None:
        """Start with moments of zero.

        Args:
            layout: Which part of the vector is which tensor.
            betas: (b1, b2), each at least 0 and below 1; with b1 = 0 there is no vector of means.
            epsilon: Added to the root; above 0.
            weight_decay: Decay, coupled or decoupled.
            decoupled: Whether this is AdamW.
            threads: How many threads share the work.

        Raises:
            ValueError: A hyperparameter is outside its range.
        """
        super().__init__(layout, weight_decay=weight_decay, threads=threads)
        _require(len(betas) == 2, f"betas are two numbers, not {betas}")
        _require(all(0 <= beta < 1 for beta in betas), f"betas must be at least 0 and below 1, not {betas}")
        _require(epsilon > 0, f"epsilon must be above 0, not {epsilon}")
        self.betas = (float(betas[0]), float(betas[1]))
        self.epsilon = epsilon
        self.decoupled = decoupled
        self._mean = np.zeros(layout.size if self.betas[0] else 0, np.float32)
        self._square = np.zeros(layout.size, np.float32)

    def _vectors(self) -> dict[str, Vector]:
        return {"mean": self._mean, "square": self._square} if self.betas[0] else {"square": self._square}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over a saved state; see `Optimizer.load_state`. A mean that b1 = 0 has no use for is let go.

        Raises:
            ValueError: It does not fit, or holds a negative mean of squares. Nothing was changed.
        """
        if not self.betas[0]:
            state = {name: vector for name, vector in state.items() if name != "mean"}
        square = state.get("square")
        _require(square is None or not bool((square < 0).any()), "optimizer state 'square' holds a negative value")
        super().load_state(state)

    def _update(self, place: slice, weights: Vector, gradient: Vector, scratch: Vector, rates: _Rates) -> None:
        beta1, beta2 = self.betas
        spare, step = scratch
        scale = rates.scale
        if rates.decay and self.decoupled:
            weights *= 1 - rates.learning_rate * rates.decay
        elif rates.decay:
            gradient, scale = _scaled_with_decay(weights, gradient, spare, step, rates), 1.0
        mean, square = gradient, self._square[place]
        if beta1:
            mean = self._mean[place]
            np.multiply(gradient, (1 - beta1) * scale, out=step)
            mean *= beta1
            mean += step
            mean_scale = 1 / (1 - beta1**self.steps)
        else:
            mean_scale = scale
        np.multiply(gradient, math.sqrt(1 - beta2) * scale, out=step)
        np.square(step, out=step)
        square *= beta2
        square += step
        # sqrt(v / c) + epsilon = (sqrt(v) + epsilon sqrt(c)) / sqrt(c): no pass for the correction.
        correction = math.sqrt(1 - beta2**self.steps)
        np.sqrt(square, out=step)
        step += self.epsilon * correction
        np.divide(mean, step, out=step)
        step *= rates.learning_rate * correction * mean_scale
        weights -= step


def _adamw(layout: Layout, *, adam: Callable[..., Adam], **hyper: Any) -> Optimizer:
    return adam(layout, decoupled=True, **{"weight_decay": 0.01, **hyper})


def _adam(layout: Layout, *, adam: Callable[..., Adam], **hyper: Any) -> Optimizer:
    return adam(layout, **hyper)


def _nesterov_outer(layout: Layout, **hyper: Any) -> Optimizer:
    return Sgd(layout, nesterov=True, **{"momentum": 0.9, **hyper})


ADAMS = ("adam", "adamw")
OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "sgd": Sgd,
    "adam": _adam,
    "adamw": _adamw,
    "nesterov_outer": _nesterov_outer,
}


def make_optimizer(kind: str, layout: Layout, *, adam: Callable[..., Adam] = Adam, **hyper: Any) -> Optimizer:
    """Make an optimizer by its name.

    `nesterov_outer` is DiLoCo's outer optimizer (arXiv 2311.08105): Nesterov momentum 0.9, to be stepped at
    the outer rate (0.7 there) with the pseudo-gradient: weights before minus weights after the local steps.

    Args:
        kind: `sgd`, `adam`, `adamw` (decay 0.01 unless said otherwise) or `nesterov_outer`.
        layout: Which part of the vector is which tensor.
        adam: What to make of the two kinds of Adam, such as `fused.Adam`.
        **hyper: Keyword arguments of `Sgd` or `Adam`.

    Raises:
        ValueError: The kind or a hyperparameter is unknown, or a value is outside its range.
    """
    maker = OPTIMIZERS.get(kind)
    if maker is None:
        raise ValueError(f"unknown optimizer '{kind}'; known are {', '.join(OPTIMIZERS)}")
    if kind in ADAMS:
        hyper["adam"] = adam
    try:
        return maker(layout, **hyper)
    except TypeError as error:
        raise ValueError(f"optimizer '{kind}': {error}") from error


def _scaled_with_decay(weights: Vector, gradient: Vector, out: Vector, spare: Vector, rates: _Rates) -> Vector:
    """Return scale * gradient + decay * weights, in `out` unless it is just the gradient."""
    if rates.scale != 1.0:
        gradient = np.multiply(gradient, rates.scale, out=out)
    if rates.decay:
        np.multiply(weights, rates.decay, out=spare)
        gradient = np.add(gradient, spare, out=out)
    return gradient


def _pieces(layout: Layout, *, by_tensor: bool) -> Iterator[_Piece]:
    """Cut the vector into pieces; neighbours with equal multipliers share pieces unless `by_tensor`."""
    tensors = layout.tensors
    first = 0
    while first < len(tensors):
        last = first
        while not by_tensor and last + 1 < len(tensors) and tensors[last + 1].multipliers == tensors[first].multipliers:
            last += 1
        for start in range(tensors[first].start, tensors[last].stop, PIECE):
            stop = min(start + PIECE, tensors[last].stop)
            yield _Piece(slice(start, stop), tensors[first].multipliers, first)
        first = last + 1


# --------------------------------------------------------------------------------------------------- clipping


class Clipping(NamedTuple):
    """The gradient's norm before clipping, and the factor that brings it under the limit (at most 1)."""

    norm: float
    factor: float


def clip_global_norm(gradient: Vector, limit: float, scale: float = 1.0) -> Clipping:
    """Measure the 2-norm of `scale * gradient`, and the factor that clips it.

    The factor is that of `torch.nn.utils.clip_grad_norm_`: limit / (norm + 1e-6), at most 1. Nothing is
    copied or changed: pass `scale * factor` to `Optimizer.step`. A norm that is not finite means that the
    gradient holds NaN or infinity and should be refused; its factor is 0.

    Raises:
        ValueError: The limit is not above 0.
    """
    _require(limit > 0, f"a norm's limit must be above 0, not {limit}")
    with np.errstate(over="ignore"):
        norm = abs(scale) * math.sqrt(_sum_of_squares(gradient))
    return Clipping(norm, _clip_factor(norm, limit))


def sums_of_squares(gradient: Vector, layout: Layout) -> NDArray[np.float64]:
    """Add up the squares of each tensor: float64, shape [number of tensors]; one that is not finite is no number."""
    return np.array([_sum_of_squares(gradient[t.start : t.stop]) for t in layout.tensors])


def clip_each_tensor(
    gradient: Vector,
    layout: Layout,
    limit: float,
    scale: float = 1.0,
    sums: Callable[[Vector, Layout], NDArray[np.float64]] = sums_of_squares,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Measure each tensor's norm and the factor that clips that tensor by itself.

    For models where one tensor holds nearly the whole norm (RWKV's embedding at the start), so that a global
    limit would stop all the others. Returns (norms, factors), each float64 of shape [number of tensors]; pass
    `scale * factors` to `Optimizer.step`. A norm that is not finite has factor 0. `sums` is what adds up the
    squares; `fused.sums_of_squares` does it faster.

    Raises:
        ValueError: The limit is not above 0, or the gradient does not have the layout's size.
    """
    _require(limit > 0, f"a norm's limit must be above 0, not {limit}")
    _check_vector("gradient", gradient, layout.size)
    with np.errstate(over="ignore"):
        norms = abs(scale) * np.sqrt(sums(gradient, layout))
    return norms, np.array([_clip_factor(norm, limit) for norm in norms.tolist()])


def _clip_factor(norm: float, limit: float) -> float:
    return min(1.0, limit / (norm + 1e-6)) if math.isfinite(norm) else 0.0


def _sum_of_squares(values: Vector) -> float:
    """Add up squares in float64, piece by piece; each piece in float32 unless that overflows, in silence."""
    whole = values.size - values.size % NORM_PIECE
    squares = float(np.dot(values[whole:], values[whole:]))
    if whole:
        pieces = values[:whole].reshape(-1, NORM_PIECE)
        # One product of a row and a column for each piece, all in one call: half the time was that of the calls.
        squares += float(np.matmul(pieces[:, None, :], pieces[:, :, None]).sum(dtype=np.float64))
    return squares if math.isfinite(squares) else sum_of_large_squares(values)


def sum_of_large_squares(values: Vector) -> float:
    """Add up squares in float64 where float32 would overflow; in silence if that is not finite either."""
    pieces = (values[start : start + NORM_PIECE] for start in range(0, values.size, NORM_PIECE))
    return sum(float(np.square(piece, dtype=np.float64).sum()) for piece in pieces)


class Arithmetic(NamedTuple):
    """By what the coordinator computes: what can be done in more than one way.

    Attributes:
        name: Shown in the log.
        adam: Class with the arguments of `Adam`.
        sums_of_squares: See the function of that name.
    """

    name: str
    adam: Callable[..., Adam]
    sums_of_squares: Callable[[Vector, Layout], NDArray[np.float64]]


NUMPY = Arithmetic("numpy", Adam, sums_of_squares)


# -------------------------------------------------------------------------------------------------- schedules


@dataclass(frozen=True, slots=True)
class Constant:
    """The same learning rate at every step, after a linear warm-up of `warmup` steps (0: none)."""

    learning_rate: float
    warmup: int = 0

    def __call__(self, step: int) -> float:
        """Return the learning rate of update number `step`, counted from 0."""
        return self.learning_rate * _warmup_fraction(step, self.warmup)


@dataclass(frozen=True, slots=True)
class Cosine:
    """Linear warm-up, then half a cosine, down to `final_fraction` of the rate from step `total` on."""

    learning_rate: float
    warmup: int
    total: int
    final_fraction: float = 0.1

    def __call__(self, step: int) -> float:
        """Return the learning rate of update number `step`, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * _warmup_fraction(step, self.warmup)
        progress = min(1.0, (step - self.warmup) / (self.total - self.warmup))
        height = 0.5 * (1 + math.cos(math.pi * progress))
        return self.learning_rate * (self.final_fraction + (1 - self.final_fraction) * height)


@dataclass(frozen=True, slots=True)
class WarmupStableDecay:
    """Linear warm-up, constant, then `decay` steps of a straight fall to `final_fraction` at step `total`.

    As studied in arXiv 2405.18392; training may go on from before the fall with a larger `total`.
    """

    learning_rate: float
    warmup: int
    total: int
    decay: int
    final_fraction: float = 0.1

    def __call__(self, step: int) -> float:
        """Return the learning rate of update number `step`, counted from 0."""
        left = min(1.0, max(0.0, (self.total - step) / self.decay))
        height = min(_warmup_fraction(step, self.warmup), self.final_fraction + (1 - self.final_fraction) * left)
        return self.learning_rate * height


Schedule = Constant | Cosine | WarmupStableDecay


def make_schedule(
    kind: str,
    learning_rate: float,
    *,
    warmup: int = 0,
    total: int | None = None,
    final_fraction: float = 0.1,
    decay: int | None = None,
) -> Schedule:
    """Make a learning-rate schedule, a function of the number of updates done before.

    Args:
        kind: `constant`, `cosine` or `wsd`.
        learning_rate: The highest rate.
        warmup: Steps of linear warm-up; step 0 has 1/warmup of the rate.
        total: Steps in all; needed by `cosine` and `wsd`.
        final_fraction: What part of the rate is left at the end.
        decay: Steps of `wsd`'s fall; a fifth of `total` unless given.

    Raises:
        ValueError: The kind is unknown, or a number is missing or outside its range.
    """
    _require(kind in ("constant", "cosine", "wsd"), f"unknown schedule '{kind}'; known are constant, cosine, wsd")
    _require(
        math.isfinite(learning_rate) and learning_rate > 0,
        f"the learning rate must be above 0, not {learning_rate}",
    )
    _require(warmup >= 0, f"warmup must be 0 steps or more, not {warmup}")
    _require(0 <= final_fraction <= 1, f"final_fraction must be between 0 and 1, not {final_fraction}")
    if kind == "constant":
        return Constant(learning_rate, warmup)
    if total is None:
        raise ValueError(f"schedule '{kind}' needs the total number of steps")
    _require(total > warmup, f"total ({total}) must be more steps than warmup ({warmup})")
    if kind == "cosine":
        return Cosine(learning_rate, warmup, total, final_fraction)
    decay = max(1, total // 5) if decay is None else decay
    _require(1 <= decay <= total, f"decay must be between 1 step and total ({total}), not {decay}")
    return WarmupStableDecay(learning_rate, warmup, total, decay, final_fraction)


def _warmup_fraction(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


# ----------------------------------------------------------------------------------------------------- checks


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _check_vector(what: str, vector: NDArray[Any], size: int) -> None:
    _require(
        vector.dtype == np.float32 and vector.shape == (size,),
        f"{what} must be float32 of shape ({size},), not {vector.dtype} of shape {vector.shape}",
    )
