"""Random outputs: whether a candidate's draws come from the reference's distribution.

Two calls of a module with dropout have no value in common with two calls of another right one, so whole calls are
compared, not elements. Each call becomes a few figures; those of the candidate's calls and of the reference's are two
samples, held against each other by Welch's t. Calls are independent of one another whatever ties the elements of one
call together, so nothing need be known of the module. Every figure of a call is taken against reference calls that it
is not one of, for either side alike.

With `CALLS` of each, |t| above `LIMIT` comes about by chance less than once in ten thousand judgements; for one call
against `CALLS`, whose own spread is not known, the same holds for `LIMIT_OF_ONE`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

CALLS = 12
LIMIT = 8.0
LIMIT_OF_ONE = 16.0
_MOST = 1 << 20  # elements of an output that are looked at
_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
_LAGS = (1, 2, 4, 8, 32)
_RANGE = 1 << 17  # elements among which repetitions are looked for
_LOOK = 1 << 14
_KEPT = 1 << 16  # elements of a call whose deviations are kept for later calls
_OFTEN, _REPEATED = 4, 3  # calls in which an element is not zero, and in which it is another than the reference's


@dataclass(frozen=True, slots=True)
class ChanceVerdict:
    """The figure in which two samples differ most. `t`: 0 where they are alike; infinite where a difference can't be
    chance."""

    figure: str
    got: float
    wanted: float
    t: float


def block_of(shape: Sequence[int], rng: random.Random) -> tuple[slice, ...]:
    """A part of a tensor small enough to be kept for every call, somewhere."""
    found: list[slice] = []
    total = math.prod(shape)
    for extent in shape:
        kept = extent if total <= _MOST else max(1, extent * _MOST // total)
        start = rng.randrange(extent - kept + 1) if extent else 0
        found.append(slice(start, start + kept))
        total = total // max(extent, 1) * kept
    return tuple(found)


def is_constant(calls: Sequence[Tensor], slack: float) -> bool:
    """Whether calls give the same but for rounding: an output that is not random, beside one that is."""
    first = calls[0].double()
    size = float(first.norm())
    return all(float((c.double() - first).norm()) <= slack * size for c in calls[1:])


def compare(got: Sequence[Tensor], wanted: Sequence[Tensor], *, eps: float) -> ChanceVerdict:
    """The figure in which the candidate's calls (or its one call) differ most from the reference's; `eps` of their
    type."""
    if any(torch.equal(a, b) for a, b in pairwise(got)):
        return ChanceVerdict("change from call to call", 0.0, 1.0, math.inf)
    if (strange := _never_given(got, wanted, eps)) is not None:
        return strange
    theirs, ours = _table(wanted, wanted, eps), _table(got, wanted, eps)
    elements = got[0].numel()
    verdicts = [_welch(name, ours[name], theirs[name], elements=elements, eps=eps) for name in ours]
    return max(verdicts, key=lambda v: v.t)


@dataclass(frozen=True, slots=True)
class Deviations:
    """By how much a call, and calls of the reference on the same inputs, differ from what these give on average, at
    some elements: in itself and relative to the average."""

    mine: Sequence[Tensor]
    others: Sequence[Tensor]  # each (calls, elements)


def deviations(got: Tensor, wanted: Sequence[Tensor]) -> Deviations:
    """Of one call against the reference's on the same inputs."""
    step = max(1, got.numel() // _KEPT)
    mine, *others = (t.double().nan_to_num().reshape(-1)[::step][:_KEPT] for t in (got, *wanted))
    stacked = torch.stack(others)
    mean = stacked.mean(0)
    scale = mean.sign() / (mean.abs() + 0.01 * mean.square().mean().sqrt())
    kinds = (torch.ones_like(scale), scale.nan_to_num())
    return Deviations([(mine - mean) * k for k in kinds], [(stacked - mean) * k for k in kinds])


def compare_draws(one: Deviations, other: Deviations) -> ChanceVerdict:
    """Whether two calls, maybe on different inputs, drew the same: their deviations are alike as no two calls' of the
    reference are."""
    found = [_alike(*kind) for kind in zip(one.mine, other.mine, one.others, other.others, strict=True)]
    return max(found, key=lambda v: v.t)


def _alike(one: Tensor, other: Tensor, ones: Tensor, others: Tensor) -> ChanceVerdict:
    usual = _correlations(ones, others)
    got, mean = float(_correlations(one[None], other[None])), float(usual.mean())
    spread = max(float(usual.std()), 1 / math.sqrt(one.numel()))
    return ChanceVerdict("correlation of two calls' draws", got, mean, max(0.0, got - mean) / spread)


def _correlations(ones: Tensor, others: Tensor) -> Tensor:
    sizes = torch.outer(ones.norm(dim=1), others.norm(dim=1))
    return (ones @ others.T) / sizes.clamp(min=torch.finfo(torch.float64).tiny)


def _never_given(got: Sequence[Tensor], wanted: Sequence[Tensor], eps: float) -> ChanceVerdict | None:
    """An element which the reference gives as zero or as one other value, in all its calls, and the candidate several
    times as something else: a wrong place among millions, which no share shows. Asked only where no reference call
    would fail so against the others."""
    stacked = torch.stack([w.double() for w in wanted])
    given = stacked != 0
    low = torch.where(given, stacked, torch.inf).sort(0).values
    high = torch.where(given, stacked, -torch.inf).sort(0, descending=True).values
    # Small elements of a large tensor are rounded as its large ones are: they may be differences of such.
    scale = stacked.square().mean().sqrt()
    margin = 64 * eps * stacked.abs().amax(0) + 16 * eps * scale
    often = given.sum(0) >= _OFTEN
    agree = often & (high[0] - low[0] <= margin)
    alone = often & ~agree & ((high[1] - low[0] <= margin) | (high[0] - low[1] <= margin))
    if bool(alone.any()) or not bool(agree.any()):
        return None
    strange = sum((agree & (g != 0) & ((g.double() - low[0]).abs() > margin)).to(torch.int8) for g in got)
    if not isinstance(strange, Tensor) or int(strange.max()) < _REPEATED:
        return None
    at = int(strange.reshape(-1).argmax())
    value = next(float(v) for g in got if (v := g.reshape(-1)[at]) != 0)
    return ChanceVerdict(f"value of element {at}", value, float(low[0].reshape(-1)[at]), math.inf)


def _table(calls: Sequence[Tensor], reference: Sequence[Tensor], eps: float) -> dict[str, list[float]]:
    """The figures of all calls by name. Call number k is held against all reference calls but number k."""
    cuts = torch.quantile(torch.stack([_sampled(r) for r in reference]).reshape(-1), _wanted_quantiles(reference[0]))
    found: dict[str, list[float]] = {}
    wide = [c.double() for c in calls]
    for k, call in enumerate(wide):
        others = torch.stack([r.double() for i, r in enumerate(reference) if i != k])
        figures = [*_shares(call, others, cuts, eps), *_sizes(call, others.mean(0), eps)]
        if k:
            figures.append(("change from call to call", _log(float((call - wide[k - 1]).square().mean()))))
        for name, figure in figures:
            found.setdefault(name, []).append(figure)
    return found


def _sampled(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    return flat[:: max(1, flat.numel() // _LOOK)][:_LOOK].double()


def _wanted_quantiles(like: Tensor) -> Tensor:
    return torch.tensor(_QUANTILES, dtype=torch.float64, device=like.device)


def _shares(call: Tensor, others: Tensor, cuts: Tensor, eps: float) -> Iterator[tuple[str, float]]:
    """Shares of elements: zeros, under quantiles, and outside of what other calls gave at that place."""
    yield "share of zeros", float((call == 0).double().mean())
    for quantile, cut in zip(_QUANTILES, cuts.tolist(), strict=True):
        slack = 64 * eps * abs(cut)
        yield f"share under the {quantile} quantile", float((call <= cut + slack).double().mean())
    low, high = others.amin(0), others.amax(0)
    margin = 64 * eps * torch.maximum(low.abs(), high.abs()).clamp(min=float(others.square().mean().sqrt()))
    yield (
        "share of values that the reference never gives there",
        float(((call < low - margin) | (call > high + margin)).double().mean()),
    )


def _sizes(call: Tensor, mean: Tensor, eps: float) -> Iterator[tuple[str, float]]:
    """Mean and size of the values, and of what is random in them."""
    typical = float(mean.square().mean().sqrt()) or 1.0
    yield "mean", float(call.mean()) / typical
    yield "logarithm of the mean square", _log(float(call.square().mean()))
    chance = call - mean
    yield "logarithm of the variance", _log(float(chance.square().mean()))
    slack, scale = 64 * eps, mean.abs() + 0.01 * typical
    yield from _ties("", chance, slack * mean.abs())
    yield from _ties("relative ", chance * mean.sign() / scale, slack * mean.abs() / scale)


def _ties(kind: str, chance: Tensor, rounding: Tensor) -> Iterator[tuple[str, float]]:
    """What elements have in common: sums along each dimension, and correlations over some distances. Where factors are
    random, what is relative to the value shows it; where terms are, what is absolute. `rounding`: by how much each
    element may be off, all of a sum to the same side; a sum that varies less is constant, as softmax's are."""
    power = float(chance.square().mean())
    for dim in range(chance.ndim):
        least = rounding.sum(dim).square().mean()
        summed = float(torch.maximum(chance.sum(dim).square().mean(), least)) / max(chance.shape[dim], 1)
        yield f"logarithm of the {kind}variance of sums along dimension {dim}", _log(summed)
    flat = chance.reshape(-1)
    for lag in _LAGS:
        if lag < flat.numel():
            product = float((flat[lag:] * flat[:-lag]).mean())
            yield f"{kind}correlation at distance {lag}", product / (power or 1.0)
    yield f"{kind}correlation at any distance", _most_alike(flat[:_RANGE])


def _most_alike(flat: Tensor) -> float:
    """The largest correlation, of either sign, of the elements with those some distance on: numbers drawn for a part of
    them, and used again."""
    spectrum = torch.fft.rfft(flat, n=2 * flat.numel())
    products = torch.fft.irfft(spectrum.abs().square(), n=2 * flat.numel())[: flat.numel()].abs()
    return float(products[1:].max() / products[0]) if flat.numel() > 1 and float(products[0]) > 0 else 0.0


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -745.0


def _welch(name: str, got: Sequence[float], wanted: Sequence[float], *, elements: int, eps: float) -> ChanceVerdict:
    """Welch's t of two samples; of one value against a sample, as if it came from one that varies alike. Shares vary at
    least as the shares of independent elements would; differences that rounding makes count as none."""
    b, spread_b = _moments(wanted)
    a, spread_a = _moments(got) if len(got) > 1 else (got[0], spread_b)
    if name.startswith("share"):
        least = (b * (1 - b) + 1 / elements) / elements
        spread_a, spread_b = max(spread_a, least), max(spread_b, least)
    excess = max(0.0, abs(a - b) - 64 * eps)
    error = math.sqrt(spread_a / len(got) + spread_b / len(wanted))
    t = 0.0 if excess == 0.0 else math.inf if error == 0.0 else excess / error
    return ChanceVerdict(name, a, b, t if math.isfinite(a) or not math.isfinite(b) else math.inf)


def _moments(sample: Sequence[float]) -> tuple[float, float]:
    mean = sum(sample) / len(sample)
    return mean, sum((x - mean) ** 2 for x in sample) / (len(sample) - 1)
