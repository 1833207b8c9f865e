"""Best so far against what was spent: of one run, and of several strategies on the same problems."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from ..facts.errors import UserError
from ..facts.move import Event, Stop, Try
from ..facts.outcome import Interval, Timed
from ..facts.run import SearchContext
from ..facts.spent import Spent

Axis = Literal["calls", "tokens", "usd", "device", "seconds", "tries"]
AXES: tuple[Axis, ...] = get_args(Axis)
AS_IT_IS = Interval(low=1.0, mid=1.0, high=1.0)  # the module is kept
_DRAWS, _WITHIN = 1000, 0.99
_SIGMAS = 2.576  # of a normal distribution, on either side of 99% of it
_MOST_COLUMNS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveStep:
    """After a judgement: what was spent until then, what it gave (None: refused), and the best so far, of what is
    faster than eager beyond noise."""

    spent: Spent
    ratio: Interval | None
    best: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run. `label`: its strategy and what was switched off; `budget`: as it was asked for."""

    run: str
    label: str
    problem: str
    budget: str
    steps: tuple[CurveStep, ...]
    spent: Spent  # in the end
    ended: bool

    def best_at(self, axis: Axis, spend: float) -> Interval:
        """The best after this much was spent."""
        found = [step.best for step in self.steps if amount(step.spent, axis) <= spend]
        return found[-1] if found else AS_IT_IS


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCurves:
    """One strategy: the geometric mean over problems of its runs' best ratios, at each spend of the grid."""

    label: str
    runs: int
    ratios: tuple[Interval, ...]
    spent: Mapping[str, float | None]  # a run's mean, by axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`left_out`: problems that not every strategy was run on. `notes`: what a reader must know."""

    axis: Axis
    grid: tuple[float, ...]
    strategies: tuple[ComparedCurves, ...]
    problems: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    curves: tuple[Curve, ...]


def amount(spent: Spent, axis: Axis) -> float:
    """UserError where nobody knows it."""
    found = spent.device_s if axis == "device" else getattr(spent, axis)
    if found is None:
        raise UserError(f"--by {axis}: a model did not say what a call took; compare by calls, device or seconds")
    return float(found)


def curve(context: SearchContext, events: Sequence[Event]) -> Curve:
    spent, best, steps = Spent(), AS_IT_IS, []
    for event in events:
        spent = spent.after(event)
        if isinstance(event.move, Try):
            ratio = event.outcome.ratio("eager") if isinstance(event.outcome, Timed) else None
            claimed = isinstance(event.outcome, Timed) and event.outcome.faster_than("eager")
            if ratio is not None and claimed and ratio.mid > best.mid:
                best = ratio
            steps.append(CurveStep(spent=spent, ratio=ratio, best=best))
    label = " ".join([context.strategy, *(f"-{part}" for part in context.without)])
    return Curve(
        run=context.run, label=label, problem=context.problem.name, budget=_budget(context), steps=tuple(steps),
        spent=spent, ended=any(isinstance(event.move, Stop) for event in events),
    )  # fmt: skip


def compared(curves: Sequence[Curve], *, axis: Axis, seed: int = 0) -> Comparison:
    """Intervals are percentiles of a bootstrap that draws problems, of each its runs, and of each run a ratio within
    its own interval. UserError where no problem is common to all strategies."""
    labels = list(dict.fromkeys(c.label for c in curves))
    by: dict[str, dict[str, list[Curve]]] = {label: {} for label in labels}
    for one in curves:
        by[one.label].setdefault(one.problem, []).append(one)
    names = list(dict.fromkeys(c.problem for c in curves))
    common = tuple(n for n in names if all(n in by[label] for label in labels))
    if not common:
        raise UserError(f"no problem was given to all of {', '.join(labels)}: nothing can be compared")
    used = [c for c in curves if c.problem in common]
    grid = _grid([amount(c.spent, axis) for c in used], whole=axis in ("calls", "tries", "tokens"))
    dice = Random(seed)
    rows = tuple(_row(label, [by[label][n] for n in common], axis=axis, grid=grid, dice=dice) for label in labels)
    budgets = {c.label: sorted({o.budget for o in used if o.label == c.label}) for c in used}
    notes = []
    if len({tuple(b) for b in budgets.values()}) > 1:
        notes.append("budgets differ: " + "; ".join(f"{label} {', '.join(b)}" for label, b in budgets.items()))
    unended = [c.label for c in used if not c.ended]
    notes += [f"not at their end yet: {len(unended)} runs of {', '.join(dict.fromkeys(unended))}"] if unended else []
    return Comparison(
        axis=axis, grid=grid, strategies=rows, problems=common, left_out=tuple(n for n in names if n not in common),
        notes=tuple(notes), curves=tuple(used),
    )  # fmt: skip


def mean_at(runs: Iterable[Sequence[Curve]], axis: Axis, spend: float) -> float:
    """Over problems, of the runs on each."""
    return math.exp(statistics.fmean(_log_mean([c.best_at(axis, spend).mid for c in group]) for group in runs))


def _row(
    label: str, groups: Sequence[Sequence[Curve]], *, axis: Axis, grid: Sequence[float], dice: Random
) -> ComparedCurves:
    runs = [c for group in groups for c in group]
    spent: dict[str, float | None] = {}
    for name in AXES:
        try:
            spent[name] = statistics.fmean(amount(c.spent, name) for c in runs)
        except UserError:
            spent[name] = None
    ratios = tuple(_interval(groups, axis, spend, dice) for spend in grid)
    return ComparedCurves(label=label, runs=len(runs), ratios=ratios, spent=spent)


def _interval(groups: Sequence[Sequence[Curve]], axis: Axis, spend: float, dice: Random) -> Interval:
    seen = [[c.best_at(axis, spend) for c in group] for group in groups]
    drawn = sorted(_drawn(seen, dice) for _ in range(_DRAWS))
    tail = (1 - _WITHIN) / 2
    mid = mean_at(groups, axis, spend)
    low, high = drawn[int(tail * _DRAWS)], drawn[-1 - int(tail * _DRAWS)]
    return Interval(low=min(low, mid), mid=mid, high=max(high, mid))


def _drawn(seen: Sequence[Sequence[Interval]], dice: Random) -> float:
    problems = dice.choices(seen, k=len(seen))
    return math.exp(
        statistics.fmean(_log_mean([_within(r, dice) for r in dice.choices(g, k=len(g))]) for g in problems)
    )


def _within(ratio: Interval, dice: Random) -> float:
    """Normal in its logarithm, to either side as wide as the interval is there."""
    far = dice.gauss(0.0, 1.0) / _SIGMAS
    end = ratio.high if far > 0 else ratio.low
    return ratio.mid * (end / ratio.mid) ** abs(far) if end > 0 else ratio.mid


def _log_mean(values: Sequence[float]) -> float:
    return statistics.fmean(math.log(v) for v in values)


def _grid(ends: Sequence[float], *, whole: bool) -> tuple[float, ...]:
    """Each half of the next, up to the most that any run has spent."""
    most = max(ends, default=0.0)
    if most == 0:
        return (0.0,)
    found = [most / 2**n for n in reversed(range(_MOST_COLUMNS))]
    return tuple(dict.fromkeys(float(math.ceil(v)) for v in found)) if whole else tuple(found)


def _budget(context: SearchContext) -> str:
    limits = context.limits
    named = (("calls", limits.calls), ("tokens", limits.tokens), ("usd", limits.usd), ("tries", limits.tries))
    parts = [f"{value:g} {name}" for name, value in named if value is not None]
    parts += [f"{limits.device_s:g} s of the device"] if limits.device_s is not None else []
    return " ".join([f"{context.budget_s:g} s", *parts])
