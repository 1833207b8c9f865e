"""Echoes: random numbers that were drawn once and used again, in another order or in another call.

A call is ranked against calls of the reference, element by element: how many of these it lies above, less how many it
lies below, over their number. Of a right candidate these ranks have mean nought, whatever the module does to its
numbers, since its call and the reference's could be exchanged; and where the module draws for every element by itself,
they are independent of one another. Then a sum of products of ranks, each with the one some distance on (or with its
mirror image), is a martingale with bounded steps, and Freedman's inequality in the form of Bennett,

    P(|sum| >= a) <= 2 exp(-(v / b^2) h(a b / v)),    h(u) = (1 + u) log(1 + u) - u,

bounds by how much it may exceed nought (v: the sum of the steps' variances, b: the largest step; D. A. Freedman, On
tail probabilities for martingales, 1975). A *score* is minus the logarithm of that bound, less that of the number of
places that were looked at; `LIMIT` is passed by chance less than once in 1e10 figures.

Looked for are copies of the whole at any distance, forwards and backwards; of some lines along each dimension anywhere
else; and of the call before. Elements that the reference drops together (whole channels) count as one. Where the module
ties elements together in other ways (sums of the reference's ranks along a dimension do not vary as sums of independent
ones do, or a call of the reference itself echoes) nothing is said.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LIMIT = 10 * math.log(10.0)
CALLS = 2  # of either side that are looked at
_WHOLE = 1 << 18  # elements of a call that are compared as a whole
_PART = 1 << 16  # among which copies of single lines are looked for
_LINES, _SHORT, _LONG = 3, 128, 4096  # how many lines, and their least length; and the length of longer stretches
_SPREADS = 5.0
_STRAY = 0.01  # of the elements, for which it does not matter whether their sign is known
_FEW = 256  # ranks, of which nothing can be told

Figures = dict[str, float]
Ranks = tuple[Tensor, Tensor]  # of one call: as they are, and with the sign of what the reference gives on average


@dataclass(frozen=True, slots=True)
class Echo:
    """The figure with the highest score; `score` 0 where there is none."""

    figure: str
    score: float


def ranks(call: Tensor, others: Sequence[Tensor], *, eps: float) -> Ranks:
    """The ranks of a call among calls of the reference that it is none of. What rounding makes counts as none. Where a
    factor is random, those of negative numbers are turned round but for the sign."""
    margin = 64 * eps * call.abs()
    total, mean = torch.zeros_like(call), torch.zeros_like(call)
    for other in others:
        gap = call - other
        total += torch.where(gap.abs() > torch.maximum(margin, 64 * eps * other.abs()), gap.sign(), 0.0)
        mean += other
    total /= max(len(others), 1)
    return total.float(), (total * mean.sign()).float()


def strongest(
    got: Sequence[Tensor], wanted: Sequence[Tensor], *, eps: float, rng: random.Random, known: Sequence[Ranks] = ()
) -> tuple[Echo, Ranks]:
    """The strongest echo in the candidate's calls, score 0 where none is too strong, and the ranks of the first of
    them. `known`: those of earlier calls, on whatever inputs. Neighbouring calls are ranked against other calls of the
    reference, so that these tie nothing together."""
    mine = [ranks(g, wanted[k % 2 :: 2], eps=eps) for k, g in enumerate(got[:CALLS])]
    theirs = [
        ranks(w, [o for i, o in enumerate(wanted) if i % 2 == k % 2 and i != k], eps=eps)
        for k, w in enumerate(wanted[:CALLS])
    ]
    earlier = [k for k in known if k[0].shape == mine[0][0].shape]
    dims, seed = _tied([t[1] for t in theirs]), rng.randrange(1 << 62)
    found = Echo("", 0.0)
    for kind in range(2):
        if kind == 0 and all(_same(*r) for r in mine):
            continue  # no numbers are negative
        ours, usual = ([_untied(r[kind], dims) for r in side] for side in ([*earlier, *mine], theirs))
        if not all(_independent(t) for t in usual):
            continue
        loudest = worst(_figures(ours, seed, skip=len(earlier)))
        if loudest.score > max(found.score, LIMIT) and worst(_figures(usual, seed)).score < LIMIT / 2:
            found = loudest
    return found, mine[0]


def worst(figures: Figures) -> Echo:
    """The figure with the highest score."""
    name = max(figures, key=lambda n: figures[n], default="")
    return Echo(name, figures.get(name, 0.0))


def _independent(call: Tensor) -> bool:
    """Whether sums along each dimension vary as sums of independent ranks do: their mean square lies within `_SPREADS`
    standard deviations of what that comes to."""
    call = _centred(call)
    power = float(call.square().mean())
    if power == 0.0:
        return True
    tails = float(call.square().square().mean()) / power**2
    for dim in range(call.ndim):
        extent = call.shape[dim]
        lines = call.numel() // extent
        if extent > 1 and lines > 1:
            ratio = float(call.sum(dim).square().mean()) / (extent * power)
            if abs(ratio - 1.0) > _SPREADS * math.sqrt((2.0 + tails / extent) / lines):
                return False
    return True


def _same(one: Tensor, other: Tensor) -> bool:
    return float((one != other).double().mean()) < _STRAY


def _tied(calls: Sequence[Tensor]) -> list[int]:
    """The dimensions along which the reference moves all elements to one side together."""
    found = []
    for dim in range(calls[0].ndim):
        if calls[0].shape[dim] > 1 and not any(bool(((c > 0).any(dim) & (c < 0).any(dim)).any()) for c in calls):
            found.append(dim)
    return found


def _untied(call: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        high, low = call.amax(dim, keepdim=True), call.amin(dim, keepdim=True)
        call = torch.where(high > -low, high, low)
    return call


def _figures(calls: Sequence[Tensor], seed: int, *, skip: int = 0) -> Figures:
    """The highest score of each figure over some calls of one side; of the first, only what later ones repeat."""
    found: Figures = {}
    before: list[Tensor] = []
    for number, call in enumerate(calls):
        if call.numel() < _FEW or not bool(call.any()):
            continue
        flat = _centred(call.reshape(-1)[:_WHOLE])
        if number >= skip:
            pairs = (figure for one in (before if number == skip else before[-1:]) for figure in _between(one, flat))
            for name, score in (*_within(flat), *_lines(call, seed), *pairs):
                found[name] = max(found.get(name, 0.0), score)
        before.append(flat)
    return found


def _centred(flat: Tensor) -> Tensor:
    """Less their mean; what the reference never moves stays out of it."""
    active = flat != 0
    return torch.where(active, flat - flat.sum() / active.sum().clamp(min=1), 0.0)


def _within(flat: Tensor) -> Iterator[tuple[str, float]]:
    count, size = flat.numel(), _length(2 * flat.numel())
    spectrum = torch.fft.rfft(flat, n=size)
    shifted = torch.fft.irfft(spectrum.abs().square(), n=size)[1:count]
    mirrored = torch.fft.irfft(spectrum.square(), n=size)[: 2 * count - 1]
    mirrored[::2] -= flat.square()  # each pair stands there twice, and each element once with itself
    power, peak = _power(flat), float(flat.abs().max())
    variance = float(flat.square().sum()) * power
    yield "repetition at some distance", _score(shifted, variance, peak * peak)
    yield "repetition backwards", _score(mirrored / 2, variance / 2, peak * peak)


def _between(one: Tensor, other: Tensor) -> Iterator[tuple[str, float]]:
    size = _length(2 * one.numel())
    spectra = torch.fft.rfft(one, n=size), torch.fft.rfft(other, n=size)
    variance = float(one.square().sum()) * _power(other)
    bound = float(one.abs().max()) * float(other.abs().max())
    for name, second in (("", spectra[1].conj()), (" backwards", spectra[1])):
        yield f"repetition of another call{name}", _score(torch.fft.irfft(spectra[0] * second, n=size), variance, bound)


def _lines(call: Tensor, seed: int) -> Iterator[tuple[str, float]]:
    """Copies of some lines along each dimension, and of longer stretches, anywhere else."""
    chosen = random.Random(seed)
    for dim in range(call.ndim):
        extent = call.shape[dim]
        if extent == 1 and call.numel() > 1:
            continue
        flat = _centred(call.movedim(dim, -1).reshape(-1)[:_PART])
        for length in sorted({extent, _LONG}):
            if length >= _SHORT and flat.numel() >= 2 * length:
                step = extent if length == extent else 1
                starts = [step * chosen.randrange((flat.numel() - length) // step + 1) for _ in range(_LINES)]
                yield from _copies(flat, starts, length, f"of {length} elements along dimension {dim}")


def _copies(flat: Tensor, starts: Sequence[int], length: int, what: str) -> Iterator[tuple[str, float]]:
    size = _length(flat.numel() + length)
    spectrum = torch.fft.rfft(flat, n=size)
    parts = torch.stack([flat[s : s + length] for s in starts])
    theirs = torch.fft.rfft(parts, n=size)
    power, peak = _power(flat), float(flat.abs().max())
    variances = (parts.square().sum(1) * power).tolist()
    bounds = (parts.abs().amax(1) * peak).tolist()
    places = torch.arange(size, device=flat.device)
    for name, other, first in (("", theirs.conj(), 0), (" backwards", theirs, length - 1)):
        sums = torch.fft.irfft(spectrum * other, n=size)
        for row, start, variance, bound in zip(sums, starts, variances, bounds, strict=True):
            at = (places - first) % size  # where the copy begins; not on the line itself
            row = torch.where((at - start).abs() % size >= length, row, 0.0)
            yield f"repetition{name} {what}", _score(row, variance, bound)


def _power(flat: Tensor) -> float:
    """The variance of what the reference moves at all, where it is largest."""
    found = 0.0
    for part in flat.split(_LONG):
        if part.numel() == _LONG or flat.numel() < _LONG:
            found = max(found, float(part.square().sum()) / max(int((part != 0).sum()), 1))
    return found


def _score(sums: Tensor, variance: float, bound: float) -> float:
    """See the module's docstring, of the largest of these sums."""
    if sums.numel() == 0 or variance <= 0.0 or bound <= 0.0:
        return 0.0
    u = float(sums.abs().max()) * bound / variance
    exponent = variance / (bound * bound) * ((1 + u) * math.log1p(u) - u)
    return max(0.0, exponent - math.log(2.0 * sums.numel()))


def _length(least: int) -> int:
    """A length of which transforms are quick: a power of two, or three quarters of one."""
    power = 1 << max(least - 1, 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= least else power
