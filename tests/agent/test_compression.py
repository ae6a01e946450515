"""Error feedback: nothing of a gradient is lost, only late."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdtc import Compression, TensorSpec, decode_tensors
from swarm_agent.compression import Compressor

SPECS = (TensorSpec("a", (20, 5)), TensorSpec("b", (30,)))


def decoded(compressor: Compressor, gradient: np.ndarray) -> np.ndarray:
    return decode_tensors(compressor.compress(gradient), SPECS, compressor.compression).copy()


@given(st.integers(0, 2**32 - 1), st.sampled_from([Compression.TOPK, Compression.FP16]))
def test_what_was_sent_and_what_is_kept_add_up(seed: int, compression: Compression) -> None:
    rng = np.random.default_rng(seed)
    compressor = Compressor(SPECS, compression, topk_ratio=0.1)
    given_in = np.zeros(130)
    sent = np.zeros(130)
    for _ in range(5):
        gradient = rng.normal(size=130).astype(np.float32)
        given_in += gradient
        sent += decoded(compressor, gradient)
    assert compressor.residual is not None
    np.testing.assert_allclose(sent + compressor.residual, given_in, atol=1e-5)


def test_topk_sends_every_entry_in_the_end() -> None:
    compressor = Compressor(SPECS, Compression.TOPK, topk_ratio=0.1)
    gradient = np.linspace(0.5, 1.5, 130, dtype=np.float32)
    sent = np.zeros(130, np.float32)
    for _ in range(30):
        sent += decoded(compressor, gradient)
    # Each entry waits until it is among the largest tenth, so what is outstanding stays bounded.
    assert (sent > 0).all()
    np.testing.assert_allclose(sent, 30 * gradient, rtol=0.6)


def test_qsgd_is_right_on_average_and_repeats_with_its_seed() -> None:
    gradient = np.random.default_rng(0).normal(size=130).astype(np.float32)
    one = Compressor(SPECS, Compression.QSGD, levels=4, seed=1)
    mean = np.mean([decoded(one, gradient) for _ in range(4000)], axis=0)
    # The deviation of one decoded entry is at most norm / levels / 2.
    bound = 5 * np.linalg.norm(gradient) / 4 / 2 / np.sqrt(4000)
    np.testing.assert_allclose(mean, gradient, atol=bound)
    again = Compressor(SPECS, Compression.QSGD, levels=4, seed=1)
    other = Compressor(SPECS, Compression.QSGD, levels=4, seed=2)
    fresh = Compressor(SPECS, Compression.QSGD, levels=4, seed=1)
    assert (decoded(again, gradient) == decoded(fresh, gradient)).all()
    assert (decoded(other, gradient) != decoded(again, gradient)).any()


def test_none_sends_the_gradient_itself_and_keeps_nothing() -> None:
    compressor = Compressor(SPECS, Compression.NONE)
    gradient = np.ones(130, np.float32)
    assert (decoded(compressor, gradient) == gradient).all()
    assert compressor.residual is None


def test_the_gradient_is_only_read() -> None:
    gradient = np.random.default_rng(0).normal(size=130).astype(np.float32)
    gradient.flags.writeable = False
    for compression in Compression:
        Compressor(SPECS, compression).compress(gradient)


@pytest.mark.parametrize("compression", [Compression.TOPK, Compression.FP16])
def test_lossy_codecs_shrink(compression: Compression) -> None:
    size = len(Compressor(SPECS, compression).compress(np.ones(130, np.float32)))
    assert size < 4 * 130
