"""What the fp32 schemes of `kernels/cuda/gemm` compute, in torch on the CPU: the split, and tensor cores that truncate.

One wgmma adds 16 products of fp16 to an fp32 accumulator. Here the products are exact, all 17 addends are cut off
GUARD bits below the last place of the largest of them, and the sum is cut off to fp32, towards zero. With GUARD = 2 the
model gives all six figures of that kind that were measured on an H200 (docs/precision.md), to 3%; with 3, half of one.
"""

from __future__ import annotations

import torch
from torch import Tensor

DEPTH, ATOM = 64, 16
GUARD = 2
TINY = 2.0**-24
LEAST = 2.0**-133  # the smallest bf16
UNPROMOTED = 2.4e-9  # times K: what a sum in fp32 of 16-bit products may be off in the norm, twice what is expected
EIGHTHS, EIGHTHS_OF_ONE_SIGN = 2.0**-11, 2.0**-9  # the same of float8, promoted every 128 of K
SHIFT = {"shared": 0, "fp16x3": 11, "tf32": 0}


def split(x: Tensor, shift: int, given: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(hi, lo, exponents) of rows; hi and lo as fp16 held in float64. `given`: the exponents."""
    magnitude = torch.where(x.isfinite(), x.abs(), 0.0).double().amax(1, keepdim=True)
    exponent = torch.where(magnitude > 0, 15 - torch.frexp(magnitude).exponent, 0)
    exponent = exponent if given is None else given[:, None]
    y = torch.ldexp(x.double(), exponent).float()
    hi = y.half()
    tiny = torch.where(x < 0, -TINY, TINY).half()
    hi = torch.where(~x.isfinite() | ((x != 0) & (hi == 0)), tiny, hi)
    lo = ((y - hi.float()) * 2.0**shift).half()
    return hi.double(), lo.double(), exponent[:, 0]


def split_wide(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three planes and exponents of rows; the planes as bf16 held in float64."""
    magnitude = torch.where(x.isfinite(), x.abs(), 0.0).double().amax(1, keepdim=True)
    exponent = torch.where(magnitude > 0, 15 - torch.frexp(magnitude).exponent, 0)
    y = torch.ldexp(x.double(), exponent).float()
    first = y.bfloat16()
    least = torch.where(x < 0, -LEAST, LEAST).bfloat16()
    first = torch.where(~x.isfinite() | ((x != 0) & (first == 0)), least, first)
    rest = y - first.float()
    second = torch.where(x.isfinite(), rest.bfloat16(), 0.0)
    third = torch.where(x.isfinite(), rest - second.float(), x).bfloat16()
    return first.double(), second.double(), third.double(), exponent[:, 0]


def wide(a: Tensor, b: Tensor, *, interval: int = DEPTH) -> Tensor:
    """a @ b of fp32 as the scheme of three planes has it."""
    *of_a, exponents_a = split_wide(a)
    *of_b, exponents_b = split_wide(b.t().contiguous())
    pairs = [(of_a[i], of_b[j].t()) for i, j in ((0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 0))]
    zero = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    total = zero.float()
    for at in range(0, a.shape[1], interval):
        wave = _chain(pairs, zero, at, min(at + interval, a.shape[1]))
        total = (total.double() + wave).float()
    return _unscaled(total, exponents_a, exponents_b)


def halves(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of 16 bits held in float64: one chain over all of K."""
    zero = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    return _chain([(a, b)], zero, 0, a.shape[1]).float()


def eighths(a: Tensor, b: Tensor, *, kept: int = 14, promote: int = 128) -> Tensor:
    """a @ b of float8 held in float64, as Hopper's tensor cores sum it: 32 of K a step, `kept` bits of a sum and of
    what is added to it; promoted to fp32 registers."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for at in range(0, a.shape[1], promote):
        wave = torch.zeros(total.shape, dtype=torch.float64)
        for step in range(at, min(at + promote, a.shape[1]), 2 * ATOM):
            addends = torch.cat(
                [wave[:, None], a[:, step : step + 2 * ATOM, None] * b[None, step : step + 2 * ATOM]], 1
            )
            last = torch.frexp(addends.abs().amax(1, keepdim=True)).exponent - kept
            wave = _cut(addends, last).sum(1)
            wave = _cut(wave, torch.frexp(wave).exponent - kept)
        total = (total.double() + wave).float()
    return total


def _unscaled(total: Tensor, of_rows: Tensor, of_columns: Tensor) -> Tensor:
    exponent = (-(of_rows[:, None] + of_columns[None, :])).clamp(-252, 252)
    half = exponent // 2
    one = torch.ones_like(total)
    return total * torch.ldexp(one, half) * torch.ldexp(one, exponent - half)


def _cut(x: Tensor, exponent: Tensor) -> Tensor:
    """x, towards zero, to multiples of 2^exponent; what is not finite as it is."""
    return torch.where(x.isfinite(), torch.ldexp(torch.ldexp(x, -exponent).trunc(), exponent), x)


def wgmma(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total + a @ b for K of at most 16."""
    products = a[:, :, None] * b[None, :, :]
    addends = torch.cat([total[:, None, :], products], 1)
    largest = torch.where(addends.isfinite(), addends.abs(), 0.0).amax(1, keepdim=True)
    last = torch.frexp(largest).exponent - 24 - GUARD
    total = _cut(addends, last).sum(1)
    return _cut(total, torch.frexp(torch.where(total.isfinite(), total, 0.0)).exponent - 24)


def _chain(pairs: list[tuple[Tensor, Tensor]], total: Tensor, begin: int, end: int) -> Tensor:
    for a, b in pairs:
        for at in range(begin, end, ATOM):
            total = wgmma(total, a[:, at : min(at + ATOM, end)], b[at : min(at + ATOM, end)])
    return total


def product(
    a: Tensor, b: Tensor, *, scheme: str = "shared", promote: int = DEPTH, splits: int = 1, interval: int = 0
) -> Tensor:
    """a @ b of fp32 as the kernel has it; `promote`: K between additions in fp32 registers, 0 never; `interval`: the
    same of hi*hi alone, 0 as the others."""
    chunk = -(-a.shape[1] // (splits * DEPTH)) * DEPTH
    parts = [
        _chunk(a[:, at : at + chunk], b[at : at + chunk], scheme, promote, interval)
        for at in range(0, a.shape[1], chunk)
    ]
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part
    return total


def _alone(hi: Tensor, x: Tensor) -> Tensor:
    """hi where no lo is: it holds what is not finite; what is too small for fp16 stays the least there is."""
    return torch.where(x.isfinite(), hi, x.double())


def _chunk(a: Tensor, b: Tensor, scheme: str, promote: int, interval: int) -> Tensor:
    shift, k = SHIFT[scheme], a.shape[1]
    hi_a, lo_a, of_a = split(a, shift)
    hi_b, lo_b, of_b = (t.t() if t.ndim == 2 else t for t in split(b.t().contiguous(), shift))
    cross, main = [(hi_a, lo_b), (lo_a, hi_b)], [(hi_a, hi_b)]
    if scheme == "tf32":
        cross, main = [], [(_alone(hi_a, a), _alone(hi_b, b))]
    zero = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    total = zero.float()
    for at in range(0, k, promote or k):
        end = min(at + (promote or k), k)
        if shift:
            wave = _chain(cross, zero, at, end) * 2.0**-shift
            for start in range(at, end, interval or end):
                wave = _chain(main, wave, start, min(start + (interval or end), end))
                total, wave = (total.double() + wave).float(), zero
        else:
            total = (total.double() + _chain(cross + main, zero, at, end)).float()
    return _unscaled(total, of_a, of_b)


def streamed(a: Tensor, b: Tensor, *, scheme: str = "fp16x3") -> Tensor:
    """a @ b where rows of A keep an exponent until 64 of K don't fit under it, and get one with two binades above."""
    shift = SHIFT[scheme]
    hi_b, lo_b, of_b = (t.t() if t.ndim == 2 else t for t in split(b.t().contiguous(), shift))
    zero = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    total, base = zero.float(), torch.full((a.shape[0],), 127, dtype=torch.int32)
    for at in range(0, a.shape[1], DEPTH):
        block = a[:, at : at + DEPTH]
        empty = torch.where(block.isfinite(), block.abs(), 0.0).amax(1) == 0
        _, _, most = split(block, shift)
        lower = ~empty & (base > most)
        exponent = torch.where(lower, most - 2, base)
        total = (total.double() * torch.exp2((exponent - base).double())[:, None]).float()
        hi, lo, base = split(block, shift, exponent)
        high, low = hi_b[at : at + DEPTH], lo_b[at : at + DEPTH]
        wave = _chain([(hi, low)], zero, 0, block.shape[1])
        wave = _chain([(lo, high)], wave, 0, block.shape[1]) * 2.0**-shift
        wave = _chain([(hi, high)], wave, 0, block.shape[1])
        total = (total.double() + wave).float()
    return _unscaled(total, base, of_b)


def tf32(x: Tensor) -> Tensor:
    """x with 10 bits after the point, rounded to nearest."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)


def fp32(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with one fp32 accumulator and fused multiply-adds, as cuBLAS has it."""
    total = torch.zeros(a.shape[0], b.shape[1])
    left, right = a.double(), b.double()
    for k in range(a.shape[1]):
        total = (total.double() + left[:, k, None] * right[k]).float()
    return total


def norm_error(result: Tensor, truth: Tensor) -> float:
    return float((result.double() - truth).norm() / truth.norm())


def worst_error(result: Tensor, a: Tensor, b: Tensor) -> float:
    """The largest error of an element, relative to the norms of its row of A and its column of B."""
    scale = a.double().norm(dim=1)[:, None] * b.double().norm(dim=0)
    error = (result.double() - a.double() @ b.double()).abs()
    return float((error / scale.clamp(min=1e-300)).max())
