"""What an arriving gradient does to the weights."""

import numpy as np
import pytest

from swarm_agent.config import CoordinatorTraining
from swarm_agent.errors import CheckpointError, ConfigError, ModelError
from swarm_agent.master import Master, Refusal

SGD = {"optimizer": "sgd", "learning_rate": 0.5}


def master(**training: object) -> Master:
    parameters = {"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float32)}
    return Master(parameters, CoordinatorTraining(**{**SGD, **training}))


def test_a_fresh_gradient_is_applied_whole() -> None:
    m = master()
    outcome = m.apply(np.full(10, 2, np.float32), 0)
    assert (outcome.refusal, outcome.staleness, outcome.version) == (None, 0, 1)
    assert m.weights.tolist() == [0.0] * 6 + [-1.0] * 4
    assert (m.gradients_applied, m.version) == (1, 1)


def test_staleness_at_the_bound_is_applied_and_beyond_it_refused() -> None:
    m = master(max_staleness=2)
    gradient = np.ones(10, np.float32)
    for _ in range(3):
        m.apply(gradient, m.version)
    before = m.weights.copy()
    outcome = m.apply(gradient, 0)
    assert (outcome.refusal, outcome.staleness, outcome.version) == (Refusal.STALE, 3, 3)
    assert (m.weights == before).all()
    assert m.gradients_refused == {"stale": 1}
    assert m.apply(gradient, 1).refusal is None


def test_a_stale_gradient_weighs_less_unless_switched_off() -> None:
    for on, expected in ((True, 3**-0.5), (False, 1.0)):
        m = master(staleness_weight=on)
        zero = np.zeros(10, np.float32)
        m.apply(zero, 0)
        m.apply(zero, 1)
        before = m.weights.copy()
        m.apply(np.ones(10, np.float32), 0)
        np.testing.assert_allclose(before - m.weights, 0.5 * expected, rtol=1e-6)


def test_a_base_version_from_the_future_is_an_error() -> None:
    with pytest.raises(ValueError, match="future"):
        master().apply(np.ones(10, np.float32), 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("clip", [{}, {"clip_norm": 1.0}, {"clip_norm": 1.0, "clip_scope": "global"}])
def test_a_gradient_that_is_not_finite_changes_nothing(value: float, clip: dict[str, object]) -> None:
    m = master(**clip)
    gradient = np.ones(10, np.float32)
    gradient[7] = value
    before = m.weights.copy()
    assert m.apply(gradient, 0).refusal is Refusal.NOT_FINITE
    assert (m.weights == before).all()
    assert m.version == 0


def test_clipping_is_per_tensor_or_of_the_whole() -> None:
    gradient = np.concatenate([np.full(6, 100, np.float32), np.full(4, 0.1, np.float32)])
    per_tensor = master(clip_norm=1.0)
    per_tensor.apply(gradient, 0)
    np.testing.assert_allclose(per_tensor.weights[6:], -0.05, rtol=1e-5)  # its norm, 0.2, is under the limit
    whole = master(clip_norm=1.0, clip_scope="global")
    whole.apply(gradient, 0)
    assert np.abs(whole.weights[6:]).max() < 0.001


def test_average_staleness_is_over_the_last_128() -> None:
    m = master(max_staleness=1000)
    zero = np.zeros(10, np.float32)
    m.apply(zero, 0)
    assert m.average_staleness == 0
    m.apply(zero, 0)
    assert m.average_staleness == 0.5
    for _ in range(128):
        m.apply(zero, m.version - 2)
    assert m.average_staleness == 2


def test_a_snapshot_is_a_copy_of_one_version() -> None:
    m = master()
    out = np.empty(10, np.float32)
    assert m.snapshot(out) == 0
    m.apply(np.ones(10, np.float32), 0)
    assert out.tolist() == [1.0] * 6 + [0.0] * 4
    assert m.weights_pulled == 1


def test_state_goes_round_and_training_goes_on_the_same() -> None:
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=(6, 10)).astype(np.float32)
    one = master(optimizer="adam")
    for gradient in gradients[:3]:
        one.apply(gradient, one.version)
    other = master(optimizer="adam")
    other.restore(*one.copy_state())
    for gradient in gradients[3:]:
        one.apply(gradient, one.version)
        other.apply(gradient, other.version)
    assert (one.weights == other.weights).all()
    assert other.version == 6


def test_a_checkpoint_of_another_model_or_optimizer_is_refused() -> None:
    version, weights, optimizer = master(optimizer="adam").copy_state()
    with pytest.raises(CheckpointError, match="optimizer 'sgd'"):
        master().restore(version, weights, optimizer)
    other = Master({"a": np.ones((3, 2), np.float32), "c": np.ones(1, np.float32)}, CoordinatorTraining())
    with pytest.raises(CheckpointError, match=r"c is missing; b is unexpected; a has shape \[2, 3\]"):
        other.restore(version, weights, optimizer)


def test_models_that_can_not_be_trained_are_refused() -> None:
    for parameters in ({}, {"a": np.ones(3, np.int64)}, {"a": np.ones(0, np.float32)}, {"a": np.float32(1)}):
        with pytest.raises(ModelError):
            Master(parameters, CoordinatorTraining())
    with pytest.raises(ModelError, match="not finite"):
        Master({"a": np.array([np.nan], np.float32)}, CoordinatorTraining())


def test_an_impossible_update_rule_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="total"):
        master(schedule="cosine")
    with pytest.raises(ConfigError, match="momentum"):
        master(nesterov=True)
