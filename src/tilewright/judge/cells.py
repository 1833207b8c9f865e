"""The cells of one Judge: the reference's, a torch.compile baseline that warms up meanwhile where processors are left
for it, and a spare for the next candidate, which has imported torch, the packages that the problem's file imports, on a
GPU the DSL, and nothing else."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..edges.sandbox.forkserver import left_aside
from ..edges.sandbox.processes import started
from ..facts.errors import HarnessError, UserError
from ..facts.problem import Problem, Target
from ..facts.time_budget import UNBOUNDED, TimeBudget
from .client import Cell, CellFault, CellLimits, CellPlan
from .compiled import CompiledBaselines
from .memory.sizes import cell_memory_bytes
from .spares import Spares
from .wire import messages as wire

CANDIDATE = "candidate"
_FOLDERS = "cells-"  # and the process whose cells lie there, and when it started: numbers are given anew
LOAD_LIMIT_S = 120.0
_PLENTY = 8  # processors: a compiler in the background disturbs little
_MATMUL = {"tf32": "high", "fp16": "high", "bf16": "medium"}  # what the user's looser class gives the baselines


class Cells:
    """Starts cells, keeps the long-lived ones, ends them all. `notes`: what could not be had, for the verdict."""

    def __init__(
        self, problem: Problem, *, workdir: Path, threads: int, limits: CellLimits, say: Callable[[str], None],
        time: TimeBudget = UNBOUNDED,
    ) -> None:  # fmt: skip
        self._problem = problem
        self._workdir = workdir / f"{_FOLDERS}{os.getpid()}-{started(os.getpid())}"
        self._numbers = itertools.count()
        self._threads, self._limits, self._say = threads, limits, say
        self._reference: Cell | None = None
        self.spares = Spares(
            problem.target, lambda namespaces: self._start(CANDIDATE, namespaces=namespaces), self._note
        )
        self.baseline = CompiledBaselines(
            partial(self._start, "compile", isolate=False), self.load_problem, on_gpu=problem.target == "cuda",
            plenty=threads >= _PLENTY, note=self._note, time=time,
        )  # fmt: skip
        self.notes: list[str] = []

    def open(self) -> Cell:
        """Start the reference's cell. What judges that were killed left in the folder goes."""
        for folder in self._workdir.parent.glob(f"{_FOLDERS}*-*"):
            pid, _, since = folder.name.removeprefix(_FOLDERS).partition("-")
            if pid.isdigit() and str(started(int(pid))) != since:
                shutil.rmtree(folder, ignore_errors=True)
        self._reference = self._start("reference", isolate=False)
        for why in left_aside():
            self._say(f"packages are imported by each process anew, and not before it is forked: {why}")
        return self._reference

    def close(self) -> None:
        """End all cells and remove their folders. Safe to call twice."""
        if self._reference is not None:
            self._reference.close()
        self._reference = None
        self.spares.close()
        self.baseline.close()
        if self._workdir.is_dir() and not any(self._workdir.iterdir()):
            self._workdir.rmdir()

    @property
    def reference(self) -> Cell:
        if self._reference is None:
            raise HarnessError("the judge is not open")
        return self._reference

    def renew_reference(self) -> None:
        """A fresh cell for the reference, with the problem loaded."""
        if self._reference is not None:
            self._reference.close()
        self._reference = self._start("reference", isolate=False)
        self._reference.do(self.load_problem(), limit_s=LOAD_LIMIT_S)

    def renew_dead_reference(self) -> None:
        """The same, where the reference's cell was killed."""
        if self._reference is None or not self._reference.alive:
            self.renew_reference()

    def _start(self, name: str, *, isolate: bool = True, namespaces: bool = True) -> Cell:
        plan = CellPlan(
            name=name, device=self._problem.target, folder=self._workdir / f"{next(self._numbers)}-{name}",
            memory_bytes=self._limits.memory_bytes or cell_memory_bytes(), threads=self._threads, isolate=isolate,
            namespaces=namespaces, matmul="" if isolate else _MATMUL.get(self._problem.precision, ""),
            hidden=(Path.home(), Path(self._problem.path).absolute(), self._workdir.parent),
            variables=self._problem.environment, imports=self._problem.imports,
        )  # fmt: skip
        return Cell(plan)

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """A folder beside the cells', which is there for as long as the block."""
        folder = self._workdir / f"{next(self._numbers)}-{name}"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def load_problem(self, *, compiled: str = "", starts: str = "") -> wire.LoadProblem:
        """The request that loads the problem in a reference cell; `compiled`: under torch.compile, in this mode."""
        problem = self._problem
        return wire.LoadProblem(path=problem.path, source=problem.source, cases=problem.cases,
                                compiled=bool(compiled), mode=compiled or "default", starts=starts)  # fmt: skip

    def spare_memory(self, guests: Iterable[Cell] = ()) -> None:
        """Have all, and these, give a GPU's cached memory back: the next to lease it counts on what it finds free."""
        if self._problem.target == "cuda" and self.reference.alive:
            self.baseline.spare_memory()
            for cell in dict.fromkeys((self.reference, *guests)):
                if cell.alive:
                    cell.do(wire.Drop())

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._say(text)


def require_device(target: Target) -> None:
    """Raise UserError where the target is not here."""
    if target == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UserError("the target is cuda, but torch finds no CUDA device here; use --target cpu")


@contextmanager
def users_fault(problem: Problem) -> Iterator[None]:
    """What the problem's own code raises in the reference's cell is the user's, and so is a lack of memory for it;
    the end of its process is ours."""
    try:
        yield
    except CellFault as fault:
        if fault.reason == "out_of_memory":
            raise UserError(f"{problem.path}: {fault.summary}; make the case smaller") from fault
        if not fault.by_code or fault.reason in ("crashed", "broke_the_protocol"):
            raise HarnessError(f"the reference's cell failed: {fault.summary}\n{fault.excerpt}".strip()) from fault
        raise UserError(f"{problem.path}: {fault.summary}") from fault
