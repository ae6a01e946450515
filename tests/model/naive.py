"""RWKV-7 token by token, straight from the formulas, to check the chunked model against. One text at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm_agent.rwkv7 import Config

Array = NDArray[Any]


def logits(config: Config, p: Mapping[str, Array], tokens: Array) -> Array:
    """Return [T, V] for tokens [T]."""
    x = norm(p["emb.weight"][tokens], p["blocks.0.ln0.weight"], p["blocks.0.ln0.bias"])
    v_first = None
    for index in range(config.layers):
        block = {k.removeprefix(f"blocks.{index}."): v for k, v in p.items() if k.startswith(f"blocks.{index}.")}
        h = norm(x, block["ln1.weight"], block["ln1.bias"])
        mixed, v_first = time_mix(config, block, h, v_first)
        x = x + mixed
        h = norm(x, block["ln2.weight"], block["ln2.bias"])
        k = (h + (shift(h) - h) * block["ffn.x_k"][0, 0]) @ block["ffn.key.weight"].T
        x = x + np.maximum(k, 0) ** 2 @ block["ffn.value.weight"].T
    return norm(x, p["ln_out.weight"], p["ln_out.bias"]) @ p["head.weight"].T


def norm(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def shift(h: Array) -> Array:
    return np.concatenate([np.zeros_like(h[:1]), h[:-1]])


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def time_mix(config: Config, p: Mapping[str, Array], h: Array, v_first: Array | None) -> tuple[Array, Array]:
    T, C = h.shape
    H, N = config.heads, config.head_size
    xr, xw, xk, xv, xa, xg = (h + (shift(h) - h) * p[f"att.x_{m}"][0, 0] for m in "rwkvag")
    r, k, v = xr @ p["att.receptance.weight"].T, xk @ p["att.key.weight"].T, xv @ p["att.value.weight"].T
    w = np.exp(-np.exp(-0.5) * sigmoid(p["att.w0"][0, 0] + np.tanh(xw @ p["att.w1"]) @ p["att.w2"]))
    if v_first is None:
        v_first = v
    else:
        v = v + (v_first - v) * sigmoid(p["att.v0"][0, 0] + xv @ p["att.v1"] @ p["att.v2"])
    a = sigmoid(p["att.a0"][0, 0] + xa @ p["att.a1"] @ p["att.a2"])
    g = sigmoid(xg @ p["att.g1"]) @ p["att.g2"]
    kappa = (k * p["att.k_k"][0, 0]).reshape(T, H, N)
    kappa = kappa / np.maximum(np.linalg.norm(kappa, axis=-1, keepdims=True), 1e-12)
    k = k * (1 + (a - 1) * p["att.k_a"][0, 0])
    r, w, k, v, a = (z.reshape(T, H, N) for z in (r, w, k, v, a))
    out = np.empty((T, H, N), h.dtype)
    for head in range(H):
        S = np.zeros((N, N), h.dtype)  # [value, key]
        for t in range(T):
            removal, addition = -kappa[t, head], kappa[t, head] * a[t, head]
            S = S * w[t, head] + np.outer(S @ removal, addition) + np.outer(v[t, head], k[t, head])
            out[t, head] = S @ r[t, head]
    weight, bias = (p[f"att.ln_x.{part}"].reshape(H, N) for part in ("weight", "bias"))
    out = norm(out, weight, bias, 64e-5) + (r * k * p["att.r_k"]).sum(-1, keepdims=True) * v
    return (out.reshape(T, C) * g) @ p["att.output.weight"].T, v_first
