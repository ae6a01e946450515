"""The tensor codecs against slow definitions, numpy, error bounds, and damage."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdtc import (
    Compression,
    LocalProtocolError,
    RemoteProtocolError,
    TensorSpec,
    decode_tensors,
    encode_tensors,
    encoded_size,
    max_encoded_size,
)
from fdtc.codecs import BLOCK

Vector = npt.NDArray[np.float32]

MODELS = st.lists(st.integers(1, 70), min_size=1, max_size=5).map(
    lambda numels: [TensorSpec(f"t{i}", (numel,)) for i, numel in enumerate(numels)]
)
# Few distinct values make ties; the rest of the bit patterns come from the second strategy.
NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0]), st.floats(width=32, allow_nan=False, allow_infinity=False)
)


@st.composite
def vectors(draw: Any, numbers: st.SearchStrategy[float] = NUMBERS) -> tuple[list[TensorSpec], Vector]:
    specs = draw(MODELS)
    total = sum(spec.numel for spec in specs)
    return specs, np.array(draw(st.lists(numbers, min_size=total, max_size=total)), np.float32)


def split(vector: Vector, specs: Sequence[TensorSpec]) -> list[Vector]:
    return np.split(vector, np.cumsum([spec.numel for spec in specs])[:-1])


def gradient(numel: int, seed: int = 3) -> Vector:
    """Numbers over many orders of magnitude, as gradients are."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(numel) * 10 ** rng.uniform(-6, 1, numel)).astype(np.float32)


def one(numel: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec("x", (numel,)),)


@given(vectors(), st.sampled_from(Compression), st.floats(0, 1, width=32), st.integers(1, 255))
def test_sizes_are_exact_and_below_the_maximum(
    given_: tuple[list[TensorSpec], Vector], compression: Compression, ratio: float, levels: int
) -> None:
    specs, vector = given_
    vector = np.clip(vector, -1e30, 1e30)
    data = encode_tensors(vector, specs, compression, topk_ratio=ratio, levels=levels)
    assert len(data) == encoded_size(specs, compression, topk_ratio=ratio, levels=levels)
    assert len(data) <= max_encoded_size(specs, compression)
    assert decode_tensors(data, specs, compression).shape == vector.shape


@pytest.mark.parametrize("compression", Compression)
def test_decoding_into_a_given_vector_is_the_same(compression: Compression) -> None:
    specs = [TensorSpec("a", (300, 7)), TensorSpec("b", ()), TensorSpec("c", (5,))]
    vector = gradient(2106)
    data = encode_tensors(vector, specs, compression, rng=np.random.default_rng(1))
    out = np.full(2106, np.nan, np.float32)
    assert decode_tensors(data, specs, compression, out) is out
    np.testing.assert_array_equal(out, decode_tensors(bytes(data), specs, compression))


def test_none_copies_nothing_in_either_direction() -> None:
    vector = gradient(1000)
    data = encode_tensors(vector, one(1000), Compression.NONE)
    assert np.shares_memory(np.frombuffer(data, np.uint8), vector)
    assert np.shares_memory(decode_tensors(data, one(1000), Compression.NONE), vector)


def test_none_keeps_every_bit_pattern() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4096, np.uint32)
    data = encode_tensors(bits.view(np.float32), one(4096), Compression.NONE)
    np.testing.assert_array_equal(decode_tensors(data, one(4096), Compression.NONE).view(np.uint32), bits)


def test_fp16_is_numpys_half_where_it_is_finite() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)].astype(np.float32)
    between = (halves + np.float32(1e-4) * halves).astype(np.float32)
    ties = np.float32([2049, 2051, 65503.9, 65519.9, -65519.9, 2**-25, 3 * 2**-25, 1e-30])
    vector = np.concatenate([halves, between[np.abs(between) < 65520], ties])
    data = encode_tensors(vector, one(len(vector)), Compression.FP16)
    np.testing.assert_array_equal(np.frombuffer(data, "<f2"), vector.astype("<f2"))


def test_fp16_rounds_to_even_and_within_half_a_unit() -> None:
    vector = gradient(10_000)
    back = decode_tensors(encode_tensors(vector, one(10_000), Compression.FP16), one(10_000), Compression.FP16)
    # 11 significant bits above 2^-14, steps of 2^-24 below
    assert np.all(np.abs(back - vector) <= np.maximum(np.abs(vector) * 2**-11, 2**-25))
    tie = decode_tensors(encode_tensors(np.float32([2049, 2051]), one(2), Compression.FP16), one(2), Compression.FP16)
    np.testing.assert_array_equal(tie, [2048, 2052])


def test_fp16_clamps_finite_numbers_and_keeps_the_others() -> None:
    vector = np.float32([65519, 65520, -65520, 1e30, -3e38, np.inf, -np.inf, np.nan, 1])
    data = encode_tensors(vector, one(9), Compression.FP16)
    np.testing.assert_array_equal(
        decode_tensors(data, one(9), Compression.FP16),
        np.float32([65504, 65504, -65504, 65504, -65504, np.inf, -np.inf, np.nan, 1]),
    )


def topk_by_sorting(vector: Vector, ratio: float) -> Vector:
    """The definition, slowly: sort by falling magnitude, then by index; keep the first k."""
    k = max(1, math.floor(float(np.float32(ratio)) * len(vector) + 0.5))
    order = sorted(range(len(vector)), key=lambda i: (-abs(float(vector[i])), i))
    kept = np.zeros_like(vector)
    kept[order[:k]] = vector[order[:k]]
    return kept


@given(vectors(), st.floats(0, 1))
def test_topk_is_its_definition(given_: tuple[list[TensorSpec], Vector], ratio: float) -> None:
    specs, vector = given_
    data = encode_tensors(vector, specs, Compression.TOPK, topk_ratio=ratio)
    expected = np.concatenate([topk_by_sorting(part, ratio) for part in split(vector, specs)])
    np.testing.assert_array_equal(decode_tensors(data, specs, Compression.TOPK), expected)


def test_topk_keeps_the_bits_of_its_values_and_loses_no_more_than_the_part_it_drops() -> None:
    vector = gradient(20_000)
    data = encode_tensors(vector, one(20_000), Compression.TOPK, topk_ratio=0.1)
    back = decode_tensors(data, one(20_000), Compression.TOPK)
    assert np.count_nonzero(back) == 2000
    np.testing.assert_array_equal(back[back != 0], vector[back != 0])
    lost = np.sum((vector - back) ** 2, dtype=np.float64)
    assert lost <= 0.9 * np.sum(vector**2, dtype=np.float64)  # the contraction that error feedback relies on


def test_topk_breaks_ties_by_the_lower_index() -> None:
    data = encode_tensors(np.float32([1, -1, 1, -1, 0]), one(5), Compression.TOPK, topk_ratio=0.4)
    np.testing.assert_array_equal(np.frombuffer(data, "<u4", 3), [2, 0, 1])


@pytest.mark.parametrize(
    ("numel", "ratio", "k"),
    [(1, 0.0, 1), (5, 0.1, 1), (25, 0.1, 3), (15, 0.1, 2), (10, 0.25, 3), (10, 1.0, 10), (1000, 1e-9, 1)],
)
def test_topk_rounds_half_up_and_keeps_at_least_one(numel: int, ratio: float, k: int) -> None:
    assert encoded_size(one(numel), Compression.TOPK, topk_ratio=ratio) == 4 + 8 * k


def test_topk_shows_what_is_not_finite() -> None:
    vector = gradient(100)
    vector[[3, 40]] = np.nan, -np.inf
    data = encode_tensors(vector, one(100), Compression.TOPK, topk_ratio=0.02)
    np.testing.assert_array_equal(np.frombuffer(data, "<u4", 3), [2, 3, 40])


def test_topk_accepts_any_legal_count() -> None:
    vector = gradient(10)
    for ratio in (0.1, 0.5, 1.0):
        data = encode_tensors(vector, one(10), Compression.TOPK, topk_ratio=ratio)
        assert np.count_nonzero(decode_tensors(data, one(10), Compression.TOPK)) == round(ratio * 10)


def test_qsgd_is_deterministic_given_its_seed() -> None:
    vector = gradient(5000)
    first, again, other = (
        bytes(encode_tensors(vector, one(5000), Compression.QSGD, rng=np.random.default_rng(seed)))
        for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("levels", [1, 2, 3, 7, 8, 100, 127, 128, 255])
@pytest.mark.parametrize("numel", [1, 7, 8, 9, 1000, BLOCK + 3])
def test_qsgd_errs_by_less_than_one_level(levels: int, numel: int) -> None:
    vector = gradient(numel)
    data = encode_tensors(vector, one(numel), Compression.QSGD, levels=levels, rng=np.random.default_rng(0))
    back = decode_tensors(data, one(numel), Compression.QSGD)
    norm = np.linalg.norm(vector.astype(np.float64))
    assert np.max(np.abs(back - vector)) <= norm / levels * (1 + 1e-5)
    assert np.all((back == 0) | (np.sign(back) == np.sign(vector)))


@pytest.mark.parametrize("levels", [1, 4, 127])
def test_qsgd_is_unbiased(levels: int) -> None:
    numel, rounds = 64, 4000
    vector = gradient(numel)
    rng = np.random.default_rng(11)
    total = np.zeros(numel)
    for _ in range(rounds):
        data = encode_tensors(vector, one(numel), Compression.QSGD, levels=levels, rng=rng)
        total += decode_tensors(data, one(numel), Compression.QSGD)
    # One draw's deviation is at most half a level, so that of the mean is known; six of them is never.
    deviation = 0.5 * np.linalg.norm(vector) / levels / math.sqrt(rounds)
    assert np.max(np.abs(total / rounds - vector)) < 6 * deviation


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(20, np.float32),
        np.full(20, 1e-45, np.float32),
        np.full(20, 1e37, np.float32),
        np.float32([0, 0, 3e38, -0.0]),
    ],
)
def test_qsgd_stands_the_ends_of_the_range(vector: Vector) -> None:
    specs = one(len(vector))
    with np.errstate(all="raise"):
        data = encode_tensors(vector, specs, Compression.QSGD, levels=9, rng=np.random.default_rng(0))
    back = decode_tensors(data, specs, Compression.QSGD)
    assert np.all(np.isfinite(back))
    assert np.all(np.abs(back) <= np.linalg.norm(vector.astype(np.float64)) * 1.2 + 3e-45)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_qsgd_refuses_what_it_cannot_express(bad: float) -> None:
    with pytest.raises(LocalProtocolError, match="finite"):
        encode_tensors(np.float32([1, bad]), one(2), Compression.QSGD)
    with pytest.raises(LocalProtocolError, match="finite"):
        encode_tensors(np.full(9, 3e38, np.float32), one(9), Compression.QSGD)


def codes_by_bits(data: bytes, numel: int, width: int) -> list[int]:
    number = int.from_bytes(data, "little")
    return [(number >> (i * width)) & ((1 << width) - 1) for i in range(numel)]


@pytest.mark.parametrize("levels", [1, 2, 5, 15, 31, 63, 127, 255])
@pytest.mark.parametrize("numel", [1, 13, 64, BLOCK + 5])
def test_qsgd_packs_codes_from_the_lowest_bit(levels: int, numel: int) -> None:
    vector = gradient(numel)
    data = encode_tensors(vector, one(numel), Compression.QSGD, levels=levels, rng=np.random.default_rng(2))
    norm = np.frombuffer(data, "<f4", 1, 1)[0]
    tail = bytes(data[5:])
    # Big integers are slow: of a long vector the end is enough, from a number that begins on a byte.
    start = numel - 13 - (numel - 13) % 8 if numel > 1000 else 0
    width = 1 + levels.bit_length()
    codes = np.array(codes_by_bits(tail[start * width // 8 :], numel - start, width))
    values = np.where(codes & 1, -1, 1) * (codes >> 1) / levels * float(norm)
    back = decode_tensors(data, one(numel), Compression.QSGD)
    np.testing.assert_array_equal(back[start:], values.astype(np.float32))


@given(
    vectors(st.floats(-100, 100, width=32)),
    st.sampled_from([Compression.TOPK, Compression.QSGD, Compression.FP16]),
    st.data(),
)
def test_damaged_tensor_data_is_a_typed_error_or_other_numbers(
    given_: tuple[list[TensorSpec], Vector], compression: Compression, data: st.DataObject
) -> None:
    specs, vector = given_
    damaged = bytearray(encode_tensors(vector, specs, compression, topk_ratio=0.5, levels=5))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, 2 * len(damaged))) :]
    try:
        result = decode_tensors(damaged, specs, compression)
    except RemoteProtocolError as error:
        assert error.message  # noqa: PT017
    else:
        assert result.shape == vector.shape


@given(st.binary(max_size=200), MODELS, st.sampled_from(Compression))
def test_noise_is_a_typed_error_or_numbers(noise: bytes, specs: list[TensorSpec], compression: Compression) -> None:
    try:
        result = decode_tensors(noise, specs, compression)
    except RemoteProtocolError:
        return
    assert len(result) == sum(spec.numel for spec in specs)


@pytest.mark.parametrize(
    "vector",
    [np.zeros(9, np.float32), np.zeros(10, np.float64), np.zeros((2, 5), np.float32), np.zeros(20, np.float32)[::2]],
)
def test_a_vector_that_does_not_fit_is_our_error(vector: Any) -> None:
    with pytest.raises(LocalProtocolError, match="contiguous float32 vector of 10"):
        encode_tensors(vector, one(10), Compression.NONE)
    with pytest.raises(LocalProtocolError, match="contiguous float32 vector of 10"):
        decode_tensors(bytes(40), one(10), Compression.NONE, vector)


@pytest.mark.parametrize("options", [{"topk_ratio": -0.1}, {"topk_ratio": 1.1}, {"topk_ratio": math.nan}])
def test_a_ratio_out_of_range_is_our_error(options: dict[str, float]) -> None:
    with pytest.raises(LocalProtocolError, match="topk_ratio"):
        encoded_size(one(10), Compression.TOPK, **options)


@pytest.mark.parametrize("levels", [0, 256, -1])
def test_levels_out_of_range_are_our_error(levels: int) -> None:
    with pytest.raises(LocalProtocolError, match="levels"):
        encode_tensors(np.ones(3, np.float32), one(3), Compression.QSGD, levels=levels)
