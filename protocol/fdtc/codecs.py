"""The encodings of one float32 vector: FP16, TOPK and QSGD. Version 1 leaves them open; these are ours.

A codec has its exact size, an encoder into a buffer of that size, and a decoder that takes what it needs from
the front of a buffer and says how much that was. Numpy does the work, in blocks where a temporary for the
whole vector would be wider than the vector. Little-endian on the wire, whatever the host.

Non-finite numbers: NONE, FP16 and TOPK carry them faithfully, so that the receiver sees and refuses them;
QSGD cannot express them and its encoder refuses. No decoder looks for them: that is a question about the
gradient, not about its encoding.
"""

import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from fdtc.errors import LocalProtocolError
from fdtc.fields import malformed

Vector = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

BLOCK = 1 << 16  # numbers; a multiple of 8, so that blocks of any code width end on a byte

_U32 = np.dtype("<u4")
_F32 = np.dtype("<f4")
_F16 = np.dtype("<f2")
_HALF_MAX = np.float16(65504.0)
_HALF_LIMIT = 65520.0  # from here on rounding to half gives an infinity

_TOPK_HEAD = struct.Struct("<I")
_QSGD_HEAD = struct.Struct("<Bf")
MAX_LEVELS = 255


# FP16 ------------------------------------------------------------------------------------------------------


def encode_fp16(vector: Vector, out: Bytes) -> None:
    """IEEE half, round to nearest even; a finite number beyond ±65504 becomes ±65504, not an infinity."""
    halves = out.view(_F16)
    for start in range(0, len(vector), BLOCK):
        source, target = vector[start : start + BLOCK], halves[start : start + BLOCK]
        with np.errstate(over="ignore", invalid="ignore"):
            target[:] = source
            in_range = source.min() > -_HALF_LIMIT and source.max() < _HALF_LIMIT  # false for NaN, too
        if not in_range:
            overflowed = np.isinf(target) & np.isfinite(source)
            target[overflowed] = np.copysign(_HALF_MAX, source[overflowed])


# TOPK ------------------------------------------------------------------------------------------------------


def topk_count(numel: int, ratio: float) -> int:
    """How many of `numel` numbers TOPK keeps: max(1, floor(ratio × numel + 0.5)), ratio as float32.

    Raises:
        LocalProtocolError: the ratio is not between 0 and 1.
    """
    if not 0 <= ratio <= 1:
        raise LocalProtocolError(f"topk_ratio {ratio} is not between 0 and 1")
    return max(1, math.floor(float(np.float32(ratio)) * numel + 0.5))


def topk_size(k: int) -> int:
    """Bytes: the count, then an index and a value per kept number."""
    return _TOPK_HEAD.size + k * (_U32.itemsize + _F32.itemsize)


def topk_indices(vector: Vector, k: int) -> npt.NDArray[np.int64]:
    """Where the `k` largest magnitudes are, ascending. Ties go to the lower index; NaN is above infinity."""
    # Without its sign bit a float's bits order as its magnitude does, NaN included.
    magnitudes = vector.view(np.uint32) & np.uint32(0x7FFFFFFF)
    threshold = np.partition(magnitudes, len(vector) - k)[len(vector) - k]
    chosen = magnitudes > threshold
    missing = k - np.count_nonzero(chosen)
    chosen[np.flatnonzero(magnitudes == threshold)[:missing]] = True
    return np.flatnonzero(chosen)


def encode_topk(vector: Vector, k: int, out: Bytes) -> None:
    """k (u32), k ascending indices (u32), k values (f32)."""
    indices = topk_indices(vector, k)
    _TOPK_HEAD.pack_into(out.data, 0, k)
    body = out[_TOPK_HEAD.size :]
    body[: 4 * k].view(_U32)[:] = indices
    body[4 * k :].view(_F32)[:] = vector[indices]


def decode_topk(data: memoryview, out: Vector) -> int:
    """Writes the kept values and zeros elsewhere; any k from 1 to numel is legal. Returns the bytes taken."""
    need(data, _TOPK_HEAD.size)
    (k,) = _TOPK_HEAD.unpack_from(data)
    if not 1 <= k <= len(out):
        raise malformed(f"TOPK keeps {k} of {len(out)} numbers")
    need(data, topk_size(k))
    indices = np.frombuffer(data, _U32, k, _TOPK_HEAD.size)
    if indices[-1] >= len(out) or not np.all(indices[1:] > indices[:-1]):
        raise malformed(f"TOPK indices are not strictly ascending below {len(out)}")
    out.fill(0)
    out[indices] = np.frombuffer(data, _F32, k, _TOPK_HEAD.size + 4 * k)
    return topk_size(k)


# QSGD (arXiv 1610.02132) -----------------------------------------------------------------------------------


def check_levels(levels: int) -> None:
    """Raises LocalProtocolError unless 1 ≤ levels ≤ 255."""
    if not 1 <= levels <= MAX_LEVELS:
        raise LocalProtocolError(f"QSGD has 1 to {MAX_LEVELS} levels, not {levels}")


def qsgd_width(levels: int) -> int:
    """Bits per number: the sign and a level."""
    return 1 + levels.bit_length()


def qsgd_size(numel: int, levels: int) -> int:
    """Bytes: levels, norm, and the codes padded to a whole byte."""
    return _QSGD_HEAD.size + (numel * qsgd_width(levels) + 7) // 8


def encode_qsgd(vector: Vector, levels: int, rng: np.random.Generator, out: Bytes) -> None:
    """levels (u8), L2 norm (f32), then the codes, least significant bit first.

    A code is the sign bit (1: negative) and above it the level: |x| / norm × levels, rounded up with the
    probability of its fraction and down otherwise, so that the decoded value is right on average. Code i
    occupies bits i × width to (i + 1) × width - 1, bit b being bit b % 8 of byte b // 8; padding bits are
    zero.

    Raises:
        LocalProtocolError: a number is not finite, or the norm is beyond float32.
    """
    norm = _norm(vector)
    if not np.isfinite(norm):
        raise LocalProtocolError("QSGD cannot carry a vector whose norm is not finite")
    _QSGD_HEAD.pack_into(out.data, 0, levels, norm)
    width = qsgd_width(levels)
    packed = out[_QSGD_HEAD.size :]
    for start in range(0, len(vector), BLOCK):
        codes = _quantise(vector[start : start + BLOCK], norm, levels, rng)
        bits = _pack(codes, width)
        packed[start * width // 8 :][: len(bits)] = bits


def _norm(vector: Vector) -> np.float32:
    """The L2 norm, summed in float64. Rounding keeps order, so it is not below any |x|: no level is exceeded."""
    squares = 0.0
    for start in range(0, len(vector), BLOCK):
        block = vector[start : start + BLOCK].astype(np.float64)
        squares += float(block @ block)
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(math.sqrt(squares))


def _quantise(block: Vector, norm: np.float32, levels: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    if norm == 0:
        return np.zeros(len(block), np.uint16)
    scaled = np.abs(block)
    scaled /= norm  # before × levels: levels / norm would overflow for a tiny norm
    scaled *= np.float32(levels)
    floor = np.floor(scaled)
    scaled -= floor  # the fraction, exact in float32
    codes = floor.astype(np.uint16)
    codes += rng.random(len(block), np.float32) < scaled
    codes <<= 1
    codes |= np.signbit(block)
    return codes


# Eight codes of `width` bits fill exactly `width` bytes, so packing is the same eight moves on every group of
# eight: code i begins in byte i × width // 8 and may spill into the next.


def _pack(codes: npt.NDArray[np.uint16], width: int) -> Bytes:
    if width == 8:
        return codes.astype(np.uint8)
    groups = _padded(codes, 8)
    packed = np.zeros((len(groups), width), np.uint8)
    for i in range(8):
        byte, shift = divmod(i * width, 8)
        placed = groups[:, i] << shift
        packed[:, byte] |= placed.astype(np.uint8)
        if shift + width > 8:
            packed[:, byte + 1] |= (placed >> 8).astype(np.uint8)
    return packed.ravel()[: (len(codes) * width + 7) // 8]


def _unpack(packed: Bytes, count: int, width: int) -> npt.NDArray[Any]:
    if width == 8:
        return packed
    groups = _padded(packed, width)
    codes = np.empty((len(groups), 8), np.uint16)
    for i in range(8):
        byte, shift = divmod(i * width, 8)
        placed = groups[:, byte].astype(np.uint16)
        if shift + width > 8:
            placed |= groups[:, byte + 1].astype(np.uint16) << 8
        codes[:, i] = (placed >> shift) & ((1 << width) - 1)
    return codes.ravel()[:count]


def _padded(values: npt.NDArray[Any], columns: int) -> npt.NDArray[Any]:
    """A vector as rows of `columns`, the last one filled up with zeros."""
    rows = np.zeros((-(-len(values) // columns), columns), values.dtype)
    rows.reshape(-1)[: len(values)] = values
    return rows


def decode_qsgd(data: memoryview, out: Vector) -> int:
    """Writes ±level / levels × norm, computed in float64 and rounded once. Returns the bytes taken."""
    need(data, _QSGD_HEAD.size)
    levels, norm = _QSGD_HEAD.unpack_from(data)
    if levels < 1 or not (math.isfinite(norm) and norm >= 0):
        raise malformed(f"QSGD with {levels} levels and norm {norm}")
    size = qsgd_size(len(out), levels)
    need(data, size)
    width = qsgd_width(levels)
    packed = np.frombuffer(data, np.uint8, size - _QSGD_HEAD.size, _QSGD_HEAD.size)
    used = len(out) * width % 8
    if used and packed[-1] >> used:
        raise malformed("QSGD padding bits are not zero")
    magnitudes = np.arange(levels + 1) / levels * norm
    values = np.stack([magnitudes, -magnitudes], axis=1).astype(np.float32).ravel()  # by code
    for start in range(0, len(out), BLOCK):
        block = out[start : start + BLOCK]
        codes = _unpack(packed[start * width // 8 : -(-(start + len(block)) * width // 8)], len(block), width)
        if codes.max() >= len(values):
            raise malformed(f"QSGD level {codes.max() >> 1} of {levels}")
        np.take(values, codes, out=block)
    return size


def need(data: memoryview, size: int) -> None:
    """Raises RemoteProtocolError unless `data` has `size` bytes."""
    if len(data) < size:
        raise malformed(f"tensor data ends early: {len(data)} bytes left, {size} needed")
