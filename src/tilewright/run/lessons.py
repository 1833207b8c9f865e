"""Between a run and the memory of lessons: what is distilled of a run, and what the next one is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ..facts.lesson import Lesson
from ..facts.move import Event, Try
from ..facts.outcome import Failure, Timed
from ..facts.problem import TensorSpec
from ..facts.run import CaseFacts, Request, SearchContext
from ..facts.tools import NAMES
from ..facts.version import VERSION
from ..facts.winner import toolchain
from ..search.retrieve import lessons as memory
from ..search.strategies import WITH_TOOLS
from ..search.strategies.category import category

_MOST_OF_A_KIND = 4  # gains, losses, refusals
_CLEAR = 0.05  # an effect of less teaches nothing
_STEP = re.compile(r"^(?:step|turn|generation) [\d.]+: (.+)$", re.DOTALL)
_SAID_NOTHING = "(no idea stated)"


def offered(context: SearchContext, request: Request, *, folder: Path) -> SearchContext:
    """With the tools that its model may call and what earlier runs have learnt, as far as the strategy takes them."""
    if context.edition < 2 or not request.model or request.strategy not in WITH_TOOLS:
        return context
    asked = (request.tools or request.strategy == "agent") and "tools" not in request.without
    lines: tuple[str, ...] = ()
    if "lessons" not in request.without:
        known = memory.entries(folder, context.machine, tilewright=VERSION)
        words = f"{_operators(context.cases[0])} {shape_class(context.cases[0].inputs)}"
        lines = memory.recall(known, words, category=category(context.cases[0].graph), but=request.problem.name)
    return replace(context, tools=NAMES if asked else (), lessons=lines)


def learnt(context: SearchContext, events: Sequence[Event]) -> tuple[Lesson, ...]:
    """What its ideas did, each against the best before it: the clearest gains, losses, and refusals."""
    found = sorted(_effects(events), key=lambda pair: -abs(pair[1] - 1))
    gains = [pair for pair in found if pair[1] > 1 + _CLEAR]
    losses = [pair for pair in found if 0 < pair[1] < 1 - _CLEAR]
    refused = [pair for pair in found if pair[1] == 0]
    now, main = datetime.now(UTC).isoformat(timespec="seconds"), context.cases[0]
    return tuple(
        Lesson(
            category=category(main.graph), target=context.problem.target, device=context.machine.device,
            toolchain=toolchain(context.machine, tilewright=VERSION), shape_class=shape_class(main.inputs),
            problem=context.problem.name, text=text, effect=effect, found_at=now,
        )
        for kind in (gains, losses, refused) for text, effect in kind[:_MOST_OF_A_KIND]
    )  # fmt: skip


def _effects(events: Sequence[Event]) -> Iterator[tuple[str, float]]:
    """Of each idea that was judged, the best time so far over its own; 0.0, with the reason, where it was refused."""
    best = 0.0  # eager's time over ours
    for event in events:
        if not isinstance(event.move, Try):
            continue
        idea = _STEP.match(event.move.why)
        said = idea is not None and idea[1] != _SAID_NOTHING
        if isinstance(event.outcome, Failure):
            if idea is not None and said:
                yield f"{idea[1]}: {event.outcome.reason.replace('_', ' ')}", 0.0
        elif isinstance(event.outcome, Timed) and (ratio := event.outcome.ratio("eager")):
            if idea is not None and said and best:
                yield idea[1], ratio.mid / best
            best = max(best, ratio.mid)


def shape_class(specs: Sequence[TensorSpec]) -> str:
    """Of a case's inputs: dtypes, ranks, and sizes to the power of two below."""
    told = (f"{s.dtype}[{','.join(str(1 << (n.bit_length() - 1)) if n else '0' for n in s.shape)}]" for s in specs)
    return " ".join(told) or "no inputs"


def _operators(case: CaseFacts) -> str:
    labels = (call.label for call in case.graph.calls) if case.graph is not None else ()
    return " ".join(dict.fromkeys(labels))
