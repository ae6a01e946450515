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

import math
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
        layers = 1 + max((int(index) for index in blocks if index.isdecimal()), default=0)
        if layers > len(parameters):
            raise ValueError(f"not an RWKV-7 model: a tensor is of block {layers - 1}, of {len(parameters)} tensors")
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
    "rwkv-100m": Config(layers=12, width=768, head_size=64, **_SMALL_RANKS),  # 91 M: rwkv-0.1b for bytes
    "rwkv-0.1b": Config(layers=12, width=768, head_size=64, vocabulary=65536, **_SMALL_RANKS),  # 191 M
    "rwkv-0.4b": Config(layers=24, width=1024, head_size=64, vocabulary=65536, **_SMALL_RANKS),  # 451 M
    "rwkv-1b": Config(layers=24, width=1536, head_size=64, vocabulary=65536, **_MEDIUM_RANKS),  # 914 M
    "rwkv-1.5b": Config(layers=24, width=2048, head_size=64, vocabulary=65536, **_LARGE_RANKS),  # 1527 M
}


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


# --- Norms, sigmoids, and the inverse of a triangle -------------------------------------------------------------


def _normalise(x: Array, normal: Array, deviation: Array, eps: float) -> None:
    """Write (x − mean)/σ over the last axis to `normal`, and 1/σ to `deviation`, whose last axis has length one."""
    width = x.shape[-1]
    np.einsum("...c->...", x, out=deviation[..., 0])
    deviation /= width
    np.subtract(x, deviation, out=normal)
    np.einsum("...c,...c->...", normal, normal, out=deviation[..., 0])
    deviation /= width
    deviation += eps
    np.sqrt(deviation, out=deviation)
    np.divide(1, deviation, out=deviation)
    normal *= deviation


def _normalise_backward(dnormal: Array, normal: Array, scratch: Array) -> None:
    """Turn dL/d(normal) into σ dL/dx, in place."""
    width = dnormal.shape[-1]
    along = np.einsum("...c,...c->...", dnormal, normal)[..., None]
    along /= width
    mean = np.einsum("...c->...", dnormal)[..., None]
    mean /= width
    dnormal -= mean
    np.multiply(normal, along, out=scratch)
    dnormal -= scratch


def _layer_norm(x: Array, weight: Array, bias: Array, normal: Array, deviation: Array, out: Array) -> None:
    """Write LN(x) [R, C] to out, and what the way back needs to normal [R, C] and deviation [R, 1]."""
    _normalise(x, normal, deviation, LAYER_NORM_EPS)
    np.multiply(normal, weight, out=out)
    out += bias


def _layer_norm_backward(
    dy: Array, weight: Array, normal: Array, deviation: Array, dweight: Array, dbias: Array, scratch: Array
) -> None:
    """Turn dL/d(LN(x)) into dL/dx, in place, and write the gradients of weight and bias."""
    _column_dots(dy, normal, dweight)
    _column_sums(dy, dbias)
    dy *= weight
    _normalise_backward(dy, normal, scratch)
    dy *= deviation


def _column_sums(rows: Array, out: Array) -> None:
    """Write the sum over rows [R, C] to a tensor of C elements, whatever its shape."""
    np.matmul(np.ones(rows.shape[0], rows.dtype), rows, out=out.reshape(rows.shape[1]))


def _column_dots(left: Array, right: Array, out: Array) -> None:
    """Write the sum over rows of left ∘ right, both [R, C], to a tensor of C elements."""
    np.einsum("rc,rc->c", left, right, out=out.reshape(left.shape[1]))


def _sigmoid_of_half(half_z: Array) -> None:
    """Turn z/2 into sigmoid(z), in place: by tanh, which cannot overflow and which numpy vectorises everywhere."""
    np.tanh(half_z, out=half_z)
    half_z *= 0.5
    half_z += 0.5


def _sigmoid_backward(dz: Array, sigmoid: Array, scratch: Array) -> None:
    """Turn dL/d(sigmoid(z)) into dL/dz, in place."""
    dz *= sigmoid
    np.subtract(1, sigmoid, out=scratch)
    dz *= scratch


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


# --- One block --------------------------------------------------------------------------------------------------


class _Pass:
    """One block going once through one batch: its tensors, and its buffers by name."""

    def __init__(
        self, config: Config, index: int, parameters: Mapping[str, Array], arena: Arena, saved: str, x: Array
    ) -> None:
        self.config, self.index, self.arena, self.saved = config, index, arena, saved
        self.p = parameters  # without the prefix blocks.<index>.
        self.batch, self.time, _ = x.shape
        self.rows = self.batch * self.time  # R
        self.chunks = self.rows // CHUNK  # G

    def buffer(self, name: str, *shape: int) -> Array:
        """Memory that any block may use next; [R, C] unless a shape is given."""
        return self.arena(name, *(shape or (self.rows, self.config.width)))

    def keep(self, name: str, *shape: int) -> Array:
        """Memory of this block alone: written on the way forward, read on the way back."""
        return self.buffer(self.saved + name, *shape)

    def stack(self, name: str) -> Array:
        """A buffer of this block with two rows for each token, chunk by chunk: [G, 2, K, C]."""
        return self.keep(name, self.chunks, 2, CHUNK, self.config.width)

    def chunked(self, rows: Array) -> Array:
        """View [R, C] as [G, K, C]."""
        return rows.reshape(self.chunks, CHUNK, -1)

    def by_head(self, rows: Array) -> Array:
        """View [R, C] as [R, H, N]."""
        return rows.reshape(self.rows, self.config.heads, self.config.head_size)

    def heads(self, stack: Array) -> Array:
        """View [G, ..., C] as [G, H, rows, N]. Nothing is copied: BLAS takes rows as far apart as they are."""
        return stack.reshape(self.chunks, -1, self.config.heads, self.config.head_size).transpose(0, 2, 1, 3)

    def vector(self, name: str) -> Array:
        """A parameter of C elements as [C]."""
        return self.p[name].reshape(self.config.width)


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
    this = _Pass(config, index, parameters, arena, saved, x)
    x, v_first = (array.reshape(this.rows, config.width) for array in (x, v_first))
    _time_mix_forward(this, x, v_first)
    _channel_mix_forward(this, x)


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
    this = _Pass(config, index, parameters, arena, saved, dx)
    dx, dv_first = (array.reshape(this.rows, config.width) for array in (dx, dv_first))
    _channel_mix_backward(this, gradients, dx)
    _time_mix_backward(this, gradients, dx, dv_first)


def _norm_and_shift(b: _Pass, number: str, x: Array, h: Array, xx: Array) -> None:
    """Write h = LN(x) and xx = h of the token before − h, zero before the start; all [R, C]."""
    normal, deviation = b.keep(f"normal{number}"), b.keep(f"deviation{number}", b.rows, 1)
    _layer_norm(x, b.p[f"ln{number}.weight"], b.p[f"ln{number}.bias"], normal, deviation, out=h)
    h, xx = (part.reshape(b.batch, b.time, -1) for part in (h, xx))
    np.subtract(h[:, :-1], h[:, 1:], out=xx[:, 1:])
    np.negative(h[:, 0], out=xx[:, 0])


def _norm_and_shift_backward(b: _Pass, number: str, g: Mapping[str, Array], dh: Array, dxx: Array, dx: Array) -> None:
    """Add to dx what comes to it through h and xx; dh and dxx are used up."""
    texts, shifted = (part.reshape(b.batch, b.time, -1) for part in (dh, dxx))
    texts -= shifted
    texts[:, :-1] += shifted[:, 1:]
    name, normal, deviation = f"ln{number}", b.keep(f"normal{number}"), b.keep(f"deviation{number}", b.rows, 1)
    weight, bias = f"{name}.weight", f"{name}.bias"
    _layer_norm_backward(dh, b.p[weight], normal, deviation, g[weight], g[bias], b.buffer("scratch"))
    dx += dh


# --- Channel mixing ---------------------------------------------------------------------------------------------


def _channel_mix_forward(b: _Pass, x: Array) -> None:
    R, C = x.shape
    h, xx = b.buffer("ffn_h"), b.keep("ffn_xx")
    _norm_and_shift(b, "2", x, h, xx)
    mixed = np.multiply(xx, b.vector("ffn.x_k"), out=b.keep("ffn_xk"))
    mixed += h
    hidden = np.matmul(mixed, b.p["ffn.key.weight"].T, out=b.keep("ffn_hidden", R, 4 * C))
    np.maximum(hidden, 0, out=hidden)
    squared = np.multiply(hidden, hidden, out=b.keep("ffn_squared", R, 4 * C))
    x += np.matmul(squared, b.p["ffn.value.weight"].T, out=b.buffer("scratch"))


def _channel_mix_backward(b: _Pass, g: Mapping[str, Array], dx: Array) -> None:
    R, C = dx.shape
    np.matmul(dx.T, b.keep("ffn_squared", R, 4 * C), out=g["ffn.value.weight"])
    twice = np.multiply(dx, 2, out=b.buffer("scratch"))  # the 2 of d(hidden²), where the array is smallest
    dhidden = np.matmul(twice, b.p["ffn.value.weight"], out=b.buffer("dhidden", R, 4 * C))
    dhidden *= b.keep("ffn_hidden", R, 4 * C)
    np.matmul(dhidden.T, b.keep("ffn_xk"), out=g["ffn.key.weight"])
    dh = np.matmul(dhidden, b.p["ffn.key.weight"], out=b.buffer("dh"))
    _column_dots(dh, b.keep("ffn_xx"), g["ffn.x_k"])
    dxx = np.multiply(dh, b.vector("ffn.x_k"), out=b.buffer("dxx"))
    _norm_and_shift_backward(b, "2", g, dh, dxx, dx)


# --- Time mixing, forwards --------------------------------------------------------------------------------------


def _time_mix_forward(b: _Pass, x: Array, v_first: Array) -> None:
    h, xx = b.keep("h"), b.keep("xx")
    _norm_and_shift(b, "1", x, h, xx)
    v = v_first if b.index == 0 else b.buffer("v")
    _project(b, h, xx, "r", "receptance", b.keep("r"))
    _project(b, h, xx, "k", "key", b.keep("k0"))
    _project(b, h, xx, "v", "value", v)
    _gates_forward(b, h, xx)
    _values_forward(b, v, v_first)
    _keys_forward(b)
    _operands_forward(b)
    y = _scan_forward(b)
    x += _output_forward(b, y)


def _project(b: _Pass, h: Array, xx: Array, mix: str, weight: str, out: Array) -> None:
    """Write (h + xx ∘ x_mix) Wᵀ."""
    mixed = np.multiply(xx, b.vector(f"att.x_{mix}"), out=b.keep(f"x{mix}"))
    mixed += h
    np.matmul(mixed, b.p[f"att.{weight}.weight"].T, out=out)


def _gate_columns(config: Config, index: int) -> dict[str, slice]:
    """Columns of each gate's inner values. After those of w, a and v there is a column of ones for the bias."""
    ranks = {"w": config.rank_w + 1, "a": config.rank_a + 1, "v": config.rank_v + 1, "g": config.rank_g}
    if index == 0:
        del ranks["v"]
    columns, start = {}, 0
    for gate, width in ranks.items():
        columns[gate] = slice(start, start + width)
        start += width
    return columns


def _inner_weights(b: _Pass) -> tuple[Array, dict[str, slice]]:
    """Stack w1 a1 v1 g1 beside each other, [2, C, inner]: first as they are, for h, then mixed, for xx.

    Since (h + xx ∘ x_w) w1 = h w1 + xx (x_w ∘ w1), two products replace four mixes and four thin products.
    """
    columns, C = _gate_columns(b.config, b.index), b.config.width
    inner = b.buffer("inner_weights", 2, C, columns["g"].stop)
    inner[...] = 0
    for gate, where in columns.items():
        weight = b.p[f"att.{gate}1"]
        plain, mixed = inner[:, :, where.start : where.start + weight.shape[1]]
        plain[...] = weight
        np.multiply(weight, b.p[f"att.x_{gate}"].reshape(C, 1), out=mixed)
    return inner, columns


def _outer_weights(b: _Pass, gate: str) -> Array:
    """[rank + 1, C]: half of w2 (a2, v2) and, as last row, half of the bias: for a sigmoid by tanh of the half."""
    rank, C = b.p[f"att.{gate}2"].shape
    outer = b.buffer(f"outer_{gate}", rank + 1, C)
    np.multiply(b.p[f"att.{gate}2"], 0.5, out=outer[:rank])
    np.multiply(b.vector(f"att.{gate}0"), 0.5, out=outer[rank])
    return outer


def _gates_forward(b: _Pass, h: Array, xx: Array) -> None:
    """Keep the decay as 1 + tanh(z/2) and as e^±cl, α, the value residual's mix, and the output gate."""
    weights, columns = _inner_weights(b)
    inner = np.matmul(h, weights[0], out=b.keep("inner", b.rows, columns["g"].stop))
    inner += np.matmul(xx, weights[1], out=b.buffer("inner_xx", *inner.shape))
    parts = {gate: inner[:, where] for gate, where in columns.items()}
    np.tanh(parts["w"], out=parts["w"])
    parts["g"] *= 0.5
    _sigmoid_of_half(parts["g"])
    np.matmul(parts["g"], b.p["att.g2"], out=b.keep("gate"))
    for gate in columns.keys() - {"g"}:
        parts[gate][:, -1] = 1

    decay = np.matmul(parts["w"], _outer_weights(b, "w"), out=b.keep("decay"))
    np.tanh(decay, out=decay)
    decay += 1
    e_cl = np.matmul(_cumulative_decay(decay.dtype), b.chunked(decay), out=b.chunked(b.keep("e_cl")))
    np.exp(e_cl, out=e_cl)
    np.divide(1, e_cl, out=b.chunked(b.keep("e_minus_cl")))
    for gate, name in (("a", "alpha"), ("v", "mix_v")):
        if gate in columns:
            z = np.matmul(parts[gate], _outer_weights(b, gate), out=b.keep(name))
            _sigmoid_of_half(z)


def _values_forward(b: _Pass, v: Array, v_first: Array) -> None:
    """Put v, drawn towards the first block's, into the upper half of VU."""
    V = b.stack("VU")[:, 0]
    if b.index == 0:
        V[...] = b.chunked(v)
        return
    residual = np.subtract(v_first, v, out=b.keep("v_residual"))
    np.multiply(b.chunked(residual), b.chunked(b.keep("mix_v")), out=V)
    V += b.chunked(v)


def _keys_forward(b: _Pass) -> None:
    """Keep κ, of length one by head, and k = k0 (1 + (α − 1) k_a)."""
    k0, kappa, norm = b.keep("k0"), b.keep("kappa"), b.keep("kappa_norm", b.rows, b.config.heads, 1)
    np.multiply(k0, b.vector("att.k_k"), out=kappa)
    by_head = b.by_head(kappa)
    np.einsum("rhn,rhn->rh", by_head, by_head, out=norm[:, :, 0])
    np.sqrt(norm, out=norm)
    np.maximum(norm, KAPPA_EPS, out=norm)
    np.divide(1, norm, out=norm)
    by_head *= norm
    factor = np.subtract(b.keep("alpha"), 1, out=b.keep("k_factor"))
    factor *= b.vector("att.k_a")
    factor += 1
    np.multiply(k0, factor, out=b.keep("k"))
    np.multiply(b.keep("r"), b.keep("k"), out=b.keep("rk"))


def _operands_forward(b: _Pass) -> None:
    """Fill RA and KB, the recurrence's operands with the decay since, or up to, the chunk's start multiplied in."""
    RA, KB = b.stack("RA"), b.stack("KB")
    names = ("r", "k", "kappa", "alpha", "e_cl", "e_minus_cl")
    r, k, kappa, alpha, e_cl, e_minus_cl = (b.chunked(b.keep(name)) for name in names)
    np.multiply(r, e_cl, out=RA[:, 0])
    RA[:, 1, 0] = kappa[:, 0]
    np.multiply(kappa[:, 1:], e_cl[:, :-1], out=RA[:, 1, 1:])  # e^(cl − log w) is e^cl of the token before
    np.multiply(k, e_minus_cl, out=KB[:, 0])
    np.multiply(kappa, alpha, out=KB[:, 1])
    KB[:, 1] *= e_minus_cl


def _output_forward(b: _Pass, y: Array) -> Array:
    """Return the time mixing's output [R, C]: norm by head, bonus for the token itself, gate, projection."""
    heads, scratch = b.config.heads, b.buffer("scratch")
    normal = b.keep("normal_x")
    _normalise(b.by_head(y), b.by_head(normal), b.keep("deviation_x", b.rows, heads, 1), GROUP_NORM_EPS)
    mixed = np.multiply(normal, b.p["att.ln_x.weight"], out=b.keep("before_gate"))
    mixed += b.p["att.ln_x.bias"]
    bonus = np.einsum("rhn,hn->rh", b.by_head(b.keep("rk")), b.p["att.r_k"], out=b.keep("bonus", b.rows, heads))
    V, by_head = b.stack("VU")[:, 0], (b.chunks, CHUNK, heads, b.config.head_size)
    np.multiply(V.reshape(by_head), bonus.reshape(*by_head[:3], 1), out=scratch.reshape(by_head))
    mixed += scratch
    gated = np.multiply(mixed, b.keep("gate"), out=b.keep("gated"))
    return np.matmul(gated, b.p["att.output.weight"].T, out=scratch)


# --- The recurrence over chunks ---------------------------------------------------------------------------------
#
# For one head and one chunk, with cl = cumsum(log w) inside the chunk, κ = −a, b = κ α, and [x; y] for rows stacked:
#   RA = [r e^cl; κ e^(cl − log w)]    KB = [k; b] e^−cl    VU = [v; u]    eL = e^cl at the last token
#   A = tril(RA KBᵀ), strictly for κ's rows;  M = −(I + A_κb)⁻¹;  u = M (κ' S + A_κk v)
#   y = r' S + A_r VU;  S_next = diag(eL) (S + KBᵀ VU)
# κ is kept positive and its sign is in M. Backwards the same shapes come again, with D = diag(eL) dS_next:
#   z = Mᵀ (A_rbᵀ dy + b' D);  dS = D + RAᵀ [dy; z];  dv = A_kᵀ [dy; z] + k' D
#   X = mask ∘ ([dy; z] VUᵀ);  dRA = [dy; z] Sᵀ + X KB;  dKB = Xᵀ RA + VU Dᵀ


def _transposed(matrices: Array) -> Array:
    return matrices.swapaxes(-1, -2)


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
    """Three [K, 2K] that sum the parts of dL/d(log w) over tokens: for dRA ∘ RA, Xᵀ RA ∘ KB, and VU Dᵀ ∘ KB.

    What was multiplied by e^cl depends on all log w at or before it (κ's row: strictly before), and what was
    multiplied by e^−cl too, with the other sign; what reached the next state only on those after it.
    """
    upper = np.triu(np.ones((CHUNK, CHUNK), dtype))
    after, before = np.triu(upper, 1), np.tril(upper.T, -1)
    return np.hstack([upper, after]), -np.hstack([upper, upper]), np.hstack([before, before])


def _by_text(b: _Pass, chunks: Array) -> Array:
    """View [G, ...] as [B, T/K, ...], to go along the chunks of all texts at once."""
    return chunks.reshape(b.batch, -1, *chunks.shape[1:])


def _last_decay(b: _Pass) -> Array:
    """View e^cl of each chunk's last token as [B, T/K, H, N, 1]."""
    last = b.chunked(b.keep("e_cl"))[:, -1]
    return last.reshape(b.batch, -1, b.config.heads, b.config.head_size, 1)


def _scan_forward(b: _Pass) -> Array:
    """Fill u into VU and return y [R, C]."""
    G, H, N, K = b.chunks, b.config.heads, b.config.head_size, CHUNK
    ra, kb, vu = (b.heads(b.stack(name)) for name in ("RA", "KB", "VU"))
    A = np.matmul(ra, _transposed(kb), out=b.keep("A", G, H, 2 * K, 2 * K))
    A *= _causal_mask(A.dtype)
    M = b.keep("M", G, H, K, K)
    M[...] = _minus_inverse(A[:, :, K:, K:])
    MA = np.matmul(M, A[:, :, K:, :K], out=b.buffer("MA", G, H, K, K))
    np.matmul(MA, vu[:, :, :K], out=vu[:, :, K:])
    P = np.matmul(M, ra[:, :, K:], out=b.buffer("P", G, H, K, N))

    S = b.keep("S", G, H, N, N)
    _hand_on(b, range(b.time // K), P, kb, vu, S)
    y = np.matmul(A[:, :, :K], vu, out=b.heads(b.buffer("y")))
    y += np.matmul(ra[:, :, :K], S, out=b.heads(b.buffer("y_of_state")))
    return b.buffer("y")


def _hand_on(b: _Pass, order: range, P: Array, left: Array, right: Array, states: Array) -> None:
    """Go along the chunks: add P S to the lower half of `right`, then make the next S from S + leftᵀ right.

    The only part that must go chunk by chunk. It is the same in both directions: forwards with (KB, VU, S), backwards
    with (RA, [dy; z], D), where the decay between two neighbours is that of the earlier one.
    """
    H, N, K = b.config.heads, b.config.head_size, CHUNK
    P, left, right, states = (_by_text(b, chunks) for chunks in (P, left, right, states))
    decay, forwards = _last_decay(b), order.step > 0
    part, summed = b.buffer("step_part", b.batch, H, K, N), b.buffer("step_sum", b.batch, H, N, N)
    states[:, order[0]] = 0
    for chunk in order:
        right[:, chunk, :, K:] += np.matmul(P[:, chunk], states[:, chunk], out=part)
        following = chunk + order.step
        if following in order:
            np.matmul(_transposed(left[:, chunk]), right[:, chunk], out=summed)
            summed += states[:, chunk]
            np.multiply(summed, decay[:, chunk if forwards else following], out=states[:, following])


def _scan_backward(b: _Pass, YZ: Array) -> tuple[Array, Array]:
    """Go back through the recurrence. YZ [G, 2, K, C] has dL/dy in its first half; z is filled in.

    Returns:
        dv [R, C]; and what the states add to dL/d(log w) [G, C], the same for all tokens of a chunk. The rest is left
        in the buffers dRA, dKB (its part from inside the chunk) and dKB_state, [G, 2, K, C].
    """
    G, H, N, K = b.chunks, b.config.heads, b.config.head_size, CHUNK
    ra, kb, vu = (b.heads(b.stack(name)) for name in ("RA", "KB", "VU"))
    yz, A, M = b.heads(YZ), b.keep("A", G, H, 2 * K, 2 * K), _transposed(b.keep("M", G, H, K, K))
    MA = np.matmul(M, _transposed(A[:, :, :K, K:]), out=b.buffer("MA", G, H, K, K))
    np.matmul(MA, yz[:, :, :K], out=yz[:, :, K:])
    P = np.matmul(M, kb[:, :, K:], out=b.buffer("P", G, H, K, N))

    S, D = b.keep("S", G, H, N, N), b.buffer("D", G, H, N, N)
    _hand_on(b, range(b.time // K - 1, -1, -1), P, ra, yz, D)
    X = np.matmul(yz, _transposed(vu), out=b.buffer("X", G, H, 2 * K, 2 * K))
    X *= _causal_mask(X.dtype)
    dRA, part, dKB, dKB_state = (b.heads(b.buffer(name, *YZ.shape)) for name in ("dRA", "part", "dKB", "dKB_state"))
    np.matmul(yz, _transposed(S), out=dRA)
    dRA += np.matmul(X, kb, out=part)
    np.matmul(_transposed(X), ra, out=dKB)
    np.matmul(vu, _transposed(D), out=dKB_state)
    dv = np.matmul(_transposed(A[:, :, :, :K]), yz, out=b.heads(b.buffer("dv")))
    dv += np.matmul(kb[:, :, :K], D, out=b.heads(b.buffer("y_of_state")))
    return b.buffer("dv"), np.einsum("ghkv,ghkv->ghk", S, D).reshape(G, -1)


# --- Time mixing, backwards -------------------------------------------------------------------------------------


def _time_mix_backward(b: _Pass, g: Mapping[str, Array], dx: Array, dv_first: Array) -> None:
    YZ = b.buffer("YZ", b.chunks, 2, CHUNK, b.config.width)
    dinner = b.buffer("dinner", b.rows, _gate_columns(b.config, b.index)["g"].stop)
    drk, dv_bonus = _output_backward(b, g, dx, dinner, YZ[:, 0])
    dv, decay_part = _scan_backward(b, YZ)
    dv += dv_bonus
    _decay_backward(b, g, decay_part, dinner)
    dr, dk, dkappa, dalpha = _operands_backward(b, drk)
    _keys_backward(b, g, dk, dkappa, dalpha, dinner)
    _values_backward(b, g, dv, dv_first, dinner)

    dh, dxx = b.buffer("dh"), b.buffer("dxx")
    _inner_backward(b, g, dinner, dh, dxx)
    _project_backward(b, g, "r", "receptance", dr, dh, dxx)
    _project_backward(b, g, "k", "key", dk, dh, dxx)
    _project_backward(b, g, "v", "value", dv, dh, dxx)
    _norm_and_shift_backward(b, "1", g, dh, dxx, dx)


def _inner_of(b: _Pass, gate: str, dinner: Array) -> tuple[Array, Array]:
    """Return a gate's inner values and their gradient's place, bias column included."""
    columns = _gate_columns(b.config, b.index)
    return b.keep("inner", b.rows, columns["g"].stop)[:, columns[gate]], dinner[:, columns[gate]]


def _outer_backward(b: _Pass, g: Mapping[str, Array], gate: str, dz: Array, dinner: Array) -> None:
    """Go back through z = inner [w2; w0], where inner's last column is one."""
    inner, dinner = _inner_of(b, gate, dinner)
    both = np.matmul(inner.T, dz, out=b.buffer("outer_gradient", inner.shape[1], b.config.width))
    g[f"att.{gate}2"][...] = both[:-1]
    g[f"att.{gate}0"].reshape(-1)[...] = both[-1]
    np.matmul(dz, b.p[f"att.{gate}2"].T, out=dinner[:, :-1])
    dinner[:, -1] = 0


def _output_backward(b: _Pass, g: Mapping[str, Array], dx: Array, dinner: Array, dY: Array) -> tuple[Array, Array]:
    """Write dL/dy to dY [G, K, C]; return dL/d(r ∘ k) and the bonus's part of dL/dv, both [R, C]."""
    H, N, scratch = b.config.heads, b.config.head_size, b.buffer("scratch")
    np.matmul(dx.T, b.keep("gated"), out=g["att.output.weight"])
    dmixed = np.matmul(dx, b.p["att.output.weight"], out=b.buffer("dmixed"))
    dgate = np.multiply(dmixed, b.keep("before_gate"), out=scratch)
    sigmoid, dsigmoid = _inner_of(b, "g", dinner)
    np.matmul(sigmoid.T, dgate, out=g["att.g2"])
    np.matmul(dgate, b.p["att.g2"].T, out=dsigmoid)
    _sigmoid_backward(dsigmoid, sigmoid, b.buffer("inner_scratch", *sigmoid.shape))
    dmixed *= b.keep("gate")

    # The bonus, Σ over a head of r k r_k, times v.
    chunk_heads = (b.chunks, CHUNK, H, N)
    V, dbonus = b.stack("VU")[:, 0].reshape(chunk_heads), b.buffer("dbonus", b.rows, H, 1)
    np.einsum("gkhn,gkhn->gkh", dmixed.reshape(chunk_heads), V, out=dbonus.reshape(chunk_heads[:3]))
    rk = b.by_head(b.keep("rk"))
    np.matmul(dbonus.transpose(1, 2, 0), rk.transpose(1, 0, 2), out=g["att.r_k"].reshape(H, 1, N))
    drk, dv_bonus = b.buffer("drk"), b.buffer("dv_bonus")
    np.multiply(dbonus, b.p["att.r_k"], out=b.by_head(drk))
    np.multiply(b.by_head(dmixed), b.keep("bonus", b.rows, H)[:, :, None], out=b.by_head(dv_bonus))

    # The norm by head.
    normal, deviation = b.keep("normal_x"), b.keep("deviation_x", b.rows, H, 1)
    _column_sums(dmixed, g["att.ln_x.bias"])
    _column_dots(dmixed, normal, g["att.ln_x.weight"])
    dmixed *= b.p["att.ln_x.weight"]
    _normalise_backward(b.by_head(dmixed), b.by_head(normal), b.by_head(scratch))
    by_chunk = deviation.reshape(*chunk_heads[:3], 1)
    np.multiply(dmixed.reshape(chunk_heads), by_chunk, out=dY.reshape(chunk_heads))
    return drk, dv_bonus


def _decay_backward(b: _Pass, g: Mapping[str, Array], decay_part: Array, dinner: Array) -> None:
    """Go back from e^±cl to the decay's gate."""
    G, C, dtype = b.chunks, b.config.width, b.arena.dtype
    scratch, dz = b.buffer("scratch"), b.buffer("dlw")
    dlw, product = b.chunked(dz), b.buffer("part", G, 2, CHUNK, C)
    dlw[...] = decay_part[:, None]
    parts = (("dRA", "RA"), ("dKB", "KB"), ("dKB_state", "KB"))
    for (gradient, operand), sums in zip(parts, _decay_sums(dtype), strict=True):
        np.multiply(b.buffer(gradient, *product.shape), b.stack(operand), out=product)
        dlw += np.matmul(sums, product.reshape(G, 2 * CHUNK, C), out=b.chunked(scratch))

    # log w = DECAY (1 + t) with t = tanh(z/2), so d(log w)/dz = DECAY (1 − t²)/2, and `decay` is 1 + t.
    decay = b.keep("decay")
    dz *= decay
    np.subtract(2, decay, out=scratch)
    scratch *= 0.5 * DECAY
    dz *= scratch
    _outer_backward(b, g, "w", dz, dinner)
    tanh, dtanh = _inner_of(b, "w", dinner)
    dtanh *= 1 - tanh * tanh


def _operands_backward(b: _Pass, drk: Array) -> tuple[Array, Array, Array, Array]:
    """Go back from RA, KB and r ∘ k; return dL/d of r, k, κ and α, all [R, C]."""
    dr, dk, db, dkappa, dalpha = (b.buffer(name) for name in ("dr", "dk", "db", "dkappa", "dalpha"))
    shape, scratch = (b.chunks, 2, CHUNK, b.config.width), b.buffer("scratch")
    dRA, dKB, e_cl = b.buffer("dRA", *shape), b.buffer("dKB", *shape), b.chunked(b.keep("e_cl"))
    dKB += b.buffer("dKB_state", *shape)
    dKB *= b.chunked(b.keep("e_minus_cl"))[:, None]
    np.multiply(dRA[:, 0], e_cl, out=b.chunked(dr))
    dr += np.multiply(drk, b.keep("k"), out=scratch)
    np.multiply(drk, b.keep("r"), out=dk)
    b.chunked(dk)[...] += dKB[:, 0]
    b.chunked(db)[...] = dKB[:, 1]  # b = κ α
    np.multiply(dRA[:, 1, 1:], e_cl[:, :-1], out=b.chunked(dkappa)[:, 1:])
    b.chunked(dkappa)[:, 0] = dRA[:, 1, 0]
    dkappa += np.multiply(db, b.keep("alpha"), out=scratch)
    np.multiply(db, b.keep("kappa"), out=dalpha)
    return dr, dk, dkappa, dalpha


def _keys_backward(b: _Pass, g: Mapping[str, Array], dk: Array, dkappa: Array, dalpha: Array, dinner: Array) -> None:
    """Turn dL/dk into dL/dk0, in place, through k and κ; go back through α to its gate."""
    k0, alpha, kappa, scratch = b.keep("k0"), b.keep("alpha"), b.keep("kappa"), b.buffer("scratch")
    dfactor = np.multiply(dk, k0, out=scratch)
    _column_dots(dfactor, np.subtract(alpha, 1, out=b.buffer("db")), g["att.k_a"])
    dfactor *= b.vector("att.k_a")
    dalpha += dfactor
    dk *= b.keep("k_factor")

    along = np.einsum("rhn,rhn->rh", b.by_head(dkappa), b.by_head(kappa))[:, :, None]
    np.multiply(b.by_head(kappa), along, out=b.by_head(scratch))
    dkappa -= scratch
    b.by_head(dkappa)[...] *= b.keep("kappa_norm", b.rows, b.config.heads, 1)
    _column_dots(dkappa, k0, g["att.k_k"])
    dkappa *= b.vector("att.k_k")
    dk += dkappa

    _sigmoid_backward(dalpha, alpha, scratch)
    _outer_backward(b, g, "a", dalpha, dinner)


def _values_backward(b: _Pass, g: Mapping[str, Array], dv: Array, dv_first: Array, dinner: Array) -> None:
    """Turn dL/dv into dL/d(its projection), in place; its other part goes to dv_first and the mix's gate."""
    if b.index == 0:
        dv += dv_first
        return
    mix_v, scratch = b.keep("mix_v"), b.buffer("scratch")
    drawn = np.multiply(dv, mix_v, out=scratch)
    dv_first += drawn
    dv -= drawn
    # dL/d(mix) = dv ∘ residual, and mix (1 − mix) is the sigmoid's slope: `drawn` has dv ∘ mix already.
    dz = np.multiply(drawn, b.keep("v_residual"), out=b.buffer("dmix_v"))
    np.subtract(1, mix_v, out=scratch)
    dz *= scratch
    _outer_backward(b, g, "v", dz, dinner)


def _inner_backward(b: _Pass, g: Mapping[str, Array], dinner: Array, dh: Array, dxx: Array) -> None:
    """Go back through the products of h and xx with the stacked w1 a1 v1 g1; writes dh and dxx."""
    weights, columns = _inner_weights(b)
    np.matmul(dinner, weights[0].T, out=dh)
    np.matmul(dinner, weights[1].T, out=dxx)
    both = b.buffer("inner_gradient", *weights.shape)
    np.matmul(b.keep("h").T, dinner, out=both[0])
    np.matmul(b.keep("xx").T, dinner, out=both[1])
    for mix in MIXES:  # v's mix serves its gate, in all blocks but the first, and its projection
        g[f"att.x_{mix}"][...] = 0
    for gate, where in columns.items():
        first, C = b.p[f"att.{gate}1"], b.config.width
        plain, mixed = both[:, :, where.start : where.start + first.shape[1]]
        np.multiply(mixed, b.p[f"att.x_{gate}"].reshape(C, 1), out=g[f"att.{gate}1"])
        g[f"att.{gate}1"] += plain
        np.einsum("cr,cr->c", mixed, first, out=g[f"att.x_{gate}"].reshape(C))


def _project_backward(
    b: _Pass, g: Mapping[str, Array], mix: str, weight: str, dout: Array, dh: Array, dxx: Array
) -> None:
    """Go back through `_project`, adding to dh, dxx and the mix's gradient."""
    np.matmul(dout.T, b.keep(f"x{mix}"), out=g[f"att.{weight}.weight"])
    dmixed = np.matmul(dout, b.p[f"att.{weight}.weight"], out=b.buffer("scratch"))
    dh += dmixed
    dmix = b.buffer("dmix", b.config.width)
    _column_dots(dmixed, b.keep("xx"), dmix)
    g[f"att.x_{mix}"].reshape(-1)[...] += dmix
    dmixed *= b.vector(f"att.x_{mix}")
    dxx += dmixed


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
        if parameters is not None:
            check_parameters(config, parameters)
        self.flat_parameters = np.empty(sum(math.prod(shape) for shape in shapes.values()), dtype)
        self.parameters = _views(self.flat_parameters, shapes)
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
        """Return a slice's part of the mean loss over `total` tokens; its part of the gradient is left in the lane."""
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
        dh = arena("dh_out", R, C)
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
            self._norm_backward("ln_out", dh, arena("normal_out", R, C), arena("deviation_out", R, 1), gradients, arena)
            dx[:, :real] = dh.reshape(batch, real, C)
            dx[:, real:] = 0
        return loss / total, dx

    def _norm_backward(
        self, name: str, dy: Array, normal: Array, deviation: Array, gradients: Mapping[str, Array], arena: Arena
    ) -> None:
        weight, bias = f"{name}.weight", f"{name}.bias"
        scratch = arena("scratch", *dy.shape)
        _layer_norm_backward(
            dy, self.parameters[weight], normal, deviation, gradients[weight], gradients[bias], scratch
        )

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
        rows, normal, deviation = dx.reshape(R, C), arena("normal0", R, C), arena("deviation0", R, 1)
        self._norm_backward("blocks.0.ln0", rows, normal, deviation, gradients, arena)
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
    half = z * 0.5
    _sigmoid_of_half(half)
    return half


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
