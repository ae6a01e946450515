"""Optimizers, schedules and clipping agree with PyTorch's, step by step, and refuse what does not fit."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm_agent import fused, optim
from swarm_agent.optim import (
    Layout,
    Multipliers,
    clip_each_tensor,
    clip_global_norm,
    make_optimizer,
    make_schedule,
    rwkv_multipliers,
)

SHAPES: dict[str, tuple[int, ...]] = {
    "emb.weight": (50, 24),
    "blocks.0.ln1.weight": (24,),
    "blocks.0.att.w0": (1, 1, 24),
    "blocks.0.att.output.weight": (24, 24),
    "blocks.0.ffn.key.weight": (96, 24),
    "scalar": (),
}
RATE = 3e-3
DECAY = 0.1

TorchMaker = Callable[[list[dict[str, object]]], torch.optim.Optimizer]
CASES: dict[str, tuple[str, dict[str, object], TorchMaker]] = {
    "sgd": ("sgd", {}, lambda groups: torch.optim.SGD(groups, lr=RATE)),
    "sgd with decay": (
        "sgd",
        {"weight_decay": DECAY},
        lambda groups: torch.optim.SGD(groups, lr=RATE),
    ),
    "momentum": ("sgd", {"momentum": 0.9}, lambda groups: torch.optim.SGD(groups, lr=RATE, momentum=0.9)),
    "momentum with decay": (
        "sgd",
        {"momentum": 0.8, "weight_decay": DECAY},
        lambda groups: torch.optim.SGD(groups, lr=RATE, momentum=0.8),
    ),
    "nesterov with decay": (
        "sgd",
        {"momentum": 0.9, "nesterov": True, "weight_decay": DECAY},
        lambda groups: torch.optim.SGD(groups, lr=RATE, momentum=0.9, nesterov=True),
    ),
    "outer nesterov": (
        "nesterov_outer",
        {},
        lambda groups: torch.optim.SGD(groups, lr=RATE, momentum=0.9, nesterov=True),
    ),
    "adam": ("adam", {}, lambda groups: torch.optim.Adam(groups, lr=RATE)),
    "adam with decay": ("adam", {"weight_decay": DECAY}, lambda groups: torch.optim.Adam(groups, lr=RATE)),
    "adam as RWKV trains": (
        "adam",
        {"betas": (0.9, 0.99), "epsilon": 1e-18},
        lambda groups: torch.optim.Adam(groups, lr=RATE, betas=(0.9, 0.99), eps=1e-18),
    ),
    "adam without means": (
        "adam",
        {"betas": (0.0, 0.98), "weight_decay": DECAY},
        lambda groups: torch.optim.Adam(groups, lr=RATE, betas=(0.0, 0.98)),
    ),
    "adamw without means": (
        "adamw",
        {"betas": (0.0, 0.98), "weight_decay": DECAY},
        lambda groups: torch.optim.AdamW(groups, lr=RATE, betas=(0.0, 0.98)),
    ),
    "adamw": (
        "adamw",
        {"weight_decay": DECAY, "betas": (0.9, 0.95)},
        lambda groups: torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95)),
    ),
}


SUMS = (optim.sums_of_squares, fused.sums_of_squares)
WAYS: dict[str, dict[str, Any]] = {"numpy": {}, "two threads": {"threads": 2}, "numba": {"adam": fused.Adam}}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small vectors take several pieces, with a last one that is not full, and several threads."""
    monkeypatch.setattr(optim, "PIECE", 1000)
    monkeypatch.setattr(optim, "NORM_PIECE", 500)
    monkeypatch.setattr(optim, "WORTH_SHARING", 0)


@pytest.fixture
def layout() -> Layout:
    return Layout.from_shapes(SHAPES, rwkv_multipliers)


def random_vector(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_sixty_steps_with_groups_follow_pytorch(case: str, way: str, layout: Layout, rng: np.random.Generator) -> None:
    kind, hyper, make_torch = CASES[case]
    ours = make_optimizer(kind, layout, **WAYS[way], **hyper)
    weights = random_vector(rng, layout.size)
    parameters = [torch.tensor(view.copy(), requires_grad=True) for view in layout.views(weights).values()]
    decay = float(hyper.get("weight_decay", 0.0))  # type: ignore[arg-type]
    groups = [
        {"params": [p], "lr": RATE * t.multipliers.rate, "weight_decay": decay * t.multipliers.decay}
        for p, t in zip(parameters, layout.tensors, strict=True)
    ]
    theirs = make_torch(groups)
    for step in range(60):
        gradient = random_vector(rng, layout.size) * np.float32(1 + step % 3)
        factor = 0.5 if step % 5 == 0 else 1.0
        for parameter, view in zip(parameters, layout.views(gradient).values(), strict=True):
            parameter.grad = torch.tensor(view * np.float32(factor))
        theirs.step()
        ours.step(weights, gradient, RATE, scale=factor)
        expected = np.concatenate([p.detach().numpy().ravel() for p in parameters])
        np.testing.assert_allclose(weights, expected, rtol=2e-5, atol=3e-6)


@pytest.mark.parametrize("kind", optim.OPTIMIZERS)
def test_the_gradient_is_only_read(kind: str, layout: Layout, rng: np.random.Generator) -> None:
    gradient = random_vector(rng, layout.size)
    gradient.flags.writeable = False
    weights = random_vector(rng, layout.size)
    before = weights.copy()
    make_optimizer(kind, layout, weight_decay=0.1).step(weights, gradient, 0.1, scale=0.5)
    assert not np.array_equal(weights, before)


@pytest.mark.parametrize("kind", optim.OPTIMIZERS)
def test_a_factor_for_each_tensor_is_the_gradient_scaled_tensor_by_tensor(
    kind: str, layout: Layout, rng: np.random.Generator
) -> None:
    gradient = random_vector(rng, layout.size)
    factors = rng.uniform(0.1, 1, len(layout.tensors))
    scaled = gradient.copy()
    for view, factor in zip(layout.views(scaled).values(), factors, strict=True):
        view *= factor
    by_factor = random_vector(rng, layout.size)
    by_hand = by_factor.copy()
    make_optimizer(kind, layout).step(by_factor, gradient, RATE, scale=factors)
    make_optimizer(kind, layout).step(by_hand, scaled, RATE)
    np.testing.assert_allclose(by_factor, by_hand, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_training_resumed_from_a_saved_state_goes_on_bit_for_bit(
    case: str, layout: Layout, rng: np.random.Generator
) -> None:
    kind, hyper, _ = CASES[case]
    gradients = [random_vector(rng, layout.size) for _ in range(6)]
    straight = random_vector(rng, layout.size)
    resumed = straight.copy()
    optimizer = make_optimizer(kind, layout, **hyper)
    for gradient in gradients:
        optimizer.step(straight, gradient, RATE)
    first = make_optimizer(kind, layout, **hyper)
    for gradient in gradients[:3]:
        first.step(resumed, gradient, RATE)
    second = make_optimizer(kind, layout, **hyper)
    second.load_state({name: array.copy() for name, array in first.state().items()})
    for gradient in gradients[3:]:
        second.step(resumed, gradient, RATE)
    np.testing.assert_array_equal(straight, resumed)


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(layout: Layout, rng: np.random.Generator) -> None:
    optimizer = make_optimizer("adam", layout)
    optimizer.step(random_vector(rng, layout.size), random_vector(rng, layout.size), RATE)
    good = {name: array.copy() for name, array in optimizer.state().items()}
    not_finite = good["mean"].copy()
    not_finite[5] = np.nan
    broken: list[tuple[dict[str, np.ndarray], str]] = [
        ({k: v for k, v in good.items() if k != "square"}, "should hold"),
        ({**good, "velocity": good["mean"]}, "should hold"),
        ({**good, "mean": good["mean"][:-1]}, "mean"),
        ({**good, "mean": good["mean"].astype(np.float64)}, "float64"),
        ({**good, "mean": not_finite}, "not finite"),
        ({**good, "square": -good["square"]}, "negative"),
        ({**good, "steps": np.array([-1])}, "steps"),
        ({**good, "steps": np.array([1.0])}, "steps"),
    ]
    for state, message in broken:
        with pytest.raises(ValueError, match=message):
            optimizer.load_state(state)
    for name, array in optimizer.state().items():
        np.testing.assert_array_equal(array, good[name])


def test_without_beta1_there_is_no_mean_to_keep_and_a_saved_one_is_let_go(
    layout: Layout, rng: np.random.Generator
) -> None:
    with_mean = make_optimizer("adam", layout, betas=(0.9, 0.98))
    with_mean.step(random_vector(rng, layout.size), random_vector(rng, layout.size), RATE)
    without = make_optimizer("adam", layout, betas=(0.0, 0.98))
    assert set(without.state()) == {"steps", "square"}
    without.load_state(with_mean.state())
    np.testing.assert_array_equal(without.state()["square"], with_mean.state()["square"])
    with pytest.raises(ValueError, match="should hold"):
        with_mean.load_state(without.state())


def test_a_step_with_wrong_vectors_or_factors_is_refused_and_changes_nothing(
    layout: Layout, rng: np.random.Generator
) -> None:
    optimizer = make_optimizer("adam", layout)
    weights = random_vector(rng, layout.size)
    gradient = random_vector(rng, layout.size)
    before = weights.copy()
    with pytest.raises(ValueError, match="gradient must be float32"):
        optimizer.step(weights, gradient[1:], RATE)
    with pytest.raises(ValueError, match="float64"):
        optimizer.step(weights, gradient.astype(np.float64), RATE)
    with pytest.raises(ValueError, match="learning rate is nan"):
        optimizer.step(weights, gradient, math.nan)
    with pytest.raises(ValueError, match="not finite"):
        optimizer.step(weights, gradient, RATE, scale=math.inf)
    with pytest.raises(ValueError, match="one per tensor"):
        optimizer.step(weights, gradient, RATE, scale=np.ones(2))
    np.testing.assert_array_equal(weights, before)
    assert optimizer.steps == 0


@pytest.mark.parametrize(
    ("kind", "hyper", "message"),
    [
        ("adagrad", {}, "known are sgd, adam, adamw"),
        ("adam", {"momentum": 0.9}, "momentum"),
        ("adam", {"betas": (0.9, 1.0)}, "betas"),
        ("adam", {"betas": (0.9,)}, "betas"),
        ("adam", {"epsilon": 0.0}, "epsilon"),
        ("adamw", {"weight_decay": -1.0}, "weight_decay"),
        ("sgd", {"momentum": 1.0}, "momentum"),
        ("sgd", {"nesterov": True}, "needs a momentum"),
        ("sgd", {"threads": 0}, "threads"),
    ],
)
def test_wrong_hyperparameters_are_refused_by_name(
    kind: str, hyper: dict[str, object], message: str, layout: Layout
) -> None:
    with pytest.raises(ValueError, match=message):
        make_optimizer(kind, layout, **hyper)


def test_rwkv_decays_only_matrices_and_trains_w0_twice_as_fast() -> None:
    assert rwkv_multipliers("blocks.0.att.output.weight", (4, 4)) == Multipliers(1, 1)
    assert rwkv_multipliers("blocks.0.ln1.weight", (4,)) == Multipliers(1, 0)
    assert rwkv_multipliers("blocks.0.att.w1", (4, 2)) == Multipliers(1, 0)
    assert rwkv_multipliers("blocks.0.att.w0", (1, 1, 4)) == Multipliers(2, 0)


@settings(deadline=None, max_examples=60)
@given(
    shapes=st.lists(st.sampled_from([(1,), (7,), (3, 5), (40, 60), (999,), (1000,), (1001,)]), min_size=1, max_size=6),
    betas=st.tuples(st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.0, 0.95, 0.999])),
    decay=st.sampled_from([0.0, 0.1]),
    decoupled=st.booleans(),
    scales=st.lists(st.floats(0, 2), min_size=6, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_compiled_adam_computes_the_same_to_the_last_bit(
    shapes: list[tuple[int, ...]],
    betas: tuple[float, float],
    decay: float,
    decoupled: bool,
    scales: list[float],
    seed: int,
) -> None:
    names = ["emb.weight", "b", "blocks.0.att.w0", "head.weight", "e", "f"]
    layout = Layout.from_shapes(dict(zip(names, shapes, strict=False)), rwkv_multipliers)
    hyper: dict[str, Any] = {"betas": betas, "weight_decay": decay, "decoupled": decoupled}
    one, other = optim.Adam(layout, **hyper), fused.Adam(layout, **hyper)
    rng = np.random.default_rng(seed)
    weights = random_vector(rng, layout.size)
    compiled = weights.copy()
    for step in range(4):
        # As it comes from the network: not for writing, and at an odd address.
        received = b"x" + random_vector(rng, layout.size).tobytes()
        gradient = np.frombuffer(received, np.float32, offset=1)
        scale = np.array(scales[: len(shapes)]) if step % 2 else scales[0]
        one.step(weights, gradient, RATE, scale)
        other.step(compiled, gradient, RATE, scale)
        np.testing.assert_array_equal(compiled, weights)
        for name, vector in one.state().items():
            np.testing.assert_array_equal(other.state()[name], vector)


def test_compiled_adam_refuses_what_adam_refuses(layout: Layout) -> None:
    with pytest.raises(ValueError, match="betas must be"):
        fused.Adam(layout, betas=(1.0, 0.9))
    weights = np.ones(layout.size, np.float32)
    with pytest.raises(ValueError, match="weights must be float32"):
        fused.Adam(layout).step(weights.astype(np.float64), weights, RATE)


# ------------------------------------------------------------------------------------------------ clipping


@pytest.mark.parametrize("limit", [0.01, 1.0, 1e6])
def test_global_clipping_is_pytorchs(limit: float, layout: Layout, rng: np.random.Generator) -> None:
    gradient = random_vector(rng, layout.size)
    parameters = [torch.zeros(t.shape) for t in layout.tensors]
    for parameter, view in zip(parameters, layout.views(gradient).values(), strict=True):
        parameter.grad = torch.tensor(view)
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
    clipping = clip_global_norm(gradient, limit)
    assert clipping.norm == pytest.approx(float(norm), rel=1e-6)
    expected = np.concatenate([p.grad.numpy().ravel() for p in parameters if p.grad is not None])
    np.testing.assert_allclose(gradient * np.float32(clipping.factor), expected, rtol=2e-6)


@pytest.mark.parametrize("sums", SUMS)
def test_clipping_each_tensor_is_pytorchs_applied_to_each(
    sums: Callable[..., Any], layout: Layout, rng: np.random.Generator
) -> None:
    gradient = random_vector(rng, layout.size)
    layout.views(gradient)["emb.weight"][:] *= 1000
    norms, factors = clip_each_tensor(gradient, layout, 1.0, sums=sums)
    for index, view in enumerate(layout.views(gradient).values()):
        parameter = torch.zeros(view.shape)
        parameter.grad = torch.tensor(view)
        norm = torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        assert norms[index] == pytest.approx(float(norm), rel=1e-6)
        np.testing.assert_allclose(view * np.float32(factors[index]), parameter.grad.numpy(), rtol=2e-6)


def test_clipping_takes_the_scale_into_account(rng: np.random.Generator) -> None:
    gradient = random_vector(rng, 1000)
    scaled = clip_global_norm(gradient, 1.0, scale=0.25)
    by_hand = clip_global_norm(gradient * np.float32(0.25), 1.0)
    assert scaled == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("sums", SUMS)
def test_a_norm_beyond_float32_is_still_measured(sums: Callable[..., Any]) -> None:
    gradient = np.full(10_000, 1e30, np.float32)
    assert clip_global_norm(gradient, 1.0).norm == pytest.approx(1e32, rel=1e-5)
    norms, _ = clip_each_tensor(gradient, Layout.from_shapes({"a": (9_999,), "b": (1,)}), 1.0, sums=sums)
    np.testing.assert_allclose(norms, [1e32, 1e30], rtol=1e-4)


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_shows_in_the_norm(value: float, sums: Callable[..., Any]) -> None:
    layout = Layout.from_shapes({"a": (10,), "b": (10,)})
    gradient = np.ones(20, np.float32)
    gradient[15] = value
    norm, factor = clip_global_norm(gradient, 1.0)
    assert not math.isfinite(norm)
    assert factor == 0
    norms, factors = clip_each_tensor(gradient, layout, 1.0, sums=sums)
    assert np.isfinite(norms).tolist() == [True, False]
    assert factors[1] == 0


def test_a_limit_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        clip_global_norm(np.ones(3, np.float32), 0.0)


# ------------------------------------------------------------------------------------------------ schedules


def test_warmup_and_cosine_are_pytorchs_linear_and_cosine_annealing() -> None:
    warmup, total, rate, final = 10, 90, 0.2, 0.1
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=rate)
    rising = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, total_iters=warmup - 1)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - warmup, eta_min=rate * final)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, falling], [warmup])
    schedule = make_schedule("cosine", rate, warmup=warmup, total=total, final_fraction=final)
    for step in range(total + 1):
        assert schedule(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9), step
        optimizer.step()
        both.step()
    assert schedule(total + 1000) == pytest.approx(rate * final)


def test_warmup_stable_decay_rises_stays_and_falls() -> None:
    schedule = make_schedule("wsd", 1.0, warmup=4, total=100, decay=20, final_fraction=0.0)
    assert [schedule(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert {schedule(step) for step in range(4, 81)} == {1.0}
    assert [schedule(step) for step in (85, 90, 95, 100, 500)] == pytest.approx([0.75, 0.5, 0.25, 0, 0])


def test_constant_stays_after_its_warmup() -> None:
    assert {make_schedule("constant", 0.3)(step) for step in (0, 1, 10**9)} == {0.3}
    warmed = make_schedule("constant", 1.0, warmup=2)
    assert [warmed(step) for step in range(3)] == [0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("linear", {}, "known are constant"),
        ("constant", {"learning_rate": 0.0}, "learning rate"),
        ("constant", {"warmup": -1}, "warmup"),
        ("cosine", {}, "total number of steps"),
        ("cosine", {"warmup": 10, "total": 10}, "more steps than warmup"),
        ("cosine", {"total": 10, "final_fraction": 2.0}, "final_fraction"),
        ("wsd", {"total": 10, "decay": 11}, "decay"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(kind: str, options: dict[str, float], message: str) -> None:
    rate = options.pop("learning_rate", 1.0)
    with pytest.raises(ValueError, match=message):
        make_schedule(kind, rate, **options)  # type: ignore[arg-type]
