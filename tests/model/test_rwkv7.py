"""The model against formulas, finite differences and itself."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from swarm_agent.rwkv7 import (
    DECAY,
    PRESETS,
    RWKV7,
    Config,
    initial_parameters,
    parameter_shapes,
)

from . import naive

SMALL = Config(layers=3, width=16, head_size=8, vocabulary=13, rank_w=3, rank_a=4, rank_v=2, rank_g=5)


def random_model(config: Config = SMALL, seed: int = 0, dtype: type = np.float64, scale: float = 0.5) -> RWKV7:
    """Every parameter random: at the official start most gradients are exactly zero."""
    model = RWKV7(config, dtype=dtype)
    model.flat_parameters[:] = np.random.default_rng(seed).normal(0, scale, model.num_parameters)
    return model


def random_batch(batch: int, length: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, SMALL.vocabulary, (batch, length))


# Forwards


@pytest.mark.parametrize("time", [1, 15, 16, 17, 50])
def test_chunks_give_what_the_formulas_give_token_by_token(time: int) -> None:
    model, tokens = random_model(), random_batch(2, time)
    expected = np.stack([naive.logits(SMALL, model.parameters, text) for text in tokens])
    np.testing.assert_allclose(model.forward(tokens), expected, atol=1e-11)


def test_one_token_at_a_time_gives_what_all_at_once_gives() -> None:
    model, tokens = random_model(), random_batch(3, 37)
    state = model.initial_state(3)
    found = []
    for t in range(tokens.shape[1]):
        logits, state = model.step(tokens[:, t], state)
        found.append(logits)
    np.testing.assert_allclose(np.stack(found, 1), model.forward(tokens), atol=1e-11)


def test_a_step_leaves_the_state_it_was_given_as_it_was() -> None:
    model = random_model()
    _, state = model.step(np.array([1]), model.initial_state(1))
    first, _ = model.step(np.array([2]), state)
    again, _ = model.step(np.array([2]), state)
    np.testing.assert_array_equal(first, again)


def test_later_tokens_do_not_change_earlier_logits() -> None:
    model, tokens = random_model(), random_batch(1, 40)
    before = model.forward(tokens)[0, :20]
    tokens[0, 20:] = (tokens[0, 20:] + 1) % SMALL.vocabulary
    np.testing.assert_array_equal(model.forward(tokens)[0, :20], before)


def test_loss_is_the_mean_cross_entropy_of_the_logits() -> None:
    model, batch = random_model(), random_batch(2, 21)
    logits = model.forward(batch[:, :-1])
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    picked = np.take_along_axis(probabilities, batch[:, 1:, None], -1)
    assert model.loss(batch) == pytest.approx(-np.log(picked).mean(), rel=1e-12)
    assert model.loss_and_gradients(batch)[0] == pytest.approx(model.loss(batch), rel=1e-12)


def test_a_fresh_model_knows_nothing() -> None:
    model = RWKV7(PRESETS["rwkv-tiny"])
    assert model.loss(np.arange(130)[None]) == pytest.approx(math.log(257), abs=0.2)


# Backwards


@pytest.mark.parametrize("time", [16, 37])
def test_gradients_are_those_of_finite_differences_for_every_tensor(time: int) -> None:
    model, batch = random_model(), random_batch(2, time + 1)
    _, gradients = model.loss_and_gradients(batch)
    gradients = {name: gradient.copy() for name, gradient in gradients.items()}
    rng = np.random.default_rng(2)
    for name, parameter in model.parameters.items():
        # Along a random direction, every element of the tensor takes part.
        direction = rng.standard_normal(parameter.shape)
        start, step = parameter.copy(), 1e-5
        parameter[...] = start + step * direction
        above = model.loss(batch)
        parameter[...] = start - step * direction
        below = model.loss(batch)
        parameter[...] = start
        expected = (above - below) / (2 * step)
        assert (gradients[name] * direction).sum() == pytest.approx(expected, rel=1e-5, abs=1e-8), name
        assert np.abs(gradients[name]).max() > 0, name


def test_single_precision_gradients_are_near_double_precision_ones() -> None:
    config = Config(layers=2, width=64, head_size=32)
    double = random_model(config, scale=0.1)
    single = RWKV7(config, double.parameters)
    batch = np.random.default_rng(3).integers(0, 257, (2, 65))
    loss, expected = double.loss_and_gradients(batch)
    found_loss, found = single.loss_and_gradients(batch)
    assert found_loss == pytest.approx(loss, rel=1e-5)
    for name, gradient in expected.items():
        assert np.abs(found[name] - gradient).max() <= 1e-3 * np.abs(gradient).max(), name


def test_batches_of_other_sizes_in_between_change_nothing() -> None:
    model, batch = random_model(), random_batch(2, 33)
    loss, gradients = model.loss_and_gradients(batch)
    expected = {name: gradient.copy() for name, gradient in gradients.items()}
    model.loss_and_gradients(random_batch(5, 70))
    model.loss(random_batch(1, 5))
    again, gradients = model.loss_and_gradients(batch)
    assert again == loss
    for name, gradient in expected.items():
        np.testing.assert_array_equal(gradients[name], gradient, err_msg=name)


def test_head_in_tiles_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = random_model(), random_batch(2, 33)
    loss, gradients = model.loss_and_gradients(batch)
    expected = {name: gradient.copy() for name, gradient in gradients.items()}
    monkeypatch.setattr("swarm_agent.rwkv7.HEAD_TILE_BYTES", 7 * SMALL.vocabulary * 8)
    tiled_loss, tiled = model.loss_and_gradients(batch)
    assert tiled_loss == pytest.approx(loss, rel=1e-12)
    for name, gradient in expected.items():
        np.testing.assert_allclose(tiled[name], gradient, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("threads", [2, 3, 9])
def test_threads_change_nothing(threads: int) -> None:
    model, batch = random_model(), random_batch(5, 33)
    loss, expected = model.loss_and_gradients(batch)
    threaded = RWKV7(SMALL, model.parameters, dtype=np.float64, threads=threads)
    for _ in range(2):
        found_loss, found = threaded.loss_and_gradients(batch)
        assert found_loss == pytest.approx(loss, rel=1e-12)
        for name, gradient in expected.items():
            np.testing.assert_allclose(found[name], gradient, atol=1e-12, err_msg=name)


def test_the_flat_gradients_are_all_gradients_in_order() -> None:
    model = random_model()
    _, gradients = model.loss_and_gradients(random_batch(2, 9))
    assert list(gradients) == list(model.parameters)
    np.testing.assert_array_equal(model.flat_gradients, np.concatenate([g.ravel() for g in gradients.values()]))


def test_repetitive_text_stays_exact() -> None:
    # Every κ is the same and α is near one, so that the triangles to be inverted are full of ones: inverting them by
    # doubling lost all digits here.
    config = Config(layers=2, width=64, head_size=32)
    double = random_model(config, scale=0.1)
    for index in range(config.layers):
        double.parameters[f"blocks.{index}.att.a0"][...] = 6
        double.parameters[f"blocks.{index}.att.w0"][...] = -8
    single = RWKV7(config, double.parameters)
    batch = np.full((1, 129), 7)
    loss, expected = double.loss_and_gradients(batch)
    found_loss, found = single.loss_and_gradients(batch)
    assert found_loss == pytest.approx(loss, rel=1e-4)
    np.testing.assert_allclose(single.forward(batch), double.forward(batch), atol=1e-3)
    for name, gradient in expected.items():
        assert np.isfinite(found[name]).all(), name
        assert np.abs(found[name] - gradient).max() <= 1e-2 * np.abs(gradient).max() + 1e-7, name


def test_training_on_one_batch_learns_it() -> None:
    model = RWKV7(Config(layers=2, width=32, head_size=16, rank_w=4, rank_a=4, rank_v=4, rank_g=8))
    batch = np.frombuffer(b"to be, or not to be, that is the question: whether 'tis nobler i", np.uint8)[None] + 1
    mean, square = np.zeros_like(model.flat_parameters), np.zeros_like(model.flat_parameters)
    first = model.loss(batch)
    for step in range(1, 61):
        model.loss_and_gradients(batch)
        gradient = model.flat_gradients
        mean += 0.1 * (gradient - mean)
        square += 0.01 * (gradient**2 - square)
        corrected = (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-12)
        model.flat_parameters -= 5e-3 * corrected
    assert model.loss(batch) < 0.3 * first


# Start values and sizes


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("rwkv-tiny", 0.78),
        ("rwkv-small", 3.6),
        ("rwkv-100m", 91),
        ("rwkv-0.1b", 191),
        ("rwkv-0.4b", 451),
        ("rwkv-1b", 914),
        ("rwkv-1.5b", 1527),
    ],
)
def test_presets_have_the_sizes_they_are_named_for(name: str, millions: float) -> None:
    count = sum(math.prod(shape) for shape in parameter_shapes(PRESETS[name]).values())
    assert count / 1e6 == pytest.approx(millions, rel=0.003)


def test_start_values_are_the_official_ones() -> None:
    config = Config(layers=4, width=128, head_size=32)
    p = dict(initial_parameters(config))
    for name in ("w1", "a1", "g1", "output.weight"):
        assert not p[f"blocks.2.att.{name}"].any()
    assert not p["blocks.2.ffn.value.weight"].any()
    identity = np.eye(128)
    for name, gain in (("att.receptance", 1), ("att.value", 1), ("ffn.key", 1), ("att.key", 0.1)):
        weight = p[f"blocks.1.{name}.weight"]
        np.testing.assert_allclose(weight.T @ weight, gain**2 * identity, atol=1e-12)
    np.testing.assert_allclose(p["blocks.1.att.v2"] @ p["blocks.1.att.v2"].T, 0.01 * np.eye(32), atol=1e-12)
    np.testing.assert_allclose(p["head.weight"].T @ p["head.weight"], 0.25 * 257 / 128 * identity, atol=1e-12)
    assert np.abs(p["emb.weight"]).max() <= 1e-4
    # The first channel takes all from the token before, and deeper blocks less.
    assert p["blocks.0.att.x_k"].ravel()[0] == 1
    assert p["blocks.3.att.x_k"].mean() < p["blocks.0.att.x_k"].mean()
    # Decay, before its inner map, spans slow to fast channels: −6 + ½ − 2.5 to ½ + 2.5.
    w0 = p["blocks.1.att.w0"].ravel()
    assert w0[0] == pytest.approx(-8)
    assert w0[-1] == pytest.approx(3)
    assert (p["blocks.3.att.ln_x.weight"] == 1).all()
    assert p["blocks.0.att.ln_x.weight"][0] == pytest.approx(0.25**0.7)


def test_the_seed_decides_the_start_values() -> None:
    first, same, other = (RWKV7(SMALL, seed=seed).flat_parameters for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_decay_is_bounded_so_that_a_chunk_cannot_overflow() -> None:
    assert math.exp(-2 * DECAY * 16) < 1e5


def test_a_model_of_one_layer_works() -> None:
    config = Config(layers=1, width=16, head_size=8, vocabulary=13, rank_w=3, rank_a=4, rank_g=5)
    model = random_model(config)
    assert "blocks.0.att.v0" not in model.parameters
    assert np.isfinite(model.loss_and_gradients(random_batch(1, 20))[0])
    assert Config.from_parameters(model.parameters).layers == 1


# Wrong input


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([[1, 13]], "token 13 is outside the vocabulary of 13"),
        ([[1, -1]], "token -1 is outside"),
        ([[1]], "T of at least 1"),
        ([1, 2], "2-dimensional"),
        ([[1.5, 2.0]], "expected integers"),
        ([[]], "found shape"),
    ],
)
def test_a_wrong_batch_is_refused_with_the_reason(batch: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().loss_and_gradients(np.array(batch))


def test_a_missing_tensor_is_named() -> None:
    tensors = dict(random_model().parameters)
    del tensors["blocks.1.att.k_k"]
    with pytest.raises(ValueError, match=r"blocks\.1\.att\.k_k is missing: expected shape \(1, 1, 16\)"):
        RWKV7(SMALL, tensors)


def test_an_unexpected_tensor_is_named() -> None:
    tensors = dict(random_model().parameters) | {"blocks.0.att.v0": np.zeros((1, 1, 16))}
    with pytest.raises(ValueError, match=r"unexpected tensor blocks\.0\.att\.v0"):
        RWKV7(SMALL, tensors)


def test_a_misshaped_tensor_is_named_with_both_shapes() -> None:
    tensors = dict(random_model().parameters) | {"blocks.2.ffn.key.weight": np.zeros((16, 64))}
    with pytest.raises(ValueError, match=r"blocks\.2\.ffn\.key\.weight: expected shape \(64, 16\), found \(16, 64\)"):
        RWKV7(SMALL, tensors)


def test_sizes_cannot_be_read_from_something_else() -> None:
    with pytest.raises(ValueError, match=r"not an RWKV-7 model: tensor emb\.weight is missing"):
        Config.from_parameters({"wte.weight": np.zeros((2, 2))})


@pytest.mark.parametrize("sizes", [{"width": 100}, {"layers": 0}])
def test_sizes_that_make_no_model_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be at least 1|not a multiple"):
        Config(**sizes)


# Files


def test_what_was_saved_is_loaded_again(tmp_path: Path) -> None:
    model = random_model(dtype=np.float32)
    model.save(tmp_path / "weights.safetensors")
    for path in (tmp_path, tmp_path / "weights.safetensors"):
        again = RWKV7.load(path)
        assert again.config == SMALL
        np.testing.assert_array_equal(again.flat_parameters, model.flat_parameters)


@pytest.mark.parametrize("content", [b"", b"rubbish" * 10])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        RWKV7.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no weights at"):
        RWKV7.load(tmp_path)


def test_a_file_with_other_tensors_is_refused(tmp_path: Path) -> None:
    save_file({"emb.weight": np.zeros((4, 4), np.float32)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="not an RWKV-7 model"):
        RWKV7.load(tmp_path)
