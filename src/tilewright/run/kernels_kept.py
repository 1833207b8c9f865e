"""What a model wrote and won with: kept under what it computes, and found again as one more realisation of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.discovery import InputStatistics
from ..facts.machine import Machine
from ..facts.move import Event, Stop, Try
from ..facts.outcome import Timed
from ..facts.pattern import Choice, Pattern, Recipe, Region, Subproblem, Written, alike, subproblem_of
from ..facts.problem import Problem
from ..facts.realised import Known, Realised
from ..facts.run import CaseFacts, Matched, Request, SearchContext
from ..facts.winner import toolchain
from ..ir.graph import Graph
from ..realise.subproblem_code import NotAlone, SubproblemCode, arguments, plain_statistics, subproblem_code
from ..realise.written.of_a_region import region_of_all, standing_alone
from ..search.retrieve import store as table
from ..search.strategies import PARTS
from .realisations import entry_of, made_by

_MOST_KEPT = 4  # of one module: each costs a judgement


def takes_kept(request: Request) -> bool:
    """Whether a strategy takes what models wrote before."""
    return "table" in PARTS.get(request.strategy, ()) and "table" not in request.without


def keep(folder: Path, entry: Realised, machine: Machine) -> str:
    """As the table's `remember`, but for an entry that is no better than what is trusted there."""
    old = table.recall(folder, entry.problem.target, entry.key)
    if old is not None and old.device == machine.device and old.toolchain == entry.toolchain and old.judged:
        least = old.ratio.low if entry.judged else old.ratio.high
        if least >= entry.ratio.high or (not entry.judged and old.ratio.high >= entry.ratio.low):
            return ""
    return table.remember(folder, entry)


def kernels_won(context: SearchContext, events: Sequence[Event], stop: Stop, *, journal: str) -> Iterator[Realised]:
    """What a model wrote and is handed over: for the whole problem, and for the same computation in other modules."""
    tries = (e.outcome for e in reversed(events) if isinstance(e.move, Try) and e.move.what == stop.best)
    timed = next((outcome for outcome in tries if isinstance(outcome, Timed)), None)
    if not isinstance(stop.best, Candidate) or stop.best.by != "model" or timed is None:
        return
    known = next((k.realised for k in context.known if k.name == "" and k.realised.what == stop.best), None)
    told = replace(context, model=context.model or (known.model if known else ""))
    key, title = context.problem.digest, context.problem.name
    yield from entry_of(told, stop.best, timed, key=key, title=title, run=context.run, journal=journal)
    if context.problem.mode != "inference":
        return
    for subproblem in _all_of_it(context.cases[0], context.matched):
        code = _code(context.problem, context.cases[0].graph, subproblem, context.spreads)
        graph = context.cases[0].graph
        kernel = standing_alone(stop.best, context.problem, graph, subproblem.region) if graph else None
        if code is None or kernel is None:
            continue
        alone = entry_of(told, kernel, timed, key=code.key, title=subproblem.title, run=context.run, journal=journal)
        for entry in alone:
            yield replace(
                entry, problem=replace(code.problem, path=""), judged=False, candidate="",
                shape_class=code.shape_class,
            )  # fmt: skip


def kernels_kept(
    problem: Problem, cases: Sequence[CaseFacts], matched: Sequence[Matched], *, machine: Machine, folder: Path
) -> Recipe:
    """For each region of the main case that a pattern computes, and for all of it, the kernel that a model wrote for
    such a region: the one of these shapes, or else of this shape class, whichever device it was judged on. Each is to
    be judged like any other choice."""
    graph, entries = cases[0].graph, [e for e in table.entries(folder) if isinstance(e.what, Candidate)]
    mine = [e for e in entries if e.by == "model" and e.problem.target == problem.target]
    if graph is None or not mine or problem.mode != "inference":
        return ()
    found: list[Choice] = []
    patterns = {p.id: p for p in matched[0].patterns}
    for subproblem in (*map(subproblem_of, patterns.values()), *_all_of_it(cases[0], matched)):
        entry = _fitting(mine, _code(problem, graph, subproblem, ()))
        regions = _regions(graph, patterns.get(subproblem.name), subproblem.region)
        there = {c.written.regions[0].outputs for c in found if c.written is not None}
        if entry is None or regions[0].outputs in there:
            continue
        assert isinstance(entry.what, Candidate)
        title = f"{subproblem.title}, by {entry.model or 'an agent'}, {entry.found_at[:10]}"
        written = Written(title=title, candidate=entry.what, regions=regions)
        found.append(Choice(pattern=f"kept_{len(found)}", point=(), written=written))
    return tuple(found[:_MOST_KEPT])


def kept_whole(problem: Problem, machine: Machine, folder: Path) -> tuple[Known, ...]:
    """What a model wrote for this very problem, if it was judged on such a device."""
    entry = table.recall(folder, problem.target, problem.digest)
    if entry is None or not isinstance(entry.what, Candidate) or entry.device != machine.device:
        return ()
    now = toolchain(machine, tilewright=made_by(entry.what, problem.target))
    return (Known(name="", realised=entry, doubt="" if entry.toolchain == now else "judged with another toolchain"),)


def _fitting(entries: Sequence[Realised], code: SubproblemCode | None) -> Realised | None:
    """The newest of this key, or else of this shape class."""
    if code is None:
        return None
    exact = [e for e in entries if e.key == code.key]
    near = [e for e in entries if code.shape_class and e.shape_class == code.shape_class]
    return max(exact or near, key=lambda e: e.found_at, default=None)


def _regions(graph: Graph, pattern: Pattern | None, region: Region) -> tuple[Region, ...]:
    return alike(graph, pattern) if pattern is not None else (region,)


def _all_of_it(case: CaseFacts, matched: Sequence[Matched]) -> Iterator[Subproblem]:
    """All that the main case computes, as a region; and as the region of a pattern that computes all of it."""
    whole = region_of_all(case.graph) if case.graph is not None else None
    if whole is None or case.graph is None:
        return
    yield Subproblem(name="whole", title="; ".join(p.title for p in matched[0].patterns) or "the module", region=whole)
    for pattern in matched[0].patterns:
        subproblem = subproblem_of(pattern)
        if len(pattern.matches) == 1 and set(subproblem.region.outputs) == set(whole.outputs):
            yield subproblem


def _code(
    problem: Problem, graph: Graph | None, subproblem: Subproblem, spreads: Sequence[InputStatistics]
) -> SubproblemCode | None:
    """None where the subproblem can't be run by itself."""
    if graph is None:
        return None
    try:
        plain = plain_statistics(graph, arguments(graph, subproblem.region))
        seen = {s.node: s for s in (*plain, *spreads)}
        return subproblem_code(problem, graph, subproblem, tuple(seen.values()))
    except NotAlone:
        return None
