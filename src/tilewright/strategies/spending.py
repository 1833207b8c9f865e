"""What a search has used up, added up from its events; what it may not begin any more."""

from __future__ import annotations

from ..facts.dialogue import Reply
from ..facts.move import Ask, Await, Event, Try, Within
from ..facts.run import Brief, Limits


class Spending:
    """`price_usd` of None: a call whose price nobody knows was among them."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self.seconds = 0.0
        self.device_s = 0.0
        self.calls = 0
        self.tries = 0
        self.tokens: int | None = 0
        self.price_usd: float | None = 0.0

    def count(self, event: Event) -> None:
        self.seconds += event.wall_s
        self.tries += isinstance(event.move.move if isinstance(event.move, Within) else event.move, Try)
        if not isinstance(event.move, Ask):
            self.device_s += 0.0 if isinstance(event.move, Await) else event.wall_s
            return
        self.calls += 1
        reply = event.outcome
        assert isinstance(reply, Reply)
        used = reply.usage.input_tokens + reply.usage.output_tokens if reply.usage else None
        self.tokens = None if self.tokens is None or used is None else self.tokens + used
        known = self.price_usd is not None and reply.price_usd is not None
        self.price_usd = (self.price_usd or 0.0) + (reply.price_usd or 0.0) if known else None

    def calls_left(self) -> int | None:
        """None: as many as one likes."""
        calls = self._brief.limits.calls
        return None if calls is None else max(calls - self.calls, 0)

    def tries_left(self) -> int | None:
        tries = self._brief.limits.tries
        return None if tries is None else max(tries - self.tries, 0)

    def out_of_time(self) -> bool:
        """Of its own, or of the device's."""
        limit = self._brief.limits.device_s
        return self.seconds >= self._brief.budget_s or (limit is not None and self.device_s >= limit)

    def over(self, *, asking: bool = True) -> str:
        """Why no further move may be begun; "" while one may. A limit that can't be watched ends the search, too.
        Without `asking`: no further one on the device, whatever a model may still be asked."""
        limits = self._brief.limits
        if self.seconds >= self._brief.budget_s:
            return f"the time is used up ({self.seconds:.0f} s)"
        if limits.device_s is not None and self.device_s >= limits.device_s:
            return f"the time on the device is used up ({self.device_s:.0f} s)"
        if limits.tries is not None and self.tries >= limits.tries:
            return f"the tries are used up ({self.tries})"
        if not asking:
            return ""
        if limits.calls is not None and self.calls >= limits.calls:
            return f"the calls are used up ({self.calls})"
        for limit, used, name in (
            (limits.tokens, self.tokens, "tokens"),
            (limits.usd, self.price_usd, "money"),
        ):
            if limit is not None and used is None:
                return f"the budget in {name} cannot be watched: the model did not say what a call took"
            if limit is not None and used is not None and used >= limit:
                return f"the budget in {name} is used up ({used:.6g} of {limit:.6g})"
        return ""

    def left(self) -> Limits:
        """What is left of the limits, never less than nothing."""
        limits = self._brief.limits
        return Limits(
            usd=None if limits.usd is None else max(0.0, limits.usd - (self.price_usd or 0.0)),
            tokens=None if limits.tokens is None else max(0, limits.tokens - (self.tokens or 0)),
            calls=None if limits.calls is None else max(0, limits.calls - self.calls),
            device_s=None if limits.device_s is None else max(0.0, limits.device_s - self.device_s),
            tries=None if limits.tries is None else max(0, limits.tries - self.tries),
        )
