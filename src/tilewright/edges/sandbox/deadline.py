"""A deadline that a busy machine does not shorten: only that time counts in which a cell could run."""

from __future__ import annotations

import time

from ...facts.errors import TooBusy
from .processes import all_spent_s, members, runs, tree_cpu_s

_LONGEST = 5  # limits, on the clock of the wall


class Deadline:
    """`limit_s` for the processes below `pid`. Where one of them would run and others have the processors, a window of
    time counts for no more than the cell's processes used of it; what its own take from one another counts in full."""

    def __init__(self, limit_s: float, pid: int) -> None:
        self.limit_s = limit_s
        self._pid = pid
        self._started = time.monotonic()
        self._last: tuple[float, float, float] | None = None
        self._lost_s = 0.0

    def look(self) -> None:
        """Now and then, while an answer is awaited."""
        now = time.monotonic()
        if now - self._started < 1.0 and self.limit_s > 2.0:  # nearly all answers come at once
            return
        ours = set(members(self._pid))
        seen_s = sum(own_s for pid, (own_s, _) in all_spent_s().items() if pid not in ours)
        books = now, tree_cpu_s(self._pid), seen_s
        if self._last is not None:
            span_s, used_s, others_s = (after - before for after, before in zip(books, self._last, strict=True))
            if runs(ours):
                self._lost_s += max(0.0, min(span_s - used_s, others_s))
        self._last = books

    @property
    def left_s(self) -> float:
        """What is left of the limit, less than nothing where it has passed. Raises TooBusy where others have had the
        processors for most of several limits."""
        passed_s = time.monotonic() - self._started
        if passed_s > _LONGEST * self.limit_s and self._lost_s > passed_s / 2:
            raise TooBusy(f"others had the processors for {self._lost_s:.0f} of {passed_s:.0f} s")
        return self.limit_s - passed_s + self._lost_s
