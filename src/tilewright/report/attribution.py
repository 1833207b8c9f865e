"""What each realisation is worth: by itself against torch, and in the module, by leaving it out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..facts.candidate import Candidate
from ..facts.move import Event, Try, Within
from ..facts.outcome import Interval, Timed
from ..facts.pattern import INDUCTOR, Choice, Recipe
from ..facts.run import SearchContext
from . import words
from .ending import Ending
from .parts import inductor_title

NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """`alone`: torch's time over ours on the subproblem by itself; `without`: the module's time without it over that
    with it, the best of what may stand in its place there. None: it was not measured. `instead`: patterns that took its
    place then, as kernels of their own; else torch did. `by`: "skeleton", "library", "model" or "inductor"."""

    pattern: str
    title: str
    by: str
    alone: Interval | None
    without: Interval | None
    instead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthRow:
    """A realisation by itself against torch, and how many times as long the module takes without it."""

    id: str
    title: str
    by: str
    alone: str
    without: str  # with what took its place, if that was not torch


def attribution(context: SearchContext, events: Sequence[Event], end: Ending) -> tuple[Worth, ...]:
    """Of the realisations in what is handed over, those of the main case; () where the only one was not measured."""
    main = {p.id: p.title for m in context.matched[:1] for p in m.patterns}
    main[INDUCTOR] = inductor_title(end.recipe)
    mine = [c for c in end.recipe if c.written is not None or c.pattern in main]
    found = tuple(
        Worth(
            pattern=c.pattern, title=c.written.title if c.written is not None else main[c.pattern], by=_by(c),
            alone=_alone(c, events), without=without, instead=instead,
        )
        for c in mine
        for without, instead in [_without(c, mine, events, main) if end.timed is not None else (None, ())]
    )  # fmt: skip
    return found if len(found) > 1 or any(w.alone or w.without for w in found) else ()


def _by(choice: Choice) -> str:
    if choice.written is not None:
        return choice.written.candidate.by
    return INDUCTOR if choice.pattern == INDUCTOR else "skeleton"


def worth_rows(context: SearchContext, events: Sequence[Event], end: Ending) -> tuple[WorthRow, ...]:
    return tuple(
        WorthRow(
            id=w.pattern, title=w.title, by=w.by, alone=words.times(w.alone) if w.alone else NOT_MEASURED,
            without=_told(w),
        )
        for w in attribution(context, events, end)
    )  # fmt: skip


def _told(worth: Worth) -> str:
    if worth.without is None:
        return NOT_MEASURED
    return words.times(worth.without) + (f" with {' and '.join(worth.instead)} instead" if worth.instead else "")


def _alone(choice: Choice, events: Sequence[Event]) -> Interval | None:
    """Of the last that was accepted of this kind: a candidate of a model's, or a recipe."""
    for event in reversed(events):
        if isinstance(event.move, Within) and event.move.subproblem.name == choice.pattern:
            made, outcome = event.move.move, event.outcome
            if isinstance(made, Try) and isinstance(outcome, Timed) and _is_it(choice, made.what):
                return outcome.ratio("eager")
    return None


def _is_it(choice: Choice, what: Candidate | tuple[Choice, ...]) -> bool:
    if choice.written is not None:
        return what == choice.written.candidate
    return isinstance(what, tuple) and [c.point for c in what] == [choice.point]


def _without(
    choice: Choice, mine: Sequence[Choice], events: Sequence[Event], main: Collection[str]
) -> tuple[Interval | None, tuple[str, ...]]:
    """From the judgements of what lacks this one and of what lacks nothing else, and what stood there instead: of those
    that hold all others of `mine`, or else of any, the fastest without it. Nothing but this one lacks against eager."""
    tries: list[tuple[Recipe, Timed]] = []
    for event in events:
        if isinstance(event.move, Try) and isinstance(event.move.what, tuple) and isinstance(event.outcome, Timed):
            tries.append((tuple(c for c in event.move.what if c.written or c.pattern in main), event.outcome))
    if [choice] == list(mine):
        return next((timed.ratio("eager") for what, timed in reversed(tries) if list(what) == [choice]), None), ()
    others = set(mine) - {choice}
    found: list[tuple[bool, float, Interval, tuple[str, ...]]] = []
    for what, lacking in tries:
        bases = [
            (len(set(what) - set(base)), -i)
            for i, (base, _) in enumerate(tries)
            if set(base) - set(what) == {choice} and (others <= set(what) or set(what) < set(base))
        ]
        if bases:
            base, full = tries[-min(bases)[1]]
            ratio = _over(full.ratio("eager"), lacking.ratio("eager"))
            instead = tuple(c.pattern for c in what if c not in base)
            found += [(not others <= set(what), ratio.mid, ratio, instead)] if ratio is not None else []
    best = min(found, key=lambda f: f[:2], default=None)
    return (best[2], best[3]) if best is not None else (None, ())


def _over(one: Interval | None, other: Interval | None) -> Interval | None:
    """One over the other, each with its own interval."""
    if one is None or other is None:
        return None
    return Interval(low=one.low / other.high, mid=one.mid / other.mid, high=one.high / other.low)
