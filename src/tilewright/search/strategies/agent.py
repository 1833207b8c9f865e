"""A coding agent's run: the agent makes the moves, from outside; here is what they entail, move by move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...facts.candidate import Candidate
from ...facts.move import Event, Stop, Try
from ...facts.outcome import Timed
from ...facts.pattern import Choice, Recipe
from ...facts.run import SearchContext
from .composing import Composing
from .faster import faster
from .handing_over import handed_over
from .knobs import knobs_of, turned
from .rivals import with_rivals
from .tuning import Steps, Tuning

MOST_TURNS_OF_KNOBS = 8  # a judgement each


def library(context: SearchContext) -> Recipe:
    """Every pattern realised, at the point that won before or the likeliest one; () where nothing matched."""
    tuning = Tuning(context)
    known = {c.pattern: c.point for c in (*context.hinted, *context.remembered)}
    choices = (Choice(pattern=p.id, point=known.get(p.id, p.space.points[0])) for p in tuning.patterns)
    return tuning.busy(tuple(choices))


def attempts(events: Sequence[Event]) -> tuple[Event, ...]:
    """What was judged, in order: an agent knows the first as number 1."""
    return tuple(event for event in events if isinstance(event.move, Try))


def best_of(events: Sequence[Event]) -> tuple[Candidate | Recipe, Timed] | None:
    """What gained most against eager, each in its own judgement; None where the judge accepted nothing."""
    passed = [(e.move.what, e.outcome) for e in events if isinstance(e.move, Try) and isinstance(e.outcome, Timed)]
    return max(passed, key=lambda pair: _gain(pair[1]), default=None)


def _gain(timed: Timed) -> float:
    ratio = timed.ratio("eager")
    return ratio.mid if ratio else 0.0


def tuned(context: SearchContext, attempt: Event, *, left_s: float, over: Callable[[], str]) -> Steps[None]:
    """Moves, of the library's own kernels: `Tune` for each pattern that has a choice, within `left_s`, and `Try` at the
    points that won; then libraries' calls in the place of what they overlap with. Of a candidate: `Try` for each value
    of the knobs in its text, from the best on, until `over` gives a reason to end."""
    assert isinstance(attempt.move, Try) and isinstance(attempt.outcome, Timed)
    what = attempt.move.what
    if isinstance(what, Candidate):
        yield from _turned(what, attempt.outcome, over)
        return
    tuning = Tuning(context)
    points = yield from tuning.tuned(left_s / context.budget_s)
    recipe = tuning.busy(tuple(Choice(pattern=id, point=point) for id, point in points.items()))
    best: tuple[Recipe, Timed] = what, attempt.outcome
    if set(recipe) != set(what) and not over():
        event = yield Try(what=recipe, why=f"{attempt.move.why}, tuned")
        assert isinstance(event, Event)
        if isinstance(event.outcome, Timed) and faster(event.outcome, attempt.outcome):
            best = recipe, event.outcome
    if context.libraries and not over():
        yield from with_rivals(Composing(replace(context, budget_s=left_s)), best, context.libraries)


def _turned(best: Candidate, timed: Timed, over: Callable[[], str]) -> Steps[None]:
    tries = 0
    for knob in knobs_of(best):
        for value in knob.others:
            if tries == MOST_TURNS_OF_KNOBS or over():
                return
            tries += 1
            candidate = turned(best, knob, value)
            event = yield Try(what=candidate, why=f"knob {knob.name} = {value}")
            assert isinstance(event, Event)
            if isinstance(event.outcome, Timed) and faster(event.outcome, timed):
                best, timed = candidate, event.outcome


def ended(context: SearchContext, events: Sequence[Event], why: str) -> Steps[None]:
    """Moves: `Sanitize` where the context asks for it; `Stop` with the best, if it is faster than eager beyond
    noise."""
    best = best_of(events)
    if best is None:
        judged = len(attempts(events))
        yield Stop(best=None, why=f"{why}; " + (f"the judge refused all {judged}" if judged else "nothing was tried"))
        return
    yield from handed_over(*best, context=context, why=why)
