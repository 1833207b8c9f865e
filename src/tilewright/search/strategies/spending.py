"""What a search may not begin any more, after what it has used up."""

from __future__ import annotations

from ...facts.move import Event
from ...facts.run import Limits, SearchContext
from ...facts.spent import Spent


class Spending:
    """`spent` so far, held against the limits of a context."""

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self.spent = Spent(seconds=context.opened_s)

    def count(self, event: Event) -> None:
        self.spent = self.spent.after(event)

    def calls_left(self) -> int | None:
        """None: as many as one likes."""
        calls = self._context.limits.calls
        return None if calls is None else max(calls - self.spent.calls, 0)

    def tries_left(self) -> int | None:
        tries = self._context.limits.tries
        return None if tries is None else max(tries - self.spent.tries, 0)

    def out_of_time(self) -> bool:
        """Of its own, or of the device's."""
        limit = self._context.limits.device_s
        return self.spent.seconds >= self._context.budget_s or (limit is not None and self.spent.device_s >= limit)

    def over(self, *, asking: bool = True, answers: bool = False) -> str:
        """Why no further move may be begun; "" while one may. A limit that can't be watched ends the search, too.
        Without `asking`: no further one on the device, whatever a model may still be asked; `answers`: a prompt that
        brings answers of tools, which is no call of its own."""
        limits, spent = self._context.limits, self.spent
        if spent.seconds >= self._context.budget_s:
            return f"the time is used up ({spent.seconds:.0f} s)"
        if limits.device_s is not None and spent.device_s >= limits.device_s:
            return f"the time on the device is used up ({spent.device_s:.0f} s)"
        if self.tries_left() == 0:
            return f"the tries are used up ({spent.tries})"
        if not asking:
            return ""
        if self.calls_left() == 0 and not answers:
            return f"the calls are used up ({spent.calls})"
        for limit, used, name in ((limits.tokens, spent.tokens, "tokens"), (limits.usd, spent.usd, "money")):
            if limit is not None and used is None:
                return f"the budget in {name} cannot be watched: the model did not say what a call took"
            if limit is not None and used is not None and used >= limit:
                return f"the budget in {name} is used up ({used:.6g} of {limit:.6g})"
        return ""

    def left(self) -> Limits:
        """What is left of the limits, never less than nothing."""
        limits, spent = self._context.limits, self.spent
        return Limits(
            usd=None if limits.usd is None else max(0.0, limits.usd - (spent.usd or 0.0)),
            tokens=None if limits.tokens is None else max(0, limits.tokens - (spent.tokens or 0)),
            calls=self.calls_left(),
            device_s=None if limits.device_s is None else max(0.0, limits.device_s - spent.device_s),
            tries=self.tries_left(),
        )
