"""Tune the patterns of one problem and remember the winners; nothing is judged, and nothing handed over."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from ..edges.ledger import Ledger
from ..facts.errors import UserError
from ..facts.move import Event, Tune
from ..facts.outcome import Tuned
from ..facts.problem import Problem
from ..facts.run import Request, SearchContext, Timing, patterns_by_id
from ..facts.winner import Winner
from ..search.strategies import tune as strategy
from ..search.strategies.tuning import winning
from ..search.tune import memory
from .drive import drive
from .evaluator import Evaluator
from .optimize import progress
from .places import Places
from .winners import kept_as, winner_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedProblem:
    """What was tuned: the events, and the winners that they gave, in the order of tuning."""

    context: SearchContext
    events: tuple[Event, ...]
    winners: tuple[Winner, ...]
    warnings: tuple[str, ...]  # why one of them is not remembered


def tune(
    problem: Problem, *, cache: Path, budget_s: float, seed: int, say: Callable[[str], None], trials: int = 0
) -> TunedProblem:
    """Measure the knobs of every pattern in the problem's first case, whatever is remembered of them; each winner is
    remembered as soon as it is found. No new pattern is begun after `budget_s`. `trials`: so many points beyond those
    that each Space names are searched, too. UserError for a fault of the problem's, or where optuna is wanted and not
    installed."""
    if trials > 0 and find_spec("optuna") is None:
        raise UserError("optuna, which searches further points, is not installed; pip install 'tilewright[search]'")
    request = Request(
        run=uuid.uuid4().hex[:12], problem=problem, strategy="tune", seed=seed, budget_s=budget_s,
        timing=Timing(compiled=False),
    )  # fmt: skip
    found: list[Winner] = []
    warnings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tilewright-tune-") as folder:
        places = Places(out=Path(folder), cache=cache)
        with Ledger(places.journal) as ledger, Evaluator(request, places=places, say=say) as bench:
            ledger.write(request)
            context = bench.context(request)
            ledger.write(context)

            def watch(event: Event) -> None:
                say(progress(event))
                point = winning(event.outcome) if isinstance(event.outcome, Tuned) else None
                now = datetime.now(UTC).isoformat(timespec="seconds")
                winner = winner_of(context, event, point, found_at=now) if point is not None else None
                if winner is not None and isinstance(event.move, Tune):
                    found.append(winner)
                    pattern = patterns_by_id((*context.matched, *context.rewritten))[event.move.pattern]
                    kept = (memory.remember(places.winners, entry) for entry in kept_as(winner, pattern))
                    warnings.extend(filter(None, kept))

            drive(
                strategy(context, trials), ledger=ledger, perform=lambda move: bench.perform(context, move),
                watch=watch, held=bench.held,
            )  # fmt: skip
            return TunedProblem(context=context, events=ledger.events(), winners=tuple(found), warnings=tuple(warnings))
