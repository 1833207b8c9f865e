"""How long a run may still take on the wall's clock: one value, handed down to all that takes time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBudget:
    """`whole_s` seconds from `started_s` on, as `clock` tells the time. What may begin asks for what is left; what
    takes a share of the budget ends where that share of it has passed."""

    whole_s: float = math.inf
    started_s: float = 0.0
    clock: Callable[[], float] = time.monotonic

    @staticmethod
    def of(whole_s: float, *, spent_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> TimeBudget:
        """One that begins now, of which `spent_s` have passed before."""
        return TimeBudget(whole_s=whole_s, started_s=clock() - spent_s, clock=clock)

    def passed_s(self) -> float:
        return self.clock() - self.started_s

    def left_s(self, share: float = 1.0) -> float:
        """Seconds until this share of the budget has passed, never less than none."""
        return max(0.0, share * self.whole_s - self.passed_s())

    def limit_s(self, usual_s: float, *, share: float = 1.0, least_s: float = 1.0) -> float:
        """What may be waited for something that usually may take `usual_s`: no longer than until this share has
        passed, and `least_s` at least."""
        return min(usual_s, max(least_s, self.left_s(share)))


UNBOUNDED = TimeBudget()
