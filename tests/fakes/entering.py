"""Functions whose products' factors are computed on their way in, with arguments: what tests match, compile and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[..., Any]


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _rms(a: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    y = a.float()
    return F.linear(y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * scale, w)


def _numbers(*shape: int) -> Tensor:
    return torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(1)).to(torch.int8)


M, N, K = 301, 328, 520
A, W = rand(M, K), rand(N, K)
ODD, ODD_W = rand(M, K + 1) + 3, rand(N, K + 1)
LONG, LONG_W, LONG_SCALE = rand(100, 20000), rand(72, 20000), rand(20000)
QUERIES, KEYS, VALUES = rand(8, 136, 264), rand(8, 136, 264), rand(8, 264, 136)


def _norm(a: Tensor, *more: Tensor) -> Tensor:
    return F.layer_norm(a, a.shape[-1:], *more)


def _causal(q: Tensor, v: Tensor) -> Tensor:
    later = torch.ones(264, 264, dtype=torch.bool, device=q.device).triu(1)
    return q.masked_fill(later, -torch.inf).softmax(-1) @ v


# By name: the function, its arguments, and the factors that are made, with their reduced dimensions.
PROLOGUE: dict[str, tuple[Function, tuple[Tensor, ...], dict[str, tuple[int, ...]]]] = {
    "activation": (lambda a, w, b: F.linear(F.silu(a), w, b).relu(), (A, W, rand(N)), {"left": ()}),
    "gate": (lambda a, c, w: F.linear(F.gelu(a) * c, w), (A, rand(M, K + 8)[:, 8:], W), {"left": ()}),
    "odd": (lambda a, w: F.linear(a.tanh(), w), (ODD, ODD_W), {"left": ()}),
    "layer norm": (lambda a, w, g, b: F.linear(_norm(a, g, b), w), (A, W, rand(K) + 1, rand(K)), {"left": (1,)}),
    "odd norm": (lambda a, w: F.linear(_norm(a), w), (ODD, ODD_W), {"left": (1,)}),
    "wide norm": (lambda a, w, g: F.linear(_norm(a, g), w), (LONG, LONG_W, LONG_SCALE), {"left": (1,)}),
    "short norm": (lambda a, w, b: F.linear(_norm(a), w, b), (rand(3, 301, 64), rand(N, 64), rand(N)), {"left": (1,)}),
    "root mean square": (_rms, (A.bfloat16(), W, rand(K)), {"left": (1,)}),
    "softmax": (lambda q, v: q.softmax(-1) @ v, (QUERIES * 4, VALUES), {"left": (2,)}),
    "causal": (_causal, (rand(8, 264, 264), VALUES), {"left": (2,)}),
    "triangle": (lambda a, w: a @ torch.tril(w, 3), (A, rand(K, N)), {"right": ()}),
    "eight bits": (lambda a, w, s: F.linear(a, w.float() * s), (A, W.to(torch.float8_e4m3fn), rand(N, 1)),
                   {"right": ()}),
    "bytes": (lambda a, w, s: F.linear(a, w.float() * s), (A, _numbers(N, K), rand(N, 1)), {"right": ()}),
    "bytes across": (lambda a, w, s, z: a @ ((w.float() - z) * s), (A, _numbers(K, N), rand(1, N), rand(K, 1)),
                     {"right": ()}),
    "both": (lambda q, k: (q * 0.5) @ k.sigmoid().transpose(1, 2), (QUERIES, KEYS), {"left": (), "right": ()}),
    "across": (lambda a, w: F.silu(a).t() @ w, (rand(K, M + 3), rand(K, N)), {"left": ()}),
    "one for all": (lambda a, w: a @ w.exp(), (QUERIES, rand(264, 136)), {"right": ()}),
    "rows reduced": (lambda a, w: F.linear(F.gelu(a), w).amax(1), (A, W), {"left": ()}),
    "columns reduced": (lambda a, w, g: F.linear(_norm(a, g), w).logsumexp(0), (A, W, rand(K)), {"right": (0,)}),
}  # fmt: skip
