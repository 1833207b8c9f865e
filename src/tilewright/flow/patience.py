"""A judgement that others' load has voided is made again, for a while, once they leave enough of the processors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ..edges.sandbox.strain import calm_within
from ..facts.errors import TooBusy
from ..facts.machine import Machine

T = TypeVar("T")
_TRIES = 3
_BUDGETS = 10  # of timing, that calm is waited for in all


def needed(machine: Machine) -> int:
    """How many processors must be free for times to mean something: on a GPU the one that starts its work."""
    return machine.processors if machine.target == "cpu" else 1


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
