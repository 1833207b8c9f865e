"""A strategy at work on a subproblem of a module: its moves are made in the subproblem's problem, in the one
journal."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from ...facts.candidate import Candidate
from ...facts.move import Ask, Event, Inspect, Move, Sanitize, Stop, Try, Tune, Within
from ...facts.outcome import Interval, Timed
from ...facts.pattern import Recipe, Subproblem
from .tuning import Steps

Inner = Generator[Move | tuple[Move, ...], Event | tuple[Event, ...], None]
Made = Callable[[Move], Steps[Event]]  # carries out a move of the whole run's, and counts it


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What was made of a subproblem and accepted by the judge, be it faster or not: eager's time over ours, ours, and
    the floor."""

    what: Candidate | Recipe
    ratio: Interval
    ns: float
    floor_ns: float

    def beats(self, other: Solution) -> bool:
        """Beyond noise."""
        return self.ratio.low > other.ratio.high

    @property
    def slower(self) -> bool:
        """Than torch, beyond noise."""
        return self.ratio.high < 1.0

    @property
    def gained_ns(self) -> float:
        return self.ns * (self.ratio.mid - 1.0)

    @property
    def left(self) -> float:
        """What is left above the floor, as a share of what eager takes above it."""
        eager_ns = self.ns * self.ratio.mid
        return max(0.0, self.ns - self.floor_ns) / (eager_ns - self.floor_ns) if eager_ns > self.floor_ns else 0.0


def solution_of(what: Candidate | Recipe, outcome: object) -> Solution | None:
    """Of a Try that was accepted and timed."""
    if not isinstance(outcome, Timed):
        return None
    ratio, time = outcome.ratio("eager"), outcome.time("ours")
    if ratio is None or time is None:
        return None
    return Solution(what=what, ratio=ratio, ns=time.mid, floor_ns=outcome.floor_ns)


def solved_within(
    subproblem: Subproblem, inner: Inner, *, move: Made, ask: Callable[[Ask], Ask]
) -> Steps[Solution | None]:
    """Drive `inner` to its Stop; what it would hand over, or else the best that was accepted. `ask` numbers its Asks
    among those of the run. Moves that it makes together are made one after another."""
    made: list[Event] = []
    step = next(inner)
    while not isinstance(step, Stop):
        together: list[Event] = []
        for single in step if isinstance(step, tuple) else (step,):
            event = yield from move(_placed(subproblem, single, ask))
            together.append(replace(event, move=single))
        made += together
        step = inner.send(tuple(together) if isinstance(step, tuple) else together[0])
    return _best(made, step)


def _placed(subproblem: Subproblem, step: Move, ask: Callable[[Ask], Ask]) -> Move:
    if isinstance(step, Ask):
        return ask(step)
    if not isinstance(step, Try | Tune | Sanitize | Inspect):
        raise TypeError(f"{type(step).__name__}: no move within a piece")
    return Within(subproblem=subproblem, move=step)


def _best(made: Sequence[Event], stop: Stop) -> Solution | None:
    tried = (solution_of(e.move.what, e.outcome) for e in made if isinstance(e.move, Try))
    passed = [solution for solution in tried if solution is not None]
    chosen = next((s for s in reversed(passed) if s.what == stop.best), None)
    return chosen or max(passed, key=lambda s: s.ratio.mid, default=None)
