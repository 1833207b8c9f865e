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
    """What `judged` gives, tried again where it raises TooBusy: each time in fresh cells (`renew`), a few times in all,
    so that nobody wins by trying. Raises TooBusy where there is no calm within `_BUDGETS` times `budget_s`."""
    waited_s = 0.0
    for _ in range(_TRIES - 1):
        try:
            return judged()
        except TooBusy as busy:
            say(f"{busy}; waiting for calm, to try again")
            started = time.monotonic()
            if not calm_within(max(0.0, _BUDGETS * budget_s - waited_s), needed(machine)):
                raise
            waited_s += time.monotonic() - started
            renew()
    return judged()
