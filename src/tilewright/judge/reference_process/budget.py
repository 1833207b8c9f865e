"""The verdict on a result by its budget: for each element, how far roundings move it (see
judge.reference_process.ensemble).

A real output is right where its errors are those of roundings: the root mean square of errors in units of sigma, of the
whole, of each block of neighbours and of each column, stays within a few; single elements within what so few runs say
of a spread; and an element that lies beyond lies where some run put it, past a jump. Whole numbers, booleans and
floats of eight bits equal the truth or the reference's own, or what some run gave there. How many elements turn so is
bounded by how many do in runs whose errors are as large as roundings are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..wire.messages import Judged
from . import indices
from .eight_bits import computable, ordered
from .ensemble import PAIRS, WIDE, Budget, Ensemble, Question, flat, jumps
from .reference import Reference

_RMS = 6.0  # of errors in units of sigma, over a block: a row's errors may be one rounding's
_RMS_OF_ONE = 12.0  # more for few elements, over the root of their number
_WORST = 17.0  # a spread of eight runs may be far too small by chance: once in 1e7 so far; of n elements, n ** 1/8 more
_FAR, _FAR_SHARE, _FAR_COUNT = 8.0, 1e-3, 4
_LAST_BITS = 4.0  # of the type of the output, that are always allowed
_TWICE = 2.0  # of the reference's own error, of what turns
_BLOCK = 256  # elements in a row
_CHUNK = 1 << 22
_CHANCE = 1e-7
_MOST = 1e9  # in units of sigma: more tells nothing more
_CERTAIN = 1e300  # the share where an element is wrong whatever the allowance


def appeal(
    reference: Reference, question: Question, *, got: Sequence[Tensor], own: Sequence[Tensor]
) -> tuple[Judged, ...]:
    """Judge all outputs of one call on the question's inputs; `own`: the reference's results in its own types."""
    asked = Asked(reference, question)
    return tuple(asked.judged(i, got=y, own=r) for i, (y, r) in enumerate(zip(got, own, strict=True)))


class Asked:
    """An ensemble and what it said, of which several results may be judged."""

    def __init__(self, reference: Reference, question: Question) -> None:
        self._ensemble = Ensemble(reference, question)
        self._budget = self._ensemble.budget()

    def truth(self, output: int) -> Tensor:
        return self._budget.truths[output]

    def judged(self, output: int, *, got: Tensor, own: Tensor) -> Judged:
        """The verdict on one output; `own`: the reference's."""
        budget = self._budget
        if output in budget.spreads:
            return _of_floats(budget, output, got=got, own=own)
        if got.dtype in (torch.int64, torch.int32):
            chosen = _of_chosen(self._ensemble, budget, output, got=got, own=own)
            if chosen is not None:
                return chosen
        return _of_exact(budget, output, got=got, own=own)


def _of_exact(budget: Budget, output: int, *, got: Tensor, own: Tensor) -> Judged:
    found, truth = budget.turns[output], ordered(budget.truths[output])
    excused = _excused(budget, output, got)
    got, own = torch.where(excused, truth, ordered(got)), ordered(own)
    if output in budget.of_nan:
        got = torch.where(budget.of_nan[output], truth, got)
    off = got != truth
    wrong = int((off & (got != own) & ((got < found.low) | (got > found.high))).sum())
    if wrong:
        return Judged(share=_CERTAIN, wrong=wrong, why=f"{wrong} elements differ that no rounding turns")
    return _counted(int(off.sum()), [*budget.turned[output], int((own != truth).sum())])


def _excused(budget: Budget, output: int, got: Tensor) -> Tensor:
    """Where a float of eight bits is NaN, and may be, as a flat tensor of booleans."""
    may_be = computable(budget.truths[output]).isnan().reshape(-1)
    for found in (budget.leaks, budget.blank):
        if output in found:
            may_be = may_be | found[output]
    return may_be & computable(got).isnan().reshape(-1)


def _of_chosen(ensemble: Ensemble, budget: Budget, output: int, *, got: Tensor, own: Tensor) -> Judged | None:
    """The verdict on indices, by the values that lie there; None where the output is none of indices."""
    truth = budget.truths[output]
    choice, number = ensemble.chosen(truth)
    if choice is None:
        return None
    if not indices.valid(choice, got):
        return Judged(share=_CERTAIN, wrong=1, why="an index is out of range, or there twice")
    missing = indices.short(choice, got, truth)
    squares = torch.zeros_like(missing)
    for scale, pair in ((s, p) for p in range(PAIRS) for s in (WIDE, -WIDE)):
        run = ensemble.choice(pair, scale, truth.numel())[number]
        squares += (indices.short(run, got, truth) - missing).nan_to_num(nan=math.inf).square()
    sigma = (squares / (2 * PAIRS)).sqrt() / WIDE
    wrong = int(((missing.abs() > _FAR * sigma) & (missing != 0)).sum())
    if wrong:
        return Judged(share=_CERTAIN, wrong=wrong, why=f"{wrong} indices lead to values that fall short")
    return _counted(int((missing != 0).sum()), [*budget.turned[output], int((own != truth).sum())])


def _of_floats(budget: Budget, output: int, *, got: Tensor, own: Tensor) -> Judged:
    y, r, t = flat(got), flat(own), flat(budget.truths[output])
    if output in budget.blank:
        y, r = (torch.where(budget.blank[output] & x.isnan(), t, x) for x in (y, r))
    if output in budget.leaks:
        # What comes of NaN is open, and of an infinity NaN may: where a sum that holds it is scaled by nought.
        y = torch.where((y.isnan() & (budget.leaks[output] | t.isinf())) | t.isnan(), t, y)
    spread, sigma = budget.spreads[output], budget.sigmas[output]
    eps = float(torch.finfo(got.dtype).eps)
    unit = sigma + _LAST_BITS / 2 * eps / _FAR * t.abs().nan_to_num(posinf=0.0) + torch.finfo(got.dtype).tiny
    specials = ~torch.isfinite(y) | ~torch.isfinite(t) | ~torch.isfinite(r)
    strange = specials & ~_same(y, t) & ~_same(y, r) & ~(spread.strange & torch.isfinite(y))
    wrong = int(strange.sum())
    if wrong:
        return Judged(share=_CERTAIN, wrong=wrong, why=f"{wrong} elements are no numbers, or should be none")
    z, own_z = (torch.where(specials, 0.0, ((x - t).abs() / unit).clamp(max=_MOST)) for x in (y, r))
    open_to = jumps(spread.high - spread.low, sigma, t) | spread.strange
    past, own_past = (open_to & (x > _FAR) for x in (z, own_z))
    reach = _FAR * (unit + _LAST_BITS / 2 * eps / _FAR * y.abs().nan_to_num(posinf=0.0))
    outside = past & ((y - t < spread.low - reach) | (y - t > spread.high + reach)) & (z > _WORST) & (y != r)
    wrong = int(outside.sum())
    if wrong:
        return Judged(share=_CERTAIN, wrong=wrong, why=f"{wrong} elements lie where no rounding puts them")
    counted = _counted(int(past.sum()), [*budget.turned[output], int(own_past.sum())])
    z, own_z = torch.where(past, 0.0, z), torch.where(own_past, 0.0, own_z)
    return max(counted, _in_units(z, own_z, got.shape), key=lambda j: j.share)


def _in_units(z: Tensor, own: Tensor, shape: Sequence[int]) -> Judged:
    """The verdict on errors in units of what roundings make; `own`: the reference's."""
    count = z.numel()
    if count == 0:
        return Judged(share=0.0, wrong=0, why="")
    worst = max(_WORST * count**0.125, _TWICE * float(own.max()))
    far = _FAR_COUNT + _FAR_SHARE * count + _TWICE * int((own > _FAR).sum())
    shares = [
        (
            float(z.max()) / worst,
            f"an element is off by {float(z.max()):.3g} times what roundings make (allowed {worst:.3g})",
        ),
        (
            int((z > _FAR).sum()) / far,
            f"{int((z > _FAR).sum())} elements are off by over {_FAR:g} times what roundings make",
        ),
    ]
    for mine, theirs, size, what in _means(z.square(), own.square(), shape):
        allowed = torch.clamp(_TWICE * theirs.sqrt(), min=_RMS + _RMS_OF_ONE / math.sqrt(size))
        share = mine.sqrt() / allowed
        at = int(share.argmax())
        shares.append((float(share[at]), f"{what} errors are {float(mine[at].sqrt()):.3g} times what roundings make "
                                         f"(allowed {float(allowed[at]):.3g})"))  # fmt: skip
    share, why = max(shares)
    return Judged(share=share, wrong=0, why=why)


def _means(z: Tensor, own: Tensor, shape: Sequence[int]) -> list[tuple[Tensor, Tensor, int, str]]:
    """Mean squares of both: over all, over blocks of neighbours, over columns; with how many elements each has."""
    count = z.numel()
    found = [(z.mean()[None], own.mean()[None], count, "over all elements")]
    blocks = count // _BLOCK
    if blocks > 1:
        mine, theirs = (x[: blocks * _BLOCK].view(blocks, _BLOCK).mean(1) for x in (z, own))
        found.append((mine, theirs, _BLOCK, "in a block of neighbours"))
    columns = shape[-1] if shape else 1
    if 1 < columns < count and count % columns == 0:
        mine, theirs = (x.view(-1, columns).mean(0) for x in (z, own))
        found.append((mine, theirs, count // columns, "in a column"))
    return found


def _counted(turned: int, runs: Sequence[int]) -> Judged:
    """Whether so many elements may turn, where so many did in runs, the last of them the reference's own."""
    allowed = most_turns(runs)
    why = f"{turned} elements turn, and {max(runs)} at most where roundings alone do it (allowed {allowed})"
    return Judged(share=turned / allowed, wrong=0, why=why)


def most_turns(runs: Sequence[int]) -> int:
    """How many elements may turn in one more run whose roundings are up to twice as large: the number that a negative
    binomial count, as scattered as the `runs` are, exceeds once in 1 / _CHANCE."""
    mean = (sum(runs) + 1) / len(runs)
    variance = sum((r - mean) ** 2 for r in runs) / (len(runs) - 1)
    scattered = max(1.0, variance / mean)
    shape, factor = (sum(runs) / scattered + 1), _TWICE / len(runs)
    # Exponentially tilted bound on the tail of the predictive distribution of counts in units of `scattered`.
    n = shape * factor
    while _log_tail(n, shape, factor) > math.log(_CHANCE):
        n = n * 1.02 + 0.25
    return math.ceil(n * scattered)


def _log_tail(n: float, shape: float, factor: float) -> float:
    """Chernoff's bound on a negative binomial count of mean shape * factor being n or more."""
    if n <= shape * factor:
        return 0.0
    p = factor / (1 + factor)
    tilt = n / (shape + n)
    return n * math.log(p / tilt) + shape * math.log((1 - p) / (1 - tilt))


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a.isnan() & b.isnan()) | (a.isinf() & (a == b))
