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

_OVERRUN = 1.1  # of the budget may pass, and
_GRACE_S = 8.0  # more, before what is at work is interrupted
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
def ended_in_time(budget: TimeBudget) -> Iterator[None]:
    """Raise OutOfTime in the block where it takes a tenth and a few seconds more than the budget. Children for which it
    waits, a compiler say, are killed."""
    over, worker = threading.Event(), threading.get_ident()
    limit_s = budget.left_s(_OVERRUN) + _GRACE_S

    def watch() -> None:
        if over.wait(limit_s):
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker), ctypes.py_object(OutOfTime))
        if not over.wait(_PATIENCE_S):
            kill_offspring()

    watcher = threading.Thread(target=watch, daemon=True)
    if limit_s < threading.TIMEOUT_MAX:
        watcher.start()
    try:
        yield
    finally:
        over.set()
        if watcher.ident is not None:
            watcher.join()
