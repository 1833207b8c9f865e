"""Discover: run a module's main case operator by operator, match it, and say what each pattern could win."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..edges.gpu.lease import lease
from ..facts import codec
from ..facts.devices import device_of
from ..facts.discovery import Discovery, InputStatistics, Replayed
from ..facts.errors import UserError
from ..facts.machine import Machine
from ..facts.pattern import Choice, Pattern, without_idle
from ..facts.problem import Problem, Target
from ..facts.rule import rule_of
from ..fusion import explained
from ..ir.graph import Graph
from ..realise.case_code import plain_steps
from ..realise.table import realisers
from ..search.discover import call_floors, parts
from ..search.retrieve import rules
from .cells import LOAD_LIMIT_S, Cells, users_fault
from .check.plan import secret
from .client import Cell, CellFault, CellLimits
from .memories import describe
from .memory.case_memory import CaseMemory
from .memory.places import CaseMemorySizes
from .memory.sizes import flush_bytes
from .wire import messages as wire

BUDGET_S = 4.0
_LIMIT_S = 300.0
_MOST_ROUNDS = 15


def discover(
    problem: Problem, *, machine: Machine, seed: int, workdir: Path, say: Callable[[str], None],
    budget_s: float = BUDGET_S,
) -> Discovery:  # fmt: skip
    """Of the first case, in inference; no round of timing is begun after `budget_s`. Raises UserError for what is wrong
    with the problem file, for a module that can't be traced, or one too large for the device."""
    problem = replace(problem, mode="inference")
    threads = machine.processors if problem.target == "cpu" else 0
    cells = Cells(problem, workdir=workdir, threads=threads, limits=CellLimits(), say=say)
    try:
        with users_fault(problem):
            reference = cells.open()
            reference.wait_ready()
            reference.do(cells.load_problem(starts="tracer"), limit_s=LOAD_LIMIT_S)
            device = "cuda:0" if problem.target == "cuda" else "cpu"
            turn = partial(_turn, device=device, since_ns=time.time_ns(), say=say)
            return discovered(
                problem, machine=machine, reference=reference, seed=seed, budget_s=budget_s, turn=turn
            )  # fmt: skip
    finally:
        cells.close()


@contextmanager
def _turn(name: str, *, device: str, since_ns: int, say: Callable[[str], None]) -> Iterator[None]:
    """The device for the block; says what it was waited for and held."""
    asked = time.monotonic()
    with lease(device, say, since_ns=since_ns):
        began = time.monotonic()
        yield
    say(f"{name}: held {device} for {time.monotonic() - began:.2f} s, after {began - asked:.2f} s")


def discovered(
    problem: Problem, *, machine: Machine, reference: Cell, seed: int, budget_s: float = BUDGET_S,
    turn: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
) -> Discovery:  # fmt: skip
    """The same in a reference cell that has loaded the problem. The device is taken in turns, and let go while a module
    for a GPU is traced and matched, which takes the processors alone."""
    rng = random.Random(seed)
    described = describe(
        problem, reference, number=0, seeds=(secret(rng), secret(rng)), trace=True, turn=turn("describing"),
        let_go=partial(reference.do, wire.Drop()),
    )  # fmt: skip
    if not described.graph:
        raise UserError(f"{problem.path}: {problem.name} can't be traced: {described.trace_failure}")
    graph: Graph = codec.loads(described.graph)
    with turn("operators one by one"), _memory(problem, described, reference) as memory:
        memory.sets.draw(0, family="own", seed=secret(rng))
        replay = _replayed(problem, graph, memory, reference, machine=machine, budget_s=budget_s)
    return _told(problem, graph, replay, machine=machine, floor_ns=machine.floor_ns(described.work))


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedInto:
    """A discovery, and what the values of the graph look like."""

    discovery: Discovery
    spreads: tuple[InputStatistics, ...]


def looked_into(
    problem: Problem, *, memory: CaseMemory, reference: Cell, machine: Machine, seed: int, say: Callable[[str], None],
    budget_s: float = BUDGET_S,
) -> LookedInto | None:  # fmt: skip
    """The same of a case whose room is open; None where it is not traced, or its operators don't run by themselves."""
    if not memory.described.graph:
        return None
    graph: Graph = codec.loads(memory.described.graph)
    memory.sets.draw(0, family="own", seed=seed)
    try:
        replay = _replayed(problem, graph, memory, reference, machine=machine, budget_s=budget_s)
        plain = plain_steps(graph, target=memory.device)
        request = wire.Observe(
            args=memory.described.args, inputs=memory.sets.inputs_at(0), parameters=plain.parameters, steps=plain.steps,
            values=plain.values,
        )  # fmt: skip
        spreads = reference.ask(request, wire.Observed, limit_s=_LIMIT_S).spreads
    except CellFault as fault:
        if not (fault.by_code and reference.alive):
            raise
        say(f"nothing is known of its parts: {fault.summary}")
        return None
    floor_ns = machine.floor_ns(memory.described.work)
    return LookedInto(discovery=_told(problem, graph, replay, machine=machine, floor_ns=floor_ns), spreads=spreads)


def _told(problem: Problem, graph: Graph, replay: Replayed, *, machine: Machine, floor_ns: float) -> Discovery:
    make = realisers(device_of(machine))
    matched, left = explained(graph, unsupported=make.unsupported, space=make.space, allow_tf32=problem.allow_tf32)
    every = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched.patterns)
    busy = {choice.pattern for choice in without_idle([matched.patterns], every)}
    patterns = tuple(p for p in matched.patterns if p.id in busy)
    return Discovery(
        problem=problem.name, target=problem.target, device=machine.device, graph=graph, patterns=patterns,
        replay=replay, floors_ns=call_floors(replay, machine), floor_ns=floor_ns,
        parts=parts(
            graph, patterns, left, replay=replay, machine=machine, rule=partial(_realised, target=problem.target)
        ),
    )  # fmt: skip


def _realised(pattern: Pattern, *, target: Target) -> str:
    """The rule that a pattern is of, and its skeleton."""
    rule = rule_of(rules(), pattern)
    by = rule.on(target) if rule is not None else None
    return f"{rule.name}: {by.skeleton}" if rule is not None and by is not None else pattern.kind


@contextmanager
def _memory(problem: Problem, described: wire.Described, reference: Cell) -> Iterator[CaseMemory]:
    """For the case that was described, with one set of inputs."""
    try:
        sizes = CaseMemorySizes(pool=1, slots=0, results=0)
        memory = CaseMemory(described, device=problem.target, reference=reference, limits=CellLimits(), sizes=sizes)
    except (MemoryError, RuntimeError, OSError) as error:
        raise UserError(f"{problem.path}: too large to run on this device: {error}") from error
    with memory:
        yield memory


def _replayed(
    problem: Problem, graph: Graph, memory: CaseMemory, reference: Cell, *, machine: Machine, budget_s: float
) -> Replayed:
    plain = plain_steps(graph, target=memory.device)
    request = wire.Replay(
        args=memory.described.args, inputs=memory.sets.inputs_at(0), parameters=plain.parameters, steps=plain.steps,
        flush_bytes=flush_bytes(machine), most_rounds=_MOST_ROUNDS, budget_s=budget_s,
    )  # fmt: skip
    found = reference.ask(request, wire.Replayed, limit_s=_LIMIT_S)
    return replace(found, calls=tuple(replace(c, work=problem.allowed(c.work)) for c in found.calls))
