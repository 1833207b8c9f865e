"""The cells of one Judge: the reference's, a torch.compile baseline that warms up meanwhile where processors are left
for it, and a spare for the next candidate, which has imported torch and nothing else."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..edges.sandbox.processes import started
from ..facts.errors import HarnessError, UserError
from ..facts.problem import Problem, Target
from .client import Cell, CellFault, CellPlan, Limits
from .memory.room import try_arena
from .memory.sizes import cell_memory_bytes
from .wire import messages as wire

CANDIDATE = "candidate"
_FOLDERS = "cells-"  # and the process whose cells lie there, and when it started: numbers are given anew
LOAD_LIMIT_S = 120.0
_COMPILE_LIMIT_S = 240.0
_MEMORY_PAUSE_S = 1.0
_MEMORY_LIMIT_S = 60.0  # for a candidate of another judge that holds all of a GPU's memory to be found out
_PLENTY = 8  # processors: a compiler in the background disturbs little
_MATMUL = {"tf32": "high", "fp16": "high", "bf16": "medium"}  # what the user's looser class gives the baselines


class Cells:
    """Starts cells, keeps the long-lived ones, ends them all. `notes`: what could not be had, for the verdict."""

    def __init__(
        self, problem: Problem, *, workdir: Path, threads: int, limits: Limits, say: Callable[[str], None]
    ) -> None:
        self._problem = problem
        self._workdir = workdir / f"{_FOLDERS}{os.getpid()}-{started(os.getpid())}"
        self._numbers = itertools.count()
        self._threads = threads
        self._limits = limits
        self._say = say
        self._namespaces: bool = True
        self._arenas_work = problem.target == "cpu"  # on a GPU that is tried first
        self._reference: Cell | None = None
        self._spare: Cell | None = None
        self._baseline: Cell | None = None
        self._baseline_requests: tuple[object, ...] = ()  # still to be posted to it
        self._baseline_pending = 0
        self.baseline_in_turn = False  # whether it is to be warmed up under the lease
        self.notes: list[str] = []

    def open(self) -> Cell:
        """Start the reference's cell. What judges that were killed left in the folder goes."""
        for folder in self._workdir.parent.glob(f"{_FOLDERS}*-*"):
            pid, _, since = folder.name.removeprefix(_FOLDERS).partition("-")
            if pid.isdigit() and str(started(int(pid))) != since:
                shutil.rmtree(folder, ignore_errors=True)
        self._reference = self._start("reference", isolate=False)
        return self._reference

    def close(self) -> None:
        """End all cells and remove their folders. Safe to call twice."""
        for cell in (self._reference, self._spare, self._baseline):
            if cell is not None:
                cell.close()
        self._reference = self._spare = self._baseline = None
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

    @property
    def environment(self) -> tuple[tuple[str, str], ...]:
        """Variables that the problem reads, name and value of each: every process with its code has them."""
        return self._problem.environment

    def _start(self, name: str, *, isolate: bool = True) -> Cell:
        plan = CellPlan(
            name=name, device=self._problem.target, folder=self._workdir / f"{next(self._numbers)}-{name}",
            memory_bytes=self._limits.memory_bytes or cell_memory_bytes(), threads=self._threads, isolate=isolate,
            namespaces=self._namespaces, matmul="" if isolate else _MATMUL.get(self._problem.precision, ""),
            hidden=(Path.home(), Path(self._problem.path).absolute(), self._workdir.parent),
            variables=self.environment,
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

    def load_problem(self, *, compiled: bool = False, starts: str = "") -> wire.LoadProblem:
        """The request that loads the problem in a reference cell."""
        problem = self._problem
        return wire.LoadProblem(path=problem.path, source=problem.source, cases=problem.cases, compiled=compiled,
                                starts=starts)  # fmt: skip

    # ---- candidates

    def start_spare(self) -> None:
        self._spare = self._start(CANDIDATE)

    def settle_spare(self) -> None:
        """Wait until the spare has started, so that its start does not disturb a clock; there is none afterwards where
        a GPU has no memory left for it."""
        if self._spare is not None and not _comes_up(self._spare):
            self._spare = None

    def take_spare(self) -> Cell:
        """A fresh cell, the caller's to close; the next one starts at once."""
        spare, self._spare = self._spare, None
        deadline = time.monotonic() + _MEMORY_LIMIT_S
        if spare is None or not spare.alive:
            spare = self._start(CANDIDATE)
        while not _comes_up(spare, last=time.monotonic() > deadline):
            time.sleep(_MEMORY_PAUSE_S)
            spare = self._start(CANDIDATE)
        spare = self._with_arenas(spare)
        self.start_spare()
        return spare

    def _with_arenas(self, cell: Cell) -> Cell:
        """The cell, or a less isolated one where device memory can't be shared with namespaces between; tried once a
        run, so that a kernel's lack is not booked on a candidate."""
        if self._arenas_work:
            return cell
        why = try_arena(cell, self._problem.target)
        if why:
            cell.close()
            self._namespaces = False
            self._note(f"candidates run without namespaces: device memory can't be shared across them here ({why})")
            cell = self._start(CANDIDATE)
            why = try_arena(cell, self._problem.target)
        if why:
            cell.close()
            raise HarnessError(f"device memory can't be shared between processes here: {why}")
        self._arenas_work = True
        return cell

    # ---- the compiled baseline

    def warm_baseline(
        self, *, construct_seed: int, inputs_seed: int, gradients: wire.Gradients, large: bool = False
    ) -> None:
        """Let torch.compile work in the background, or, where it would take the processors from what is checked
        meanwhile, once it is waited for. One of a `large` case takes memory of a GPU that whoever has the lease counts
        on: in the background it only loads, and torch.compile starts."""
        self.baseline_in_turn = large and self._problem.target == "cuda"
        self._baseline_requests = (
            self.load_problem(compiled=True, starts="compiler" if self.baseline_in_turn else ""),
            wire.ConstructCase(case=0, seed=construct_seed, gradients=gradients),
            wire.Warm(seed=inputs_seed),
        )
        if self.baseline_in_turn:
            self._post_to_baseline(1)
        elif self._problem.target == "cuda" or self._threads >= _PLENTY:
            self._post_to_baseline()

    def _post_to_baseline(self, count: int = 3) -> None:
        """The next of its requests; it is started with the first."""
        posted, self._baseline_requests = self._baseline_requests[:count], self._baseline_requests[count:]
        if posted and self._baseline is None:
            self._baseline = self._start("compile", isolate=False)
        for request in posted:
            assert self._baseline is not None
            self._baseline.post(request)
        self._baseline_pending += len(posted)

    def settle_baseline(self) -> None:
        """Wait until a baseline that works in the background is warm, so that its compiler does not disturb a clock."""
        if self._baseline is not None and not self._baseline_requests:
            self.compiled()

    def compiled(self) -> Cell | None:
        """The torch.compile baseline once it is warm; None where none is wanted, and, with a note, when it can't be
        had."""
        self._post_to_baseline()
        cell = self._baseline
        if cell is None:
            return None
        deadline = time.monotonic() + _COMPILE_LIMIT_S
        try:
            while self._baseline_pending:
                kind = wire.Constructed if self._baseline_pending == 2 else wire.Done
                cell.collect(kind, limit_s=max(1.0, deadline - time.monotonic()))
                self._baseline_pending -= 1
        except (CellFault, HarnessError) as fault:
            self._note(f"torch.compile could not be timed: {str(fault).splitlines()[0][:300]}")
            cell.close()
            self._baseline = None
        return self._baseline

    def spare_baseline_memory(self) -> None:
        """Have a baseline that is warm give its cached memory back."""
        if self._baseline is not None and not self._baseline_pending and not self._baseline_requests:
            self._baseline.do(wire.Drop())

    def spare_memory(self, guests: Iterable[Cell] = ()) -> None:
        """Have all, and these, give a GPU's cached memory back: the next to lease it counts on what it finds free."""
        if self._problem.target == "cuda" and self.reference.alive:
            self.reference.do(wire.Drop())
            self.spare_baseline_memory()
            for cell in guests:
                if cell.alive and cell is not self.reference and cell is not self._baseline:
                    cell.do(wire.Drop())

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._say(text)


def _comes_up(cell: Cell, *, last: bool = False) -> bool:
    """Wait until the cell is ready. Where a GPU had no memory left for it, it is closed, and the answer False; unless
    this is the `last` attempt. Raises HarnessError."""
    try:
        cell.wait_ready()
    except HarnessError as error:
        cell.close()
        if last or "out of memory" not in str(error):
            raise
        return False
    return True


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


class PointFault(Exception):
    """A candidate's cell failed while it was tuned or profiled."""

    def __init__(self, cause: CellFault) -> None:
        super().__init__(str(cause))
        self.cause = cause
