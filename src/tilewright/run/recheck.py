"""Judging an entry of the table anew, on this machine as it is now: passed, it is trusted; refused, it is dropped."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..facts.errors import UserError
from ..facts.machine import Machine
from ..facts.move import Try
from ..facts.outcome import Failure, Timed
from ..facts.pattern import INDUCTOR
from ..facts.realised import Realised
from ..facts.run import Request, Timing
from ..search.retrieve import store as table
from .evaluator import Evaluator
from .places import Bench, BenchOf, Places
from .realisations import entry_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rechecked:
    """What became of an entry: as it is kept now, None where it was dropped, and why that."""

    before: Realised
    now: Realised | None
    why: str


def recheck(
    entry: Realised, *, machine: Machine, cache: Path, seed: int, timing: Timing, say: Callable[[str], None],
    bench_of: BenchOf = Evaluator,
) -> Rechecked:  # fmt: skip
    """Judge the entry in its own problem, and keep it with what was measured now; drop it where the judge refuses it,
    or where it is slower than torch beyond noise."""
    with tempfile.TemporaryDirectory(prefix="tilewright-recheck-") as folder:
        problem = replace(entry.problem, path=str(Path(folder) / f"{entry.problem.name}.py"))
        request = Request(
            run=uuid.uuid4().hex[:12], problem=problem, strategy="given", seed=seed, budget_s=0.0, timing=timing
        )
        places = Places(out=Path(folder), cache=cache)
        with bench_of(request, places=places, say=say, machine=machine) as bench:
            now, why = _judged(entry, request, bench)
    if now is None:
        table.forget(cache / table.FOLDER, entry)
    elif warning := table.remember(cache / table.FOLDER, now):
        say(warning)
    return Rechecked(before=entry, now=now, why=why)


def _judged(entry: Realised, request: Request, bench: Bench) -> tuple[Realised | None, str]:
    """The entry with what was measured now, or None and why."""
    try:
        context = bench.context(request)
    except UserError as error:
        return None, f"its problem does not run here: {error}"
    known = {INDUCTOR, *(p.id for m in context.matched for p in m.patterns)}
    if isinstance(entry.what, tuple) and any(c.written is None and c.pattern not in known for c in entry.what):
        return None, "the matcher finds other patterns now"
    outcome = bench.perform(context, Try(what=entry.what, why="checked again"))
    if not isinstance(outcome, Timed):
        assert isinstance(outcome, Failure)
        return None, f"refused at {outcome.stage}: {outcome.reason}: {outcome.summary}"
    told = replace(context, model=entry.model)
    found = entry_of(told, entry.what, outcome, key=entry.key, title=entry.title, run=entry.run, journal=entry.journal)
    now = next(iter(found), None)
    return now, "" if now is not None else "slower than torch"
