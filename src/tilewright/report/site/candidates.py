"""The candidates of a run: what the judge said of each, its code, its profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...facts.candidate import Candidate, SourceFile
from ...facts.move import Compose, Enter, Event, Inspect, Stop, Try, Within
from ...facts.outcome import Inspected, Timed
from ...facts.run import SearchContext
from .. import words
from ..story import Attempt, Story, story
from .folders import CANDIDATE, LIBRARY, code_files

_MOST_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """A line of a profile."""

    name: str
    origin: str
    times: int
    took: str
    share: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    title: str
    lines: tuple[str, ...]
    kernels: tuple[KernelRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCandidate:
    """A candidate that was judged. `judgement`: the story of a run that ended with it; `also`: what else was done with
    it. `copies`: how many files of its code are copies of skeletons. `where`: where the code comes from, "" where it is
    not known."""

    attempt: Attempt
    judgement: Story
    also: tuple[Attempt, ...]
    profiles: tuple[ProfileView, ...]
    files: tuple[SourceFile, ...]
    copies: int
    where: str


def judged(context: SearchContext, events: Sequence[Event], *, folder: Path) -> Iterator[JudgedCandidate]:
    """In order. `folder`: of the run, whose delivered candidate is the code of a recipe that was handed over."""
    context = _undrawn(context)
    told = story(context, events)
    attempts = {a.seq: a for a in told.attempts}
    entered = {e.move.subproblem: e.outcome for e in events if isinstance(e.move, Enter)}
    composed = {e.move.recipe: e.outcome for e in events if isinstance(e.move, Compose)}
    for event in events:
        within = event.move if isinstance(event.move, Within) else None
        move = within.move if within else event.move
        if not isinstance(move, Try):
            continue
        of = entered.get(within.subproblem) if within else context
        same = [e for e in events if e.seq != event.seq and _what(e) == (move.what, within and within.subproblem)]
        written = move.what if isinstance(move.what, Candidate) else composed.get(move.what)
        final = not within and move.what == told.end.best
        files, copies, where = _code(written, folder / CANDIDATE if final else None)
        yield JudgedCandidate(
            attempt=attempts[event.seq],
            judgement=_judgement(_undrawn(of) if isinstance(of, SearchContext) else context, event),
            also=tuple(attempts[e.seq] for e in same if e.seq in attempts),
            profiles=tuple(profile_view(e.outcome) for e in same if isinstance(e.outcome, Inspected)),
            files=files, copies=copies, where=where,
        )  # fmt: skip


def of_the_module(events: Sequence[Event]) -> tuple[ProfileView, ...]:
    """Profiles of the module as it is."""
    found = (e for e in events if isinstance(e.move, Inspect) and e.move.what is None)
    return tuple(profile_view(e.outcome) for e in found if isinstance(e.outcome, Inspected))


def profile_view(found: Inspected) -> ProfileView:
    kernels = tuple(
        KernelRow(
            name=n.name, origin=n.origin, times=n.times, took=words.duration(n.ns),
            share=words.percent(n.ns / found.ns) if found.ns else "",
        )
        for n in found.longest[:_MOST_NAMES]
    )  # fmt: skip
    lines = found.diagnosis.lines() if found.diagnosis else ()
    return ProfileView(title=f"A profiled call: {words.duration(found.ns)}", lines=lines, kernels=kernels)


def _undrawn(context: SearchContext) -> SearchContext:
    """Without its graphs, whose drawing takes most of the time that a story does."""
    return replace(context, cases=tuple(replace(case, graph=None, rewritten=None) for case in context.cases))


def _judgement(context: SearchContext, event: Event) -> Story:
    move = event.move.move if isinstance(event.move, Within) else event.move
    assert isinstance(move, Try)
    best = move.what if isinstance(event.outcome, Timed) else None
    alone = Event(seq=0, move=move, outcome=event.outcome, wall_s=event.wall_s, held=event.held)
    return story(context, (alone, Event(seq=1, move=Stop(best=best, why="judged"), outcome=None, wall_s=0.0)))


def _what(event: Event) -> tuple[object, object]:
    """What a move works on, and within which subproblem."""
    within = event.move if isinstance(event.move, Within) else None
    move = within.move if within else event.move
    return getattr(move, "what", None), within and within.subproblem


def _code(written: object, delivered: Path | None) -> tuple[tuple[SourceFile, ...], int, str]:
    if isinstance(written, Candidate):
        own = tuple(f for f in written.files if not f.path.startswith(f"{LIBRARY}/"))
        first = sorted(own, key=lambda f: (f.path != written.entry, f.path))
        return tuple(first), len(written.files) - len(own), "as the journal has it"
    if delivered is None or delivered.is_symlink() or not delivered.is_dir():
        return (), 0, ""
    paths = code_files(delivered)
    own = tuple(SourceFile(path=p.relative_to(delivered).as_posix(), text=_text(p)) for p in paths)
    copies = sum(1 for p in (delivered / LIBRARY).rglob("*") if p.is_file())
    return own, copies, "as it was handed over, from the folder of the run"


def _text(path: Path) -> str:
    data = path.read_bytes()
    return "(no text)" if b"\0" in data[:4096] else data.decode(errors="replace")
