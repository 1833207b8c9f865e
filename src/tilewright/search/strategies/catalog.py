"""The `catalog` strategy: realise each matched pattern with a skeleton, tune it, judge, keep what wins beyond noise.

Where declared algebra has less work (see `frontend.rewrite.algebra`), the same is done with the module as algebra has
it, in half of the time, after the module itself: so that both are judged, and a report can show what algebra is
worth."""

from __future__ import annotations

from dataclasses import replace

from ...facts.move import Stop
from ...facts.outcome import Timed
from ...facts.pattern import Choice, Recipe
from ...facts.run import Brief
from .composing import Composing, gain
from .ending import handed_over
from .tuning import Steps

_TUNING_SHARE = 0.5  # of the budget; what is tuned must be judged, too
PARTS = ("tuning",)  # what can be switched off


def catalog(brief: Brief) -> Steps[None]:
    """Moves: `Tune` for each pattern of the main case that has a choice and no remembered winner, then `Try` them all,
    bisect if the judge refuses, then leave halves of many and each in turn out, or put its rivals in its place, as far
    as the budget goes; the same for what algebra has; `Stop` names the best accepted recipe, None if it is not faster
    than eager beyond noise. Without "tuning" no `Tune`: each pattern has the point that is remembered, or the
    likeliest."""
    if not brief.patterns:
        yield Stop(best=None, why=nothing_matched(brief))
        return
    ways = [brief]
    if brief.rewritten:
        half = replace(brief, budget_s=brief.budget_s / 2, limits=brief.limits.share(0.5))
        ways = [half, half.with_algebra]
    found = []
    for way in ways:
        accepted = yield from _searched(way)
        found += [accepted] if accepted else []
    if not found:
        yield Stop(best=None, why="the judge accepted none of the realisations")
        return
    best, timed = max(found, key=gain)
    yield from handed_over(best, timed, brief=brief)


def _searched(brief: Brief) -> Steps[tuple[Recipe, Timed] | None]:
    """The best accepted recipe of the brief's own patterns."""
    patterns = tuple(p for matched in brief.matched for p in matched.patterns)
    if not patterns:
        return None
    search = Composing(brief)
    points = yield from search.tuned(0.0 if "tuning" in brief.without else _TUNING_SHARE, rivals=True)
    search.all = tuple(Choice(pattern=p.id, point=points[p.id]) for p in patterns)
    accepted = yield from search.accepted(search.busy(search.all))
    return (yield from search.pruned(*accepted)) if accepted else None


def nothing_matched(brief: Brief) -> str:
    failures = [c.trace_failure for c in brief.cases if c.trace_failure]
    if brief.problem.mode == "training":
        return failures[0]
    if failures:
        return f"the module could not be traced: {failures[0]}"
    left = [line for m in brief.matched for line in m.unmatched]
    return "no pattern matched" + (f": {'; '.join(left[:5])}" if left else "")
