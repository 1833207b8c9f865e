"""Between a run and the table of realisations: what a context may know of it, and what a run of `fact` adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.discovery import InputStatistics
from ..facts.document import Document
from ..facts.machine import Machine
from ..facts.move import Enter, Event, Stop, Try, Within
from ..facts.outcome import Timed
from ..facts.pattern import Recipe, Subproblem
from ..facts.problem import Problem, Target
from ..facts.realised import Known, Realised, doubt
from ..facts.run import Request, SearchContext
from ..facts.version import VERSION
from ..facts.winner import toolchain
from ..ir.graph import Graph
from ..realise.digests import skeleton_digests
from ..realise.subproblem_code import NotAlone, subproblem_code
from ..search.retrieve import store as table


def known_of_module(problem: Problem, machine: Machine, folder: Path) -> tuple[Known, ...]:
    """What was handed over for this very problem before, if anything was."""
    entry = table.recall(folder, problem.target, problem.digest)
    return (Known(name="", realised=entry, doubt=doubt_of(entry, machine)),) if entry else ()


def vouched(context: SearchContext, candidate: Candidate) -> bool:
    """Whether these very files were handed over before for the whole problem, and what is known of them holds here."""
    whole = [known for known in context.known if known.name == "" and "table" not in context.without]
    return any(not known.doubt and known.realised.candidate == candidate.id for known in whole)


def document_of(entry: Realised) -> Document:
    """An entry as the index finds it; with the code, where a model wrote it."""
    written = entry.what if isinstance(entry.what, Candidate) else None
    code = (
        "".join(f"\n\n{f.path}:\n```\n{f.text}\n```" for f in written.files)
        if written and len(written.files) == 1
        else ""
    )
    return Document(
        kind="realised", name=entry.key, title=entry.title,
        text=f"{entry.title}: {entry.ratio.mid:.2f}x as fast as torch by a {entry.by} on {entry.device}, "
        f"{100 * entry.floor_share:.0f}% of the floor, {entry.found_at}{code}",
    )  # fmt: skip


def doubt_of(entry: Realised, machine: Machine) -> str:
    """Why an entry is not to be trusted on this machine, with these skeletons; "" where it is."""
    return doubt(entry, machine, tilewright=made_by(entry.what, entry.problem.target))


def made_by(what: Candidate | Recipe, target: Target) -> str:
    """Our part of the toolchain that an entry rests on: the version and, where skeletons realise any of it, the digests
    of what makes all kernels of the target."""
    ours = isinstance(what, tuple) and any(choice.written is None for choice in what)
    return " ".join([VERSION, *dict(skeleton_digests(target)).values()]) if ours else VERSION


def known_of_subproblems(
    problem: Problem, graph: Graph, subproblems: Sequence[Subproblem], spreads: Sequence[InputStatistics], *,
    machine: Machine, folder: Path,
) -> Iterator[Known]:  # fmt: skip
    """What was realised before of parts that can be run by themselves."""
    for subproblem in subproblems:
        key = _key(problem, graph, subproblem, spreads)
        entry = table.recall(folder, problem.target, key) if key else None
        if entry is not None:
            yield Known(name=subproblem.name, realised=entry, doubt=doubt_of(entry, machine))


def _key(problem: Problem, graph: Graph, subproblem: Subproblem, spreads: Sequence[InputStatistics]) -> str:
    """Of a subproblem; "" where it can't be run by itself."""
    try:
        return subproblem_code(problem, graph, subproblem, spreads).key
    except NotAlone:
        return ""


def realised_by(context: SearchContext, events: Sequence[Event], stop: Stop, *, journal: str) -> Iterator[Realised]:
    """Of each subproblem the fastest that the judge accepted, if it is not slower than torch, and what is handed
    over."""
    graph = context.cases[0].graph
    entered = {
        e.move.subproblem: e.outcome
        for e in events
        if isinstance(e.move, Enter) and isinstance(e.outcome, SearchContext)
    }
    for subproblem, inside in entered.items():
        key = _key(context.problem, graph, subproblem, context.spreads) if graph is not None else ""
        passed = [
            (e.move.move.what, e.outcome)
            for e in events
            if isinstance(e.move, Within) and e.move.subproblem == subproblem and isinstance(e.move.move, Try)
            and isinstance(e.outcome, Timed) and _is_the_subproblem(context, subproblem, inside, e.move.move.what)
        ]  # fmt: skip
        if key and passed:
            what, timed = max(passed, key=lambda pair: _ratio(pair[1]))
            yield from entry_of(inside, what, timed, key=key, title=subproblem.title, run=context.run, journal=journal)
    tries = (e.outcome for e in reversed(events) if isinstance(e.move, Try) and e.move.what == stop.best)
    whole = next((outcome for outcome in tries if isinstance(outcome, Timed)), None)
    if whole is not None and stop.best is not None:
        key, title = context.problem.digest, context.problem.name
        yield from entry_of(context, stop.best, whole, key=key, title=title, run=context.run, journal=journal)


def entry_of(
    context: SearchContext, what: Candidate | Recipe, timed: Timed, *, key: str, title: str, run: str, journal: str
) -> Iterator[Realised]:
    """What the judge accepted as an entry, unless it is slower than torch beyond noise."""
    ratio, time_ns, worst = timed.ratio("eager"), timed.time("ours"), timed.checked.worst_error
    if ratio is None or time_ns is None or ratio.high < 1.0:
        return
    on = toolchain(context.machine, tilewright=made_by(what, context.problem.target))
    yield Realised(
        key=key, title=title, problem=replace(context.problem, path=""), what=what, model=context.model,
        device=context.machine.device, toolchain=on, ratio=ratio,
        time_ns=time_ns, floor_share=timed.floor_ns / time_ns.mid, error=worst.share if worst else 0.0, run=run,
        journal=journal, found_at=datetime.now(UTC).isoformat(timespec="seconds"),
        candidate=timed.checked.built.candidate_id,
    )  # fmt: skip


def _is_the_subproblem(
    context: SearchContext, subproblem: Subproblem, inside: SearchContext, what: Candidate | Recipe
) -> bool:
    """Whether a recipe of the subproblem's problem is the module's own pattern, so that its point holds there."""
    if isinstance(what, Candidate):
        return True
    here = {p.id: p.same for m in context.matched for p in m.patterns}
    there = {p.id: p.same for m in inside.matched for p in m.patterns}
    return (
        len(what) == 1 and here.get(subproblem.name) is not None and there.get(what[0].pattern) == here[subproblem.name]
    )


def _ratio(timed: Timed) -> float:
    ratio = timed.ratio("eager")
    return ratio.mid if ratio else 0.0


def is_solved(request: Request, whole: tuple[Known, ...]) -> bool:
    """Whether what was handed over for a module before may be trusted, and no model could go further now: then nothing
    of it is measured or compiled but that."""
    known = whole[0] if whole and "table" not in request.without else None
    return known is not None and not known.doubt and (request.model is None or known.realised.model != "")
