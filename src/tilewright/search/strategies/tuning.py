"""Tuning, as part of every strategy that uses skeletons: which points of which pattern are measured, and which win."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from ...facts.move import Event, Move, Stop, Try, Tune
from ...facts.outcome import Tuned
from ...facts.pattern import Choice, Pattern, Recipe, without_idle
from ...facts.run import SearchContext, patterns_by_id
from ...facts.space import Point
from .searching import searched, size
from .spending import Spending

T = TypeVar("T")
Steps = Generator[Move | tuple[Move, ...], Event | tuple[Event, ...], T]

FEW_POINTS = 4  # measured where another toolchain's winner is known, itself among them


class Tuning:
    """The patterns of a context, their points, and the time that was spent so far."""

    def __init__(self, context: SearchContext) -> None:
        self.context = context
        self.patterns = tuple(patterns_by_id(context.matched).values())
        self.main = context.matched[0].patterns
        self.spent_s = context.opened_s
        self.judged_s = 0.0  # what the longest judgement took
        self.spending = Spending(context)

    def move(self, move: Move) -> Steps[Event]:
        event = yield move
        assert isinstance(event, Event)
        self.spent_s += event.wall_s
        self.judged_s = max(self.judged_s, event.wall_s if isinstance(move, Try) else 0.0)
        self.spending.count(event)
        return event

    def counted(self, steps: Steps[T]) -> Steps[T]:
        """The moves of others, whose time counts."""
        try:
            move = next(steps)
            while isinstance(move, Move):
                move = steps.send((yield from self.move(move)))
        except StopIteration as end:
            result: T = end.value
            return result
        raise TypeError("one move at a time can be counted")

    def busy(self, recipe: Recipe) -> Recipe:
        """Without what would be done by a product on its way out."""
        return without_idle([m.patterns for m in self.context.matched], recipe)

    def has_time(self, share: float) -> bool:
        """Whether less than this share of the time is spent, and nothing else that is limited is used up. Where all of
        a run's time counts, another judgement must fit into the rest."""
        rest_s = self.context.budget_s - self.spent_s
        fits = not self.context.opened_s or self.judged_s < rest_s
        return fits and self.spent_s < share * self.context.budget_s and not self.spending.over(asking=False)

    def tuned(
        self, share: float, *, afresh: bool = False, given: Mapping[str, Point] = MappingProxyType({}), trials: int = 0,
        rivals: bool = False,
    ) -> Steps[dict[str, Point]]:  # fmt: skip
        """Each pattern's point: given, remembered, measured, or the likeliest; the largest traffic is tuned first, in
        this share of the budget. `afresh`: what is remembered is measured, too. `trials`: so many points beyond those
        that a Space names are searched for a faster one. `rivals`: then those that are idle beside others are tuned
        in their place."""
        remembered = {c.pattern: c.point for c in self.context.remembered}
        hinted = {c.pattern: c.point for c in self.context.hinted}
        points = {p.id: p.space.points[0] for p in self.patterns}
        points |= {id: point for id, point in (hinted | remembered).items() if id in points}
        points |= given
        busy = {c.pattern for c in self.busy(_choices(points))}
        for pattern in sorted(self.main, key=lambda p: (p.id not in busy, -p.program.traffic_bytes)):
            if pattern.id in given or (pattern.id not in busy and not rivals):
                continue
            tries = _likeliest_first(pattern, points[pattern.id])
            if pattern.id in hinted and not afresh:
                tries = tries[:FEW_POINTS]
            more = min(trials, size(pattern.space) - len(tries))
            if (pattern.id in remembered and not afresh) or len(tries) + more < 2 or not self.has_time(share):
                continue
            recipe = self._around(pattern, points)
            if all(c.pattern != pattern.id for c in recipe):
                continue
            event = yield from self.move(Tune(recipe=recipe, pattern=pattern.id, points=tries))
            if isinstance(event.outcome, Tuned):
                measured = event.outcome
                if more > 0:
                    measured = yield from searched(self, pattern, recipe, measured, trials=more)
                points[pattern.id] = winning(measured) or points[pattern.id]
        own = {pattern.id for pattern in self.main}
        for pattern in self.patterns:
            if pattern.id not in own:
                points[pattern.id] = _inherited(pattern, self.main, points) or points[pattern.id]
        return points

    def _around(self, pattern: Pattern, points: dict[str, Point]) -> Recipe:
        """All that may be realised at once beside a pattern: without each that does its work."""
        mine = Choice(pattern=pattern.id, point=points[pattern.id])
        return self.busy(tuple(c for c in _choices(points) if c == mine or mine in self.busy((c, mine))))


def tune(context: SearchContext, trials: int = 0) -> Steps[None]:
    """The strategy of `tune`. Moves: `Tune` for each pattern of the main case that has a choice, whatever is
    remembered, those last whose work others do where they are there, and for up to `trials` further points of each;
    `Stop` hands nothing over, since nothing was judged."""
    tuning = Tuning(context)
    yield from tuning.tuned(1.0, afresh=True, trials=trials, rivals=True)
    yield Stop(best=None, why=f"{len(tuning.main)} pattern(s), {tuning.spent_s:.1f} s of tuning")


def _choices(points: dict[str, Point]) -> Recipe:
    return tuple(Choice(pattern=id, point=point) for id, point in points.items())


def winning(tuned: Tuned) -> Point | None:
    """The fastest point, the first of equals; None where none ran."""
    timed = [(p.time_ns.mid, i, p.point) for i, p in enumerate(tuned.points) if p.time_ns is not None]
    return min(timed)[2] if timed else None


def _likeliest_first(pattern: Pattern, known: Point) -> tuple[Point, ...]:
    return (known, *(p for p in pattern.space.points if p != known))


def _inherited(pattern: Pattern, main: Sequence[Pattern], points: dict[str, Point]) -> Point | None:
    """For a pattern of another case: the point of its meta tensor in the main case, where its own space holds it."""
    for twin in main:
        if twin.id != pattern.id and (twin.title, twin.kind) == (pattern.title, pattern.kind):
            return points[twin.id] if points[twin.id] in pattern.space.points else None
    return None
