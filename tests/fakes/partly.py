"""Products beside what is broadcast over a part of their rows, columns or batch, masks and whole numbers, with
arguments: what tests match, compile and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * 0.125


def masked(q: Tensor, k: Tensor, hidden: Tensor) -> Tensor:
    return scores(q, k).masked_fill(hidden, -3.0)


def grouped(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return scores(q, k.repeat_interleave(q.shape[1] // k.shape[1], 1)) + mask


def within(a: Tensor, b: Tensor, lengths: Tensor) -> Tensor:
    columns = torch.arange(b.shape[1], device=b.device)
    return torch.where(columns < lengths[:, None, None], a @ b.mT, 0.5)


def gates(x: Tensor, w: Tensor, by_head: Tensor, by_place: Tensor) -> Tensor:
    heads = F.linear(x, w).view(*x.shape[:-1], by_head.shape[-1], by_place.shape[0])
    return torch.tanh(heads * by_head[..., None] + by_place)


# A function, its arguments' shapes, or (shape, dtype); and the operands of its epilogue as (shape, each).
Case = tuple[Callable[..., Any], tuple[Any, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]]
HEADS = (2, 5, 131, 144), (2, 5, 203, 144)
PARTLY: dict[str, Case] = {
    "a mask of each batch": (masked, (*HEADS, ((2, 1, 131, 203), torch.bool)), [((2, 131, 203), (5, 1, 1))]),
    "a mask of keys": (masked, (*HEADS, ((2, 1, 1, 203), torch.bool)), [((2, 1, 203), (5, 1, 1))]),
    "a mask of all": (masked, (*HEADS, ((131, 203), torch.bool)), [((1, 131, 203), ())]),
    "a mask to add": (lambda q, k, m: scores(q, k) + m, (*HEADS, (2, 1, 131, 203)), [((2, 131, 203), (5, 1, 1))]),
    "slopes of heads": (lambda q, k, m: scores(q, k) + m, (*HEADS, (5, 1, 203)), [((5, 1, 203), (1, 1, 1))]),
    "even rows": (masked, ((2, 5, 136, 144), (2, 5, 208, 144), ((2, 1, 136, 208), torch.bool)),
                  [((2, 136, 208), (5, 1, 1))]),
    "keys in groups": (grouped, ((2, 6, 131, 144), (2, 2, 203, 144), (2, 1, 131, 203)), [((2, 131, 203), (2, 1, 1))]),
    "places": (lambda x, w, b, p: F.linear(x, w, b) + p, ((3, 131, 520), (184, 520), (184,), (131, 184)),
               [((1, 184), ()), ((131, 184), (1, 1))]),
    "a row of each sequence": (lambda x, w, p: F.gelu(F.linear(x, w)) * p, ((3, 131, 520), (183, 520), (3, 1, 183)),
                               [((3, 183), (131, 1))]),
    "gates of heads": (gates, ((2, 130, 520), (192, 520), (2, 130, 4), (48,)),
                       [((260, 4), (1, 48)), ((1, 48), (1, 1))]),
    "a mask as floats": (lambda x, w, m: F.linear(x, w) * m.to(x.dtype),
                         ((262, 520), (184, 520), ((262, 184), torch.bool)), [((262, 184), ())]),
    "bytes": (lambda x, w, a, b: F.linear(x, w) * a.to(x.dtype) + b.to(x.dtype),
              ((262, 520), (184, 520), ((262, 184), torch.uint8), ((184,), torch.int8)),
              [((262, 184), ()), ((1, 184), ())]),
    "whole numbers": (lambda x, w, a, b: F.linear(x, w) * a.to(x.dtype) + b.to(x.dtype),
                      ((262, 520), (184, 520), ((262, 184), torch.int64), ((262, 1), torch.int32)),
                      [((262, 184), ()), ((262, 1), ())]),
    "lengths": (within, ((5, 131, 520), (5, 203, 520), ((5,), torch.int64)), [((5, 1, 1), ())]),
}  # fmt: skip


def arguments(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(len(name))
    made = []
    for given in PARTLY[name][1]:
        shape, kind = given if isinstance(given[0], tuple) else (given, dtype)
        if kind.is_floating_point:
            made.append(torch.randn(shape, generator=draw).to(kind))
        else:
            made.append(torch.randint(0, 2 if kind is torch.bool else 100, shape, generator=draw).to(kind))
    return tuple(made)
