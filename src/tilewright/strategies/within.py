"""A strategy at work on a piece of a module: its moves are made in the piece's problem, in the one journal."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from ..facts.candidate import Candidate
from ..facts.move import Ask, Event, Inspect, Move, Sanitize, Stop, Try, Tune, Within
from ..facts.outcome import Timed
from ..facts.pattern import Piece, Recipe
from .tuning import Steps

Inner = Generator[Move | tuple[Move, ...], Event | tuple[Event, ...], None]
Made = Callable[[Move], Steps[Event]]  # carries out a move of the whole run's, and counts it


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What a strategy made of a piece: the best that the judge accepted, be it faster or not."""

    what: Candidate | Recipe
    timed: Timed


def solved_within(piece: Piece, inner: Inner, *, move: Made, ask: Callable[[Ask], Ask]) -> Steps[Solution | None]:
    """Drive `inner`, whose moves must be single ones, to its Stop; what it would hand over, or else the best that was
    accepted. `ask` numbers its Asks among those of the run."""
    made: list[Event] = []
    step = next(inner)
    while not isinstance(step, Stop):
        event = yield from move(_placed(piece, step, ask))
        assert not isinstance(step, tuple)
        made.append(replace(event, move=step))
        step = inner.send(made[-1])
    return _best(made, step)


def _placed(piece: Piece, step: Move | tuple[Move, ...], ask: Callable[[Ask], Ask]) -> Move:
    if isinstance(step, Ask):
        return ask(step)
    if not isinstance(step, Try | Tune | Sanitize | Inspect):
        raise TypeError(f"{type(step).__name__}: no move within a piece")
    return Within(piece=piece, move=step)


def _best(made: Sequence[Event], stop: Stop) -> Solution | None:
    passed = [
        Solution(what=e.move.what, timed=e.outcome)
        for e in made
        if isinstance(e.move, Try) and isinstance(e.outcome, Timed)
    ]
    chosen = next((s for s in reversed(passed) if s.what == stop.best), None)
    return chosen or max(passed, key=_ratio_of, default=None)


def _ratio_of(solution: Solution) -> float:
    """Eager's time over its own."""
    ratio = solution.timed.ratio("eager")
    return ratio.mid if ratio else 0.0
