"""The `catalog` strategy: realise each matched pattern with a skeleton, tune it, judge, keep what wins beyond noise."""

from __future__ import annotations

from ..facts.move import Stop
from ..facts.pattern import Choice
from ..facts.run import Brief
from .composing import Composing
from .ending import handed_over
from .tuning import Steps

_TUNING_SHARE = 0.5  # of the budget; what is tuned must be judged, too


def catalog(brief: Brief) -> Steps[None]:
    """Moves: `Tune` for each pattern of the main case that has a choice and no remembered winner, then `Try` them all,
    bisect if the judge refuses, then leave each out in turn; `Stop` names the best accepted recipe, None if it is
    not faster than eager beyond noise."""
    patterns = tuple(p for matched in brief.matched for p in matched.patterns)
    if not patterns:
        yield Stop(best=None, why=nothing_matched(brief))
        return
    search = Composing(brief)
    points = yield from search.tuned(_TUNING_SHARE)
    search.all = tuple(Choice(pattern=p.id, point=points[p.id]) for p in patterns)
    accepted = yield from search.accepted(search.busy(search.all))
    if accepted is None:
        yield Stop(best=None, why="the judge accepted none of the realisations")
        return
    best, timed = yield from search.pruned(*accepted)
    yield from handed_over(best, timed, brief=brief)


def nothing_matched(brief: Brief) -> str:
    failures = [c.trace_failure for c in brief.cases if c.trace_failure]
    if brief.problem.mode == "training":
        return failures[0]
    if failures:
        return f"the module could not be traced: {failures[0]}"
    left = [line for m in brief.matched for line in m.unmatched]
    return "no pattern matched" + (f": {'; '.join(left[:5])}" if left else "")
