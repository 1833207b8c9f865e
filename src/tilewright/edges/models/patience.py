"""How often a model is asked again, and how long one waits in between: backoff, unless the provider names a time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ...facts.errors import ModelOut

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """`idle_s` bounds the wait between two pieces of a stream, `call_s` a whole call. A provider that wants a longer
    wait than `longest_wait_s` is not waited for."""

    tries: int = 6
    first_wait_s: float = 2.0
    longest_wait_s: float = 300.0
    idle_s: float = 180.0
    call_s: float = 1800.0

    def wait_s(self, tried: int, dice: random.Random) -> float:
        """After `tried` tries: doubled each time, and spread by up to a half so that runs do not march in step."""
        return min(self.first_wait_s * 2.0 ** (tried - 1), self.longest_wait_s) * dice.uniform(0.75, 1.25)


class Passing(Exception):
    """A fault that may pass; `retry_after_s` where the provider said how long it takes."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        sound = retry_after_s is not None and retry_after_s >= 0  # which NaN is not
        self.retry_after_s = retry_after_s if sound else None


def patiently(
    call: Callable[[int], T], *, patience: RetryPolicy, dice: random.Random, sleep: Callable[[float], None] = time.sleep
) -> T:
    """What `call` returns, given the number of the try; asked again after each Passing. Raises ModelOut after the last,
    or where the provider wants a longer wait than patience allows."""
    for tried in range(1, patience.tries + 1):
        try:
            return call(tried)
        except Passing as fault:
            wait = fault.retry_after_s if fault.retry_after_s is not None else patience.wait_s(tried, dice)
            if tried == patience.tries:
                raise ModelOut(f"no reply after {tried} tries: {fault}") from None
            if wait > patience.longest_wait_s:
                raise ModelOut(f"the provider asks to wait {wait:.0f} s: {fault}") from None
            sleep(wait)
    raise AssertionError("unreachable")
