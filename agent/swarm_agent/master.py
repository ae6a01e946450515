"""The master weights: what an arriving gradient does to them, and the figures that are kept about it.

No sockets and no files. One lock guards weights, optimizer and version together, so that a snapshot is always of
one version. May import: ``config``, ``errors``, ``optim``, ``fdtc``.

Asynchronous updates under bounded staleness (Ho et al., NIPS 2013); the weight (1 + staleness)^-1/2 is FedBuff's
(arXiv 2106.06639).
"""

import hashlib
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtc import TensorSpec

from . import optim
from .config import CoordinatorTraining
from .errors import CheckpointError, ConfigError, DivergedError, ModelError

Vector = NDArray[np.float32]
WINDOW = 128  # updates that averages are taken over
# The squares of larger numbers overflow float32: one such gradient would end Adam's learning for good.
LARGEST_NORM = 1e18


class Refusal(StrEnum):
    """Why a gradient was not applied."""

    STALE = "stale"
    NOT_FINITE = "not_finite"
    NOT_STARTED = "not_started"
    NO_WEIGHTS = "no_weights"
    FINISHED = "finished"


@dataclass(frozen=True)
class Outcome:
    """What became of a gradient.

    Attributes:
        refusal: None where it was applied.
        staleness: Versions between the weights it was computed from and those it met.
        version: Of the weights afterwards.
    """

    refusal: Refusal | None
    staleness: int
    version: int


class Master:
    """Weights as one flat float32 vector, their optimizer and their version.

    Args:
        parameters: Named arrays; copied, in this order.
        training: The update rule.
        threads: How many threads share the optimizer's work.
        arithmetic: By what it is done.

    Raises:
        ModelError: There is no parameter, or one is not a finite array of floats.
        ConfigError: The update rule is not a possible one.
    """

    def __init__(
        self,
        parameters: Mapping[str, NDArray[np.floating]],
        training: CoordinatorTraining,
        *,
        threads: int = 1,
        arithmetic: optim.Arithmetic = optim.NUMPY,
    ) -> None:
        self.training = training
        self.specs = specs_of(parameters)
        self.layout = optim.Layout.from_shapes({spec.name: spec.shape for spec in self.specs}, optim.rwkv_multipliers)
        self.weights: Vector = np.empty(self.layout.size, np.float32)
        for name, view in self.layout.views(self.weights).items():
            np.copyto(view, parameters[name], casting="same_kind")
        if not np.isfinite(self.weights).all():
            raise ModelError("the model's parameters hold a value that is not finite; build it anew.")
        self.version = 0
        self._sums_of_squares = arithmetic.sums_of_squares
        self.schedule, self.optimizer = _update_rule(training, self.layout, threads, arithmetic)
        self.lock = threading.Lock()
        self.gradients_applied = 0
        self.gradients_refused: Counter[str] = Counter()
        self.weights_pulled = 0
        self._staleness: deque[int] = deque(maxlen=WINDOW)

    @property
    def fingerprint(self) -> str:
        """Which model this is: a hash of its tensors' names and shapes, equal for all versions of its weights."""
        return fingerprint(self.specs)

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        return self.schedule(self.version)

    @property
    def average_staleness(self) -> float:
        """Mean over the last 128 applied gradients; 0 before the first."""
        return sum(self._staleness) / len(self._staleness) if self._staleness else 0.0

    def apply(self, gradient: Vector, base_version: int) -> Outcome:
        """Update the weights with a gradient computed from the weights of `base_version`, or refuse it.

        Args:
            gradient: Flat float32 vector in the layout's order; only read.
            base_version: Not above the present version.

        Raises:
            ValueError: The base version is from the future.
        """
        training = self.training
        with self.lock:
            if training.steps and self.version >= training.steps:
                return self._refuse(Refusal.FINISHED, 0)
            staleness = self.version - base_version
            if staleness < 0:
                raise ValueError(f"base version {base_version} is from the future: the weights are at {self.version}")
            if staleness > training.max_staleness:
                return self._refuse(Refusal.STALE, staleness)
            scale = (1.0 + staleness) ** -0.5 if training.staleness_weight else 1.0
            factors = self._clip(gradient, scale)
            if factors is None:
                return self._refuse(Refusal.NOT_FINITE, staleness)
            self.optimizer.step(self.weights, gradient, self.schedule(self.version), factors)
            self.version += 1
            self.gradients_applied += 1
            self._staleness.append(staleness)
            return Outcome(None, staleness, self.version)

    def refuse(self, refusal: Refusal) -> Outcome:
        """Count a gradient that is refused before it is looked at."""
        with self.lock:
            return self._refuse(refusal, 0)

    def snapshot(self, out: Vector) -> int:
        """Copy the weights into `out`, a flat vector of the layout's size, and return their version.

        Raises:
            DivergedError: They are not finite.
        """
        with self.lock:
            self._check_finite()
            np.copyto(out, self.weights)
            self.weights_pulled += 1
            return self.version

    def copy_state(self) -> tuple[int, dict[str, Vector], dict[str, NDArray[np.generic]]]:
        """Copy version, weights by name and optimizer state, all of one moment, for a checkpoint.

        Raises:
            DivergedError: The weights are not finite.
        """
        with self.lock:
            self._check_finite()
            weights = self.layout.views(self.weights.copy())
            optimizer = {name: array.copy() for name, array in self.optimizer.state().items()}
            return self.version, weights, optimizer

    def restore(
        self,
        version: int,
        weights: Mapping[str, NDArray[np.generic]],
        optimizer: Mapping[str, NDArray[np.generic]],
    ) -> None:
        """Go on from a checkpoint.

        Raises:
            CheckpointError: It is of another model or another optimizer.
        """
        found = {name: array.shape for name, array in weights.items()}
        wanted = {spec.name: spec.shape for spec in self.specs}
        if found != wanted:
            raise CheckpointError(
                f"the checkpoint is of another model: {differences(wanted, found)}. "
                "Name the model that it was made with, or another --checkpoint-dir."
            )
        with self.lock:
            try:
                self.optimizer.load_state(optimizer)
            except ValueError as error:
                raise CheckpointError(
                    f"the checkpoint does not fit optimizer '{self.training.optimizer}': {error}. "
                    "Configure the optimizer that it was made with, or another --checkpoint-dir."
                ) from error
            for name, view in self.layout.views(self.weights).items():
                np.copyto(view, weights[name], casting="same_kind")
            self.version = version

    def _clip(self, gradient: Vector, scale: float) -> float | NDArray[np.float64] | None:
        """Factor(s) for the gradient, staleness and clipping together; None where it is not finite or absurd."""
        limit = self.training.clip_norm
        if limit and self.training.clip_scope == "tensor":
            norms, factors = optim.clip_each_tensor(gradient, self.layout, limit, scale, self._sums_of_squares)
            return scale * factors if (norms <= LARGEST_NORM).all() else None
        norm, factor = optim.clip_global_norm(gradient, limit or float("inf"), scale)
        return scale * factor if norm <= LARGEST_NORM else None

    def _check_finite(self) -> None:
        """Refuse weights of no use: gradients are finite, but a rate that is too high makes of them what it will."""
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(np.add.reduce(self.weights))  # one pass; a sum is finite only where everything is
        if not np.isfinite(total):
            raise DivergedError(
                f"training has diverged: the weights of version {self.version} are not finite. A lower learning_rate "
                "or clip_norm = 1 helps; started again, the coordinator goes on from its newest checkpoint."
            )

    def _refuse(self, refusal: Refusal, staleness: int) -> Outcome:
        self.gradients_refused[refusal] += 1
        return Outcome(refusal, staleness, self.version)


def specs_of(parameters: Mapping[str, NDArray[np.floating]]) -> tuple[TensorSpec, ...]:
    """Describe named arrays as they travel.

    Raises:
        ModelError: There is none, or one is no array of floats.
    """
    if not isinstance(parameters, Mapping) or not all(isinstance(name, str) for name in parameters):
        raise ModelError("a model's `parameters` must be a mapping (such as a dict) of names to numpy arrays.")
    if not parameters:
        raise ModelError("the model has no parameters: `parameters` must name at least one float array.")
    for name, array in parameters.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.size == 0:
            raise ModelError(f"parameter {name!r} must be a non-empty numpy array of floats.")
        if array.ndim == 0:
            raise ModelError(f"parameter {name!r} is a scalar; give it the shape (1,).")
    return tuple(TensorSpec(name, tuple(array.shape)) for name, array in parameters.items())


def fingerprint(specs: tuple[TensorSpec, ...]) -> str:
    """Hash the names and shapes of tensors, in their order."""
    text = "\n".join(f"{spec.name} {'x'.join(map(str, spec.shape))}" for spec in specs)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> str:
    """Say in words how two sets of tensors differ; the first few only."""
    lines = [f"{name} is missing" for name in wanted if name not in found]
    lines += [f"{name} is unexpected" for name in found if name not in wanted]
    lines += [
        f"{name} has shape {list(found[name])} where {list(shape)} is expected"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if not lines:
        return "the tensors are in another order"
    return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")


def _update_rule(
    training: CoordinatorTraining, layout: optim.Layout, threads: int, arithmetic: optim.Arithmetic
) -> tuple[optim.Schedule, optim.Optimizer]:
    hyper: dict[str, Any] = {"weight_decay": training.weight_decay, "threads": threads}
    if training.optimizer in optim.ADAMS:
        hyper |= {"adam": arithmetic.adam, "betas": (training.beta1, training.beta2), "epsilon": training.epsilon}
    elif training.momentum or training.optimizer == "sgd":
        hyper["momentum"] = training.momentum
    if training.optimizer == "sgd":
        hyper["nesterov"] = training.nesterov
    try:
        schedule = optim.make_schedule(
            training.schedule,
            training.learning_rate,
            warmup=training.warmup_steps,
            total=training.total_steps or training.steps or None,
            final_fraction=training.final_lr_fraction,
        )
        return schedule, optim.make_optimizer(training.optimizer, layout, **hyper)
    except ValueError as error:
        raise ConfigError(f"[training]: {error}") from error
