"""The Judge: build, check, time. It holds the reference's cell, the baselines' and the clock; candidates come and go.

    with Judge(problem, machine=machine, seed=1, workdir=folder, say=print) as judge:
        facts = judge.open()
        outcome = judge.evaluate(candidate)      # Timed or Failure

A candidate's faults are Failures; the user's raise UserError; everything else raises HarnessError and is never scored.
"""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..edges.gpu.lease import quarantine
from ..edges.toolchain.tripwires import tripwires
from ..facts.candidate import Candidate
from ..facts.errors import HarnessError, SickDevice
from ..facts.machine import Machine
from ..facts.outcome import Built, Captured, Checked, Failure, Inspected, PointTime, Sanitized, Timed, Tuned
from ..facts.problem import Problem
from ..facts.profile import Question
from ..facts.run import CaseFacts
from ..facts.space import Point
from .build.build import build, compiled_late, failure
from .cells import LOAD_LIMIT_S, Cells, PointFault, require_device, users_fault
from .check import draws, hidden
from .check.check import Check, Findings, Refused, concluded, refusal
from .check.plan import Trial, secret, trials_for
from .client import Cell, CellFault, Limits
from .discover import LookedInto
from .inspect import seen
from .memory.room import Room
from .memory.sizes import available_bytes, check_room_sizes, hoarded_bytes, is_large, timing_room_sizes
from .patience import Patience, when_calm
from .rooms import Case, DoesNotFit, Rooms, case_of, describe, too_large
from .seats import fill, require_joined, seat
from .smallest import narrowed
from .stations import Stations
from .time_case import CaseTiming
from .timing import measure as timing
from .timing.sweep import one_each
from .tools import Tools
from .tune_case import CaseTuning
from .turns import Turns
from .variants import Variants
from .wire import messages as wire

# Such an error sticks to the process that met it, and the reference, which ran before, did not cause it.
_CUDA_ERROR = re.compile(r"uncorrectable|hardware|unspecified launch|ECC|Xid|CUDA_ERROR_(ECC|HARDWARE|LAUNCH)")


class Judge:
    """See the module's docstring. One per problem; not thread-safe. Without `trace`, `open` gives no graphs;
    where it `explains`, a refusal says at which other cases the candidate fails. `algebra`: see rooms.case_of.
    `rates` measures the machine, of which `machine` holds no rate then, once the problem has run."""

    def __init__(
        self, problem: Problem, *, machine: Machine, seed: int, workdir: Path, say: Callable[[str], None],
        effort: timing.Effort | None = None, limits: Limits | None = None, compile_baseline: bool = True,
        trace: bool = True, explains: bool = False, algebra: bool = True,
        rates: Callable[[Patience], Machine] | None = None,
    ) -> None:  # fmt: skip
        self._problem = problem
        self._rates, self._say = rates, say
        self._effort = effort or timing.Effort()
        self._patience = Patience(machine, budget_s=self._effort.budget_s, say=say)
        self._wants_compile, self._wants_graphs, self._explains = compile_baseline, trace, explains
        self._algebra = algebra and problem.mode == "inference"
        # Seeds of inputs must not be guessable from the outside: a candidate can read the command line.
        self._rng = random.Random(f"{seed}:{secrets.token_hex(16)}")
        self._limits = limits or Limits()
        self._device = "cuda:0" if problem.target == "cuda" else "cpu"
        self._turns = Turns(self._device, say)
        self.held = self._turns.held
        self._cases: tuple[Case, ...] = ()
        self._free_bytes = 0  # when the candidate came
        self._foreign = False  # whether others wrote it
        self._hoarding = False  # whether it seems to keep what others need
        self._variants = Variants(problem, partial(self._describe, trace=False))
        self._informed: Cell | None = None  # the reference's cell that knows the cases
        threads = machine.processors if problem.target == "cpu" else 0
        self._cells = Cells(problem, workdir=workdir, threads=threads, limits=self._limits, say=say)
        self._rooms = Rooms(problem, cells=self._cells, limits=self._limits)
        self._know(machine)

    def _know(self, machine: Machine) -> None:
        self._machine = machine
        self._tools = Tools(
            machine, self._problem.target, cells=self._cells, rooms=self._rooms, turns=self._turns, rng=self._rng,
            say=self._say,
        )  # fmt: skip

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- opening

    def open(self) -> tuple[CaseFacts, ...]:
        """Load the problem, run and trace every case, and start the baselines. Raises UserError for what is wrong
        with the problem file, HarnessError for what is wrong with us, and what `rates` raises."""
        require_device(self._problem.target)
        self._cells.open()
        with users_fault(self._problem):
            self._ref.do(self._cells.load_problem(starts="tracer" * self._wants_graphs), limit_s=LOAD_LIMIT_S)
            self._patience.tell()
            described = [self._describe(n, trace=self._wants_graphs) for n in range(len(self._problem.cases))]
        self._cases, self._informed = tuple(described), self._ref
        if self._rates is not None:  # before others of our processes work in the background
            with self._turns.turn("measuring the machine"):
                self._cells.spare_memory()
                self._patience.begin()
                self._know(self._rates(self._patience))
        if self._wants_compile:
            first = described[0]
            self._cells.warm_baseline(
                construct_seed=first.seed, inputs_seed=secret(self._rng), gradients=first.described.gradients,
                large=is_large(first.described),
            )  # fmt: skip
        self._cells.start_spare()
        return tuple(case.facts for case in described)

    def _describe(self, number: int, *, trace: bool) -> Case:
        seed = secret(self._rng)
        described = describe(
            self._problem, self._ref, number=number, seeds=(seed, secret(self._rng)), trace=trace,
            turn=self._turns.turn("describing" if trace else "describing hidden cases"),
            let_go=self._cells.spare_memory,
        )  # fmt: skip
        return case_of(number, described, seed, algebra=self._algebra, in_part=self._problem.target == "cuda")

    def _inform(self) -> None:
        """A reference's cell that took another's place finds out of the cases what that one knew: what their calls
        move, what of their inputs is promised. Hidden cases are looked for anew."""
        if self._ref is self._informed:
            return
        for case in self._cases:
            describe(
                self._problem, self._ref, number=case.number, seeds=(case.seed, secret(self._rng)), trace=False,
                turn=self._turns.turn("describing"), let_go=self._cells.spare_memory,
            )  # fmt: skip
        self._variants.forget()
        self._informed = self._ref

    @property
    def _ref(self) -> Cell:
        return self._cells.reference

    # ---- judging

    def evaluate(
        self, candidate: Candidate, *, foreign: bool = False, compiled: Sequence[Path] = (), vouched: bool = False
    ) -> Timed | Failure:
        """Build, check on all cases, time on the first. At the text of a foreign candidate static detectors look, too:
        what they find becomes notes. A device that fails under it is tried once more, with fresh cells; then it is put
        under quarantine and SickDevice raised; TooBusy where others' load allows no verdict. `compiled`: its kernels
        that were built ahead. `vouched`: these very files passed at hidden cases here before: they are left out."""
        self._foreign = foreign
        self._vouched, notes = vouched, (tripwires(candidate) if foreign else ()) + (hidden.VOUCHED,) * vouched
        judged, renew = partial(self._once_or_twice, candidate, notes, compiled), self._cells.renew_dead_reference
        return when_calm(judged, self._machine, budget_s=self._effort.budget_s, say=self._say, renew=renew)

    def _once_or_twice(self, candidate: Candidate, notes: Sequence[str], compiled: Sequence[Path]) -> Timed | Failure:
        try:
            return self._judged(candidate, notes, compiled)
        except SickDevice as sick:
            self._say(f"{sick}; once more, in fresh cells")
        try:
            self._cells.renew_reference()
            return self._judged(candidate, notes, compiled)
        except SickDevice as sick:
            quarantine(self._device, str(sick))
            raise

    def _judged(self, candidate: Candidate, notes: Sequence[str], compiled: Sequence[Path]) -> Timed | Failure:
        """Once more where it seems to have kept others from memory: another process may have given back its own just
        when this candidate's cell was ended. That does not happen twice."""
        self._hoarding = False
        outcome = self._evaluate(candidate, notes, compiled)
        if not self._hoarding:
            return outcome
        assert isinstance(outcome, Failure)
        self._say(f"{outcome.summary}; once more, to be sure that it was this candidate")
        return self._evaluate(candidate, notes, compiled)

    def _evaluate(self, candidate: Candidate, notes: Sequence[str], compiled: Sequence[Path]) -> Timed | Failure:
        with self._harness_fault():
            self._inform()
        cell = self._cells.take_spare()
        self._free_bytes = available_bytes(self._problem.target)
        try:
            built = build(candidate, cell, limit_s=self._limits.build_s, compiled=compiled)
            if isinstance(built, Failure):
                return built
            self._say(f"built in {built.build_s:.1f} s")
            stations = Stations()
            stations.add("build", built.build_s)
            with self._harness_fault():
                return self._judge(cell, built, stations, notes)
        except (Refused, timing.Implausible) as refused:
            return refused.failure
        finally:
            self._tell_compiled(cell, compiled)
            cell.close()

    def _tell_compiled(self, cell: Cell, ahead: Sequence[Path]) -> None:
        if count := compiled_late(cell, ahead):
            self._say(f"{count} kernel(s) had to be compiled while the device was held")

    def _judge(self, cell: Cell, built: Built, stations: Stations, notes: Sequence[str]) -> Timed | Failure:
        findings = Findings(notes=list(notes))
        try:
            for case in self._cases:
                self._check_named(case, cell, findings, stations)
                self._say(f"case {case.number}: right on all inputs ({stations.found[-1].seconds:.1f} s)")
            checked = concluded(built, findings, ())
            timed = self._time(self._cases[0], cell, checked, findings, stations)
            if isinstance(timed, Failure):
                return timed
            self._check_hidden(cell, findings, stations)  # last: what is compiled there must not disturb the times
            self._check_streams(cell, findings, stations)
            checked = replace(timed.checked, notes=tuple(findings.notes))
            return replace(timed, checked=checked, stations=stations.found)
        except (CellFault, DoesNotFit) as fault:
            if isinstance(fault, CellFault) and not self._is_ours(fault, cell):
                return refusal(fault)
            self._require_modest(cell)
            raise

    def _check_named(self, case: Case, cell: Cell, findings: Findings, stations: Stations) -> None:
        try:
            self._check_case(case, cell, findings, stations)
        except Refused as refused:
            others = self._cases[self._cases.index(case) + 1 :] if self._explains and cell.alive else ()
            tried = partial(self._check_briefly, cell)
            raise narrowed(refused, case, others, tried=tried, ours=lambda f: self._is_ours(f, cell)) from refused

    def _check_briefly(self, cell: Cell, case: Case) -> None:
        trials = trials_for(case.described, case.number, rng=self._rng)[:1]
        self._check_case(case, cell, Findings(), Stations(), trials)

    def _require_modest(self, cell: Cell) -> None:
        """Raise Refused where the candidate keeps so much of a GPU's memory that others find none."""
        if kept := hoarded_bytes(cell, self._problem.target, found=self._free_bytes):
            self._hoarding = True
            raise Refused("out_of_memory", f"it keeps {kept / 2**30:.1f} GiB of the GPU's memory, and others find none")

    def _is_ours(self, fault: CellFault, cell: Cell) -> bool:
        """Whether a fault is not the candidate's: another cell's, or the cell's own code found no memory."""
        return fault.source != cell.plan.name or (not fault.by_code and fault.reason == "out_of_memory")

    @contextmanager
    def _harness_fault(self) -> Iterator[None]:
        try:
            yield
        except CellFault as fault:
            if fault.reason == "out_of_memory":
                raise too_large(self._problem, f"the {fault.source} cell: {fault.summary}") from fault
            kind = SickDevice if _CUDA_ERROR.search(f"{fault.summary} {fault.excerpt}") else HarnessError
            raise kind(
                f"the {fault.source} cell failed: {fault.reason}: {fault.summary}\n{fault.excerpt}".strip()
            ) from fault

    def _check_case(
        self, case: Case, cell: Cell, findings: Findings, stations: Stations, trials: tuple[Trial, ...] = ()
    ) -> None:
        name = f"hidden case {case.number}" if trials else f"case {case.number}"
        trials = trials or trials_for(case.described, case.number, rng=self._rng)
        with self._alone(stations, name, cell), self._rooms.room(case, sizes=check_room_sizes) as room:
            room.admit(cell)
            check = self._check(room, cell, case, findings)
            check.construct(case.seed)
            if room.places == 1:  # to draw another family takes a third copy of the inputs
                trials = tuple(t for t in trials if t.family == "own")
                findings.note(f"case {case.number}: too large for inputs of other families")
            if case.described.random:
                draws.run(check, trials, rng=self._rng)
            else:
                check.run(trials)

    def _check(self, room: Room, cell: Cell, case: Case, findings: Findings | None = None) -> Check:
        precision = self._problem.precision
        return Check(room, cell, case=case.number, precision=precision, findings=findings or Findings())

    def _check_hidden(self, cell: Cell, findings: Findings, stations: Stations) -> None:
        """Other shapes and strides: wrong results in silence are refused, a candidate that raises is told of."""
        for case in () if self._vouched else self._variants.cases(self._cases, self._ref):
            shapes = ", ".join("x".join(map(str, s.shape)) for s in case.described.inputs)[:200]
            trials = hidden.trials(case.number, case.described, rng=self._rng)
            try:
                self._check_case(case, cell, Findings(own=dict(findings.own)), stations, trials)
            except Refused as refused:
                raise hidden.refused(refused, shapes) from refused
            except CellFault as fault:
                if self._is_ours(fault, cell) or not (cell.alive and hidden.is_loud(fault)):
                    raise
                findings.note(f"it raises at other shapes or strides (inputs of {shapes}): {fault.summary}")

    def _check_streams(self, cell: Cell, findings: Findings, stations: Stations) -> None:
        """The end of the cell's use."""
        if self._problem.target == "cuda":
            case = min(self._cases, key=lambda c: c.described.work.bytes_moved)
            with self._alone(stations, "streams", cell), self._rooms.room(case, sizes=check_room_sizes) as room:
                seat(self._check(room, cell, case), construct_seed=case.seed, seed=secret(self._rng))
                require_joined(room, cell, findings)

    @contextmanager
    def _alone(self, stations: Stations, name: str, cell: Cell) -> Iterator[None]:
        """The device for the block, as a station of the judgement; what is waited for it is another."""
        started = time.monotonic()
        with self._turns.turn(name):
            if (waited_s := time.monotonic() - started) > 0.1:
                stations.add("waiting for the device", waited_s)
            with stations.station(name, self._ref, candidate=cell):
                yield
            self._require_modest(cell)

    # ---- timing

    def _time(
        self, case: Case, cell: Cell, checked: Checked, findings: Findings, stations: Stations
    ) -> Timed | Failure:
        started = time.monotonic()
        with self._turns.turn("torch.compile") if self._cells.baseline_in_turn else nullcontext():
            compiled = self._cells.compiled()
        self._cells.settle_spare()
        stations.add("waiting for torch.compile", time.monotonic() - started)
        with self._turns.turn("timing"), self._rooms.room(case, sizes=timing_room_sizes) as room:
            for guest in (cell, compiled):
                if guest is not None:
                    room.admit(guest)
            self._patience.begin()
            check = self._check(room, cell, case, findings)
            check.construct(case.seed)
            # A foreign one may be refused by what timed calls return, and what nobody is seen to use may be its own.
            wait = self._patience.calm if self._foreign else self._patience.require
            wait("timing", comes_and_goes=self._foreign)
            case_timing = CaseTiming(
                room=room, check=check, reference=self._ref, compiled=compiled, machine=self._machine,
                effort=self._effort, limits=self._limits, rng=self._rng, stations=stations, target=self._problem.target,
            )  # fmt: skip
            return case_timing.run(checked, self._cells.notes)

    # ---- tuning

    def tune(
        self, candidate: Candidate, pattern: str, points: Sequence[Point], *, compiled: Sequence[Path] = ()
    ) -> Tuned | Failure:
        """Check and time all points of one pattern in one cell, on the first case. A point at which the cell dies is
        recorded, and the others go on in a new one. `compiled`: as in `evaluate`."""
        dead: dict[Point, str] = {}
        while living := [p for p in points if p not in dead]:
            cell = self._cells.take_spare()
            trying: list[Point] = []
            try:
                built = build(candidate, cell, limit_s=self._limits.build_s, compiled=compiled)
                if isinstance(built, Failure):
                    return built
                with self._harness_fault():
                    times = self._tune_in(cell, pattern, living, trying)
                return Tuned(points=one_each(points, times, dead))
            except PointFault as fault:
                if not trying:
                    return failure("tune", fault.cause)
                dead[trying[-1]] = str(fault.cause)[:500]
            finally:
                self._tell_compiled(cell, compiled)
                cell.close()
        return Tuned(points=one_each(points, (), dead))

    def _tune_in(self, cell: Cell, pattern: str, points: Sequence[Point], trying: list[Point]) -> tuple[PointTime, ...]:
        """Times of the points; `trying` grows by each that is set. Raises PointFault when the cell fails for good."""
        case = self._cases[0]
        if self._problem.target == "cpu":
            self._cells.settle_baseline()  # its compiler would share the processors with what is timed
        self._cells.settle_spare()
        with self._turns.turn("tuning"), self._rooms.room(case, sizes=check_room_sizes) as room:
            self._patience.begin()
            tuning = CaseTuning(
                room=room, check=self._check(room, cell, case), case=case, reference=self._ref, machine=self._machine,
                limits=self._limits, rng=self._rng, patience=self._patience, is_ours=lambda f: self._is_ours(f, cell),
            )  # fmt: skip
            return tuning.run(pattern, points, trying)

    # ---- inspecting

    def inspect(self, candidate: Candidate | None, question: Question = "auto") -> Inspected | Failure:
        """Profile a call of the first case: of a candidate that was judged, in a fresh cell and under ncu, or of the
        module as it is."""
        if candidate is None:
            with self._harness_fault():
                return self._tools.told(self._cases[0], self._inspect_in(self._ref))
        cell = self._cells.take_spare()
        try:
            built = build(candidate, cell, limit_s=self._limits.build_s)
            if isinstance(built, Failure):
                return built
            with self._harness_fault():
                return self._tools.told(self._cases[0], self._inspect_in(cell), candidate, question)
        except PointFault as fault:
            return failure("timing", fault.cause)
        finally:
            cell.close()

    def _inspect_in(self, cell: Cell) -> wire.Profiled:
        """Raises PointFault where the candidate fails."""
        self._cells.settle_spare()
        case = self._cases[0]
        with self._turns.turn("profiling"), self._rooms.room(case, sizes=check_room_sizes) as room:
            try:
                if cell is not self._ref:
                    seat(self._check(room, cell, case), construct_seed=case.seed, seed=secret(self._rng))
                else:
                    fill(room, secret(self._rng))
                return seen(cell, room)
            except CellFault as fault:
                if self._is_ours(fault, cell):
                    raise
                raise PointFault(fault) from fault

    def sanitize(self, candidate: Candidate) -> Sanitized | Failure:
        """Watch a candidate's memory on the smallest case: by compute-sanitizer, on a CPU by guard pages."""
        with self._harness_fault():
            return self._tools.sanitized(candidate, min(self._cases, key=lambda c: c.described.work.bytes_moved))

    def look_into(self) -> LookedInto | None:
        """Of the first case; see `looked_into`."""
        with self._harness_fault():
            return self._tools.looked_into(self._problem, self._cases[0])

    def capture(self, candidate: Candidate, *, compiled: Sequence[Path] = ()) -> Captured | Failure:
        """Record the first case's call as a CUDA graph, and replay it; `compiled`: as in `evaluate`."""
        with self._harness_fault():
            return self._tools.captured(self._problem, self._cases[0], candidate, compiled=compiled)

    def close(self) -> None:
        """End all cells and remove their folders. Safe to call twice."""
        self._cells.close()
