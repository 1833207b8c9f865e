"""Others' load: it is looked at before what needs a clock, which waits for calm, and what it spoilt is judged again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ..edges.sandbox.strain import Books, Strain, calm_within
from ..facts.errors import TooBusy
from ..facts.machine import Machine
from ..facts.time_budget import UNBOUNDED, TimeBudget

T = TypeVar("T")
_TRIES = 3
_BUDGETS = 10  # of timing, that calm is waited for: before each thing that needs a clock, and between tries in all
_LOOK_S = 0.25  # the books are kept in hundredths of a second


def needed(machine: Machine) -> int:
    """How many processors must be free for times to mean something: on a GPU the one that starts its work."""
    return machine.processors if machine.target == "cpu" else 1


class Patience:
    """Looks at the load before what needs a clock, so that minutes are not spent on what could not count. What a look
    tells of began with the last one, or with `begin`."""

    def __init__(
        self, machine: Machine, *, budget_s: float, say: Callable[[str], None], time: TimeBudget = UNBOUNDED
    ) -> None:
        self._time, self._longest_s = time, _BUDGETS * budget_s
        self._needed, self._say = needed(machine), say
        self._books = Books.now()

    @property
    def longest_s(self) -> float:
        """How long calm is waited for: never beyond half of what is left to the run."""
        return min(self._longest_s, 0.5 * self._time.left_s())

    def begin(self) -> None:
        """What was before counts for nothing: whoever had the device in turn, say."""
        self._books = Books.now()

    def tell(self) -> None:
        """Say at once where others have the processors; nothing waits."""
        strain = self._look()
        if strain.starves(self._needed):
            self._say(
                f"{strain.told}: what needs no clock goes on; measuring, tuning and timing each wait for calm, for up "
                f"to {self.longest_s:.0f} s"
            )

    def calm(self, what: str, *, comes_and_goes: bool = False) -> bool:
        """Wait until others leave enough for `what`, for `longest_s` at most; whether they do. It costs no time where
        they did since the last look."""
        return not self._told(what, comes_and_goes)

    def require(self, what: str, *, comes_and_goes: bool = False) -> None:
        """The same; raises TooBusy where they don't."""
        if told := self._told(what, comes_and_goes):
            raise TooBusy(f"{told}, and {what} has waited {self.longest_s:.0f} s for calm", lasts=True)

    def _told(self, what: str, comes_and_goes: bool) -> str:
        strain = self._look()
        if not strain.starves(self._needed, comes_and_goes=comes_and_goes):
            return ""
        self._say(f"{strain.told}: {what} waits for calm, for up to {self.longest_s:.0f} s")
        return "" if calm_within(self.longest_s, self._needed, comes_and_goes=comes_and_goes) else strain.told

    def _look(self) -> Strain:
        time.sleep(max(0.0, self._books.at_s + _LOOK_S - time.monotonic()))
        before, self._books = self._books, Books.now()
        return Strain.between(before, self._books)


def when_calm(
    judged: Callable[[], T], machine: Machine, *, budget_s: float, say: Callable[[str], None], renew: Callable[[], None]
) -> T:
    """What `judged` gives. Where it raises TooBusy, calm is waited for, up to `_BUDGETS` times `budget_s` in all, and
    it is tried again in fresh cells (`renew`): `_TRIES` times in all, so that nobody wins by trying. Raises TooBusy
    where calm does not come, where the last try is spoilt, too, and where the reason lasts."""
    left_s = _BUDGETS * budget_s
    for _ in range(_TRIES - 1):
        try:
            return judged()
        except TooBusy as busy:
            if busy.lasts:
                raise
            say(f"{busy}; waiting for calm for up to {left_s:.0f} s, to try again")
            started = time.monotonic()
            if not calm_within(left_s, needed(machine)):
                raise
            left_s = max(0.0, left_s - (time.monotonic() - started))
            renew()
    return judged()
