"""What a run has used up, added up from its events."""

from __future__ import annotations

from dataclasses import dataclass

from .dialogue import Reply
from .move import Ask, Await, Event, Try, Verify, Within


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """`device_s`: building, judging and tuning. `tokens` and `usd` of None: there was a call of which nobody knows what
    it took."""

    seconds: float = 0.0
    device_s: float = 0.0
    calls: int = 0  # prompts put to a model, without those that bring answers of tools
    tries: int = 0
    tokens: int | None = 0
    usd: float | None = 0.0

    def after(self, event: Event) -> Spent:
        asked = isinstance(event.move, Ask)
        aside = asked or isinstance(event.move, Await | Verify)
        reply = event.outcome if isinstance(event.outcome, Reply) else None
        used = reply.usage.input_tokens + reply.usage.output_tokens if reply is not None and reply.usage else None
        price = reply.price_usd if reply is not None else None
        return Spent(
            seconds=self.seconds + event.wall_s,
            device_s=self.device_s + (0.0 if aside else event.wall_s),
            calls=self.calls + (isinstance(event.move, Ask) and not event.move.prompt.brings_answers),
            tries=self.tries + isinstance(event.move.move if isinstance(event.move, Within) else event.move, Try),
            tokens=self.tokens if not asked else None if self.tokens is None or used is None else self.tokens + used,
            usd=self.usd if not asked else None if self.usd is None or price is None else self.usd + price,
        )
