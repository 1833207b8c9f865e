"""The `catalog` strategy: realise each matched pattern with a skeleton, tune it, judge, keep what wins beyond noise."""

from __future__ import annotations

from collections.abc import Sequence

from ..facts.move import Stop, Try
from ..facts.outcome import Interval, Timed
from ..facts.pattern import Choice, Recipe
from ..facts.run import Brief
from .ending import handed_over
from .tuning import Steps, Tuning

_TUNING_SHARE = 0.5  # of the budget; what is tuned must be judged, too
MAX_LEFT_OUT = 6  # patterns whose share is measured by leaving each out; a Try each


def catalog(brief: Brief) -> Steps[None]:
    """Moves: `Tune` for each pattern of the main case that has a choice and no remembered winner, then `Try` them all,
    bisect if the judge refuses, then leave each out in turn; `Stop` names the best accepted recipe, None if it is
    not faster than eager beyond noise."""
    patterns = tuple(p for matched in brief.matched for p in matched.patterns)
    if not patterns:
        yield Stop(best=None, why=_nothing_matched(brief))
        return
    search = _Search(brief)
    points = yield from search.tuned(_TUNING_SHARE)
    search.all = tuple(Choice(pattern=p.id, point=points[p.id]) for p in patterns)
    accepted = yield from search.accepted(search.busy(search.all))
    if accepted is None:
        yield Stop(best=None, why="the judge accepted none of the realisations")
        return
    best, timed = yield from search.pruned(*accepted)
    yield from handed_over(best, timed, brief=brief)


class _Search(Tuning):
    all: Recipe = ()

    def spares(self, recipe: Recipe) -> Recipe:
        """What the products of a recipe do on their way out, as kernels of their own: for torch's products."""
        return tuple(c for c in self.all if c not in recipe and c not in self.busy((*recipe, c)))

    def accepted(self, recipe: Recipe) -> Steps[tuple[Recipe, Timed] | None]:
        """The recipe if the judge takes it; else the largest part of it that it takes, found by halving."""
        event = yield from self.move(Try(what=recipe, why=f"{len(recipe)} pattern(s) fused"))
        if isinstance(event.outcome, Timed):
            return recipe, event.outcome
        groups = self._groups(recipe)
        if len(groups) < 2:
            spares = self.spares(recipe)
            return (yield from self.accepted(spares)) if spares and self.has_time(0.9) else None
        good: list[tuple[Recipe, Timed]] = []
        for part in _halves(groups):
            if self.has_time(0.9):
                found = yield from self.accepted(part)
                good += [found] if found else []
        if len(good) < 2:
            return good[0] if good else None
        whole = tuple(c for part, _ in good for c in part)
        event = yield from self.move(Try(what=whole, why="the accepted parts together"))
        return (whole, event.outcome) if isinstance(event.outcome, Timed) else max(good, key=_gain)

    def pruned(self, best: Recipe, timed: Timed) -> Steps[tuple[Recipe, Timed]]:
        """Leave out each group in turn, and products for torch's with kernels around them; what is faster without a
        group beyond noise goes on without it."""
        groups = self._groups(best)
        if len(groups) > MAX_LEFT_OUT:
            return best, timed
        for group in groups:
            if not self.has_time(0.9):
                break
            without = (*(c for c in best if c not in group), *self.spares(group))
            if not without:
                break
            event = yield from self.move(Try(what=without, why=f"without {group[0].pattern}: what is its share?"))
            if isinstance(event.outcome, Timed) and _faster(event.outcome, timed):
                best, timed = without, event.outcome
        return best, timed

    def _groups(self, recipe: Recipe) -> list[Recipe]:
        """Choices that stand for the same pattern in different cases, together; they are kept or dropped as one."""
        titles = {p.id: (p.title, p.kind) for p in self.patterns}
        groups: dict[tuple[str, str, int], list[Choice]] = {}
        for matched in self.brief.matched:
            seen: dict[tuple[str, str], int] = {}
            for pattern in matched.patterns:
                key = titles[pattern.id]
                seen[key] = seen.get(key, 0) + 1
                chosen = [c for c in recipe if c.pattern == pattern.id]
                groups.setdefault((*key, seen[key]), []).extend(chosen)
        return [tuple(g) for g in groups.values() if g]


def _halves(groups: Sequence[Recipe]) -> tuple[Recipe, Recipe]:
    middle = len(groups) // 2
    return tuple(c for g in groups[:middle] for c in g), tuple(c for g in groups[middle:] for c in g)


def _gain(found: tuple[Recipe, Timed]) -> float:
    ratio = found[1].ratio("eager")
    return ratio.mid if ratio else 0.0


def _faster(one: Timed, other: Timed) -> bool:
    """Beyond noise: the interval of `one`'s ratio against eager lies above the other's."""
    a, b = one.ratio("eager"), other.ratio("eager")
    return isinstance(a, Interval) and isinstance(b, Interval) and a.low > b.high


def _nothing_matched(brief: Brief) -> str:
    failures = [c.trace_failure for c in brief.cases if c.trace_failure]
    if brief.problem.mode == "training":
        return failures[0]
    if failures:
        return f"the module could not be traced: {failures[0]}"
    left = [line for m in brief.matched for line in m.unmatched]
    return "no pattern matched" + (f": {'; '.join(left[:5])}" if left else "")
