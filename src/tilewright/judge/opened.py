"""What a judge opens once for its problem: the cells, the described cases, the device's turns, and secret seeds."""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..facts.errors import HarnessError, SickDevice
from ..facts.machine import Machine
from ..facts.problem import Problem
from ..facts.time_budget import UNBOUNDED, TimeBudget
from .build.build import compiled_late
from .cells import LOAD_LIMIT_S, Cells, require_device, users_fault
from .check.check import Check, Findings
from .check.plan import secret
from .client import Cell, CellFault, CellLimits
from .memories import Case, CaseMemories, case_of, describe, too_large
from .memory.case_memory import CaseMemory
from .memory.sizes import is_large
from .open_sizes import with_open_sizes
from .patience import Patience
from .remembered import DEFAULT, ComparedModes
from .timing.measure import Effort
from .turns import Turns
from .variants import Variants
from .wire import messages as wire

# Of what is left to the run; as much again takes each of what follows: warm caches, the clock check, new contents.
_TIMING_SHARE = 0.15
# Such an error sticks to the process that met it, and the reference, which ran before, did not cause it.
_CUDA_ERROR = re.compile(r"uncorrectable|hardware|unspecified launch|ECC|Xid|CUDA_ERROR_(ECC|HARDWARE|LAUNCH)")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """How a judge works. Without `trace`, the cases have no graphs; where it `explains`, a refusal says at which other
    cases the candidate fails; `algebra`: see case memories.case_of. `time`: what is left to the run; `racecheck`:
    whether compute-sanitizer looks for races, too."""

    effort: Effort = field(default_factory=Effort)
    limits: CellLimits = field(default_factory=CellLimits)
    compile_baseline: bool = True
    compile_modes: tuple[str, ...] = (DEFAULT,)  # of that baseline
    baselines: Path | None = None  # the folder where those that take minutes are remembered
    trace: bool = True
    explains: bool = False
    algebra: bool = True
    time: TimeBudget = UNBOUNDED
    racecheck: bool = False


class OpenProblem:
    """`cases` is empty before `open`."""

    def __init__(
        self, problem: Problem, *, machine: Machine, seed: int, workdir: Path, say: Callable[[str], None],
        options: JudgeOptions,
    ) -> None:  # fmt: skip
        self.problem, self.machine, self.options, self.say = problem, machine, options, say
        # Seeds of inputs must not be guessable from the outside: a candidate can read the command line.
        self.rng = random.Random(f"{seed}:{secrets.token_hex(16)}")
        self.device = "cuda:0" if problem.target == "cuda" else "cpu"
        self.turns = Turns(self.device, say)
        self.patience = Patience(machine, budget_s=options.effort.budget_s, say=say, time=options.time)
        threads = machine.processors if problem.target == "cpu" else 0
        self.cells = Cells(problem, workdir=workdir, threads=threads, limits=options.limits, say=say, time=options.time)
        self.memories = CaseMemories(problem, cells=self.cells, limits=options.limits)
        self.cases: tuple[Case, ...] = ()
        self.variants = Variants(problem, partial(self._case, trace=False), self.rng)
        self.modes = ComparedModes(problem, machine, (), folder=None)
        self._informed: Cell | None = None  # the reference's cell that knows the cases

    def open(self, rates: Callable[[Patience], Machine] | None) -> None:
        """Load the problem, run and trace every case, measure the machine by `rates`, and start the baselines. A GPU is
        measured while the problem's packages are imported, for which nobody needs it."""
        require_device(self.problem.target)
        trace, on_gpu = self.options.trace, self.problem.target == "cuda"
        with ThreadPoolExecutor(1) as pool:
            measured = pool.submit(_measure, self, rates) if rates is not None and on_gpu else None
            self.cells.open()
            if on_gpu:  # a candidate's cell imports the DSL meanwhile
                self.cells.spares.start()
            with users_fault(self.problem):
                self.reference.do(self.cells.load_problem(starts="tracer" * trace), limit_s=LOAD_LIMIT_S)
        if measured is not None:
            measured.result()
        with users_fault(self.problem):
            self.patience.tell()
            self.cases = tuple(self._case(n, trace=trace) for n in range(len(self.problem.cases)))
            self.cases = with_open_sizes(self, self.cases)
        self._informed = self.reference
        if rates is not None and not on_gpu:  # before others of our processes work in the background
            _measure(self, rates)
        if self.options.compile_baseline:
            _start_baselines(self)
        if not on_gpu:
            self.cells.spares.start()

    def effort(self) -> Effort:
        """How long a candidate is timed now: for less where the run's budget ends."""
        return self.options.effort.within(_TIMING_SHARE * self.options.time.left_s())

    @property
    def reference(self) -> Cell:
        return self.cells.reference

    @property
    def smallest(self) -> Case:
        """The case that moves the fewest bytes."""
        return min(self.cases, key=lambda c: c.described.work.bytes_moved)

    def _case(self, number: int, *, trace: bool) -> Case:
        seed = secret(self.rng)
        found = self._described(number, seed, trace=trace)
        algebra = self.options.algebra and self.problem.mode == "inference"
        return case_of(number, found, seed, algebra=algebra, in_part=self.problem.target == "cuda")

    def _described(self, number: int, seed: int, *, trace: bool) -> wire.Described:
        hidden = number >= len(self.problem.cases)
        return describe(
            self.problem, self.reference, number=number, seeds=(seed, secret(self.rng)), trace=trace,
            turn=self.turns.turn("describing hidden cases" if hidden else "describing"),
            let_go=self.cells.spare_memory,
        )  # fmt: skip

    def inform(self) -> None:
        """A reference's cell that took another's place finds out of the cases what that one knew: what their calls
        move, what of their inputs is promised. Hidden cases are looked for anew."""
        if self.reference is self._informed:
            return
        for case in self.cases:
            self._described(case.number, case.seed, trace=False)
        self.variants.forget()
        self._informed = self.reference

    def hidden_cases(self) -> tuple[Case, ...]:
        return self.variants.cases(self.cases, self.reference)

    # ---- candidates

    @contextmanager
    def candidate_cell(self, compiled: Sequence[Path] = ()) -> Iterator[Cell]:
        """A fresh cell for the block, whose candidate gets the kernels that were `compiled` ahead."""
        cell = self.cells.spares.take()
        try:
            yield cell
        finally:
            if count := compiled_late(cell, compiled):
                self.say(f"{count} kernel(s) had to be compiled while the device was held")
            cell.close()

    def check(self, memory: CaseMemory, cell: Cell, case: Case, findings: Findings | None = None) -> Check:
        precision = self.problem.precision
        return Check(memory, cell, case=case.number, precision=precision, findings=findings or Findings())

    @contextmanager
    def harness_fault(self, candidate: Cell | None = None) -> Iterator[None]:
        """What a cell fails at in the block raises DoesNotFit, SickDevice or HarnessError; a fault of the `candidate`
        in its cell stays a CellFault."""
        try:
            yield
        except CellFault as fault:
            if candidate is not None and not is_ours(fault, candidate):
                raise
            if fault.reason == "out_of_memory":
                raise too_large(self.problem, f"the {fault.source} cell: {fault.summary}") from fault
            kind = SickDevice if _CUDA_ERROR.search(f"{fault.summary} {fault.excerpt}") else HarnessError
            raise kind(
                f"the {fault.source} cell failed: {fault.reason}: {fault.summary}\n{fault.excerpt}".strip()
            ) from fault


def _measure(opened: OpenProblem, rates: Callable[[Patience], Machine]) -> None:
    with opened.turns.turn("measuring the machine"):
        opened.patience.begin()
        opened.machine = rates(opened.patience)


def _start_baselines(opened: OpenProblem) -> None:
    first, wanted = opened.cases[0], opened.options.compile_modes
    opened.modes = ComparedModes(opened.problem, opened.machine, wanted, folder=opened.options.baselines)
    opened.cells.baseline.warm(
        opened.modes.due(opened.say),
        construct_seed=first.seed, inputs_seed=secret(opened.rng), gradients=first.described.gradients,
        large=is_large(first.described),
    )  # fmt: skip


def is_ours(fault: CellFault, cell: Cell) -> bool:
    """Whether a fault is not that of the candidate in `cell`: another cell's, or the cell's own code found no
    memory."""
    return fault.source != cell.plan.name or (not fault.by_code and fault.reason == "out_of_memory")
