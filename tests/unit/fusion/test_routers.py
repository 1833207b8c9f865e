"""Routers: the best few of a row, chosen by scores with a bias, read, weighted and scattered. Whatever of it is fused
computes what the module does; what no domain holds is left to torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.matched import fused
from fakes.modules import Applies
from fakes.realisers import cpu, cuda
from tilewright.frontend.trace import trace
from tilewright.fusion import match

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]
EXPERTS, TOP = 40, 8
generator = torch.Generator().manual_seed(3)
LOGITS = torch.randn(48, EXPERTS, generator=generator)
BIAS = torch.randn(EXPERTS, generator=generator)


def chosen(s: Tensor, bias: Tensor, **settings: Any) -> Tensor:
    return torch.topk(s + bias, TOP, **settings)[1]


def weighed(s: Tensor, i: Tensor) -> Tensor:
    w = s.gather(-1, i)
    return w / w.sum(-1, keepdim=True)


def scattered(x: Tensor, bias: Tensor) -> Tensor:
    s = x.sigmoid()
    i = chosen(s, bias)
    return torch.zeros_like(s).scatter(-1, i, weighed(s, i))


def scores_from_memory(x: Tensor, bias: Tensor) -> Tensor:
    """The gathered scores are another kernel's: the top-k and the gather could lie in one region."""
    s = x.sigmoid()
    best = (s + bias).view(-1, 4, 10).topk(2)[0].sum(-1)
    kept = torch.zeros_like(best).scatter(1, best.topk(2)[1], 1.0)
    i = (s + bias).masked_fill(kept.repeat_interleave(10, 1) == 0, 0.0).topk(TOP)[1]
    return torch.zeros_like(s).scatter(-1, i, weighed(s, i))


def gathered_from_an_input(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    i = (x * 2.0 + bias).topk(TOP)[1]
    return x.gather(-1, i), i


def scattered_in_place(x: Tensor, bias: Tensor) -> Tensor:
    s = x.sigmoid()
    i = chosen(s, bias, sorted=False)
    made = torch.zeros_like(s)
    made.scatter_(-1, i, weighed(s, i) + 1e-20)
    return made


def of_equal_weight(x: Tensor, bias: Tensor) -> Tensor:
    s = x.sigmoid()
    return torch.zeros_like(s).scatter(-1, chosen(s, bias), 1.0) * s


def masked(x: Tensor, bias: Tensor) -> Tensor:
    s = x.sigmoid()
    return torch.where(torch.zeros_like(s, dtype=torch.bool).scatter(-1, chosen(s, bias), True), s, 0.0)


def one_hot(x: Tensor, bias: Tensor) -> Tensor:
    s = x.sigmoid()
    i = chosen(s, bias)
    return (F.one_hot(i, EXPERTS).to(s.dtype) * weighed(s, i).unsqueeze(-1)).sum(1)


def added(x: Tensor, bias: Tensor) -> Tensor:
    s = x.sigmoid()
    i = chosen(s, bias)
    return torch.zeros_like(s).scatter_add(-1, i, weighed(s, i))


def indices_alone(x: Tensor, bias: Tensor) -> Tensor:
    return chosen(x.sigmoid(), bias)


def values_alone(x: Tensor, bias: Tensor) -> Tensor:
    return (x.sigmoid() + bias).topk(TOP)[0] * 3.0


def values_and_their_sources(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    v, i = (x.sigmoid() + bias).topk(TOP)
    return v - bias[i], x.gather(-1, i) * v


def nothing_of_it(x: Tensor, bias: Tensor) -> Tensor:
    """Both results of the top-k are dead."""
    (x + bias).topk(TOP)
    return x.sigmoid()


def along_the_rows(x: Tensor, bias: Tensor) -> Tensor:
    s = x.sigmoid()
    i = (s + bias).topk(TOP, dim=0)[1]
    return torch.zeros_like(s).scatter(0, i, s.gather(0, i))


def of_one(x: Tensor, bias: Tensor) -> Tensor:
    s = x.sigmoid()
    return torch.zeros_like(s).scatter(-1, *(lambda i: (i, x.gather(-1, i) * 2.0))((s + bias).topk(1)[1]))


ROUTERS: list[Callable[..., Any]] = [
    scattered, scores_from_memory, gathered_from_an_input, scattered_in_place, of_equal_weight, masked, one_hot, added,
    indices_alone, values_alone, values_and_their_sources, nothing_of_it, along_the_rows, of_one,
]  # fmt: skip


@pytest.mark.parametrize("router", ROUTERS, ids=lambda f: f.__name__)
def test_what_is_fused_of_a_router_computes_the_same(router: Callable[..., Any]) -> None:
    fused(router, LOGITS, BIAS)


@pytest.mark.parametrize("renderer", [cpu, cuda], ids=["cpu", "cuda"])
@pytest.mark.parametrize("router", ROUTERS, ids=lambda f: f.__name__)
def test_each_target_finds_its_patterns_of_a_router(router: Callable[..., Any], renderer: Any) -> None:
    graph = trace(Applies(router), (LOGITS, BIAS), {})
    for tiny_bytes in (0, 1 << 20):
        match(graph, unsupported=renderer.unsupported, space=renderer.space, tiny_bytes=tiny_bytes)
