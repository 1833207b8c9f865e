"""What declared algebra is worth: the best that the judge took with it, and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..facts.move import Event, Try
from ..facts.outcome import Failure, Interval, Timed
from ..facts.run import SearchContext
from . import words
from .ending import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Algebra:
    """`steps`: what it does. `with_it`, `without`: times as fast as eager, None where the judge took nothing of the
    kind; `refused`: why it took nothing with it. `kept`: what is handed over has it."""

    steps: tuple[str, ...]
    with_it: Interval | None
    without: Interval | None
    refused: str
    kept: bool

    @property
    def line(self) -> str:
        """For a reader."""
        told = [
            f"{words.times(ratio) if ratio else 'nothing accepted'} as fast as eager {name} it"
            for name, ratio in (("with", self.with_it), ("without", self.without))
        ]
        refused = f"; refused: {self.refused}" if self.refused else ""
        return f"algebra, {'used' if self.kept else 'not used'} ({'; '.join(self.steps)}): {', '.join(told)}{refused}"


def algebra(context: SearchContext, events: Sequence[Event], end: Ending) -> Algebra | None:
    """Of a run whose module has less work by algebra; None of any other. `context`: as it stands in the journal."""
    if not context.rewritten:
        return None
    ids = {p.id for m in context.rewritten for p in m.patterns}
    best: dict[bool, Interval] = {}
    refused = ""
    for event in events:
        if not isinstance(event.move, Try) or not isinstance(event.move.what, tuple):
            continue
        has_it = any(choice.pattern in ids for choice in event.move.what)
        if isinstance(event.outcome, Failure) and has_it:
            refused = event.outcome.summary
        ratio = event.outcome.ratio("eager") if isinstance(event.outcome, Timed) else None
        if ratio is not None and (has_it not in best or ratio.mid > best[has_it].mid):
            best[has_it] = ratio
    return Algebra(
        steps=tuple(dict.fromkeys(step for case in context.cases for step in case.algebra)), with_it=best.get(True),
        without=best.get(False), refused="" if True in best else refused,
        kept=any(choice.pattern in ids for choice in end.recipe),
    )  # fmt: skip
