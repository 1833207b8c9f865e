"""Random modules of linear layers, gates and what torch keeps: products with several results and dual GEMMs, wherever
they are found, give what the module gives (see `fused`), and some order of kernels exists."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.matched import fused

pytestmark = pytest.mark.slow
STEPS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "linear": lambda p, q, w, v: F.linear(p, w),
    "product": lambda p, q, w, v: p @ w,
    "gate": lambda p, q, w, v: F.silu(F.linear(p, w)) * F.linear(p, v),
    "chunk": lambda p, q, w, v: (lambda g, u: F.gelu(g) * u)(*F.linear(p, torch.cat([w, v])).chunk(2, -1)),
    "gelu": lambda p, q, w, v: F.gelu(p),
    "relu": lambda p, q, w, v: torch.relu(p) * 0.5,
    "sum": lambda p, q, w, v: p + q,
    "times": lambda p, q, w, v: p * q,
    "softmax": lambda p, q, w, v: p.softmax(-1),
    "torch's": lambda p, q, w, v: torch.special.i0(torch.tanh(p)),
}


def module(seed: int) -> tuple[Callable[..., list[Tensor]], list[Tensor]]:
    draw = random.Random(seed)
    names = draw.choices(list(STEPS), weights=[3, 2, 2, 2, 1, 1, 3, 3, 1, 2], k=draw.randint(4, 12))
    places = [(draw.random(), draw.random(), draw.sample(range(3), 2)) for _ in names]
    kept = [draw.random() < 0.35 for _ in names]

    def forward(x: Tensor, *weights: Tensor) -> list[Tensor]:
        values = [x]
        for name, (first, second, (w, v)) in zip(names, places, strict=True):
            p, q = values[int(first * len(values))], values[int(second * len(values))]
            values.append(torch.tanh(STEPS[name](p, q, weights[w], weights[v])))
        return [*(v for v, keep in zip(values[1:], kept, strict=True) if keep), values[-1]]

    generator = torch.Generator().manual_seed(seed)
    n = draw.choice((4, 6, 8))
    return forward, [torch.randn(5, n, generator=generator),
                     *(torch.randn(n, n, generator=generator) / n**0.5 for _ in range(3))]  # fmt: skip


@pytest.mark.few(0)
@pytest.mark.parametrize("count", [9, 25])
def test_random_modules_give_what_they_gave(count: int) -> None:
    several = gates = 0
    for seed in range(count):
        function, args = module(seed)
        programs = [p.program for p in fused(function, *args).patterns if p.kind == "product"]
        several += sum(len(p.outputs) > 1 for p in programs)
        gates += sum(len(p.products) > 1 for p in programs)
    assert several >= 5 and gates >= 5, "or nothing of the kind was tried"
