"""Carry out a strategy's moves, and make each outcome durable before the next: resume and replay are this one loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from ..edges.ledger import Ledger
from ..facts.errors import HarnessError
from ..facts.move import Event, Move, Outcome, Stop
from ..facts.outcome import Station

Strategy = Generator[Move | tuple[Move, ...], Event | tuple[Event, ...], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What came of a move that another machine carried out, and how long that took there: of what the way took, nothing
    is booked."""

    outcome: Outcome
    wall_s: float


Perform = Callable[[Move], Outcome | Elsewhere]


class JournalMismatch(HarnessError):
    """The journal's moves are not those that this code makes."""


def drive(
    strategy: Strategy, *, ledger: Ledger, perform: Perform, watch: Callable[[Event], None],
    announce: Callable[[tuple[Move, ...]], None] = lambda moves: None, clock: Callable[[], float] = time.monotonic,
    held: Callable[[], tuple[Station, ...]] = lambda: (),
) -> Stop:  # fmt: skip
    """Run a strategy to its `Stop`, replaying what the journal already holds; returns that Stop.

    `perform` is called only for moves that the journal does not hold, after `announce` has seen all of those that were
    made together; `held` says for what the device was held since it was last asked; `watch` sees every event, replayed
    or new. Raises JournalMismatch where a recorded move differs from
    the strategy's, HarnessError if it ends without Stop, and what `perform` raises (Pending, for one), with all that
    came before it in the journal.
    """
    recorded = list(ledger.events())
    position = 0

    def make(move: Move) -> Event:
        nonlocal position
        if position < len(recorded):
            event = _replayed(recorded[position], move)
        else:
            start = clock()
            done = None if isinstance(move, Stop) else perform(move)
            if not isinstance(done, Elsewhere):
                done = Elsewhere(outcome=done, wall_s=clock() - start)
            event = ledger.append(move, done.outcome, wall_s=done.wall_s, held=held())
        position += 1
        watch(event)
        return event

    try:
        step = next(strategy)
        while True:
            if isinstance(step, Stop):
                make(step)
                return step
            moves = step if isinstance(step, tuple) else (step,)
            if new := moves[max(len(recorded) - position, 0) :]:
                announce(new)
            events = tuple(make(move) for move in moves)
            step = strategy.send(events if isinstance(step, tuple) else events[0])
    except StopIteration:
        raise HarnessError("the strategy ended without a Stop move") from None
    finally:
        strategy.close()


def _replayed(event: Event, move: Move) -> Event:
    if event.move == move:
        return event
    kinds = type(event.move).__name__, type(move).__name__
    detail = (
        f"a {kinds[0]} was recorded where this code makes a {kinds[1]}"
        if kinds[0] != kinds[1]
        else _difference(event.move, move)
    )
    raise JournalMismatch(
        f"event {event.seq} of the journal does not fit: {detail}; "
        "resume with the version that wrote it, or start a new run"
    )


def _difference(recorded: Move, made: Move) -> str:
    for name in recorded.__dataclass_fields__:
        old, new = getattr(recorded, name), getattr(made, name)
        if old != new:
            return f"{type(made).__name__}.{name} was {_short(old)}, this code makes {_short(new)}"
    return "they differ"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
