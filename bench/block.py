"""Training step of one RWKV-7 block: ours in numpy beside chunked PyTorch with autograd, in the same run.

    python bench/block.py --channels 768 --batch 4 --time 256 --threads 2

Both do the same mathematics, forwards and backwards, from the same tensors; their outputs and gradients are compared
before anything is timed. Repetitions are interleaved, so that a busy machine slows both alike; medians are printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import group_norm, layer_norm, normalize

from swarm_agent.rwkv7 import (
    CHUNK,
    DECAY,
    GROUP_NORM_EPS,
    MIXES,
    Arena,
    Config,
    block_backward,
    block_forward,
    block_shapes,
)

Array = NDArray[np.float32]
INDEX = 1  # any block but the first, which has no value residual


def torch_scan_chunked(r: Tensor, lw: Tensor, k: Tensor, v: Tensor, kappa: Tensor, b: Tensor) -> Tensor:
    """Run the recurrence over chunks; all arguments and the result are [B, H, T, N]."""
    B, H, T, N = r.shape
    K, chunks = CHUNK, T // CHUNK
    r, lw, k, v, kappa, b = (x.reshape(B, H, chunks, K, N) for x in (r, lw, k, v, kappa, b))
    cl = lw.cumsum(3)
    up, down = cl.exp(), (-cl).exp()
    RA = torch.cat([r * up, -kappa * (cl - lw).exp()], 3)
    KB = torch.cat([k * down, b * down], 3)
    lower = torch.ones(K, K).tril()
    mask = torch.cat([torch.cat([lower, lower], 1), torch.cat([lower.tril(-1), lower.tril(-1)], 1)], 0)
    A = (RA @ KB.transpose(-1, -2)) * mask
    unit = torch.eye(K) - A[..., K:, K:]
    right = torch.cat([RA[..., K:, :], A[..., K:, :K] @ v], -1)
    solved = torch.linalg.solve_triangular(unit, right, upper=False, unitriangular=True)
    P, Q = solved[..., :N], solved[..., N:]
    last = up[..., -1, :, None]
    S = torch.zeros(B, H, N, N)
    states, us = [], []
    for c in range(chunks):
        states.append(S)
        u = P[:, :, c] @ S + Q[:, :, c]
        us.append(u)
        S = last[:, :, c] * (S + KB[:, :, c].transpose(-1, -2) @ torch.cat([v[:, :, c], u], 2))
    VU = torch.cat([v, torch.stack(us, 2)], 3)
    y = RA[..., :K, :] @ torch.stack(states, 2) + A[..., :K, :] @ VU
    return y.reshape(B, H, T, N)


def torch_scan_by_token(r: Tensor, lw: Tensor, k: Tensor, v: Tensor, kappa: Tensor, b: Tensor) -> Tensor:
    """Run the recurrence token by token."""
    B, H, T, N = r.shape
    w = lw.exp()
    S = torch.zeros(B, H, N, N)
    ys = []
    for t in range(T):
        removed = -(kappa[:, :, t, None] @ S)
        S = w[:, :, t, :, None] * S + b[:, :, t, :, None] * removed + k[:, :, t, :, None] * v[:, :, t, None]
        ys.append(r[:, :, t, None] @ S)
    return torch.cat(ys, 2)


def torch_block(p: dict[str, Tensor], x: Tensor, v_first: Tensor, N: int, scan: Callable[..., Tensor]) -> Tensor:
    """One block but the first, [B, T, C] to [B, T, C]."""
    B, T, C = x.shape
    H = C // N

    def shift(h: Tensor) -> Tensor:
        return torch.nn.functional.pad(h, (0, 0, 1, -1)) - h

    def split(z: Tensor) -> Tensor:
        return z.view(B, T, H, N).transpose(1, 2)

    h = layer_norm(x, (C,), p["ln1.weight"], p["ln1.bias"])
    xx = shift(h)
    mixed = {m: torch.addcmul(h, xx, p[f"att.x_{m}"]) for m in MIXES}
    r = mixed["r"] @ p["att.receptance.weight"].T
    k0 = mixed["k"] @ p["att.key.weight"].T
    v0 = mixed["v"] @ p["att.value.weight"].T
    lw = 2 * DECAY * torch.sigmoid(p["att.w0"] + torch.tanh(mixed["w"] @ p["att.w1"]) @ p["att.w2"])
    v = v0 + (v_first - v0) * torch.sigmoid(p["att.v0"] + mixed["v"] @ p["att.v1"] @ p["att.v2"])
    alpha = torch.sigmoid(p["att.a0"] + mixed["a"] @ p["att.a1"] @ p["att.a2"])
    gate = torch.sigmoid(mixed["g"] @ p["att.g1"]) @ p["att.g2"]
    kappa = normalize(split(k0 * p["att.k_k"]), dim=-1)
    k = k0 * (1 + (alpha - 1) * p["att.k_a"])
    r, lw, k, v, alpha = (split(z) for z in (r, lw, k, v, alpha))
    y = scan(r, lw, k, v, kappa, kappa * alpha)
    y = group_norm(y.transpose(1, 2).reshape(B * T, C), H, p["att.ln_x.weight"], p["att.ln_x.bias"], GROUP_NORM_EPS)
    bonus = (r * k * p["att.r_k"][:, None]).sum(-1, keepdim=True) * v
    y = y.view(B, T, C) + bonus.transpose(1, 2).reshape(B, T, C)
    x = x + (y * gate) @ p["att.output.weight"].T
    h = layer_norm(x, (C,), p["ln2.weight"], p["ln2.bias"])
    hidden = torch.addcmul(h, shift(h), p["ffn.x_k"]) @ p["ffn.key.weight"].T
    return x + torch.relu(hidden) ** 2 @ p["ffn.value.weight"].T


class TorchStep:
    """One training step by autograd."""

    def __init__(self, p: dict[str, Array], inputs: tuple[Array, ...], N: int, scan: Callable[..., Tensor]) -> None:
        self.parameters = {name: torch.from_numpy(value).requires_grad_() for name, value in p.items()}
        self.x, self.v_first, self.dy = (torch.from_numpy(value) for value in inputs)
        self.x.requires_grad_()
        self.v_first.requires_grad_()
        self.head_size, self.scan = N, scan

    def __call__(self) -> None:
        for tensor in (self.x, self.v_first, *self.parameters.values()):
            tensor.grad = None
        self.y = torch_block(self.parameters, self.x, self.v_first, self.head_size, self.scan)
        torch.autograd.backward(self.y, self.dy)

    def results(self) -> dict[str, Array]:
        found = {name: tensor.grad for name, tensor in self.parameters.items()}
        found |= {"y": self.y.detach(), "x": self.x.grad, "v_first": self.v_first.grad}
        return {name: tensor.numpy() for name, tensor in found.items() if tensor is not None}


class OurStep:
    """One training step by `block_forward` and `block_backward`, each thread a slice of the batch."""

    def __init__(self, config: Config, p: dict[str, Array], inputs: tuple[Array, ...], threads: int) -> None:
        self.config, self.parameters, self.inputs = config, p, inputs
        batch = inputs[0].shape[0]
        edges = np.linspace(0, batch, min(threads, batch) + 1).astype(int)
        self.slices = [slice(a, b) for a, b in pairwise(edges)]
        self.arenas = [Arena() for _ in self.slices]
        self.gradients = [{name: np.empty_like(value) for name, value in p.items()} for _ in self.slices]
        self.outputs = [np.empty_like(inputs[0]) for _ in range(3)]
        self.pool = ThreadPoolExecutor(len(self.slices))

    def _run(self, number: int) -> None:
        part, arena = self.slices[number], self.arenas[number]
        y, dx, dv_first = (output[part] for output in self.outputs)
        y[...], v_first, dx[...] = (value[part] for value in self.inputs)
        dv_first[...] = 0
        block_forward(self.config, INDEX, self.parameters, y, v_first, arena)
        block_backward(self.config, INDEX, self.parameters, self.gradients[number], dx, dv_first, arena)

    def __call__(self) -> None:
        list(self.pool.map(self._run, range(len(self.slices))))
        for other in self.gradients[1:]:
            for name, total in self.gradients[0].items():
                total += other[name]

    def results(self) -> dict[str, Array]:
        y, dx, dv_first = self.outputs
        return self.gradients[0] | {"y": y, "x": dx, "v_first": dv_first}


def random_problem(config: Config, batch: int, time_: int) -> tuple[dict[str, Array], tuple[Array, ...]]:
    """Parameters of a block, all random, and (x, v_first, dL/dy)."""
    rng = np.random.default_rng(0)
    parameters = {}
    for name, shape in block_shapes(config, INDEX).items():
        scale = 1 / np.sqrt(shape[-1]) if len(shape) == 2 else 0.5
        parameters[name] = rng.normal(0, scale, shape).astype(np.float32)
    shape = (batch, time_, config.width)
    return parameters, tuple(rng.standard_normal(shape, np.float32) for _ in range(3))


def check_agreement(ours: OurStep, theirs: TorchStep) -> float:
    """Run both once and return the largest difference, relative to each tensor's largest element."""
    ours()
    theirs()
    expected, found = theirs.results(), ours.results()
    worst = max(float(np.abs(found[n] - e).max() / np.abs(e).max()) for n, e in expected.items())
    if not worst < 1e-2:
        raise SystemExit(f"the two implementations disagree: {worst:.2e}")
    return worst


def machine() -> str:
    """Name processor, library versions and the BLAS kernel."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith(("model name", "Model")):
                model = line.split(":", 1)[1].strip()
                break
    blas: list[dict[str, Any]] = threadpoolctl.threadpool_info()
    kernels = ", ".join(f"{b['internal_api']} {b['version']} {b.get('architecture', '')}".strip() for b in blas)
    return f"{model}, {os.cpu_count()} cores; numpy {np.__version__} ({kernels}); torch {torch.__version__}"


def main() -> None:
    """Print tokens per second of both, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=256, help="width C of the block (default 256)")
    parser.add_argument("--batch", type=int, default=4, help="texts (default 4)")
    parser.add_argument("--time", type=int, default=256, help="tokens of each (default 256)")
    parser.add_argument("--threads", type=int, default=2, help="of both implementations (default 2)")
    parser.add_argument("--repeat", type=int, default=15, help="repetitions of each (default 15)")
    parser.add_argument("--by-token", action="store_true", help="time torch's loop over tokens too")
    options = parser.parse_args()
    if options.time % CHUNK:
        parser.error(f"--time must be a multiple of {CHUNK}")

    torch.set_num_threads(options.threads)
    config = Config(layers=2, width=options.channels, head_size=64, rank_w=64, rank_a=64, rank_v=32, rank_g=128)
    parameters, inputs = random_problem(config, options.batch, options.time)
    ours = OurStep(config, parameters, inputs, options.threads)
    theirs = TorchStep(parameters, inputs, config.head_size, torch_scan_chunked)
    steps: dict[str, Callable[[], None]] = {"numpy, chunked": ours, "torch, chunked": theirs}
    if options.by_token:
        steps["torch, by token"] = TorchStep(parameters, inputs, config.head_size, torch_scan_by_token)
    print(machine())
    # Each of our threads has its own slice of the batch: BLAS shall not start more.
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        print(f"largest relative difference {check_agreement(ours, theirs):.1e}")
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(options.repeat):
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                seconds[name].append(time.perf_counter() - start)
    tokens = options.batch * options.time
    rates = {name: tokens / statistics.median(values) for name, values in seconds.items()}
    shape = f"C {options.channels}, B {options.batch} x T {options.time}, {options.threads} threads"
    print(f"{shape}, medians of {options.repeat}:")
    for name, rate in rates.items():
        print(f"  {name:16} {rate:9.0f} tokens/s  {tokens / rate * 1000:8.1f} ms")
    print(f"  ratio numpy/torch {rates['numpy, chunked'] / rates['torch, chunked']:.2f}")


if __name__ == "__main__":
    main()
