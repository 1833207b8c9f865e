"""What a run that asks a model cost, stage by stage, and what each gain had cost when it came."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..facts.dialogue import Reply
from ..facts.move import Ask, Await, CallTool, Capture, Event, Inspect, Interleave, Sanitize, Try, Tune
from ..facts.outcome import Timed
from ..facts.spent import Spent
from . import words

_COUNTED = re.compile(r"^(?:step|turn|generation|reply) \d+(?: of \d+)?(?:: |$)")
_AFTER_TOOLS = "after tools"
_NAMES = {"": "replies", "again": "asked once more"}
_OTHERS = ((Try, "judging"), (Interleave, "timing in turns"), (CallTool, "tools"), (Tune, "tuning"),
           (Inspect, "profiling"), (Sanitize, "compute-sanitizer"),
           (Capture, "CUDA graphs"), (Await, "the agent itself"))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """One stage: how often, for how long, and for replies their tokens and price, as words."""

    stage: str
    times: int
    took: str
    tokens: str
    price: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GainRow:
    """A candidate that was faster than all before it: when it came, what had been spent by then, and the ratio against
    eager for each of them."""

    what: str
    ratio: str
    steps: int
    calls: int
    price: str
    took: str
    per_step: str
    per_price: str


def stage_of(event: Event) -> str:
    """What a move is for: of an Ask the kind of prompt ("write", "structure", "profile", "mend"), else the move's own
    name."""
    if not isinstance(event.move, Ask):
        return next((name for kind, name in _OTHERS if isinstance(event.move, kind)), "")
    if event.move.prompt.brings_answers:
        return _AFTER_TOOLS
    said, again, _ = event.move.why.partition(", again")
    if again:
        return _NAMES["again"]
    kind = re.sub(r"[\s\d]+$", "", _COUNTED.sub("", said)).strip()
    return _NAMES.get(kind, kind)


def costs(events: Sequence[Event]) -> tuple[CostRow, ...]:
    """By stage, in the order in which stages began, then all, and a step in the mean; () of a run that asked nobody."""
    if not any(isinstance(event.move, Ask) for event in events):
        return ()
    stages = dict.fromkeys(name for event in events if (name := stage_of(event)))
    rows = [_row(name, [e for e in events if stage_of(e) == name]) for name in stages]
    every = [e for e in events if stage_of(e)]
    return (*rows, _row("all", every), *_a_step(every))


def _a_step(events: Sequence[Event]) -> Iterator[CostRow]:
    """What a step costs in the mean, with all that it takes to mend it: nothing where no step was begun."""
    replies = [e.outcome for e in events if isinstance(e.outcome, Reply)]
    steps = sum(map(_is_step, events))
    used = [reply.usage for reply in replies if reply.usage is not None]
    if not steps:
        return
    tokens = (sum(u.input_tokens for u in used) // steps, sum(u.output_tokens for u in used) // steps)
    usd = [r.price_usd for r in replies if r.price_usd is not None]
    known = len(used) == len(replies)
    yield CostRow(
        stage="a step, in the mean", times=steps, took=f"{sum(e.wall_s for e in events) / steps:.1f} s",
        tokens=f"{tokens[0]} in, {tokens[1]} out" if known else "unknown",
        price=_dollars(sum(usd) / steps if len(usd) == len(replies) else None),
    )  # fmt: skip


def _is_step(event: Event) -> bool:
    """Whether a model is asked for something new: not once more, not with tools' answers, not to mend."""
    return isinstance(event.move, Ask) and stage_of(event) not in (_NAMES["again"], _AFTER_TOOLS, "mend")


def _row(name: str, events: Sequence[Event]) -> CostRow:
    replies = [e.outcome for e in events if isinstance(e.outcome, Reply)]
    return CostRow(
        stage=name, times=len(events), took=f"{sum(e.wall_s for e in events):.1f} s", tokens=_tokens(replies),
        price=_price(replies),
    )  # fmt: skip


def _tokens(replies: Sequence[Reply]) -> str:
    used = [reply.usage for reply in replies]
    if not used:
        return ""
    known = [u for u in used if u is not None]
    if len(known) < len(used):
        return "unknown"
    return f"{sum(u.input_tokens for u in known)} in, {sum(u.output_tokens for u in known)} out"


def _price(replies: Sequence[Reply]) -> str:
    known = [reply.price_usd for reply in replies if reply.price_usd is not None]
    return "" if not replies else _dollars(sum(known) if len(known) == len(replies) else None)


def _dollars(spent: float | None) -> str:
    return "unknown" if spent is None else f"${spent:.4f}"


def gains(events: Sequence[Event]) -> tuple[GainRow, ...]:
    """Every candidate that was faster than those before it, in a run that asks a model."""
    return tuple(_gains(events)) if any(isinstance(event.move, Ask) for event in events) else ()


def _gains(events: Sequence[Event]) -> Iterator[GainRow]:
    best, steps, spent = 0.0, 0, Spent()
    for event in events:
        spent = spent.after(event)
        steps += _is_step(event)
        ratio = event.outcome.ratio("eager") if isinstance(event.outcome, Timed) else None
        if ratio is None or ratio.mid <= best or not isinstance(event.move, Try):
            continue
        best = ratio.mid
        yield GainRow(
            what=event.move.why, ratio=words.times(ratio), steps=steps, calls=spent.calls,
            price=_dollars(spent.usd) if spent.calls else "", took=f"{spent.seconds:.0f} s",
            per_step=f"{words.digits((best - 1) / steps)}x" if steps else "",
            per_price=f"{words.digits((best - 1) / spent.usd)}x a dollar" if spent.usd else "",
        )  # fmt: skip
