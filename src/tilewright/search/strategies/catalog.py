"""The `catalog` strategy: realise each matched pattern with a skeleton, tune it, judge, keep what wins beyond noise.

Where declared algebra has less work (see `frontend.rewrite.algebra`), the same is done with the module as algebra has
it, in half of the time, after the module itself: so that both are judged, and a report can show what algebra is
worth."""

from __future__ import annotations

from dataclasses import replace

from ...facts.candidate import Candidate
from ...facts.outcome import Timed
from ...facts.pattern import INDUCTOR, Choice, Recipe
from ...facts.run import SearchContext
from .again import kept_before, tried_again
from .composing import Composing, gain
from .faster import faster
from .handing_over import handed_over, nothing_accepted
from .left_over import improved
from .rivals import with_rivals
from .tuning import Steps

_TUNING_SHARE = 0.5  # of the budget; what is tuned must be judged, too
_LEFT_SHARE = 0.8  # of the budget, until which what is left to torch is looked at before anything is tuned
PARTS = ("tuning", "table")  # what can be switched off: measuring points; what models wrote before


def catalog(context: SearchContext) -> Steps[None]:
    """Moves: `Try` all patterns as they are known, where a context counts its time, so that a result is there early;
    `Tune` for each pattern of the main case that has a choice and no remembered winner, then `Try` them all,
    bisect if the judge refuses, then leave halves of many and each in turn out, or put its rivals in its place, as far
    as the budget goes; libraries' calls, and what models wrote before, in the place of what they overlap with, each
    tuned; the same for what algebra has; what a model wrote before for the whole problem; `Try` with torch.compile
    (see `left_over`); `Stop` names the best of what was accepted, None if it is not faster than eager beyond noise.
    Without "tuning" no `Tune`: each pattern has the point that is remembered, or the likeliest."""
    before = kept_before(context)
    if not (context.patterns or context.libraries or before):
        yield from nothing_accepted(context, nothing_matched(context))
        return
    ways, spent_s = [context], context.opened_s
    if context.rewritten:
        half_s = (context.budget_s + context.opened_s) / 2
        half = replace(context, budget_s=half_s, limits=context.limits.share(0.5))
        ways = [half, half.with_algebra]
    found = []
    for way in ways:
        search = Composing(way)
        accepted = yield from _searched(search)
        found += [accepted] if accepted else []
        spent_s += search.spent_s - way.opened_s
    again = (yield from tried_again(before)) if before is not None else None
    if not (found or again):
        yield from nothing_accepted(context, "the judge accepted none of the realisations")
        return
    best: Candidate | Recipe
    best, timed = again if again is not None else max(found, key=gain)
    if found and (again is None or not faster(timed, max(found, key=gain)[1])):
        best, timed = max(found, key=gain)
    yield from handed_over(best, timed, context=context, has_time=lambda: spent_s < context.budget_s)


def _searched(search: Composing) -> Steps[tuple[Recipe, Timed] | None]:
    """The best accepted recipe of the context's own patterns, and of libraries' calls."""
    best: tuple[Recipe, Timed] | None = None
    context = search.context
    if search.patterns:
        early = yield from search.early()
        if early is not None:  # most can be won, or lost, by what is left to torch
            left = improved(*early, context=context, has_time=lambda: search.has_time(_LEFT_SHARE))
            what, timed = yield from search.counted(left)
            assert isinstance(what, tuple)
            early = what, timed
            search.graph = tuple(c for c in what if c.pattern == INDUCTOR) if len(what) > 1 else search.graph
        points = yield from search.tuned(0.0 if "tuning" in context.without else _TUNING_SHARE, rivals=True)
        search.all = tuple(Choice(pattern=p.id, point=points[p.id]) for p in search.patterns)
        best = yield from search.refined(search.busy(search.all), early)
        best = (yield from search.pruned(*best)) if best else None
    return (yield from with_rivals(search, best, context.libraries))


def nothing_matched(context: SearchContext) -> str:
    failures = [c.trace_failure for c in context.cases if c.trace_failure]
    if context.problem.mode == "training":
        return failures[0]
    if failures:
        return f"the module could not be traced: {failures[0]}"
    left = [line for m in context.matched for line in m.unmatched]
    return "no pattern matched" + (f": {'; '.join(left[:5])}" if left else "")
