"""A row of the site: a run, a task of a result file, or something damaged that says so."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ...edges.ledger import Ledger
from ...facts.move import Ask, Event, Try, Within
from ...facts.run import Request, SearchContext
from ..objects import Task, summary
from .folders import JOURNAL, ResultSource, state_of
from .tasks import ResultFile, read_results, task_of

Kind = Literal["run", "task", "damaged"]
_CRASHED = ("failed", "pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`id`: what its address is made of, the same whenever the site is made again. `group`: the file or the folder that
    it stands in, `place`: itself. `task`: an object as `tasks.task_of` gives it. `judged`: the events of a run that
    judged a candidate; `turns`: how often it asked a model. `problem` is in the task, too."""

    id: str
    kind: Kind
    status: str  # of the task, or "damaged"
    said: str
    group: str
    place: str
    task: Task
    judged: tuple[int, ...] = ()
    turns: int = 0

    @property
    def problem(self) -> str:
        return str(self.task["problem"])

    @property
    def strategy(self) -> str:
        return str(self.task["strategy"])

    @property
    def card(self) -> str:
        return str(self.task["device"])

    @property
    def mode(self) -> str:
        return str(self.task["mode"])

    @property
    def href(self) -> str:
        """Its page, from the root of the site; "" where there is none."""
        if self.kind == "run":
            return f"runs/{self.id}/index.html"
        return f"groups/{slug(self.group)}.html#{self.id}" if self.kind == "task" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A folder of runs, or a file of results: `head` is what the file says of all its tasks."""

    place: str
    head: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReading:
    """What a source holds: no entries where it is no result at all."""

    entries: tuple[Entry, ...]
    group: Group


def slug(text: str) -> str:
    """Text as a part of an address: as it is, where plain letters will do, else with a digest that keeps it apart."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", text):
        return text
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")
    return f"{plain[:40] or 'of'}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def read(source: ResultSource) -> SourceReading:
    """Never raises for what lies there: what can't be read is an entry that says so."""
    try:
        return _results(source) if source.kind == "json" else _run(source)
    except Exception as error:  # foreign bytes: one of a thousand spoils no other
        return _damaged(source, _why(error, source.path))


def journal(folder: Path) -> tuple[SearchContext, tuple[Event, ...]] | None:
    """The context and the events of the run in this folder; None where it has not begun. Raises UserError where the
    journal is damaged."""
    path = folder / JOURNAL
    return _journal(path, (state_of(path), state_of(path.with_name(f"{JOURNAL}-wal"))))


@lru_cache(maxsize=2)
def _journal(path: Path, states: tuple[tuple[int, ...], ...]) -> tuple[SearchContext, tuple[Event, ...]] | None:
    """Kept for as long as its files are in these states: pages of one run are asked for one after the other."""
    with Ledger(path, readonly=True) as ledger:
        context = ledger.context()
        return None if context is None else (context, ledger.events())


def is_judging(event: Event) -> bool:
    move = event.move.move if isinstance(event.move, Within) else event.move
    return isinstance(move, Try)


def run_entry(context: SearchContext, events: Sequence[Event], source: ResultSource) -> Entry:
    told = summary(context, events, candidate_dir="")
    label = "-".join((context.strategy, *context.without))
    task = dict(task_of({**told, "strategy": label}, {}))
    return Entry(
        id=slug(context.run), kind="run", status=str(task["status"]), said=str(task["verdict"]["summary"]),
        group=_parent(source.place), place=source.place, task=task,
        judged=tuple(e.seq for e in events if is_judging(e)), turns=sum(isinstance(e.move, Ask) for e in events),
    )  # fmt: skip


def _run(source: ResultSource) -> SourceReading:
    group = Group(place=_parent(source.place))
    found = journal(source.path) if source.kind == "run" else None
    beside = read_results(source.beside) if source.beside is not None else None
    if found is None:
        if beside is not None:
            return SourceReading(entries=(_task_entry(beside.tasks[0], group.place, source.place),), group=group)
        asked = _asked(source.path) if source.kind == "run" else None
        why = "the run has not begun: its journal holds no search context yet"
        return _damaged(source, why, status="unfinished", asked=asked)
    entry = run_entry(*found, source)
    if beside is not None and entry.status == "unfinished" and beside.tasks[0]["status"] in _CRASHED:
        broken = beside.tasks[0]
        told = {**entry.task, "status": broken["status"], "whose": broken["whose"]}
        entry = replace(entry, status=broken["status"], said=broken["verdict"]["summary"], task=told)
    return SourceReading(entries=(entry,), group=group)


def _results(source: ResultSource) -> SourceReading:
    found: ResultFile | None = read_results(source.path)
    if found is None:
        return SourceReading(entries=(), group=Group(place=source.place))
    alone = len(found.tasks) == 1 and not found.head
    group = Group(place=_parent(source.place) if alone else source.place, head=found.head)
    return SourceReading(entries=tuple(_task_entry(t, group.place, source.place) for t in found.tasks), group=group)


def _task_entry(task: Task, group: str, place: str) -> Entry:
    return Entry(
        id=f"task-{slug(str(task['problem']))}", kind="task", status=str(task["status"]),
        said=str(task["verdict"]["summary"]), group=group, place=place, task=task,
    )  # fmt: skip


def _asked(folder: Path) -> Request | None:
    with Ledger(folder / JOURNAL, readonly=True) as ledger:
        return ledger.request()


def _damaged(
    source: ResultSource, why: str, *, status: str = "damaged", asked: Request | None = None
) -> SourceReading:  # fmt: skip
    """An entry without a result; `asked`: what the run was asked for, where that can be read."""
    name = asked.problem.name if asked else source.place.rpartition("/")[2]
    verdict = {"accepted": False, "stage": "run", "reason": status, "summary": why}
    found = {"problem": name, "status": "unfinished", "verdict": verdict, "machine": {"device": "unknown"}}
    task = dict(task_of({**found, "strategy": asked.strategy if asked else "unknown"}, {}))
    entry = Entry(
        id=f"damaged-{slug(source.place)}", kind="damaged", status=status, said=why, group=_parent(source.place),
        place=source.place, task=task,
    )  # fmt: skip
    return SourceReading(entries=(entry,), group=Group(place=entry.group))


def _why(error: BaseException, path: Path) -> str:
    """Without the folders of the machine that made the site."""
    said = str(error).replace(f"{path}/", "").replace(str(path), path.name).replace(str(path.parent), "")
    return f"can't be read: {said or type(error).__name__}"[:400]


def _parent(place: str) -> str:
    return place.rpartition("/")[0] or place
