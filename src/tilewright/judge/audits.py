"""Audit: is this a task on which a score means anything? The module alone is run; nothing is judged but the task.

First on the problem's own inputs and the state as constructed, as others would judge it; then, for what passes there,
on normal inputs and re-drawn state, which this judge uses too.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..edges.gpu.lease import lease
from ..facts.audit import MOST, Audit, DegenerateSolution, Figures
from ..facts.errors import UserError
from ..facts.machine import Machine
from ..facts.problem import Problem, Target
from .audit import findings
from .cells import Cells, users_fault
from .check import metric
from .check.plan import secret
from .client import Cell, CellLimits
from .degenerate import PLACE, DegenerateSolver, Way, commonest
from .memory.case_memory import CaseMemory
from .memory.places import CaseMemorySizes
from .memory.sizes import flush_bytes
from .wire import messages as wire

BUDGET_S = 60.0  # for the ways to degenerate_solution; what is left then is counted
_LIMIT_S = 300.0
_WARM, _TIMED = 2, 7  # calls
_BLOCK = 1 << 25
_STREAM_ELEMENTS = 4096
_LEAST_STREAM = 64


def audit(
    problem: Problem, *, machine: Machine, seed: int, workdir: Path, say: Callable[[str], None],
    budget_s: float = BUDGET_S,
) -> Audit:  # fmt: skip
    """Audit the first case, in inference. Raises UserError for what is wrong with the problem file, or too
    large for the device."""
    started = time.monotonic()
    problem = replace(problem, mode="inference")
    rng = random.Random(seed)
    threads = machine.processors if problem.target == "cpu" else 0
    cells = Cells(problem, workdir=workdir, threads=threads, limits=CellLimits(), say=say)
    try:
        with users_fault(problem):
            reference = cells.open()
            reference.wait_ready()
            _start_device(problem.target)
            asked = time.monotonic()
            with lease("cuda:0" if problem.target == "cuda" else "cpu", say):
                waited_s = time.monotonic() - asked
                reference.do(cells.load_problem(), limit_s=_LIMIT_S)
                figures = figures_of(problem, machine=machine, reference=reference, rng=rng, budget_s=budget_s)
    finally:
        cells.close()
    return Audit(
        problem=problem.name, target=problem.target, device=machine.device, figures=figures,
        findings=findings(figures, problem.target), seconds=time.monotonic() - started, waited_s=waited_s,
        stations_s=tuple(sorted(reference.spent_s.items(), key=lambda s: -s[1])),
    )  # fmt: skip


def _start_device(target: Target) -> None:
    """Bring this process's part of the device up while others still measure."""
    if target == "cuda":
        torch.zeros(1, device="cuda")


def figures_of(
    problem: Problem, *, machine: Machine, reference: Cell, rng: random.Random, budget_s: float = BUDGET_S
) -> Figures:
    """All measurements, in a reference cell that has loaded the problem."""
    return _Bench(problem, machine, reference, rng).figures(budget_s)


@dataclass(frozen=True, slots=True)
class _Truth:
    """What the module itself gives: by output its error and what the contract allows, and what may be believed."""

    own: tuple[metric.Distance, ...]
    allowed: tuple[tuple[float, float], ...]
    exact: bool
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        return _bounded(max(d.norm for d in self.own))


class _Bench:
    """The measurements of one problem, with its module in the reference's cell."""

    def __init__(self, problem: Problem, machine: Machine, reference: Cell, rng: random.Random) -> None:
        self._problem, self._machine, self._reference, self._rng = problem, machine, reference, rng

    def figures(self, budget_s: float) -> Figures:
        state_seed, inputs_seed = secret(self._rng), secret(self._rng)
        self._reference.ask(wire.ConstructCase(case=0, seed=state_seed), wire.Constructed, limit_s=_LIMIT_S)
        request = wire.Describe(seed=inputs_seed, trace=False)
        described = self._reference.ask(request, wire.Described, limit_s=_LIMIT_S)
        with self._memory(described) as memory:
            memory.state.take()
            memory.sets.draw(0, family="own", seed=inputs_seed)
            memory.sets.draw(1, family="own", seed=state_seed)
            stream = _stream(memory)
            memory.sets.draw(1, family="own", seed=secret(self._rng))
            truth = self._truth(memory, inputs_seed)
            degenerate_solver = DegenerateSolver(memory, self._reference, seed=inputs_seed)
            plain = self._plain(memory, truth, operations=len(degenerate_solver.operations), stream=stream)
            degenerate_solutions, unmeasured = self._degenerate_solutions(memory, degenerate_solver, truth, budget_s)
            if any(s.passes for s, _ in degenerate_solutions) and not described.random:
                self._judged(memory, degenerate_solutions)
        return replace(plain, degenerate_solutions=tuple(s for s, _ in degenerate_solutions), unmeasured=unmeasured)

    def _memory(self, described: wire.Described) -> CaseMemory:
        try:
            sizes = CaseMemorySizes(pool=2, slots=0, results=1)
            return CaseMemory(
                described, device=self._problem.target, reference=self._reference, limits=CellLimits(), sizes=sizes
            )
        except (MemoryError, RuntimeError, OSError) as error:
            raise UserError(f"{self._problem.path}: too large to audit on this device: {error}") from error

    # ---- the truth

    def _truth(self, memory: CaseMemory, seed: int) -> _Truth:
        """Run the module and, where there is one, its float64 truth on pool set 0."""
        facts = memory.truths.run(0, seed=seed)
        exact, notes = facts.exact, () if facts.exact else (f"no float64 truth ({facts.why_not})",)
        pairs = list(zip(memory.truths.own(), memory.truths.truth(), strict=True))
        strange = exact and any(metric.differing_specials(own, truth) for own, truth in pairs)
        if strange or (exact and memory.described.random):
            memory.truths.doubt()
            exact, notes = False, ("in float64 the module gives something else (random, or out of range)",)
        distances = tuple(metric.distance(own, truth, own) for own, truth in pairs)
        precision, length = self._problem.precision, memory.described.longest_sum
        allowed = tuple(
            metric.allowance(own.dtype, (found.norm, found.worst), precision, length=length)
            for found, (own, _) in zip(distances, pairs, strict=True)
        )
        return _Truth(distances, allowed, exact, notes)

    def _limit(self, memory: CaseMemory) -> float:
        """The module's own error beyond which it is noise."""
        return min(1.0, *(metric.hopeless(o.dtype) for o in memory.truths.own()))

    # ---- the module as it is

    def _plain(self, memory: CaseMemory, truth: _Truth, *, operations: int, stream: float) -> Figures:
        main = max(memory.truths.own(), key=lambda t: t.numel())
        scale, spread = _scale(main)
        value, share = commonest(main)
        described = memory.described
        eager_ns = self._eager_ns(memory)
        return Figures(
            outputs=len(described.outputs), scale=scale, spread=spread, equal_share=share,
            commonest=_bounded(float(value.real)), own_error=truth.error, own_limit=self._limit(memory),
            exact=truth.exact, random=described.random, degenerate_solutions=(), unmeasured=0, operations=operations,
            cases=len(self._problem.cases), input_shift=_shift(memory), stream=stream, eager_ns=eager_ns,
            floor_ns=self._machine.floor_ns(described.work), notes=truth.notes,
        )  # fmt: skip

    def _eager_ns(self, memory: CaseMemory) -> float:
        """The best of a few calls with cold caches: enough to tell twenty floors from one."""
        self._reference.do(wire.Deal(args=memory.described.args, slots=(memory.sets.inputs_at(0),)))
        samples = []
        for _ in range(_TIMED):
            self._reference.do(wire.Clear(flush_bytes=flush_bytes(self._machine)))
            request = wire.TimedCall(slot=0, swaps=())
            samples.append(self._reference.ask(request, wire.Tick, limit_s=_LIMIT_S).ns)
        self._reference.ask(wire.HoldTimed(), wire.Called, limit_s=_LIMIT_S)
        self._reference.do(wire.Drop())
        memory.state.give()
        return min(samples[_WARM:])

    # ---- shirking

    def _degenerate_solutions(
        self, memory: CaseMemory, degenerate_solver: DegenerateSolver, truth: _Truth, budget_s: float
    ) -> tuple[list[tuple[DegenerateSolution, Way]], int]:
        found: list[tuple[DegenerateSolution, Way]] = []
        unmeasured = 0
        deadline = time.monotonic() + budget_s
        for way in degenerate_solver.ways():
            if time.monotonic() > deadline:
                unmeasured += 1
            elif (degenerate_solution := self._measured(memory, way, truth)) is not None:
                found.append((degenerate_solution, way))
        return found, unmeasured

    def _measured(self, memory: CaseMemory, way: Way, truth: _Truth) -> DegenerateSolution | None:
        """The way's figures; None where it can't be gone."""
        if not way.fill():
            return None
        memory.settle()
        errors = [
            _error(value, t, own, allowed)
            for value, t, own, allowed in zip(
                memory.results(PLACE), memory.truths.truth(), memory.truths.own(), truth.allowed, strict=True
            )
        ]
        share, norm = max(errors)
        allow_tf32 = max(
            _allow_tf32(value, own) for value, own in zip(memory.results(PLACE), memory.truths.own(), strict=True)
        )
        part = way.output >= 0
        return DegenerateSolution(
            kind=way.kind, name=way.name, share=share, norm=norm, allow_tf32=allow_tf32, part=part, heavy=way.heavy
        )

    def _judged(self, memory: CaseMemory, degenerate_solutions: list[tuple[DegenerateSolution, Way]]) -> None:
        """Try what passes on the judge's own inputs and weights, where the module makes sense of them."""
        self._reference.do(wire.Redraw(seed=secret(self._rng)))
        memory.state.take()
        for k in (0, 1):
            memory.sets.draw(k, family="normal", seed=secret(self._rng))
        truth = self._truth(memory, secret(self._rng))
        if truth.error > self._limit(memory):
            return
        for i, (degenerate_solution, way) in enumerate(degenerate_solutions):
            if degenerate_solution.passes and (again := self._measured(memory, way, truth)) is not None:
                degenerate_solutions[i] = replace(degenerate_solution, judged_share=again.share), way


def _error(value: Tensor, truth: Tensor, own: Tensor, allowed: tuple[float, float]) -> tuple[float, float]:
    """(share of the allowance, error in the norm) of one output, as the judge's check has them before any appeal."""
    with metric.calm(value):
        found = metric.distance(value, truth, own)
    if found.misplaced:
        return MOST, _bounded(found.norm)
    shares = [
        got / most if most else (math.inf if got else 0.0)
        for got, most in zip((found.norm, found.worst), allowed, strict=True)
    ]
    return _bounded(max(shares)), _bounded(found.norm)


def _allow_tf32(value: Tensor, own: Tensor) -> float:
    """The least tolerance, relative and absolute, at which allclose holds."""
    most = 0.0
    flat, mine = value.reshape(-1), own.reshape(-1)
    for start in range(0, flat.numel(), _BLOCK):
        a, b = (t[start : start + _BLOCK] for t in (flat, mine))
        a, b = (t if t.is_complex() else t.double() for t in (a, b))
        gap = torch.where(a == b, 0.0, (a - b).abs() / (1 + b.abs()))
        most = max(most, float(torch.where(a.isnan() & b.isnan(), 0.0, gap).nan_to_num(MOST, MOST).max()))
    return _bounded(most)


def _scale(tensor: Tensor) -> tuple[float, float]:
    """Root mean square, and standard deviation relative to it."""
    if not tensor.is_floating_point():
        tensor = tensor.abs().float() if tensor.is_complex() else tensor.float()
    deviation, mean = torch.std_mean(tensor.float(), correction=0)
    scale = math.hypot(float(deviation), float(mean))
    return _bounded(scale), _bounded(float(deviation) / scale) if scale else 0.0


def _shift(memory: CaseMemory) -> float:
    """How far mean and deviation of any input move between two seeds, relative to the deviation."""
    most = 0.0
    for a, b in zip(memory.sets.inputs(0), memory.sets.inputs(1), strict=True):
        if a.is_floating_point() and a.numel() > 1:
            (deviation, mean), (other_deviation, other_mean) = (torch.std_mean(t.float(), correction=0) for t in (a, b))
            gap = float((mean - other_mean).abs() + (deviation - other_deviation).abs())
            most = max(most, gap / (float(deviation) or 1.0) - 4 / math.sqrt(a.numel()))
    return _bounded(max(most, 0.0))


def _stream(memory: CaseMemory) -> float:
    """The largest correlation of a parameter with an input of pool set 1, drawn after the same seed, over their first
    elements."""
    most = 0.0
    for weight in memory.state.tensors():
        for drawn in memory.sets.inputs(1):
            n = min(weight.numel(), drawn.numel(), _STREAM_ELEMENTS)
            if n < _LEAST_STREAM or not (weight.is_floating_point() and drawn.is_floating_point()):
                continue
            pair = torch.stack([t.reshape(-1)[:n].double() for t in (weight, drawn)])
            if bool((pair.std(1) > 0).all()):
                most = max(most, abs(float(torch.corrcoef(pair)[0, 1])))
    return _bounded(most)


def _bounded(value: float) -> float:
    """At most MOST, and never NaN: what a file can hold."""
    return min(value, MOST) if not math.isnan(value) else MOST
