"""Tensor data: a whole model's weights or gradients as one float32 vector, to and from bytes.

The vector is the concatenation of all tensors in WEIGHTS_META order, each flattened in C order. On the wire
each tensor is encoded by itself, one after the other with nothing between; `codecs.py` has the encodings.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fdtc.codecs import (
    MAX_LEVELS,
    check_levels,
    decode_qsgd,
    decode_topk,
    encode_fp16,
    encode_qsgd,
    encode_topk,
    qsgd_size,
    topk_count,
    topk_size,
)
from fdtc.constants import Compression
from fdtc.errors import LocalProtocolError
from fdtc.fields import malformed
from fdtc.messages import Data, TensorSpec, as_bytes

Vector = npt.NDArray[np.float32]


def encode_tensors(
    flat: Vector,
    specs: Sequence[TensorSpec],
    compression: Compression,
    *,
    topk_ratio: float = 0.1,
    levels: int = 127,
    rng: np.random.Generator | None = None,
) -> memoryview:
    """Tensor data from a model's flat vector.

    Args:
        flat: float32 [sum of numel], contiguous.
        specs: the model's tensors, in WEIGHTS_META order.
        compression: how to write it.
        topk_ratio: the part that TOPK keeps of each tensor, 0 to 1, taken as float32.
        levels: QSGD's quantisation levels, 1 to 255.
        rng: QSGD's source of chance: the same generator state gives the same bytes. None: a fresh one.

    Returns:
        `encoded_size` bytes; for NONE on a little-endian host a view of `flat`.

    Raises:
        LocalProtocolError: the vector does not fit the specs, an argument is out of range, or QSGD meets a
            number that is not finite.
    """
    vector = _check_vector(flat, specs)
    if compression is Compression.NONE:
        return as_bytes(np.asarray(vector, "<f4"))
    data = np.empty(encoded_size(specs, compression, topk_ratio=topk_ratio, levels=levels), np.uint8)
    if compression is Compression.FP16:
        encode_fp16(vector, data)
        return data.data
    rng = rng if rng is not None else np.random.default_rng()
    start = 0
    for tensor in _split(vector, specs):
        if compression is Compression.TOPK:
            k = topk_count(len(tensor), topk_ratio)
            size = topk_size(k)
            encode_topk(tensor, k, data[start : start + size])
        else:
            size = qsgd_size(len(tensor), levels)
            encode_qsgd(tensor, levels, rng, data[start : start + size])
        start += size
    return data.data


def decode_tensors(
    data: Data, specs: Sequence[TensorSpec], compression: Compression, out: Vector | None = None
) -> Vector:
    """A model's flat vector from tensor data.

    Args:
        data: all of it.
        specs: the model's tensors, in WEIGHTS_META order.
        compression: how it was written.
        out: float32 [sum of numel], contiguous; filled and returned if given. After an error its content
            means nothing.

    Returns:
        float32 [sum of numel]. For NONE without `out`, on a little-endian host, a view of `data`: valid as
        long as that is, and not for writing.

    Raises:
        RemoteProtocolError: the data is not what the specs say (MALFORMED). Numbers that are not finite are
            the caller's to refuse.
        LocalProtocolError: `out` does not fit the specs.
    """
    view = as_bytes(data)
    total = sum(spec.numel for spec in specs)
    if compression in (Compression.NONE, Compression.FP16):
        dtype = np.dtype("<f4" if compression is Compression.NONE else "<f2")
        if len(view) != total * dtype.itemsize:
            raise malformed(f"{compression.name} tensor data of {len(view)} bytes, not {total * dtype.itemsize}")
        numbers = np.frombuffer(view, dtype)
        if out is None:
            return numbers.astype(np.float32, copy=False)
        _check_vector(out, specs)[:] = numbers
        return out
    if out is None:
        out = np.empty(total, np.float32)
    decode = decode_topk if compression is Compression.TOPK else decode_qsgd
    for tensor in _split(_check_vector(out, specs), specs):
        view = view[decode(view, tensor) :]
    if view:
        raise malformed(f"{len(view)} bytes after the last tensor")
    return out


def encoded_size(
    specs: Sequence[TensorSpec], compression: Compression, *, topk_ratio: float = 0.1, levels: int = 127
) -> int:
    """How many bytes `encode_tensors` makes, exactly, and under the same conditions."""
    numels = [spec.numel for spec in specs]
    match compression:
        case Compression.NONE:
            return 4 * sum(numels)
        case Compression.FP16:
            return 2 * sum(numels)
        case Compression.TOPK:
            return sum(topk_size(topk_count(numel, topk_ratio)) for numel in numels)
        case Compression.QSGD:
            check_levels(levels)
            return sum(qsgd_size(numel, levels) for numel in numels)


def max_encoded_size(specs: Sequence[TensorSpec], compression: Compression) -> int:
    """The most bytes that a peer may send for these tensors: TOPK keeps all, QSGD has 255 levels."""
    return encoded_size(specs, compression, topk_ratio=1.0, levels=MAX_LEVELS)


def _check_vector(flat: Vector, specs: Sequence[TensorSpec]) -> Vector:
    total = sum(spec.numel for spec in specs)
    if flat.shape != (total,) or flat.dtype != np.float32 or not flat.flags.c_contiguous:
        raise LocalProtocolError(
            f"a contiguous float32 vector of {total} is needed, not {flat.dtype} of shape {flat.shape}"
        )
    return flat


def _split(vector: Vector, specs: Sequence[TensorSpec]) -> Iterator[Vector]:
    """Each tensor's part of the vector, as a view."""
    start = 0
    for spec in specs:
        yield vector[start : start + spec.numel]
        start += spec.numel
