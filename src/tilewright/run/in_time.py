"""The end of a run's time: what is still at work then is interrupted, and what was accepted so far is handed over."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..edges.sandbox.offspring import kill_offspring
from ..facts.candidate import Candidate
from ..facts.move import Event, Try
from ..facts.outcome import Timed
from ..facts.pattern import Recipe
from ..facts.time_budget import TimeBudget

_OVERRUN, _GRACE_S = 1.1, 8.0  # so much of the budget may pass, and seconds, before what is at work is interrupted
_FIRST_OVERRUN, _FIRST_GRACE_S = 1.2, 17.0  # and so much where nothing is judged yet: with what follows, under 20 s
_PATIENCE_S = 3.0  # until children are killed for which the interrupted thread waits


class OutOfTime(KeyboardInterrupt):
    """The budget has passed; raised in the thread that works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The fastest that was accepted and beats eager beyond noise."""

    what: Candidate | Recipe
    timed: Timed

    @property
    def told(self) -> str:
        ratio = self.timed.ratio("eager")
        return f"{ratio.mid:.2f}x as fast as eager [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else "untimed"


def best_of(events: Sequence[Event]) -> Best | None:
    """The best so far of the module itself, not of its subproblems; None where nothing pays yet."""
    found = [
        Best(what=e.move.what, timed=e.outcome)
        for e in events
        if isinstance(e.move, Try) and isinstance(e.outcome, Timed) and e.outcome.faster_than("eager")
    ]
    return max(found, key=_gain, default=None)


def _gain(best: Best) -> float:
    ratio = best.timed.ratio("eager")
    return ratio.mid if ratio else 0.0


@contextmanager
def ended_in_time(budget: TimeBudget) -> Iterator[threading.Event]:
    """Raise OutOfTime in the block where it takes a tenth and a few seconds more than the budget; until the block sets
    the event, which says that a first candidate has its verdict, a fifth and 17 seconds more, so that the smallest
    budget has a result. Children for which the block waits, a compiler say, are killed."""
    over, judged, worker = threading.Event(), threading.Event(), threading.get_ident()
    limit_s = budget.left_s(_OVERRUN) + _GRACE_S
    begun_s, first_s = budget.passed_s(), budget.left_s(_FIRST_OVERRUN) + _FIRST_GRACE_S

    def comes(event: threading.Event, within_s: float) -> bool:
        """Whether it does within so many seconds of the budget's clock, which may stand still for a while."""
        while (left_s := begun_s + within_s - budget.passed_s()) > 0:
            if event.wait(left_s):
                return True
        return event.is_set()

    def watch() -> None:
        if comes(over, limit_s):
            return
        if not judged.is_set() and comes(judged, first_s) and over.wait(_PATIENCE_S):
            return  # the search found by itself that its time had passed
        if over.is_set():
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker), ctypes.py_object(OutOfTime))
        if not over.wait(_PATIENCE_S):
            kill_offspring()

    watcher = threading.Thread(target=watch, daemon=True)
    if limit_s < threading.TIMEOUT_MAX:
        watcher.start()
    try:
        yield judged
    finally:
        over.set()
        judged.set()  # nobody waits for it any more
        if watcher.ident is not None:
            watcher.join()
