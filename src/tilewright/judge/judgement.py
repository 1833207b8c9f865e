"""The judgement of one built candidate in its cell: checked on all cases, timed on the first, and checked on hidden
ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from ..facts.outcome import Built, Checked, Timed
from .check import draws, hidden
from .check.check import Findings, RefusedByCheck, concluded
from .check.plan import Trial, secret, trials_for
from .check.trials import run as run_trials
from .client import Cell, CellFault
from .memories import Case, DoesNotFit
from .memory.sizes import check_memory_sizes, hoarded_bytes, timing_memory_sizes
from .opened import OpenProblem, is_ours
from .prepare import require_joined, seat
from .smallest import narrowed
from .stations import Stations
from .time_case import CaseTiming


class Hoarding(RefusedByCheck):
    """The candidate keeps so much of a GPU's memory that others find none; or another process has just given its own
    back, which looks the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """`foreign`: others wrote the candidate. `vouched`: it passed at hidden cases before, which are left out.
    `free_bytes`: what its target had when the candidate came."""

    opened: OpenProblem
    cell: Cell
    foreign: bool
    vouched: bool
    free_bytes: int
    findings: Findings = field(default_factory=Findings)
    stations: Stations = field(default_factory=Stations)

    def run(self, built: Built) -> Timed:
        """Raises RefusedByCheck, Implausible, CellFault, and what is not the candidate's fault."""
        try:
            for case in self.opened.cases:
                self._check_named(case)
                self.opened.say(f"case {case.number}: right on all inputs ({self.stations.found[-1].seconds:.1f} s)")
            timed = self._time(concluded(built, self.findings, ()))
            self._check_hidden()  # last: what is compiled there must not disturb the times
            self._check_streams()
            checked = replace(timed.checked, notes=tuple(self.findings.notes))
            return replace(timed, checked=checked, stations=self.stations.found)
        except (CellFault, DoesNotFit) as fault:
            if isinstance(fault, DoesNotFit) or is_ours(fault, self.cell):
                self._require_modest()
            raise

    def _check_named(self, case: Case) -> None:
        try:
            self._check_case(case)
        except Hoarding:
            raise
        except RefusedByCheck as refused:
            cases = self.opened.cases if self.opened.options.explains and self.cell.alive else ()
            others = cases[case.number + 1 :]
            ours = partial(is_ours, cell=self.cell)
            raise narrowed(refused, case, others, tried=self._check_briefly, ours=ours) from refused

    def _check_briefly(self, case: Case) -> None:
        trials = trials_for(case.described, case.number, rng=self.opened.rng)[:1]
        replace(self, findings=Findings(), stations=Stations())._check_case(case, trials)

    def _check_case(self, case: Case, trials: tuple[Trial, ...] = ()) -> None:
        opened, findings = self.opened, self.findings
        name = f"hidden case {case.number}" if trials else f"case {case.number}"
        trials = trials or trials_for(case.described, case.number, rng=opened.rng)
        with self._alone(name), opened.memories.memory(case, sizes=check_memory_sizes) as memory:
            memory.admit(self.cell)
            check = opened.check(memory, self.cell, case, findings)
            check.state.construct(case.seed)
            if memory.places == 1:  # to draw another family takes a third copy of the inputs
                trials = tuple(t for t in trials if t.family == "own")
                findings.note(f"case {case.number}: too large for inputs of other families")
            if case.described.random:
                draws.run(check, trials, rng=opened.rng)
            else:
                run_trials(check, trials)

    def _check_hidden(self) -> None:
        """Other shapes and strides: wrong results in silence are refused, a candidate that raises is told of."""
        for case in () if self.vouched else self.opened.hidden_cases():
            shapes = ", ".join("x".join(map(str, s.shape)) for s in case.described.inputs)[:200]
            trials = hidden.trials(case.number, case.described, rng=self.opened.rng)
            try:
                replace(self, findings=Findings(own=dict(self.findings.own)))._check_case(case, trials)
            except Hoarding:
                raise
            except RefusedByCheck as refused:
                raise hidden.refused(refused, shapes) from refused
            except CellFault as fault:
                if is_ours(fault, self.cell) or not (self.cell.alive and hidden.is_loud(fault)):
                    raise
                self.findings.note(f"it raises at other shapes or strides (inputs of {shapes}): {fault.summary}")

    def _check_streams(self) -> None:
        """The end of the cell's use."""
        opened = self.opened
        if opened.problem.target == "cuda":
            case = opened.smallest
            with self._alone("streams"), opened.memories.memory(case, sizes=check_memory_sizes) as memory:
                seat(opened.check(memory, self.cell, case), construct_seed=case.seed, seed=secret(opened.rng))
                require_joined(memory, self.cell, self.findings)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """The device for the block, as a station of the judgement; what is waited for it is another."""
        started = time.monotonic()
        with self.opened.turns.turn(name):
            if (waited_s := time.monotonic() - started) > 0.1:
                self.stations.add("waiting for the device", waited_s)
            with self.stations.station(name, self.opened.reference, candidate=self.cell):
                yield
            self._require_modest()

    def _require_modest(self) -> None:
        if kept := hoarded_bytes(self.cell, self.opened.problem.target, found=self.free_bytes):
            raise Hoarding(
                "out_of_memory", f"it keeps {kept / 2**30:.1f} GiB of the GPU's memory, and others find none"
            )

    def _time(self, checked: Checked) -> Timed:
        opened, case, started = self.opened, self.opened.cases[0], time.monotonic()
        with opened.turns.turn("torch.compile") if opened.cells.baseline.in_turn else nullcontext():
            compiled = opened.cells.baseline.compiled()
        opened.cells.spares.settle()
        self.stations.add("waiting for torch.compile", time.monotonic() - started)
        with opened.turns.turn("timing"), opened.memories.memory(case, sizes=timing_memory_sizes) as memory:
            for guest in (self.cell, *compiled.values()):
                memory.admit(guest)
            opened.patience.begin()
            check = opened.check(memory, self.cell, case, self.findings)
            check.state.construct(case.seed)
            # A foreign one may be refused by what timed calls return, and what nobody is seen to use may be its own.
            wait = opened.patience.calm if self.foreign else opened.patience.require
            wait("timing", comes_and_goes=self.foreign)
            timing = CaseTiming(opened=opened, memory=memory, check=check, compiled=compiled, stations=self.stations)
            return timing.run(checked, opened.cells.notes)
