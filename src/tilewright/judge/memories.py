"""The room of a case: the reference's module freshly constructed, and as much memory beside it as there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from ..facts import codec
from ..facts.errors import HarnessError, UserError
from ..facts.problem import OpenSize, Problem, Target
from ..facts.run import CaseFacts
from ..frontend.rewrite.algebra import Rewritten, rewritten
from .candidate_process.load import is_out_of_memory, last_line
from .cells import Cells
from .client import Cell, CellLimits
from .memory.case_memory import CaseMemory
from .memory.places import CaseMemorySizes
from .memory.sizes import give_back, is_large
from .wire import messages as wire

_DESCRIBE_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    """A case as described, and the seed under which its module is constructed everywhere."""

    number: int
    described: wire.Described
    seed: int
    less: Rewritten | None = None  # what algebra makes of its graph
    open: tuple[OpenSize, ...] = ()
    fixed: str = ""  # see CaseFacts

    @property
    def facts(self) -> CaseFacts:
        """What a strategy may know of it."""
        described = self.described
        return CaseFacts(
            inputs=described.inputs, outputs=tuple(o.spec for o in described.outputs), work=described.work,
            graph=codec.loads(described.graph) if described.graph else None, trace_failure=described.trace_failure,
            rewritten=self.less.graph if self.less else None, algebra=self.less.steps if self.less else (),
            open=self.open, fixed=self.fixed,
        )  # fmt: skip


def case_of(number: int, described: wire.Described, seed: int, *, algebra: bool, in_part: bool = True) -> Case:
    """With `algebra`: what that does without is no work of the case; `in_part` as `rewritten` has it."""
    less = rewritten(codec.loads(described.graph), in_part=in_part) if described.graph and algebra else None
    if less is not None:
        described = replace(described, work=replace(described.work, spared_flops=less.spared_flops))
    return Case(number, described, seed, less)


def describe(
    problem: Problem, reference: Cell, *, number: int, seeds: tuple[int, int], trace: bool,
    turn: AbstractContextManager[None], let_go: Callable[[], None],
) -> wire.Described:  # fmt: skip
    """A case in the cell that has loaded the problem: constructed and called, under a seed for each, and, with `trace`,
    traced; its work in the class asked for. The device is had for `turn`, at whose end memory is given back. What is
    for a GPU is traced after that, which takes the processors alone (in training not), but holds tensors like the
    inputs: of a large case (`is_large`) more than who has the device next counts on."""
    with turn:
        construct = wire.ConstructCase(case=number, seed=seeds[0])
        reference.ask(construct, wire.Constructed, limit_s=_DESCRIBE_LIMIT_S)
        training = problem.mode == "training"
        at_once = trace and (training or problem.target == "cpu")
        request = wire.Describe(seed=seeds[1], trace=at_once, training=training, rows=not problem.open)
        found = reference.ask(request, wire.Described, limit_s=_DESCRIBE_LIMIT_S)
        found = _traced(found, reference) if trace and is_large(found) else found
        let_go()
    found = replace(found, work=problem.allowed(found.work))
    return _traced(found, reference) if trace else found


def _traced(described: wire.Described, reference: Cell) -> wire.Described:
    if described.graph or described.trace_failure:
        return described
    request = wire.Trace(args=described.args, inputs=described.inputs)
    traced = reference.ask(request, wire.Traced, limit_s=_DESCRIBE_LIMIT_S)
    return replace(described, graph=traced.graph, trace_failure=traced.failure)


class CaseMemories:
    """Makes the case memories of one judge."""

    def __init__(self, problem: Problem, *, cells: Cells, limits: CellLimits) -> None:
        self._problem, self._cells, self._limits = problem, cells, limits

    @contextmanager
    def memory(self, case: Case, *, sizes: Callable[[wire.Described, Target], CaseMemorySizes]) -> Iterator[CaseMemory]:
        """The room of a case, with the reference's module freshly constructed and cached memory given back before its
        size is chosen."""
        construct = wire.ConstructCase(case=case.number, seed=case.seed, gradients=case.described.gradients)
        self._cells.reference.ask(construct, wire.Constructed, limit_s=self._limits.call_s)
        self._cells.baseline.spare_memory()
        chosen = sizes(case.described, self._problem.target)
        if chosen.results == 1:  # no room to spare: what is compiling beside us must not take more of it
            self._cells.baseline.settle()
            self._cells.baseline.spare_memory()
            chosen = sizes(case.described, self._problem.target)
        try:
            memory = CaseMemory(
                case.described, device=self._problem.target, reference=self._cells.reference, limits=self._limits,
                sizes=chosen,
            )  # fmt: skip
        except (MemoryError, RuntimeError, OSError) as error:
            if is_out_of_memory(error):
                raise too_large(self._problem, f"case {case.number}: {last_line(error)}") from error
            raise HarnessError(f"case {case.number}: no memory could be shared with its cells: {error}") from error
        try:
            with memory:
                yield memory
                guests = memory.guests
        except (MemoryError, RuntimeError) as error:  # of ours: what is lacking in a cell comes as a CellFault
            if is_out_of_memory(error):
                raise too_large(self._problem, f"case {case.number}: {last_line(error)}") from error
            raise
        self._cells.spare_memory(guests)
        give_back(self._problem.target)


class DoesNotFit(UserError):
    """There is no memory for a case."""


def too_large(problem: Problem, what: str) -> DoesNotFit:
    return DoesNotFit(
        f"{problem.path}: it does not fit into memory beside the copies that judging takes ({what}); make "
        "the case smaller, or run fewer problems at once"
    )
