"""RWKV-7 "Goose" (x070) in numpy: the model, its loss, and its hand-written gradients.

Imports numpy and safetensors only. The file is meant to be read from top to bottom: sizes, initial values, one
block forwards, one block backwards, and the model that stacks blocks between an embedding and a head.

Two ideas carry the speed. The recurrence S ← S diag(w) + (S a) bᵀ + v kᵀ is not run token by token: inside a
chunk of 16 tokens it is a triangular system (the WY form of DeltaNet, Yang et al. 2024, arXiv:2406.06484, with
RWKV-7's decay, Peng et al. 2025, arXiv:2503.14456), so that all chunks share a few batched matrix products and only
the state is handed from chunk to chunk. And nothing allocates: every temporary has a name in an arena and is written
in place, since memory that glibc returns to the system costs more than the arithmetic that is done in it.

Letters: B batch, T time, C channels, H heads of N channels, L layers, V vocabulary, K tokens in a chunk,
R = B·T rows, G = B·T/K chunks. Linear weights are [out, in]. All arrays are row-major, float32 unless asked.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

Array: TypeAlias = NDArray[Any]
State: TypeAlias = list[dict[str, Array]]

CHUNK = 16
LAYER_NORM_EPS = 1e-5
GROUP_NORM_EPS = 64e-5  # the same for every head size: official code fixed it at N = 64
KAPPA_EPS = 1e-12
# lw = −e^−½ · sigmoid(z) = DECAY · (1 + tanh(z / 2))
DECAY = -0.5 * math.exp(-0.5)
# Rows of logits are made, and gone back through, in tiles of at most this size.
HEAD_TILE_BYTES = 8 << 20
MIXES = ("r", "w", "k", "v", "a", "g")


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of one model. The defaults are rwkv-tiny: 0.78 million parameters, trained on bytes."""

    layers: int = 3  # blocks, each time mixing and then channel mixing
    width: int = 128  # C, a multiple of head_size
    head_size: int = 32  # N; official models have 64
    vocabulary: int = 257  # V: 256 bytes and the end of a text
    rank_w: int = 32  # inner size of the decay's two-layer map
    rank_a: int = 32  # of the in-context learning rate's
    rank_v: int = 32  # of the value residual's
    rank_g: int = 64  # of the gate's

    def __post_init__(self) -> None:
        """Refuse sizes that make no model.

        Raises:
            ValueError: A size is not positive, or the width is not a multiple of the head size.
        """
        for name in (field.name for field in fields(self)):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(self, name)}")
        if self.width % self.head_size:
            raise ValueError(f"width {self.width} is not a multiple of head_size {self.head_size}")

    @property
    def heads(self) -> int:
        """H, the number of heads."""
        return self.width // self.head_size

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Array]) -> Config:
        """Read the sizes from tensors with official names.

        Ranks come from the shapes: the training code's formula does not give those of the released models.

        Raises:
            ValueError: A tensor that tells a size is missing or has another number of dimensions.
        """

        def shape(name: str, dimensions: int = 2) -> tuple[int, ...]:
            if name not in parameters:
                raise ValueError(f"not an RWKV-7 model: tensor {name} is missing")
            found = tuple(parameters[name].shape)
            if len(found) != dimensions:
                raise ValueError(f"tensor {name}: expected {dimensions} dimensions, found shape {found}")
            return found

        vocabulary, width = shape("emb.weight")
        blocks = [name.split(".")[1] for name in parameters if name.startswith("blocks.")]
        layers = 1 + max((int(index) for index in blocks if index.isdigit()), default=0)
        # Block 0 has no value residual, so a model of one layer has no rank_v.
        rank_v = shape("blocks.1.att.v1")[1] if layers > 1 else 1
        return cls(
            layers=layers,
            width=width,
            head_size=shape("blocks.0.att.r_k")[1],
            vocabulary=vocabulary,
            rank_w=shape("blocks.0.att.w1")[1],
            rank_a=shape("blocks.0.att.a1")[1],
            rank_v=rank_v,
            rank_g=shape("blocks.0.att.g1")[1],
        )


_SMALL_RANKS = {"rank_w": 64, "rank_a": 64, "rank_v": 32, "rank_g": 128}
_MEDIUM_RANKS = {"rank_w": 64, "rank_a": 64, "rank_v": 64, "rank_g": 256}
_LARGE_RANKS = {"rank_w": 96, "rank_a": 96, "rank_v": 64, "rank_g": 256}
PRESETS: Mapping[str, Config] = {
    "rwkv-tiny": Config(),  # 0.78 M
    "rwkv-small": Config(layers=4, width=256, head_size=64),  # 3.6 M
    "rwkv-0.1b": Config(layers=12, width=768, head_size=64, vocabulary=65536, **_SMALL_RANKS),  # 191 M
    "rwkv-0.4b": Config(layers=24, width=1024, head_size=64, vocabulary=65536, **_SMALL_RANKS),  # 451 M
    "rwkv-1b": Config(layers=24, width=1536, head_size=64, vocabulary=65536, **_MEDIUM_RANKS),  # 914 M
    "rwkv-1.5b": Config(layers=24, width=2048, head_size=64, vocabulary=65536, **_LARGE_RANKS),  # 1527 M
}


def tune_allocator() -> bool:
    """Keep freed memory in the process instead of handing it back to the system each time.

    glibc maps every block over 128 KiB afresh and unmaps it when freed, so each large temporary costs page faults
    (mallopt(3): M_MMAP_THRESHOLD, M_TRIM_THRESHOLD). Call once, before training. Does nothing but on Linux with glibc.

    Returns:
        Whether the allocator took both settings.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    m_trim_threshold, m_mmap_threshold = -1, -3
    return bool(libc.mallopt(m_mmap_threshold, 32 << 20) and libc.mallopt(m_trim_threshold, 64 << 20))


# --- Names, shapes and initial values ---------------------------------------------------------------------------


def block_shapes(config: Config, index: int) -> dict[str, tuple[int, ...]]:
    """Shapes of one block's tensors by official name, without the prefix `blocks.<index>.`."""
    C, vector = config.width, (1, 1, config.width)
    shapes: dict[str, tuple[int, ...]] = {}
    for norm in ("ln0", "ln1", "ln2") if index == 0 else ("ln1", "ln2"):
        shapes |= {f"{norm}.weight": (C,), f"{norm}.bias": (C,)}
    shapes |= {f"att.x_{mix}": vector for mix in MIXES}
    for gate, rank in (("w", config.rank_w), ("a", config.rank_a), ("v", config.rank_v)):
        if gate != "v" or index > 0:
            shapes |= {f"att.{gate}0": vector, f"att.{gate}1": (C, rank), f"att.{gate}2": (rank, C)}
    shapes |= {"att.g1": (C, config.rank_g), "att.g2": (config.rank_g, C)}
    shapes |= {"att.k_k": vector, "att.k_a": vector, "att.r_k": (config.heads, config.head_size)}
    shapes |= {f"att.{name}.weight": (C, C) for name in ("receptance", "key", "value", "output")}
    shapes |= {"att.ln_x.weight": (C,), "att.ln_x.bias": (C,)}
    return shapes | {"ffn.x_k": vector, "ffn.key.weight": (4 * C, C), "ffn.value.weight": (C, 4 * C)}


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of a model by official name, in the order of the parameters."""
    shapes: dict[str, tuple[int, ...]] = {"emb.weight": (config.vocabulary, config.width)}
    for index in range(config.layers):
        shapes |= {f"blocks.{index}.{name}": shape for name, shape in block_shapes(config, index).items()}
    shapes |= {"ln_out.weight": (config.width,), "ln_out.bias": (config.width,)}
    return shapes | {"head.weight": (config.vocabulary, config.width)}


def initial_parameters(config: Config, seed: int = 0) -> Iterator[tuple[str, Array]]:
    """Yield (name, float64 array) for every tensor, as the official training code would start it."""
    rng = np.random.default_rng(seed)
    for name, shape in parameter_shapes(config).items():
        if name == "emb.weight":
            yield name, rng.uniform(-1e-4, 1e-4, shape)
        elif name == "head.weight":
            yield name, _orthogonal(rng, shape, 0.5 * math.sqrt(max(1.0, shape[0] / shape[1])))
        elif name.startswith("ln_out."):
            yield name, np.full(shape, float(name.endswith("weight")))
        else:
            _, index, rest = name.split(".", 2)
            yield name, _initial_block_value(config, int(index), rest, shape, rng)


def _orthogonal(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> Array:
    """Return a matrix with orthonormal rows or columns, whichever are fewer, times the gain (Saxe et al. 2013)."""
    tall = rng.standard_normal((max(shape), min(shape)))
    q, r = np.linalg.qr(tall)
    q *= gain * np.where(np.diag(r) < 0, -1.0, 1.0)
    return np.asarray(q if shape[0] >= shape[1] else q.T)


def _initial_block_value(
    config: Config, index: int, name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> Array:
    """Return the start value of one tensor of block `index`."""
    C, N, L = config.width, config.head_size, config.layers
    n = np.arange(C)
    middle = max((N - 1) / 2, 0.5)
    u = (n % N - (N - 1) / 2) / middle
    z, linear, d = u * np.abs(u), n / max(C - 1, 1) - 0.5, n / C
    depth, remaining = index / max(L - 1, 1), 1 - index / L
    vectors = {
        "att.x_r": 1 - d ** (0.2 * remaining),
        "att.x_g": 1 - d ** (0.2 * remaining),
        "att.x_w": 1 - d ** (0.9 * remaining),
        "att.x_a": 1 - d ** (0.9 * remaining),
        "att.x_k": 1 - d ** (0.7 * remaining),
        "att.x_v": 1 - d ** (0.7 * remaining),
        "ffn.x_k": 1 - d ** (remaining**4),
        "att.w0": -5.5 + 6 * (n / max(C - 1, 1)) ** (1 + depth**0.3) + 2.5 * z,
        "att.a0": -0.19 + 0.3 * z + 0.4 * linear,
        "att.v0": 0.73 - 0.4 * linear,
        "att.k_k": 0.71 - 0.1 * linear,
    }
    if name in vectors:
        return np.reshape(vectors[name], shape)
    constants = {"att.k_a": 1.02, "att.r_k": -0.04, "att.ln_x.weight": ((1 + index) / L) ** 0.7}
    gains = {
        "att.receptance.weight": 1.0,
        "att.value.weight": 1.0,
        "ffn.key.weight": 1.0,
        "att.key.weight": 0.1,
    }
    gains |= {f"att.{gate}2": 0.1 for gate in "wavg"}
    if name in constants:
        return np.full(shape, constants[name])
    if name in gains:
        return _orthogonal(rng, shape, gains[name])
    # What is left: layer norms start as the identity; w1 a1 v1 g1, att.output and ffn.value start at zero.
    return np.full(shape, float(name in ("ln0.weight", "ln1.weight", "ln2.weight")))


def check_parameters(config: Config, found: Mapping[str, Array]) -> None:
    """Check that the tensors are exactly those of a model of these sizes.

    Raises:
        ValueError: A tensor is missing, unexpected or has another shape; names it, with both shapes.
    """
    expected = parameter_shapes(config)
    for name, shape in expected.items():
        if name not in found:
            raise ValueError(f"tensor {name} is missing: expected shape {shape}")
        if tuple(found[name].shape) != shape:
            raise ValueError(f"tensor {name}: expected shape {shape}, found {tuple(found[name].shape)}")
    for name in found:
        if name not in expected:
            raise ValueError(f"unexpected tensor {name} with shape {tuple(found[name].shape)}")


# --- Memory that is used again ----------------------------------------------------------------------------------


class Arena:
    """Named buffers that live as long as the model. A name asked for again gives the same memory again."""

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        """Start without memory; buffers are taken when first asked for."""
        self.dtype = np.dtype(dtype)
        self._buffers: dict[str, Array] = {}
        self._views: dict[str, Array] = {}

    def __call__(self, name: str, *shape: int) -> Array:
        """Return the buffer of this name in this shape, with whatever was in it."""
        view = self._views.get(name)
        if view is not None and view.shape == shape:
            return view
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.zeros(size, self.dtype)
        view = self._views[name] = buffer[:size].reshape(shape)
        return view

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(buffer.nbytes for buffer in self._buffers.values())


# --- Small pieces -----------------------------------------------------------------------------------------------


def _heads(stack: Array, head_size: int) -> Array:
    """View [G, ..., C] as [G, H, rows, N], without a copy: BLAS takes the row stride as it is."""
    chunks, width = stack.shape[0], stack.shape[-1]
    return stack.reshape(chunks, -1, width // head_size, head_size).transpose(0, 2, 1, 3)


def _transposed(matrices: Array) -> Array:
    """Swap the last two axes."""
    return matrices.swapaxes(-1, -2)


def _layer_norm(x: Array, weight: Array, bias: Array, normal: Array, deviation: Array, out: Array) -> None:
    """Write LN(x) over the last axis to out; keep (x − mean)/σ in `normal` and 1/σ [rows, 1] in `deviation`."""
    width = x.shape[-1]
    np.einsum("rc->r", x, out=deviation[:, 0])
    deviation /= width
    np.subtract(x, deviation, out=normal)
    np.einsum("rc,rc->r", normal, normal, out=deviation[:, 0])
    _inverse_deviation(deviation, width, LAYER_NORM_EPS)
    normal *= deviation
    np.multiply(normal, weight, out=out)
    out += bias


def _inverse_deviation(sum_of_squares: Array, count: int, eps: float) -> None:
    """Turn sums of squares into 1/√(variance + eps), in place."""
    sum_of_squares /= count
    sum_of_squares += eps
    np.sqrt(sum_of_squares, out=sum_of_squares)
    np.divide(1, sum_of_squares, out=sum_of_squares)


def _layer_norm_backward(dy: Array, weight: Array, normal: Array, deviation: Array, scratch: Array) -> None:
    """Turn dL/dy into dL/dx, in place. The caller has taken the gradients of weight and bias before."""
    width = dy.shape[-1]
    dy *= weight
    along = np.einsum("rc,rc->r", dy, normal)[:, None]
    along /= width
    mean = np.einsum("rc->r", dy)[:, None]
    mean /= width
    dy -= mean
    np.multiply(normal, along, out=scratch)
    dy -= scratch
    dy *= deviation


def _sigmoid(z: Array) -> None:
    """Sigmoid in place, by tanh: it cannot overflow, and numpy's is vectorised on every processor."""
    z *= 0.5
    np.tanh(z, out=z)
    z *= 0.5
    z += 0.5


def _sigmoid_from_half(half_z: Array) -> None:
    """Sigmoid of z in place, given z/2."""
    np.tanh(half_z, out=half_z)
    half_z *= 0.5
    half_z += 0.5


def _minus_inverse(triangles: Array) -> Array:
    """Return −(I + A)⁻¹ for A strictly lower triangular, [..., K, K], by forward substitution.

    Substitution is exact for any A. The doubling product (I − A)(I + A²)(I + A⁴)… is not: on repetitive text A's
    entries are near one, its powers grow like binomials, and float32 loses everything.
    """
    size = triangles.shape[-1]
    # Matrices last: each step is then one vector operation over all of them.
    a = np.ascontiguousarray(triangles.reshape(-1, size * size).T).reshape(size, size, -1)
    inverse = np.zeros_like(a)
    inverse[0, 0] = -1
    for row in range(1, size):
        np.einsum("mg,mjg->jg", a[row, :row], inverse[:row, :row], out=inverse[row, :row])
        np.negative(inverse[row, :row], out=inverse[row, :row])
        inverse[row, row] = -1
    return inverse.reshape(size * size, -1).T.reshape(triangles.shape)


def _gate_columns(config: Config, index: int) -> dict[str, slice]:
    """Columns of each gate's inner values. After those of w, a and v there is a column of ones for the bias."""
    columns, start = {}, 0
    for gate, rank, bias in (
        ("w", config.rank_w, 1),
        ("a", config.rank_a, 1),
        ("v", config.rank_v, 1),
        ("g", config.rank_g, 0),
    ):
        if gate == "v" and index == 0:
            continue
        columns[gate] = slice(start, start + rank + bias)
        start += rank + bias
    return columns


# --- The recurrence over chunks ---------------------------------------------------------------------------------
#
# For one head and one chunk, with cl = cumsum(log w) inside the chunk, κ = −a, b = κ α, and [x; y] for rows stacked:
#   RA = [r e^cl; κ e^(cl − log w)]    KB = [k; b] e^−cl    VU = [v; u]    eL = e^cl at the last token
#   A = tril(RA KBᵀ), strictly for κ's rows;  M = −(I + A_κb)⁻¹;  u = M (κ' S + A_κk v)
#   y = r' S + A_r VU;  S_next = diag(eL) (S + KBᵀ VU)
# κ is kept positive and its sign is in M. Backwards the same shapes come again, with D = diag(eL) dS_next:
#   z = Mᵀ (A_rbᵀ dy + b' D);  dS = D + RAᵀ [dy; z];  dv = A_kᵀ [dy; z] + k' D
#   X = mask ∘ ([dy; z] VUᵀ);  dRA = [dy; z] Sᵀ + X KB;  dKB = Xᵀ RA + VU Dᵀ


@cache
def _causal_mask(dtype: np.dtype[Any]) -> Array:
    """[2K, 2K]: r may see its own token, κ only earlier ones."""
    lower = np.tril(np.ones((CHUNK, CHUNK), dtype))
    strict = np.tril(lower, -1)
    return np.block([[lower, lower], [strict, strict]])


@cache
def _cumulative_decay(dtype: np.dtype[Any]) -> Array:
    """[K, K]: times 2 sigmoid(z) of a chunk's tokens, this is the cumulative sum of log w."""
    return np.tril(np.full((CHUNK, CHUNK), DECAY, dtype))


@cache
def _decay_sums(dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    """Three [K, 2K] that sum the parts of dL/d(log w) over tokens: for dRA ∘ RA, dKB ∘ KB, and (VU Dᵀ) ∘ KB.

    What was multiplied by e^cl depends on all log w at or before it (κ's row: strictly before), and what was
    multiplied by e^−cl too, with the other sign; what reached the next state only on those after it.
    """
    upper = np.triu(np.ones((CHUNK, CHUNK), dtype))
    after, before = np.triu(upper, 1), np.tril(upper.T, -1)
    return np.hstack([upper, after]), -np.hstack([upper, upper]), np.hstack([before, before])


def _scan_forward(arena: Arena, saved: str, batch: int, N: int, RA: Array, KB: Array, VU: Array, eL: Array) -> Array:
    """Fill u into VU [G, 2, K, C] and return y [G, K, C]; eL is e^cl [G, C] at each chunk's last token."""
    chunks, _, _, C = RA.shape
    H, K = C // N, CHUNK
    ra, kb, vu = _heads(RA, N), _heads(KB, N), _heads(VU, N)
    A = np.matmul(ra, _transposed(kb), out=arena(saved + "A", chunks, H, 2 * K, 2 * K))
    A *= _causal_mask(A.dtype)
    M = arena(saved + "M", chunks, H, K, K)
    M[...] = _minus_inverse(A[:, :, K:, K:])
    MA = np.matmul(M, A[:, :, K:, :K], out=arena("MA", chunks, H, K, K))
    u = vu[:, :, K:]
    np.matmul(MA, vu[:, :, :K], out=u)
    P = np.matmul(M, ra[:, :, K:], out=arena("P", chunks, H, K, N))

    per_text = chunks // batch
    S = arena(saved + "S", batch, per_text, H, N, N)
    decay = eL.reshape(batch, per_text, H, N, 1)
    P, u_chunks = P.reshape(batch, per_text, H, K, N), u.reshape(batch, per_text, H, K, N)
    kb_chunks = kb.reshape(batch, per_text, H, 2 * K, N)
    vu_chunks = vu.reshape(batch, per_text, H, 2 * K, N)
    step_u, step_S = arena("step_u", batch, H, K, N), arena("step_S", batch, H, N, N)
    S[:, 0] = 0
    for c in range(per_text):
        np.matmul(P[:, c], S[:, c], out=step_u)
        u_chunks[:, c] += step_u
        if c + 1 < per_text:
            np.matmul(_transposed(kb_chunks[:, c]), vu_chunks[:, c], out=step_S)
            step_S += S[:, c]
            np.multiply(step_S, decay[:, c], out=S[:, c + 1])

    Y, part = arena("Y", chunks, K, C), arena("Y2", chunks, K, C)
    np.matmul(A[:, :, :K], vu, out=_heads(Y, N))
    np.matmul(ra[:, :, :K], S.reshape(chunks, H, N, N), out=_heads(part, N))
    Y += part
    return Y


def _scan_backward(
    arena: Arena, saved: str, batch: int, N: int, RA: Array, KB: Array, VU: Array, eL: Array, YZ: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Go back through the recurrence. YZ [G, 2, K, C] has dL/dy in its first half; z is filled in.

    Returns:
        dRA [G, 2, K, C]; the two parts of dKB [G, 2, K, C], from inside the chunk and from the state after it;
        dv [G, K, C]; and the state's part of dL/d(log w) [G, C], the same for all tokens of a chunk.
    """
    chunks, _, _, C = RA.shape
    H, K = C // N, CHUNK
    ra, kb, vu, yz = _heads(RA, N), _heads(KB, N), _heads(VU, N), _heads(YZ, N)
    A = arena(saved + "A", chunks, H, 2 * K, 2 * K)
    M = _transposed(arena(saved + "M", chunks, H, K, K))
    z = yz[:, :, K:]
    MA = np.matmul(M, _transposed(A[:, :, :K, K:]), out=arena("MA", chunks, H, K, K))
    np.matmul(MA, yz[:, :, :K], out=z)
    P = np.matmul(M, kb[:, :, K:], out=arena("P", chunks, H, K, N))

    per_text = chunks // batch
    S = arena(saved + "S", batch, per_text, H, N, N)
    D = arena("D", batch, per_text, H, N, N)
    decay = eL.reshape(batch, per_text, H, N, 1)
    P, z_chunks = P.reshape(batch, per_text, H, K, N), z.reshape(batch, per_text, H, K, N)
    ra_chunks = ra.reshape(batch, per_text, H, 2 * K, N)
    yz_chunks = yz.reshape(batch, per_text, H, 2 * K, N)
    step_z, step_S = arena("step_u", batch, H, K, N), arena("step_S", batch, H, N, N)
    D[:, -1] = 0
    for c in reversed(range(per_text)):
        np.matmul(P[:, c], D[:, c], out=step_z)
        z_chunks[:, c] += step_z
        if c > 0:
            np.matmul(_transposed(ra_chunks[:, c]), yz_chunks[:, c], out=step_S)
            step_S += D[:, c]
            np.multiply(step_S, decay[:, c - 1], out=D[:, c - 1])

    S, D = S.reshape(chunks, H, N, N), D.reshape(chunks, H, N, N)
    X = np.matmul(yz, _transposed(vu), out=arena("X", chunks, H, 2 * K, 2 * K))
    X *= _causal_mask(X.dtype)
    stack = (chunks, 2, K, C)
    dRA, part, dKB, dKB_state = (arena(name, *stack) for name in ("dRA", "dRA2", "dKB", "dKB2"))
    np.matmul(yz, _transposed(S), out=_heads(dRA, N))
    np.matmul(X, kb, out=_heads(part, N))
    dRA += part
    np.matmul(_transposed(X), ra, out=_heads(dKB, N))
    np.matmul(vu, _transposed(D), out=_heads(dKB_state, N))
    dv, part = arena("dv", chunks, K, C), arena("Y2", chunks, K, C)
    np.matmul(_transposed(A[:, :, :, :K]), yz, out=_heads(dv, N))
    np.matmul(kb[:, :, :K], D, out=_heads(part, N))
    dv += part
    decay_part = np.einsum("ghij,ghij->ghi", S, D).reshape(chunks, C)
    return dRA, dKB, dKB_state, dv, decay_part


# --- One block, forwards ----------------------------------------------------------------------------------------


def block_forward(
    config: Config,
    index: int,
    parameters: Mapping[str, Array],
    x: Array,
    v_first: Array,
    arena: Arena,
    saved: str = "",
) -> None:
    """Add one block's output to x, in place, and keep in the arena what `block_backward` needs.

    Args:
        config: Sizes.
        index: Which block. Block 0 writes v_first, the others read it.
        parameters: The block's tensors by official name without `blocks.<index>.`.
        x: [B, T, C], T a multiple of 16; the residual stream.
        v_first: [B, T, C], the first block's values.
        arena: Buffers.
        saved: Prefix of the names of what is kept: one for each block that shall be gone back through.
    """
    _time_mix_forward(config, index, parameters, x, v_first, arena, saved)
    _channel_mix_forward(parameters, x, arena, saved)


def _shift_forward(h: Array, xx: Array, batch: int) -> None:
    """Write h(t−1) − h(t), with zero before the start, to xx; both are [R, C]."""
    rows, width = h.shape
    h, xx = (part.reshape(batch, rows // batch, width) for part in (h, xx))
    np.subtract(h[:, :-1], h[:, 1:], out=xx[:, 1:])
    np.negative(h[:, 0], out=xx[:, 0])


def _shift_backward(dh: Array, dxx: Array, batch: int) -> None:
    """Add to dh what comes to it through xx; both are [R, C]."""
    rows, width = dh.shape
    dh, dxx = (part.reshape(batch, rows // batch, width) for part in (dh, dxx))
    dh -= dxx
    dh[:, :-1] += dxx[:, 1:]


def _inner_weights(
    config: Config, index: int, parameters: Mapping[str, Array], arena: Arena
) -> tuple[Array, dict[str, slice]]:
    """Stack w1 a1 v1 g1 beside each other, [2, C, inner]: first as they are, for h, then mixed, for xx.

    Since (h + xx ∘ x_w) w1 = h w1 + xx (x_w ∘ w1), two products replace four mixes and four thin products.
    """
    columns = _gate_columns(config, index)
    C = config.width
    inner = arena("inner_weights", 2, C, columns["g"].stop)
    inner[...] = 0
    for gate, where in columns.items():
        weight = parameters[f"att.{gate}1"]
        plain, mixed = inner[:, :, where.start : where.start + weight.shape[1]]
        plain[...] = weight
        np.multiply(weight, parameters[f"att.x_{gate}"].reshape(C, 1), out=mixed)
    return inner, columns


def _outer_weights(parameters: Mapping[str, Array], gate: str, arena: Arena) -> Array:
    """[rank + 1, C]: half of w2 (a2, v2) with half of the bias as last row, for a sigmoid by tanh of the half."""
    second = parameters[f"att.{gate}2"]
    rank, C = second.shape
    outer = arena(f"outer_{gate}", rank + 1, C)
    np.multiply(second, 0.5, out=outer[:rank])
    np.multiply(parameters[f"att.{gate}0"].reshape(C), 0.5, out=outer[rank])
    return outer


def _time_mix_forward(
    config: Config,
    index: int,
    parameters: Mapping[str, Array],
    x: Array,
    v_first: Array,
    arena: Arena,
    saved: str,
) -> None:
    batch, time, C = x.shape
    R, N, H, K = batch * time, config.head_size, config.heads, CHUNK
    x, v_first, chunks = x.reshape(R, C), v_first.reshape(R, C), R // K
    p = parameters

    def keep(name: str, *shape: int) -> Array:
        return arena(saved + name, *shape)

    h, xx = keep("h", R, C), keep("xx", R, C)
    _layer_norm(x, p["ln1.weight"], p["ln1.bias"], keep("normal1", R, C), keep("deviation1", R, 1), out=h)
    _shift_forward(h, xx, batch)

    # Projections of three mixes of h and its predecessor.
    r, k0, v = keep("r", R, C), keep("k0", R, C), v_first if index == 0 else arena("v", R, C)
    for mix, weight, out in (("r", "receptance", r), ("k", "key", k0), ("v", "value", v)):
        mixed = np.multiply(xx, p[f"att.x_{mix}"].reshape(C), out=keep(f"x{mix}", R, C))
        mixed += h
        np.matmul(mixed, p[f"att.{weight}.weight"].T, out=out)

    # Gates: decay, learning rate α, value residual, output gate.
    inner_weights, columns = _inner_weights(config, index, p, arena)
    inner = np.matmul(h, inner_weights[0], out=keep("inner", R, columns["g"].stop))
    inner += np.matmul(xx, inner_weights[1], out=arena("inner_xx", *inner.shape))
    part = inner[:, columns["w"]]
    np.tanh(part, out=part)
    _sigmoid(inner[:, columns["g"]])
    for gate, where in columns.items():
        if gate != "g":
            inner[:, where.stop - 1] = 1

    decay = np.matmul(inner[:, columns["w"]], _outer_weights(p, "w", arena), out=keep("decay", R, C))
    np.tanh(decay, out=decay)
    decay += 1  # 2 sigmoid
    e_cl = keep("e_cl", chunks, K, C)
    np.matmul(_cumulative_decay(decay.dtype), decay.reshape(chunks, K, C), out=e_cl)
    np.exp(e_cl, out=e_cl)
    e_minus_cl = np.divide(1, e_cl, out=keep("e_minus_cl", chunks, K, C))

    alpha = np.matmul(inner[:, columns["a"]], _outer_weights(p, "a", arena), out=keep("alpha", R, C))
    _sigmoid_from_half(alpha)
    VU = keep("VU", chunks, 2, K, C)
    V = VU[:, 0]
    if index == 0:
        V[...] = v_first.reshape(V.shape)
    else:
        mix_v = np.matmul(inner[:, columns["v"]], _outer_weights(p, "v", arena), out=keep("mix_v", R, C))
        _sigmoid_from_half(mix_v)
        residual = np.subtract(v_first, v, out=keep("v_residual", R, C))
        np.multiply(residual.reshape(V.shape), mix_v.reshape(V.shape), out=V)
        V += v.reshape(V.shape)
    gate_values = np.matmul(inner[:, columns["g"]], p["att.g2"], out=keep("gate", R, C))

    # κ of length one, and k.
    kappa, norm = keep("kappa", R, C), keep("kappa_norm", R, H, 1)
    np.multiply(k0, p["att.k_k"].reshape(C), out=kappa)
    by_head = kappa.reshape(R, H, N)
    np.einsum("rhn,rhn->rh", by_head, by_head, out=norm[:, :, 0])
    np.sqrt(norm, out=norm)
    np.maximum(norm, KAPPA_EPS, out=norm)
    np.divide(1, norm, out=norm)
    by_head *= norm
    k, factor, rk = keep("k", R, C), keep("k_factor", R, C), keep("rk", R, C)
    np.subtract(alpha, 1, out=factor)
    factor *= p["att.k_a"].reshape(C)
    factor += 1
    np.multiply(k0, factor, out=k)
    np.multiply(r, k, out=rk)

    # The recurrence.
    RA, KB = keep("RA", chunks, 2, K, C), keep("KB", chunks, 2, K, C)
    chunked = (chunks, K, C)
    np.multiply(r.reshape(chunked), e_cl, out=RA[:, 0])
    RA[:, 1, 0] = kappa.reshape(chunked)[:, 0]
    np.multiply(kappa.reshape(chunked)[:, 1:], e_cl[:, :-1], out=RA[:, 1, 1:])
    np.multiply(k.reshape(chunked), e_minus_cl, out=KB[:, 0])
    np.multiply(kappa.reshape(chunked), alpha.reshape(chunked), out=KB[:, 1])
    KB[:, 1] *= e_minus_cl
    Y = _scan_forward(arena, saved, batch, N, RA, KB, VU, e_cl[:, -1]).reshape(R, H, N)

    # Norm by head, bonus for the current token, gate, output.
    normal, deviation = keep("normal_x", R, H, N), keep("deviation_x", R, H, 1)
    np.einsum("rhn->rh", Y, out=deviation[:, :, 0])
    deviation /= N
    np.subtract(Y, deviation, out=normal)
    np.einsum("rhn,rhn->rh", normal, normal, out=deviation[:, :, 0])
    _inverse_deviation(deviation, N, GROUP_NORM_EPS)
    normal *= deviation
    mixed, scratch = keep("before_gate", R, C), arena("scratch", R, C)
    np.multiply(normal.reshape(R, C), p["att.ln_x.weight"], out=mixed)
    mixed += p["att.ln_x.bias"]
    bonus = keep("bonus", R, H)
    np.einsum("rhn,hn->rh", rk.reshape(R, H, N), p["att.r_k"], out=bonus)
    heads_of_chunk = (chunks, K, H, N)
    np.multiply(V.reshape(heads_of_chunk), bonus.reshape(chunks, K, H, 1), out=scratch.reshape(heads_of_chunk))
    mixed += scratch
    gated = np.multiply(mixed, gate_values, out=keep("gated", R, C))
    np.matmul(gated, p["att.output.weight"].T, out=scratch)
    x += scratch


def _channel_mix_forward(parameters: Mapping[str, Array], x: Array, arena: Arena, saved: str) -> None:
    batch, time, C = x.shape
    R, p = batch * time, parameters
    x = x.reshape(R, C)
    h, xx = arena("ffn_h", R, C), arena(saved + "ffn_xx", R, C)
    normal, deviation = arena(saved + "normal2", R, C), arena(saved + "deviation2", R, 1)
    _layer_norm(x, p["ln2.weight"], p["ln2.bias"], normal, deviation, out=h)
    _shift_forward(h, xx, batch)
    mixed = np.multiply(xx, p["ffn.x_k"].reshape(C), out=arena(saved + "ffn_xk", R, C))
    mixed += h
    hidden = np.matmul(mixed, p["ffn.key.weight"].T, out=arena(saved + "ffn_hidden", R, 4 * C))
    np.maximum(hidden, 0, out=hidden)
    squared = np.multiply(hidden, hidden, out=arena(saved + "ffn_squared", R, 4 * C))
    scratch = np.matmul(squared, p["ffn.value.weight"].T, out=arena("scratch", R, C))
    x += scratch


# --- One block, backwards ---------------------------------------------------------------------------------------


def block_backward(
    config: Config,
    index: int,
    parameters: Mapping[str, Array],
    gradients: Mapping[str, Array],
    dx: Array,
    dv_first: Array,
    arena: Arena,
    saved: str = "",
) -> None:
    """Turn dL/d(block's output) into dL/d(its input), in place, and write the gradients of the block's tensors.

    Args:
        config: Sizes.
        index: Which block.
        parameters: As in `block_forward`.
        gradients: Arrays named and shaped as the parameters; overwritten.
        dx: [B, T, C].
        dv_first: [B, T, C]; blocks above 0 add to it, block 0 reads it.
        arena: Buffers, as `block_forward` left them.
        saved: The prefix that was given to `block_forward`.
    """
    _channel_mix_backward(parameters, gradients, dx, arena, saved)
    _time_mix_backward(config, index, parameters, gradients, dx, dv_first, arena, saved)


def _column_sums(rows: Array, out: Array) -> None:
    """Write the sum over rows [R, C] to a tensor of C elements, whatever its shape."""
    np.matmul(np.ones(rows.shape[0], rows.dtype), rows, out=out.reshape(rows.shape[1]))


def _column_dots(left: Array, right: Array, out: Array) -> None:
    """Write Σ over rows of left ∘ right, both [R, C], to a tensor of C elements."""
    np.einsum("rc,rc->c", left, right, out=out.reshape(left.shape[1]))


def _channel_mix_backward(
    parameters: Mapping[str, Array], gradients: Mapping[str, Array], dx: Array, arena: Arena, saved: str
) -> None:
    batch, time, C = dx.shape
    R, p, g = batch * time, parameters, gradients
    dx = dx.reshape(R, C)
    scratch = arena("scratch", R, C)
    hidden, squared = arena(saved + "ffn_hidden", R, 4 * C), arena(saved + "ffn_squared", R, 4 * C)
    np.matmul(dx.T, squared, out=g["ffn.value.weight"])
    np.multiply(dx, 2, out=scratch)  # the 2 of d(hidden²), where the array is smallest
    dhidden = np.matmul(scratch, p["ffn.value.weight"], out=arena("dhidden", R, 4 * C))
    dhidden *= hidden
    np.matmul(dhidden.T, arena(saved + "ffn_xk", R, C), out=g["ffn.key.weight"])

    dh, dxx = arena("dh_block", R, C), arena("dxx", R, C)
    np.matmul(dhidden, p["ffn.key.weight"], out=dh)
    _column_dots(dh, arena(saved + "ffn_xx", R, C), g["ffn.x_k"])
    np.multiply(dh, p["ffn.x_k"].reshape(C), out=dxx)
    _shift_backward(dh, dxx, batch)
    _residual_norm_backward("2", "ln2", p, g, dh, dx, arena, saved)


def _residual_norm_backward(
    number: str,
    name: str,
    parameters: Mapping[str, Array],
    gradients: Mapping[str, Array],
    dh: Array,
    dx: Array,
    arena: Arena,
    saved: str,
) -> None:
    """Go back through h = LN(x), adding to dx."""
    R, C = dx.shape
    normal, deviation = arena(saved + f"normal{number}", R, C), arena(saved + f"deviation{number}", R, 1)
    _column_dots(dh, normal, gradients[f"{name}.weight"])
    _column_sums(dh, gradients[f"{name}.bias"])
    _layer_norm_backward(dh, parameters[f"{name}.weight"], normal, deviation, arena("scratch", R, C))
    dx += dh


def _outer_backward(
    gate: str,
    inner: Array,
    dz: Array,
    dinner: Array,
    parameters: Mapping[str, Array],
    gradients: Mapping[str, Array],
) -> None:
    """Go back through z = inner [w2; w0], where inner's last column is one."""
    both = np.matmul(inner.T, dz)
    gradients[f"att.{gate}2"][...] = both[:-1]
    gradients[f"att.{gate}0"].reshape(-1)[...] = both[-1]
    np.matmul(dz, parameters[f"att.{gate}2"].T, out=dinner[:, :-1])
    dinner[:, -1] = 0


def _inner_backward(
    config: Config,
    index: int,
    parameters: Mapping[str, Array],
    gradients: Mapping[str, Array],
    h: Array,
    xx: Array,
    dinner: Array,
    dh: Array,
    dxx: Array,
    arena: Arena,
) -> None:
    """Go back through the products of h and xx with the stacked w1 a1 v1 g1; writes dh and dxx [R, C]."""
    C = config.width
    weights, columns = _inner_weights(config, index, parameters, arena)
    np.matmul(dinner, weights[0].T, out=dh)
    np.matmul(dinner, weights[1].T, out=dxx)
    both = arena("inner_gradient", *weights.shape)
    np.matmul(h.T, dinner, out=both[0])
    np.matmul(xx.T, dinner, out=both[1])
    for gate, where in columns.items():
        first = parameters[f"att.{gate}1"]
        plain, mixed = both[:, :, where.start : where.start + first.shape[1]]
        np.multiply(mixed, parameters[f"att.x_{gate}"].reshape(C, 1), out=gradients[f"att.{gate}1"])
        gradients[f"att.{gate}1"] += plain
        np.einsum("cr,cr->c", mixed, first, out=gradients[f"att.x_{gate}"].reshape(C))


def _time_mix_backward(
    config: Config,
    index: int,
    parameters: Mapping[str, Array],
    gradients: Mapping[str, Array],
    dx: Array,
    dv_first: Array,
    arena: Arena,
    saved: str,
) -> None:
    batch, time, C = dx.shape
    R, N, H, K = batch * time, config.head_size, config.heads, CHUNK
    chunks, p, g = R // K, parameters, gradients
    dx, dv_first = dx.reshape(R, C), dv_first.reshape(R, C)
    chunked, by_head, chunk_heads = (chunks, K, C), (R, H, N), (chunks, K, H, N)

    def kept(name: str, *shape: int) -> Array:
        return arena(saved + name, *shape)

    scratch = arena("scratch", R, C)
    h, xx, columns = kept("h", R, C), kept("xx", R, C), _gate_columns(config, index)
    inner = kept("inner", R, columns["g"].stop)
    dinner = arena("dinner", *inner.shape)

    # Output, gate, bonus, norm by head.
    np.matmul(dx.T, kept("gated", R, C), out=g["att.output.weight"])
    dmixed = np.matmul(dx, p["att.output.weight"], out=arena("dmixed", R, C))
    dgate = np.multiply(dmixed, kept("before_gate", R, C), out=scratch)
    np.matmul(inner[:, columns["g"]].T, dgate, out=g["att.g2"])
    part = np.matmul(dgate, p["att.g2"].T, out=dinner[:, columns["g"]])
    sigmoid = inner[:, columns["g"]]
    part *= sigmoid
    part *= 1 - sigmoid
    dmixed *= kept("gate", R, C)

    normal, deviation = kept("normal_x", *by_head), kept("deviation_x", R, H, 1)
    _column_sums(dmixed, g["att.ln_x.bias"])
    _column_dots(dmixed, normal.reshape(R, C), g["att.ln_x.weight"])
    VU, bonus = kept("VU", chunks, 2, K, C), kept("bonus", R, H)
    V = VU[:, 0].reshape(chunk_heads)
    dbonus = arena("dbonus", R, H, 1)
    np.einsum("gkhn,gkhn->gkh", dmixed.reshape(chunk_heads), V, out=dbonus.reshape(chunks, K, H))
    rk = kept("rk", R, C)
    np.matmul(dbonus.transpose(1, 2, 0), rk.reshape(by_head).transpose(1, 0, 2), out=g["att.r_k"].reshape(H, 1, N))
    drk = np.multiply(dbonus, p["att.r_k"], out=arena("drk", *by_head)).reshape(R, C)
    dv_bonus = np.multiply(dmixed.reshape(by_head), bonus.reshape(R, H, 1), out=arena("dv_bonus", *by_head))

    dmixed *= p["att.ln_x.weight"]
    dy = dmixed.reshape(by_head)
    along = np.einsum("rhn,rhn->rh", dy, normal)[:, :, None]
    along /= N
    mean = np.einsum("rhn->rh", dy)[:, :, None]
    mean /= N
    dy -= mean
    np.multiply(normal, along, out=scratch.reshape(by_head))
    dmixed -= scratch
    YZ = arena("YZ", chunks, 2, K, C)
    np.multiply(dy.reshape(chunk_heads), deviation.reshape(chunks, K, H, 1), out=YZ[:, 0].reshape(chunk_heads))

    # The recurrence.
    RA, KB = kept("RA", chunks, 2, K, C), kept("KB", chunks, 2, K, C)
    e_cl, e_minus_cl = kept("e_cl", *chunked), kept("e_minus_cl", *chunked)
    dRA, dKB, dKB_state, dv, decay_part = _scan_backward(arena, saved, batch, N, RA, KB, VU, e_cl[:, -1], YZ)

    dlw, term, product = arena("dlw", *chunked), scratch.reshape(chunked), arena("product", chunks, 2, K, C)
    from_RA, from_KB, from_state = _decay_sums(dx.dtype)
    np.multiply(dRA, RA, out=product)
    np.matmul(from_RA, product.reshape(chunks, 2 * K, C), out=dlw)
    np.multiply(dKB, KB, out=product)
    dlw += np.matmul(from_KB, product.reshape(chunks, 2 * K, C), out=term)
    np.multiply(dKB_state, KB, out=product)
    dlw += np.matmul(from_state, product.reshape(chunks, 2 * K, C), out=term)
    dlw += decay_part[:, None]

    # Decay's gate: log w = DECAY (1 + t), t = tanh(z/2), and dt/dz = (1 − t²)/2, with `decay` = 1 + t.
    decay, dz = kept("decay", R, C), dlw.reshape(R, C)
    dz *= decay
    np.subtract(2, decay, out=scratch)
    scratch *= 0.5 * DECAY
    dz *= scratch
    where = columns["w"]
    _outer_backward("w", inner[:, where], dz, dinner[:, where], p, g)
    dinner_w, tanh = dinner[:, where], inner[:, where]
    dinner_w *= 1 - tanh * tanh

    # From RA and KB to r, κ, k and b = κ α; then from k and κ to k0 and α.
    dKB += dKB_state
    dKB *= e_minus_cl[:, None]
    dr, dk, db = arena("dr", R, C), arena("dk", R, C), arena("db", R, C)
    np.multiply(dRA[:, 0], e_cl, out=dr.reshape(chunked))
    np.multiply(drk, kept("k", R, C), out=scratch)
    dr += scratch
    np.multiply(drk, kept("r", R, C), out=dk)
    dk.reshape(chunked)[...] += dKB[:, 0]
    db.reshape(chunked)[...] = dKB[:, 1]
    kappa, alpha, k0 = kept("kappa", R, C), kept("alpha", R, C), kept("k0", R, C)
    dkappa, dalpha = arena("dkappa", R, C), arena("dalpha", R, C)
    np.multiply(dRA[:, 1, 1:], e_cl[:, :-1], out=dkappa.reshape(chunked)[:, 1:])
    dkappa.reshape(chunked)[:, 0] = dRA[:, 1, 0]
    np.multiply(db, alpha, out=scratch)
    dkappa += scratch
    np.multiply(db, kappa, out=dalpha)

    k_a = p["att.k_a"].reshape(C)
    dfactor = np.multiply(dk, k0, out=scratch)
    np.subtract(alpha, 1, out=db)
    _column_dots(dfactor, db, g["att.k_a"])
    dfactor *= k_a
    dalpha += dfactor
    dk0 = dk
    dk0 *= kept("k_factor", R, C)

    along = np.einsum("rhn,rhn->rh", dkappa.reshape(by_head), kappa.reshape(by_head))[:, :, None]
    np.multiply(kappa.reshape(by_head), along, out=scratch.reshape(by_head))
    dkappa -= scratch
    dkappa.reshape(by_head)[...] *= kept("kappa_norm", R, H, 1)
    _column_dots(dkappa, k0, g["att.k_k"])
    dkappa *= p["att.k_k"].reshape(C)
    dk0 += dkappa

    dalpha *= alpha
    np.subtract(1, alpha, out=scratch)
    dalpha *= scratch
    where = columns["a"]
    _outer_backward("a", inner[:, where], dalpha, dinner[:, where], p, g)

    # Values.
    dv = dv.reshape(R, C)
    dv += dv_bonus.reshape(R, C)
    if index == 0:
        dv += dv_first
    else:
        mix_v = kept("mix_v", R, C)
        dfirst = np.multiply(dv, mix_v, out=scratch)
        dv_first += dfirst
        dz = np.multiply(dfirst, kept("v_residual", R, C), out=arena("dmix_v", R, C))
        dv -= dfirst
        np.subtract(1, mix_v, out=scratch)
        dz *= scratch
        where = columns["v"]
        _outer_backward("v", inner[:, where], dz, dinner[:, where], p, g)

    # Inner maps, projections and their mixes, shift, norm.
    dh, dxx, mix_gradient = arena("dh_block", R, C), arena("dxx", R, C), arena("mix_gradient", C)
    for mix in ("r", "k", "v"):  # x_v mixes for two: the projection and its gate
        g[f"att.x_{mix}"][...] = 0
    _inner_backward(config, index, p, g, h, xx, dinner, dh, dxx, arena)
    for mix, weight, dout in (("r", "receptance", dr), ("k", "key", dk0), ("v", "value", dv)):
        np.matmul(dout.T, kept(f"x{mix}", R, C), out=g[f"att.{weight}.weight"])
        dmix = np.matmul(dout, p[f"att.{weight}.weight"], out=scratch)
        dh += dmix
        _column_dots(dmix, xx, mix_gradient)
        g[f"att.x_{mix}"].reshape(C)[...] += mix_gradient
        dmix *= p[f"att.x_{mix}"].reshape(C)
        dxx += dmix
    _shift_backward(dh, dxx, batch)
    _residual_norm_backward("1", "ln1", p, g, dh, dx, arena, saved)


# --- The model --------------------------------------------------------------------------------------------------


class _Lane:
    """What one thread needs to go through its slice of a batch: buffers, and gradients of its own."""

    def __init__(self, config: Config, dtype: DTypeLike) -> None:
        self.arena = Arena(dtype)
        shapes = parameter_shapes(config)
        self.flat_gradients = np.zeros(sum(math.prod(shape) for shape in shapes.values()), dtype)
        self.gradients = _views(self.flat_gradients, shapes)
        self.blocks = [_of_block(self.gradients, index) for index in range(config.layers)]


class RWKV7:
    """An RWKV-7 language model: parameters, loss, gradients, and one token at a time for generation.

    Attributes:
        config: Sizes.
        parameters: Tensors by official name. Each is a view of `flat_parameters`; change contents in place.
        flat_parameters: All parameters in one vector, in the order of `parameters`.
        threads: Into how many slices `loss_and_gradients` cuts a batch, each gone through by a thread of its own, with
            buffers and gradients of its own. Worth it only if BLAS is kept to one thread meanwhile.
    """

    def __init__(
        self,
        config: Config,
        parameters: Mapping[str, Array] | None = None,
        seed: int = 0,
        dtype: DTypeLike = np.float32,
        threads: int = 1,
    ) -> None:
        """Take the parameters given, copied, or start as the official training code does.

        Args:
            config: Sizes.
            parameters: Tensors by official name; must match the sizes.
            seed: Of the start values, if no parameters are given.
            dtype: float32, or float64 to check gradients.
            threads: See the attribute.

        Raises:
            ValueError: A tensor is missing, unexpected or has the wrong shape.
        """
        self.config = config
        shapes = parameter_shapes(config)
        total = sum(math.prod(shape) for shape in shapes.values())
        self.flat_parameters = np.empty(total, dtype)
        self.parameters = _views(self.flat_parameters, shapes)
        if parameters is not None:
            check_parameters(config, parameters)
        source = initial_parameters(config, seed) if parameters is None else parameters.items()
        for name, values in source:
            self.parameters[name][...] = values
        self._blocks = [_of_block(self.parameters, index) for index in range(config.layers)]
        self.threads = threads
        self._arena = Arena(dtype)  # of what needs no gradient
        self._lanes: list[_Lane] = []  # made when first needed: generation needs none
        self._pool: ThreadPoolExecutor | None = None

    @property
    def num_parameters(self) -> int:
        """Count of all elements of all tensors."""
        return self.flat_parameters.size

    @property
    def flat_gradients(self) -> Array:
        """All gradients in one vector, ordered as the parameters, as `loss_and_gradients` left them last."""
        return self._lane(0).flat_gradients

    def _lane(self, number: int) -> _Lane:
        while len(self._lanes) <= number:
            self._lanes.append(_Lane(self.config, self.flat_parameters.dtype))
        return self._lanes[number]

    def loss_and_gradients(self, batch: Array) -> tuple[float, Mapping[str, Array]]:
        """Compute the mean cross-entropy of the next token, and its gradient.

        Args:
            batch: [B, T+1] token ids; the first T of each row are read, the last T predicted.

        Returns:
            Nats per token, and the gradient of every parameter by name. The next call overwrites these arrays.

        Raises:
            ValueError: The batch is no such array, or a token is outside the vocabulary.
        """
        tokens, targets = self._split(batch)
        lanes = [self._lane(number) for number in range(max(1, min(self.threads, len(tokens))))]
        edges = [len(tokens) * number // len(lanes) for number in range(len(lanes) + 1)]

        def go(number: int) -> float:
            rows = slice(edges[number], edges[number + 1])
            return self._loss_and_gradients(lanes[number], tokens[rows], targets[rows], targets.size)

        if len(lanes) == 1:
            return go(0), lanes[0].gradients
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, "rwkv7")
        loss = sum(self._pool.map(go, range(len(lanes))))
        for lane in lanes[1:]:
            lanes[0].flat_gradients += lane.flat_gradients
        return loss, lanes[0].gradients

    def _loss_and_gradients(self, lane: _Lane, tokens: Array, targets: Array, total: int) -> float:
        """Return a slice's part of the mean loss over `total` tokens, and leave its part of the gradient in the lane."""
        x = self._trunk_forward(lane.arena, tokens, keep=True)
        loss, dx = self._head(lane.arena, x, targets, total, lane.gradients)
        self._trunk_backward(lane, tokens, dx)
        return loss

    def loss(self, batch: Array) -> float:
        """Compute the mean cross-entropy in nats per token of a batch [B, T+1].

        Raises:
            ValueError: The batch is no such array, or a token is outside the vocabulary.
        """
        tokens, targets = self._split(batch)
        x = self._trunk_forward(self._arena, tokens, keep=False)
        return self._head(self._arena, x, targets, targets.size, None)[0]

    def forward(self, tokens: Array) -> Array:
        """Return logits [B, T, V] for tokens [B, T].

        Raises:
            ValueError: The tokens are no such array, or one is outside the vocabulary.
        """
        tokens = self._checked(tokens, 2)
        x = self._trunk_forward(self._arena, tokens, keep=False)[:, : tokens.shape[1]]
        h = self._norm_out(self._arena, x.reshape(-1, self.config.width))
        return np.asarray(h @ self.parameters["head.weight"].T).reshape(*tokens.shape, -1)

    # Loss and trunk.

    def _checked(self, tokens: Array, dimensions: int) -> Array:
        tokens = np.asarray(tokens)
        if tokens.ndim != dimensions or tokens.size == 0:
            raise ValueError(f"tokens: expected a {dimensions}-dimensional array, found shape {tokens.shape}")
        if not np.issubdtype(tokens.dtype, np.integer):
            raise ValueError(f"tokens: expected integers, found {tokens.dtype}")
        lowest, highest = int(tokens.min()), int(tokens.max())
        if lowest < 0 or highest >= self.config.vocabulary:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"token {wrong} is outside the vocabulary of {self.config.vocabulary}")
        return tokens.astype(np.int64, copy=False)

    def _split(self, batch: Array) -> tuple[Array, Array]:
        batch = self._checked(batch, 2)
        if batch.shape[1] < 2:
            raise ValueError(f"batch: expected [B, T+1] with T of at least 1, found shape {batch.shape}")
        return batch[:, :-1], batch[:, 1:]

    def _padded(self, tokens: Array) -> Array:
        """Fill up time to whole chunks. What stands there cannot be seen by earlier tokens."""
        missing = -tokens.shape[1] % CHUNK
        return np.pad(tokens, ((0, 0), (0, missing))) if missing else tokens

    def _trunk_forward(self, arena: Arena, tokens: Array, keep: bool) -> Array:
        """Return [B, T padded, C], the input of the last norm."""
        tokens = self._padded(tokens)
        (batch, time), C, p = tokens.shape, self.config.width, self.parameters
        R = batch * time
        x, v_first = arena("x", batch, time, C), arena("v_first", batch, time, C)
        embedded = np.take(p["emb.weight"], tokens.reshape(R), axis=0, out=arena("scratch", R, C), mode="clip")
        _layer_norm(
            embedded,
            p["blocks.0.ln0.weight"],
            p["blocks.0.ln0.bias"],
            arena("normal0", R, C),
            arena("deviation0", R, 1),
            out=x.reshape(R, C),
        )
        for index, block in enumerate(self._blocks):
            block_forward(self.config, index, block, x, v_first, arena, f"{index}." if keep else "")
        return x

    def _norm_out(self, arena: Arena, x: Array) -> Array:
        R, C = x.shape
        out, p = arena("normed_out", R, C), self.parameters
        normal, deviation = arena("normal_out", R, C), arena("deviation_out", R, 1)
        _layer_norm(x, p["ln_out.weight"], p["ln_out.bias"], normal, deviation, out=out)
        return out

    def _head(
        self, arena: Arena, x: Array, targets: Array, total: int, gradients: Mapping[str, Array] | None
    ) -> tuple[float, Array]:
        """Return the summed loss over `total`, and dL/dx [B, T padded, C] if gradients are wanted (else rubbish)."""
        (batch, time, C), head = x.shape, self.parameters["head.weight"]
        real = targets.shape[1]
        h = self._norm_out(arena, x[:, :real].reshape(-1, C))
        R, V = h.shape[0], head.shape[0]
        flat_targets = targets.reshape(R)
        dh = arena("dh", R, C)
        loss, tile = 0.0, max(1, min(R, HEAD_TILE_BYTES // (V * h.itemsize)))
        for start in range(0, R, tile):
            rows = slice(start, min(start + tile, R))
            count = rows.stop - start
            logits = np.matmul(h[rows], head.T, out=arena("logits", count, V))
            loss += _softmax_loss(logits, flat_targets[rows])
            if gradients is None:
                continue
            logits *= 1 / total
            np.matmul(logits, head, out=dh[rows])
            dhead = gradients["head.weight"]
            if start == 0:
                np.matmul(logits.T, h[rows], out=dhead)
            else:
                dhead += np.matmul(logits.T, h[rows], out=arena("dhead", V, C))
        dx = arena("dx", batch, time, C)
        if gradients is not None:
            normal, deviation = arena("normal_out", R, C), arena("deviation_out", R, 1)
            _column_dots(dh, normal, gradients["ln_out.weight"])
            _column_sums(dh, gradients["ln_out.bias"])
            weight = self.parameters["ln_out.weight"]
            _layer_norm_backward(dh, weight, normal, deviation, arena("scratch", R, C))
            dx[:, :real] = dh.reshape(batch, real, C)
            dx[:, real:] = 0
        return loss / total, dx

    def _trunk_backward(self, lane: _Lane, tokens: Array, dx: Array) -> None:
        arena, gradients = lane.arena, lane.gradients
        dv_first = arena("dv_first", *dx.shape)
        dv_first[...] = 0
        for index in reversed(range(self.config.layers)):
            block_backward(
                self.config,
                index,
                self._blocks[index],
                lane.blocks[index],
                dx,
                dv_first,
                arena,
                f"{index}.",
            )
        R, C = dx.shape[0] * dx.shape[1], dx.shape[2]
        rows, normal = dx.reshape(R, C), arena("normal0", R, C)
        _column_dots(rows, normal, gradients["blocks.0.ln0.weight"])
        _column_sums(rows, gradients["blocks.0.ln0.bias"])
        weight, deviation = self.parameters["blocks.0.ln0.weight"], arena("deviation0", R, 1)
        _layer_norm_backward(rows, weight, normal, deviation, arena("scratch", R, C))
        _scatter_rows(self._padded(tokens).reshape(R), rows, gradients["emb.weight"])

    # One token at a time.

    def initial_state(self, batch: int = 1) -> State:
        """Return the state before any token, for `step`: by block, S [B, H, N, N] and the two tokens before."""
        c, dtype = self.config, self.flat_parameters.dtype
        return [
            {
                "S": np.zeros((batch, c.heads, c.head_size, c.head_size), dtype),
                "time_x": np.zeros((batch, c.width), dtype),
                "channel_x": np.zeros((batch, c.width), dtype),
            }
            for _ in range(c.layers)
        ]

    def step(self, tokens: Array, state: State) -> tuple[Array, State]:
        """Read one token per text.

        Args:
            tokens: [B] ids.
            state: From `initial_state(B)` or the last step; not changed.

        Returns:
            Logits [B, V] for the next token, and the state after this one.

        Raises:
            ValueError: A token is outside the vocabulary, or tokens is no vector.
        """
        tokens = self._checked(tokens, 1)
        p = self.parameters
        x = _plain_norm(p["emb.weight"][tokens], p["blocks.0.ln0.weight"], p["blocks.0.ln0.bias"], LAYER_NORM_EPS)
        after: State = []
        v_first: Array | None = None
        for block, before in zip(self._blocks, state, strict=True):
            now = dict(before)
            h = _plain_norm(x, block["ln1.weight"], block["ln1.bias"], LAYER_NORM_EPS)
            mixed, now["S"], v_first = _time_mix_step(self.config, block, h, before, v_first)
            x = x + mixed
            now["time_x"] = h
            h = _plain_norm(x, block["ln2.weight"], block["ln2.bias"], LAYER_NORM_EPS)
            mixed_k = h + (before["channel_x"] - h) * block["ffn.x_k"].reshape(-1)
            x = x + np.maximum(mixed_k @ block["ffn.key.weight"].T, 0) ** 2 @ block["ffn.value.weight"].T
            now["channel_x"] = h
            after.append(now)
        x = _plain_norm(x, p["ln_out.weight"], p["ln_out.bias"], LAYER_NORM_EPS)
        return x @ p["head.weight"].T, after

    # Files.

    def save(self, path: Path | str) -> None:
        """Write the parameters to a safetensors file, under their official names."""
        save_file(self.parameters, path)

    @classmethod
    def load(cls, path: Path | str) -> RWKV7:
        """Read a model from a .safetensors file, or from a checkpoint directory with weights.safetensors in it.

        Raises:
            ValueError: There is no such file, it is no safetensors file, or its tensors are not a whole model.
        """
        path = Path(path)
        file = path / "weights.safetensors" if path.is_dir() else path
        if not file.is_file():
            raise ValueError(f"no weights at {file}")
        try:
            tensors = load_file(file)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} is not a readable safetensors file: {error}") from error
        return cls(Config.from_parameters(tensors), tensors)


def _views(flat: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Cut one vector into tensors, without copying."""
    views, start = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        views[name] = flat[start : start + size].reshape(shape)
        start += size
    return views


def _of_block(tensors: Mapping[str, Array], index: int) -> dict[str, Array]:
    """Pick one block's tensors, without their prefix."""
    prefix = f"blocks.{index}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _softmax_loss(logits: Array, targets: Array) -> float:
    """Return the sum of cross-entropies of logits [R, V], which become softmax − one-hot, the gradient of it."""
    rows = np.arange(len(targets))
    logits -= logits.max(axis=1, keepdims=True)
    right = logits[rows, targets].astype(np.float64)
    np.exp(logits, out=logits)
    sums = logits.sum(axis=1, keepdims=True)
    logits /= sums
    logits[rows, targets] -= 1
    return float(np.log(sums[:, 0], dtype=np.float64).sum() - right.sum())


def _scatter_rows(tokens: Array, rows: Array, out: Array) -> None:
    """Write to out [V, C] the sum of the rows [R, C] of each token."""
    out[...] = 0
    order = np.argsort(tokens, kind="stable")
    sorted_tokens = tokens[order]
    starts = np.flatnonzero(np.diff(sorted_tokens, prepend=-1))
    out[sorted_tokens[starts]] = np.add.reduceat(rows[order], starts, axis=0)


# --- One token at a time ----------------------------------------------------------------------------------------


def _plain_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    """Normalise over the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + eps) * weight + bias)


def _plain_sigmoid(z: Array) -> Array:
    z = np.array(z)
    _sigmoid(z)
    return z


def _time_mix_step(
    config: Config, block: Mapping[str, Array], h: Array, before: Mapping[str, Array], v_first: Array | None
) -> tuple[Array, Array, Array]:
    """Return the time mixing's output [B, C], the state S after it and the first block's v: the paper's formulas."""
    batch, C = h.shape
    shape = (batch, config.heads, config.head_size)
    p = {name.removeprefix("att."): value for name, value in block.items() if name.startswith("att.")}
    x = {mix: h + (before["time_x"] - h) * p[f"x_{mix}"].reshape(C) for mix in MIXES}

    def gate(letter: str, inner: Array) -> Array:
        return _plain_sigmoid(p[f"{letter}0"].reshape(C) + inner @ p[f"{letter}2"])

    r, k, v = (x[mix] @ p[f"{name}.weight"].T for mix, name in (("r", "receptance"), ("k", "key"), ("v", "value")))
    w = np.exp(2 * DECAY * gate("w", np.tanh(x["w"] @ p["w1"])))
    if v_first is None:
        v_first = v
    else:
        v = v + (v_first - v) * gate("v", x["v"] @ p["v1"])
    alpha = gate("a", x["a"] @ p["a1"])
    output_gate = _plain_sigmoid(x["g"] @ p["g1"]) @ p["g2"]
    kappa = (k * p["k_k"].reshape(C)).reshape(shape)
    kappa = kappa / np.maximum(np.sqrt(np.square(kappa).sum(-1, keepdims=True)), KAPPA_EPS)
    k = k * (1 + (alpha - 1) * p["k_a"].reshape(C))
    r, w, k, v, alpha = (values.reshape(shape) for values in (r, w, k, v, alpha))

    # S is [key, value], as in the chunks.
    removed = -np.einsum("bhk,bhkv->bhv", kappa, before["S"])
    S = before["S"] * w[..., None] + (kappa * alpha)[..., None] * removed[:, :, None] + k[..., None] * v[:, :, None]
    y = np.einsum("bhk,bhkv->bhv", r, S)
    y = _plain_norm(y, p["ln_x.weight"].reshape(shape[1:]), p["ln_x.bias"].reshape(shape[1:]), GROUP_NORM_EPS)
    y = y + (r * k * p["r_k"]).sum(-1, keepdims=True) * v
    return (y.reshape(batch, C) * output_gate) @ p["output.weight"].T, S, v_first
