"""Tools that look at a candidate's kernels in a process of its own, beside its judgement. The candidate is called on
arguments that are recorded for it, anew each time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.machine import Machine
from ..facts.outcome import Captured, Failure, Inspected, Launches, NamedTime, Sanitized
from ..facts.problem import Target
from ..facts.profile import KernelProfile, Measure, Question
from ..ir.graph import Graph
from ..ir.program import TRANSCENDENTAL
from . import sanitize as sanitizing
from .build.build import build, failure
from .candidate_process.rerun import RECORDED
from .check.check import Check, RefusedByCheck
from .check.plan import OWN, Trial, secret
from .client import Cell, CellFault
from .discover import LookedInto, looked_into
from .memories import Case
from .memory.case_memory import CaseMemory
from .memory.sizes import check_memory_sizes, flush_bytes
from .opened import OpenProblem
from .prepare import fill, seat
from .profile.changes import of_operators
from .profile.limits import ProfiledCall
from .profile.origins import origin
from .profiles import ProfileLook, diagnosed, lack
from .timing.statistics import ratio_interval, time_interval
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


# ---- A candidate as users may run it: recorded as a CUDA graph, filled anew, and replayed beside the module itself

_ROUNDS = 9
_BURST = 5  # replays of one side, before the other's turn


def captured(check: Check, reference: Cell, *, machine: Machine, rng: random.Random) -> Captured:
    """Of a candidate that sits in the case memory of its check with inputs in slot 0. Raises Refused where a replay on
    other inputs is wrong, and CellFault("not_capturable") where the candidate's call can't be recorded. The
    reference's cell is good for nothing else afterwards."""
    memory = check.memory
    limit_s = memory.limits.call_s
    args, slot, own = memory.described.args, memory.sets.slot(0), memory.sets.inputs_at(0)
    check.cell.do(wire.RecordGraph(args=args, inputs=slot), limit_s=limit_s)
    _require_right(check, rng)
    why = ""
    try:
        reference.do(wire.RecordGraph(args=args, inputs=own), limit_s=limit_s)
    except CellFault as fault:  # its cell ends with this, whatever became of it
        why = fault.summary
    sides = {"ours": (check.cell, slot)} | ({} if why else {"eager": (reference, own)})
    bursts: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
    for _ in range(_ROUNDS):
        for name in rng.sample(sorted(sides), len(sides)):
            cell, inputs = sides[name]
            request = wire.ReplayGraph(inputs=inputs, times=_BURST, flush_bytes=flush_bytes(machine))
            bursts[name].append(cell.ask(request, wire.GraphReplayed, limit_s=limit_s).ns)
    ours, eager = bursts["ours"], bursts.get("eager")
    if eager is None:
        return Captured(ours_ns=time_interval(ours), eager_ns=None, ratio=None, why=why)
    return Captured(ours_ns=time_interval(ours), eager_ns=time_interval(eager), ratio=ratio_interval(eager, ours))


def _require_right(check: Check, rng: random.Random) -> None:
    """Inputs that the recorded call never saw, a replay, and its result held against the truth; not where calls draw
    random numbers or move the module's state."""
    memory = check.memory
    trial = Trial(case=check.case, family=OWN, seed=secret(rng), redraw=0, draws=secret(rng))
    memory.sets.draw(0, family=OWN, seed=trial.seed)
    if memory.described.random or memory.described.mutated_state:
        memory.sets.place(0, 0)
        return
    usable = check.usable(trial, memory.truths.run(0, seed=trial.draws).exact)
    memory.sets.place(0, 0)
    request = wire.ReplayGraph(inputs=memory.sets.slot(0), times=1)
    seen = check.cell.ask(request, wire.GraphReplayed, limit_s=memory.limits.call_s)
    check.accept(wire.Called(outputs_tree=seen.outputs_tree, outputs=seen.outputs))
    check.fetch(tag=0, place=0)
    if usable:
        check.compare(trial, 0, " of a replayed CUDA graph")


# ---- What a call spends its time in, by torch's profiler: kernel by kernel, or on the CPU operator by operator

_MOST = 30  # names told of
_MOST_OPERATORS = 8  # of which evidence is given


def seen(cell: Cell, memory: CaseMemory) -> wire.Profiled:
    """One call on what lies in slot 0, of the module that `cell` holds, after one that warms up. Raises CellFault."""
    request = wire.Profile(args=memory.described.args, inputs=memory.sets.slot(0), launches=True)
    for _ in range(2):
        found = cell.ask(request, wire.Profiled, limit_s=memory.limits.call_s)
    return found


def summed(spent: Sequence[wire.SpentClocks], *, target: Target, launches: Launches | None = None) -> Inspected:
    """The entries added up by name, the longest first."""
    found: dict[str, list[float]] = {}
    for entry in spent:
        found.setdefault(entry.name, []).append(entry.ns)
    named = [NamedTime(name=name, origin=origin(name, target), times=len(ns), ns=sum(ns)) for name, ns in found.items()]
    named.sort(key=lambda n: -n.ns)
    total = sum(n.ns for n in named)
    return Inspected(longest=tuple(named[:_MOST]), kinds=len(named), ns=total, launches=launches)


def evaluations(graph: Graph | None) -> int:
    """Of transcendental functions, in one call of a module; 0 where it could not be traced."""
    return sum(prod(node.shape) for node in graph.nodes if node.op in TRANSCENDENTAL) if graph is not None else 0


def operators(found: Inspected, call: ProfiledCall) -> tuple[KernelProfile, ...]:
    """Torch's operators in the form in which kernels are told of."""
    return tuple(
        KernelProfile(
            name=n.name, origin=n.origin, source="operators", times=n.times, ns=n.ns, limit="unknown",
            evidence=(Measure(name="share of the call", value=100 * n.ns / call.ns, unit="%"),),
        )
        for n in found.longest[:_MOST_OPERATORS]
    )  # fmt: skip


def of_the_cpu(found: Inspected, call: ProfiledCall) -> Inspected:
    """With what limits a call on the CPU."""
    return replace(found, diagnosis=of_operators(operators(found, call), call))
