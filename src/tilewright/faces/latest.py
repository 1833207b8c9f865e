"""`tilewright logs`: where a run keeps its journal and its reports, and what it did last."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..edges.ledger import Ledger
from ..facts.errors import UserError
from ..facts.move import Event, Stop
from ..facts.run import SearchContext
from ..report.story import Attempt, story
from .printing import Shown

_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """A run as its journal has it now; `steps`: all of them."""

    folder: Path
    state: str
    steps: tuple[Attempt, ...]


def latest(folder: Path) -> Path:
    """The folder of a run: that which was named, or that below it whose journal was written last. UserError where there
    is none."""
    if (folder / "run.db").is_file():
        return folder
    journals = [path for path in folder.rglob("run.db") if path.is_file()] if folder.is_dir() else []
    if not journals:
        raise UserError(f"{folder}: no run there; name its folder, or a folder of runs")
    return max(journals, key=_written_unix_s).parent


def read(folder: Path) -> Logs:
    with Ledger(folder / "run.db", readonly=True) as ledger:
        context, events = ledger.context(), ledger.events()
    return Logs(folder=folder, state=_state(context, events), steps=story(context, events).attempts if context else ())


def follow(logs: Logs, *, tail: int, put: Callable[[str], None], sleep: Callable[[float], None] = time.sleep) -> None:
    """Print the last steps, then each as it comes, until the run ends or the user does."""
    told = max(0, len(logs.steps) - tail)
    while True:
        for step in logs.steps[told:]:
            put(line(step))
        told = len(logs.steps)
        if logs.state == "ended":
            return
        sleep(_POLL_S)
        logs = read(logs.folder)


def line(step: Attempt) -> str:
    """A step on one line."""
    told = " ".join(f"{step.what}{f' ({step.why})' if step.why else ''}: {step.result}".split())
    return f"{step.seq:>4}  {step.fate:<8}  {step.seconds:>8}  {told.removesuffix(':')[:300]}"


def head(logs: Logs) -> tuple[str, ...]:
    """Where the files of the run lie, those that are there."""
    kept = (("journal", "run.db"), ("report", "report.html"), ("candidate", "candidate"))
    return (f"run        {logs.folder} ({logs.state}, {len(logs.steps)} steps)",
            *(f"{name:<10} {logs.folder / file}" for name, file in kept if (logs.folder / file).exists()))  # fmt: skip


def shown(logs: Logs, *, tail: int) -> Shown:
    last: Sequence[Attempt] = logs.steps[-tail:] if tail else ()
    told: dict[str, Any] = {
        "run": str(logs.folder), "journal": str(logs.folder / "run.db"), "state": logs.state,
        "steps": [{"step": s.seq, "fate": s.fate, "what": s.what, "why": s.why, "result": s.result} for s in last],
    }  # fmt: skip
    return Shown(object=told, drawn=(*head(logs), *map(line, last)))


def _state(context: SearchContext | None, events: Sequence[Event]) -> str:
    if context is None:
        return "not begun"
    return "ended" if any(isinstance(event.move, Stop) for event in events) else "not ended"


def _written_unix_s(journal: Path) -> float:
    log = journal.with_name("run.db-wal")
    return max(path.stat().st_mtime for path in (journal, log) if path.is_file())
