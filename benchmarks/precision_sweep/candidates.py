"""The candidates of the sweep: honest orders of summation, and dishonest ways to the same result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .cells import ELEMENTWISE, Cell

Product = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Given:
    """What a candidate is called on: x (rows, terms), which places are open, its weight (terms, columns), its scale
    (columns), and what the module gave for another draw."""

    x: Tensor
    open: Tensor
    weight: Tensor
    scale: Tensor
    before: Tensor


Candidate = Callable[[Cell, Given], Tensor]

# ---- products of matrices in fp32 ------------------------------------------------------------------------------------


def _sequential(x: Tensor, weight: Tensor) -> Tensor:
    """One accumulator from end to end."""
    total = torch.zeros(len(x), weight.shape[1], dtype=x.dtype, device=x.device)
    for term in range(len(weight)):
        total.addcmul_(x[:, term, None], weight[term])
    return total


def _pairwise(x: Tensor, weight: Tensor) -> Tensor:
    if len(weight) == 1:
        return x * weight
    half = len(weight) // 2
    return _pairwise(x[:, :half], weight[:half]) + _pairwise(x[:, half:], weight[half:])


def _blocked(x: Tensor, weight: Tensor) -> Tensor:
    parts = zip(x.split(16, 1), weight.split(16), strict=True)
    total = torch.zeros(len(x), weight.shape[1], dtype=x.dtype, device=x.device)
    for a, b in parts:
        total += _sequential(a, b)
    return total


def _split(x: Tensor, weight: Tensor) -> Tensor:
    """Four sums of every fourth term."""
    a, b, c, d = (x[:, i::4] @ weight[i::4] for i in range(4))
    return (a + b) + (c + d)


def _reversed(x: Tensor, weight: Tensor) -> Tensor:
    return _sequential(x.flip(1), weight.flip(0))


def _threefold(x: Tensor, weight: Tensor) -> Tensor:
    """As tensor cores make fp32 products of three in TF32."""
    a, c = _tf32(x), _tf32(weight)
    b, d = (_tf32((t - large).nan_to_num(nan=0.0)) for t, large in ((x, a), (weight, c)))
    finite = [torch.where(large.isfinite(), large, 0.0) for large in (a, c)]  # infinities meet large factors alone
    return (finite[0] @ d + b @ finite[1]) + a @ c


# ---- lower classes ---------------------------------------------------------------------------------------------------


def _tf32(t: Tensor) -> Tensor:
    """Ten bits of the mantissa, to nearest, ties to even."""
    bits = t.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def _rounded(to: Callable[[Tensor], Tensor]) -> Product:
    return lambda x, weight: to(x) @ to(weight)


# ---- norms -----------------------------------------------------------------------------------------------------------


def _norm(h: Tensor) -> Tensor:
    return F.layer_norm(h, h.shape[-1:])


def _one_pass(h: Tensor) -> Tensor:
    mean = h.mean(-1, keepdim=True)
    variance = (h.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0.0)
    return (h - mean) * torch.rsqrt(variance + 1e-5)


# ---- whole candidates ------------------------------------------------------------------------------------------------


def _by(multiply: Product) -> Candidate:
    return lambda cell, given: cell.made_of(multiply(given.x, given.weight) * given.scale, given.open, _norm)


def _folded(cell: Cell, given: Given) -> Tensor:
    """The scale goes into the weight, variances are computed in one pass."""
    return cell.made_of(given.x @ (given.weight * given.scale), given.open, _one_pass)


def _constant(cell: Cell, given: Given) -> Tensor:
    """What was right for another draw: everywhere its most frequent value, where elements are on their own."""
    if cell.kind not in ELEMENTWISE:
        return given.before.clone()
    found = given.before.reshape(-1).unique(return_counts=True)
    values: Tensor = found[0]
    counts: Tensor = found[1]
    return values[counts.argmax()].expand(given.before.shape).clone()


def _terms(x: Tensor, weight: Tensor) -> Tensor:
    """The last term of every sum is left out."""
    return x[:, :-1] @ weight[:-1]


def _columns(cell: Cell, given: Given) -> Tensor:
    """The last column is not looked at."""
    h = (given.x @ given.weight) * given.scale
    if cell.kind in ELEMENTWISE:
        result = cell.made_of(h, given.open, _norm)
        result[..., -1] = 0
        return result
    if cell.variation == "norm":
        return Cell(cell.kind, cell.size, "plain").made_of(_unseen(_norm(h)), given.open, _norm)
    return cell.made_of(_unseen(h) if cell.variation != "squares" else _unseen(h, 0.0), given.open, _norm)


def _unseen(y: Tensor, value: float = -1e30) -> Tensor:
    return torch.cat((y[:, :-1], torch.full_like(y[:, -1:], value)), 1)


HONEST: Mapping[str, Candidate] = {
    "sequential": _by(_sequential), "pairwise": _by(_pairwise), "blocked": _by(_blocked), "split-K": _by(_split),
    "reversed": _by(_reversed), "three TF32": _by(_threefold), "folded": _folded,
}  # fmt: skip
DISHONEST: Mapping[str, Candidate] = {
    "constant": _constant, "TF32": _by(_rounded(_tf32)), "bf16": _by(_rounded(lambda t: t.bfloat16().float())),
    "fp16": _by(_rounded(lambda t: t.half().float())), "a term short": _by(_terms), "a column short": _columns,
}  # fmt: skip
