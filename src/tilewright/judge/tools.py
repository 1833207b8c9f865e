"""Tools that look at a candidate's kernels in a process of its own, beside its judgement. The candidate is called on
arguments that are recorded for it, anew each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.outcome import Captured, Failure, Inspected, Launches, Sanitized
from ..facts.profile import Question
from . import sanitize as sanitizing
from .build.build import build, failure
from .candidate_process.rerun import RECORDED
from .capture import captured
from .check.check import RefusedByCheck
from .check.plan import secret
from .client import Cell, CellFault
from .discover import LookedInto, looked_into
from .inspect import evaluations, of_the_cpu, seen, summed
from .memories import Case
from .memory.sizes import check_memory_sizes
from .opened import OpenProblem
from .prepare import fill, seat
from .profile.limits import ProfiledCall
from .profiles import ProfileLook, diagnosed, lack
from .wire import messages as wire


def inspected(opened: OpenProblem, candidate: Candidate | None, question: Question) -> Inspected | Failure:
    """What limits a call of the first case, as torch's profiler saw it: of the module (None), or of a candidate, which
    is run again under ncu where that is."""
    if candidate is None:
        with opened.harness_fault():
            return _told(opened, _profiled(opened, opened.reference), None, question)
    with opened.candidate_cell() as cell:
        built = build(candidate, cell, limit_s=opened.options.limits.build_s)
        if isinstance(built, Failure):
            return built
        try:
            with opened.harness_fault(cell):
                return _told(opened, _profiled(opened, cell), candidate, question)
        except CellFault as fault:
            return failure("timing", fault)


def _profiled(opened: OpenProblem, cell: Cell) -> wire.Profiled:
    opened.cells.spares.settle()
    case = opened.cases[0]
    with opened.turns.turn("profiling"), opened.memories.memory(case, sizes=check_memory_sizes) as memory:
        if cell is opened.reference:
            fill(memory, secret(opened.rng))
        else:
            seat(opened.check(memory, cell, case), construct_seed=case.seed, seed=secret(opened.rng))
        return seen(cell, memory)


def _told(opened: OpenProblem, found: wire.Profiled, candidate: Candidate | None, question: Question) -> Inspected:
    target, case = opened.problem.target, opened.cases[0]
    launches = Launches(count=found.launches, cost_ns=found.launch_ns) if found.launches else None
    told = summed(found.spent, target=target, launches=launches)
    call = ProfiledCall(opened.machine, case.described.work, max(told.ns, 1.0), special=evaluations(case.facts.graph))
    if target == "cpu":
        return of_the_cpu(told, call)
    why = lack(case.described)
    if candidate is None or why:
        known = diagnosed(None, found.spent, call, launches)
        return replace(told, diagnosis=replace(known, notes=(why,) if why else ()))
    with (
        opened.cells.folder("profile") as folder, opened.cells.folder("reports") as reports,
        opened.turns.turn("profiling"),
    ):  # fmt: skip
        look = ProfileLook(
            job=recorded_job(opened, candidate, case, folder), reports=reports, question=question, say=opened.say
        )
        return replace(told, diagnosis=diagnosed(look, found.spent, call, launches))


def sanitized(opened: OpenProblem, candidate: Candidate) -> Sanitized | Failure:
    """What is seen of the candidate's use of memory on the smallest case, by compute-sanitizer, or on a CPU by guard
    pages; what can't be had is noted."""
    case, target = opened.smallest, opened.problem.target
    if lacking := sanitizing.lack(case.described, target):
        return Sanitized(clean=(), notes=(lacking,))
    options = opened.options
    limit_s = sanitizing.limit_s(options.time.whole_s)
    if not limit_s:
        why = f"memory was not watched: {sanitizing.SHARE:.0%} of a budget of {options.time.whole_s:.0f} s is too short"
        return Sanitized(clean=(), notes=(f"{why}; `tilewright evaluate --sanitize` does it",))
    tools = (sanitizing.MEMCHECK, sanitizing.RACECHECK) if options.racecheck else (sanitizing.MEMCHECK,)
    with opened.cells.folder("sanitizer") as folder, opened.turns.turn("watching memory"):
        job = replace(recorded_job(opened, candidate, case, folder), tools=tools, limit_s=limit_s / len(tools))
        return sanitizing.watched(job, target=target, say=opened.say)


def graph_captured(opened: OpenProblem, candidate: Candidate, *, compiled: Sequence[Path]) -> Captured | Failure:
    """The candidate's call on the first case as a CUDA graph, and the module's; their cells end with it."""
    try:
        with opened.candidate_cell(compiled) as cell:
            built = build(candidate, cell, limit_s=opened.options.limits.build_s, compiled=compiled)
            return built if isinstance(built, Failure) else _graph_captured(opened, cell)
    finally:
        opened.cells.renew_reference()


def _graph_captured(opened: OpenProblem, cell: Cell) -> Captured | Failure:
    case, found = opened.cases[0], None
    opened.cells.spares.settle()
    try:
        with opened.turns.turn("CUDA graphs"), opened.memories.memory(case, sizes=check_memory_sizes) as memory:
            check = opened.check(memory, cell, case)
            seat(check, construct_seed=case.seed, seed=secret(opened.rng))
            found = captured(check, opened.reference, machine=opened.machine, rng=opened.rng)
    except RefusedByCheck as refused:
        return refused.failure
    except CellFault as fault:
        if fault.source == cell.plan.name:
            return failure("check", fault)
        if found is None:  # else the reference's cell could not be tidied up, and ends anyway
            raise
    return found


def look_into(opened: OpenProblem) -> LookedInto | None:
    """What the first case spends its time in; see `discover.looked_into`."""
    seed = secret(opened.rng)
    with opened.turns.turn("discovering"), opened.memories.memory(opened.cases[0], sizes=check_memory_sizes) as memory:
        return looked_into(
            opened.problem, memory=memory, reference=opened.reference, machine=opened.machine, seed=seed, say=opened.say
        )


def recorded_job(opened: OpenProblem, candidate: Candidate, case: Case, folder: Path) -> sanitizing.SanitizerJob:
    """What judge.candidate_process.rerun is to run; what the candidate is called with lies in the folder then."""
    with opened.memories.memory(case, sizes=check_memory_sizes) as memory:
        memory.state.take()
        memory.sets.draw(0, family="own", seed=secret(opened.rng))
        memory.record(0, folder / RECORDED)
    return sanitizing.SanitizerJob(
        candidate=candidate, described=case.described, folder=folder, seed=case.seed,
        environment=opened.problem.environment,
    )  # fmt: skip
