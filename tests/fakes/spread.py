"""Contractions whose batch one factor lacks, whose result lies in another order than it reads, or that other operators
write: what tests match, compile and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...], tuple[int, ...]]

# A function, its arguments' shapes, and the domain of its product.
SPREAD: dict[str, Case] = {
    "one weight for a batch": (lambda a, b: a @ b, ((5, 136, 200), (1, 200, 184)), (680, 184)),
    "one left for a batch": (lambda a, b: torch.relu(a @ b) * 2, ((136, 208), (5, 208, 184)), (5, 136, 184)),
    "a batch of one": (lambda a, b: a @ b, ((1, 136, 208), (5, 208, 184)), (5, 136, 184)),
    "one right, transposed": (lambda a, b: (a @ b.mT).sigmoid(), ((72, 272), (6, 184, 272)), (6, 72, 184)),
    "heads share keys": (lambda a, b: a @ b, ((3, 4, 72, 128), (3, 1, 128, 264)), (3, 288, 264)),
    "some left for a batch": (lambda a, b: a @ b, ((4, 1, 72, 208), (4, 8, 208, 136)), (32, 72, 136)),
    "some right for a batch": (lambda a, b: torch.relu(a @ b), ((4, 8, 72, 208), (8, 208, 136)), (32, 72, 136)),
    "some of both for a batch": (lambda a, b: a @ b.mT, ((4, 1, 72, 216), (8, 136, 216)), (32, 72, 136)),
    "the middle of a batch": (lambda a, b: a @ b * 2, ((1, 3, 1, 72, 208), (2, 3, 4, 208, 136)), (24, 72, 136)),
    "rows between": (lambda a, b: torch.einsum("xik,yikj->xyij", a, b), ((72, 5, 208), (4, 5, 208, 136)),
                     (5, 72, 544)),
    "a step of decoding": (lambda a, b: a @ b, ((2, 8, 16, 1024), (2, 1, 1024, 1024)), (2, 128, 1024)),
    "keys repeated": (lambda q, k: q @ k.repeat_interleave(4, 1).mT * 0.125, ((2, 8, 136, 64), (2, 2, 264, 64)),
                      (4, 544, 264)),
    "keys expanded": (lambda q, k: q @ k[:, :, None].expand(2, 2, 4, 264, 64).reshape(2, 8, 264, 64).mT,
                      ((2, 8, 136, 64), (2, 2, 264, 64)), (4, 544, 264)),
    "values repeated": (lambda p, v: p @ v.repeat(1, 4, 1, 1), ((2, 8, 136, 200), (2, 2, 200, 136)), (16, 136, 136)),
    "heads in groups": (lambda q, k: torch.einsum("bghid,bgjd->bghij", q, k), ((2, 2, 4, 136, 64), (2, 2, 264, 64)),
                        (4, 544, 264)),
    "heads behind groups": (lambda q, k: torch.einsum("bighd,bjgd->bghij", q, k),
                            ((2, 136, 2, 4, 64), (2, 264, 2, 64)), (4, 544, 264)),
    "experts": (lambda x, w: torch.relu(torch.einsum("tk,ekn->etn", x, w)), ((136, 200), (4, 200, 184)),
                (4, 136, 184)),
    "heads behind": (lambda p, v: torch.einsum("bhqk,bkhd->bqhd", p, v), ((2, 3, 136, 400), (2, 400, 3, 72)),
                     (6, 136, 72)),
    "dots": (lambda a, b: torch.einsum("...ij,jk", a, b), ((3, 4, 72, 200), (200, 184)), (864, 184)),
    "no arrow": (lambda a, b: torch.einsum("zj,ja", a, b), ((136, 1000), (1000, 184)), (184, 136)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=([0, 2], [1, 0])), ((8, 136, 125), (125, 8, 184)),
                  (136, 184)),
    "inner": (lambda a, b: torch.inner(a, b) + 1, ((4, 36, 1000), (184, 1000)), (144, 184)),
}  # fmt: skip


def arguments(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(len(name))
    return tuple(torch.randn(shape, generator=draw).to(dtype) for shape in SPREAD[name][1])
