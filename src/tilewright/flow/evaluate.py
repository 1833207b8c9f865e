"""The Judge: build, check, time. It holds the reference's cell, the baselines' and the clock; candidates come and go.

    with Judge(problem, machine=machine, seed=1, workdir=folder, say=print) as judge:
        facts = judge.open()
        outcome = judge.evaluate(candidate)      # Timed or Failure

A candidate's faults are Failures; the user's raise UserError; everything else raises HarnessError and is never scored.
"""

from __future__ import annotations

import json
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..cell import wire
from ..edges.gpu.lease import lease
from ..edges.sandbox.cell import Cell, CellFault, Limits
from ..edges.sandbox.room import Room
from ..facts import codec
from ..facts.candidate import Candidate
from ..facts.errors import HarnessError, UserError
from ..facts.machine import Machine
from ..facts.outcome import Built, Checked, Failure, PointTime, Timed, Tuned
from ..facts.problem import Problem, Target
from ..facts.run import CaseFacts
from ..facts.space import Point
from ..stages.build.build import build, failure
from ..stages.check.check import Check, Findings, Refused, concluded, refusal, trials_for
from ..stages.check.plan import Trial, secret
from ..stages.timing import measure as timing
from ..stages.timing.interleave import Player, Table
from ..stages.timing.sweep import Contender, sweep
from .cells import Cells
from .memory import check_room_sizes, flush_bytes, timing_room_sizes

DESCRIBE_LIMIT_S = 300.0
_LOAD_LIMIT_S = 120.0
EAGER = "eager"
OURS = "ours"
COMPILE = "compile"


@dataclass(frozen=True, slots=True)
class _Case:
    """A case as described, and the seed under which its module is constructed everywhere."""

    number: int
    described: wire.Described
    seed: int


class Judge:
    """See the module's docstring. One per problem; not thread-safe."""

    def __init__(
        self, problem: Problem, *, machine: Machine, seed: int, workdir: Path, say: Callable[[str], None],
        effort: timing.Effort | None = None, limits: Limits | None = None, compile_baseline: bool = True,
    ) -> None:  # fmt: skip
        self._problem = problem
        self._machine = machine
        self._say = say
        self._effort = effort or timing.Effort()
        self._wants_compile = compile_baseline
        # Seeds of inputs must not be guessable from the outside: a candidate can read the command line.
        self._rng = random.Random(f"{seed}:{secrets.token_hex(16)}")
        self._limits = limits or Limits()
        self._device = "cuda:0" if problem.target == "cuda" else "cpu"
        self._cases: tuple[_Case, ...] = ()
        threads = machine.processors if problem.target == "cpu" else 0
        self._cells = Cells(problem, workdir=workdir, threads=threads, limits=self._limits, say=say)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- opening

    def open(self) -> tuple[CaseFacts, ...]:
        """Load the problem, run and trace every case, and start the baselines. Raises UserError for what is wrong
        with the problem file, HarnessError for what is wrong with us."""
        self._require_device()
        self._cells.open(compiled=self._wants_compile)
        with self._users_fault():
            self._ref.do(self._cells.load_problem(), limit_s=_LOAD_LIMIT_S)
            described = [self._describe(n) for n in range(len(self._problem.cases))]
        self._cases = tuple(described)
        self._cells.warm_baseline(construct_seed=described[0].seed, inputs_seed=secret(self._rng))
        self._cells.start_spare()
        return tuple(self._facts(c.described) for c in described)

    def _require_device(self) -> None:
        if self._problem.target == "cuda":
            import torch

            if not torch.cuda.is_available():
                raise UserError("the target is cuda, but torch finds no CUDA device here; use --target cpu")

    def _describe(self, number: int) -> _Case:
        seed = secret(self._rng)
        with lease(self._device, self._say):
            self._ref.ask(wire.ConstructCase(case=number, seed=seed), wire.Constructed, limit_s=DESCRIBE_LIMIT_S)
            request = wire.Describe(seed=secret(self._rng), trace=True)
            return _Case(number, self._ref.ask(request, wire.Described, limit_s=DESCRIBE_LIMIT_S), seed)

    def _facts(self, described: wire.Described) -> CaseFacts:
        return CaseFacts(
            inputs=described.inputs,
            outputs=tuple(o.spec for o in described.outputs),
            work=described.work,
            graph=codec.loads(described.graph) if described.graph else None,
            trace_failure=described.trace_failure,
        )

    @property
    def _ref(self) -> Cell:
        return self._cells.reference

    @contextmanager
    def _users_fault(self) -> Iterator[None]:
        """What the problem's own code raises is the user's; the end of its process is ours."""
        try:
            yield
        except CellFault as fault:
            raised = fault.by_code and fault.reason not in ("crashed", "broke_the_protocol")
            if not raised:
                raise HarnessError(f"the reference's cell failed: {fault.summary}\n{fault.excerpt}".strip()) from fault
            more = "; make the case smaller" if fault.reason == "out_of_memory" else ""
            raise UserError(f"{self._problem.path}: {fault.summary}{more}") from fault

    # ---- judging

    def evaluate(self, candidate: Candidate) -> Timed | Failure:
        """Build, check on all cases, time on the first."""
        cell = self._cells.take_spare()
        try:
            built = build(candidate, cell, limit_s=self._limits.build_s)
            if isinstance(built, Failure):
                return built
            self._say(f"built in {built.build_s:.1f} s")
            with self._harness_fault():
                return self._judge(cell, built)
        finally:
            cell.close()

    def _judge(self, cell: Cell, built: Built) -> Timed | Failure:
        findings = Findings()
        try:
            for case in self._cases:
                started = time.monotonic()
                self._check_case(case, cell, findings)
                self._say(f"case {case.number}: right on all inputs ({time.monotonic() - started:.1f} s)")
            checked = concluded(built, findings, ())
            return self._time(self._cases[0], cell, checked, findings)
        except Refused as refused:
            return refused.failure
        except timing.Implausible as implausible:
            return implausible.failure
        except CellFault as fault:
            if self._is_ours(fault, cell):
                raise
            return refusal(fault)

    def _is_ours(self, fault: CellFault, cell: Cell) -> bool:
        """Whether a fault is not the candidate's: another cell's, or the cell's own code found no memory."""
        return fault.source != cell.plan.name or (not fault.by_code and fault.reason == "out_of_memory")

    @contextmanager
    def _harness_fault(self) -> Iterator[None]:
        try:
            yield
        except CellFault as fault:
            raise HarnessError(
                f"the {fault.source} cell failed: {fault.reason}: {fault.summary}\n{fault.excerpt}".strip()
            ) from fault

    def _check_case(self, case: _Case, cell: Cell, findings: Findings) -> None:
        trials = trials_for(case.described, case.number, rng=self._rng)
        with lease(self._device, self._say), self._room(case, sizes=check_room_sizes) as room:
            room.admit(cell)
            check = Check(room, cell, case=case.number, precision=self._problem.precision, findings=findings)
            check.construct(case.seed)
            check.run(trials, redraw=self._redraw)

    @contextmanager
    def _room(self, case: _Case, *, sizes: Callable[[wire.Described, Target], tuple[int, int]]) -> Iterator[Room]:
        """The room of a case, with the reference's module freshly constructed and cached memory given back before its
        size is chosen."""
        self._ref.ask(
            wire.ConstructCase(case=case.number, seed=case.seed), wire.Constructed, limit_s=self._limits.call_s
        )
        self._cells.spare_baseline_memory()
        pool, slots = sizes(case.described, self._problem.target)
        try:
            room = Room(
                case.described,
                device=self._problem.target,
                reference=self._ref,
                limits=self._limits,
                pool=pool,
                slots=slots,
            )
        except (MemoryError, RuntimeError, OSError) as error:
            raise HarnessError(f"case {case.number} does not fit beside its copies in memory: {error}") from error
        with room:
            yield room

    def _redraw(self, seed: int) -> None:
        self._ref.do(wire.Redraw(seed=seed))

    # ---- timing

    def _time(self, case: _Case, cell: Cell, checked: Checked, findings: Findings) -> Timed | Failure:
        compiled = self._cells.compiled()
        self._cells.settle_spare()
        with lease(self._device, self._say), self._room(case, sizes=timing_room_sizes) as room:
            for guest in (cell, compiled):
                if guest is not None:
                    room.admit(guest)
            return self._time_in(room, case, cell, compiled, checked, findings)

    def _time_in(
        self, room: Room, case: _Case, cell: Cell, compiled: Cell | None, checked: Checked, findings: Findings
    ) -> Timed:
        check = Check(room, cell, case=case.number, precision=self._problem.precision, findings=findings)
        check.construct(case.seed)
        seeds = [secret(self._rng) for _ in range(room.pool)]
        for k, seed in enumerate(seeds):
            room.draw(k, family="own", seed=seed)
        room.take_state()
        check.load_state()
        ours = Player(OURS, cell)
        players = [ours, Player(EAGER, self._ref), Player(timing.AA, self._ref)]
        players += [Player(COMPILE, compiled)] if compiled is not None else []
        table = Table(room=room, players=players, rng=self._rng, flush_bytes=flush_bytes(self._machine))

        def verify(number: int, contents: Sequence[int]) -> None:
            self._verify_timed(table, ours, check, seeds)

        timing.measure(table, ours, effort=self._effort, verify=verify)
        timing.check_clock(table, ours)
        counted = cell.ask(wire.CountFallbacks(), wire.Fallbacks, limit_s=30.0)
        for note in self._cells.notes:
            findings.note(note)
        checked = concluded(checked.built, findings, counted.counts)
        timed = timing.summarise(checked, table, ours=OURS, machine=self._machine, work=case.described.work)
        mine = timed.time(OURS)
        assert mine is not None
        timing.check_floor(self._machine, case.described.work, mine)
        return timed

    def _verify_timed(self, table: Table, ours: Player, check: Check, seeds: Sequence[int]) -> None:
        """Re-draw the parameters and stir the inputs where they are, then keep what a random timed call returns
        and hold it against the truth: whatever was remembered from earlier calls is wrong now."""
        room = table.room
        if room.described.random:
            check.findings.note("the module is random: what it returns in timed calls can't be compared")
            return
        if check.shares_state and room.state_names:
            self._redraw(secret(self._rng))
            room.take_state()
            check.load_state()
        for k in range(room.pool):
            room.stir(k, self._rng)
        for slot, k in enumerate(table.contents):
            room.place(k, slot)
        calls = table.calls[ours.name]
        keep = self._rng.randrange(calls)
        _, order, _ = table.burst(ours, calls=calls, keep=keep)
        k = table.contents[order[keep]]
        check.fetch(tag=0, place=0)
        for player in table.players:
            player.cell.do(wire.Drop())
        trial = Trial(case=check.case, family="own", seed=seeds[k], redraw=0)
        facts = room.run_reference(k, seed=seeds[k])
        if check.usable(trial, facts.exact):
            check.compare(trial, 0, " of a timed call")

    # ---- tuning

    def tune(self, candidate: Candidate, pattern: str, points: Sequence[Point]) -> Tuned | Failure:
        """Check and time all points of one pattern in one cell, on the first case. A point at which the cell dies is
        recorded, and the others go on in a new one."""
        dead: dict[Point, str] = {}
        while living := [p for p in points if p not in dead]:
            cell = self._cells.take_spare()
            trying: list[Point] = []
            try:
                built = build(candidate, cell, limit_s=self._limits.build_s)
                if isinstance(built, Failure):
                    return built
                with self._harness_fault():
                    times = self._tune_in(cell, pattern, living, trying)
                return Tuned(points=_merged(points, times, dead))
            except _PointFault as fault:
                if not trying:
                    return failure("tune", fault.cause)
                dead[trying[-1]] = str(fault.cause)[:500]
            finally:
                cell.close()
        return Tuned(points=_merged(points, (), dead))

    def _tune_in(self, cell: Cell, pattern: str, points: Sequence[Point], trying: list[Point]) -> tuple[PointTime, ...]:
        """Times of the points; `trying` grows by each that is set. Raises _PointFault when the cell fails for good."""
        case = self._cases[0]
        if self._problem.target == "cpu":
            self._cells.compiled()  # its compiler would share the processors with what is timed
        self._cells.settle_spare()
        with lease(self._device, self._say), self._room(case, sizes=check_room_sizes) as room:
            check = Check(room, cell, case=case.number, precision=self._problem.precision, findings=Findings())
            try:
                room.admit(cell)
                check.construct(case.seed)
                room.take_state()
                check.load_state()
                trial = Trial(case=case.number, family="own", seed=secret(self._rng), redraw=0)
                room.draw(0, family="own", seed=trial.seed)
                check.usable(trial, room.run_reference(0, seed=trial.seed).exact)
                for slot in range(room.slots):
                    room.place(0, slot)
                table = Table(room=room, players=[], rng=self._rng, flush_bytes=flush_bytes(self._machine))
                set_point = partial(self._set_point, check, trial, pattern, trying)
                return sweep(table, Contender(Player(OURS, cell), Player(EAGER, self._ref), set_point), points)
            except CellFault as fault:
                if self._is_ours(fault, cell):
                    raise
                raise _PointFault(fault) from fault

    def _set_point(self, check: Check, trial: Trial, pattern: str, trying: list[Point], point: Point) -> str:
        """Configure the candidate and verify one call; why the point does not work, or ""."""
        trying.append(point)
        try:
            request = wire.Configure(pattern=pattern, knobs=json.dumps(dict(point)))
            check.cell.do(request, limit_s=self._limits.call_s)
            check.call(tag=0, slot=0, place=0, seed=trial.seed)
            check.compare(trial, 0)
        except Refused as refused:
            return f"{refused.failure.reason}: {refused.failure.summary}"[:500]
        except CellFault as fault:
            if self._is_ours(fault, check.cell) or not check.cell.alive:
                raise
            return str(fault)[:500]
        return ""

    # ---- end

    def close(self) -> None:
        """End all cells and remove their folders. Safe to call twice."""
        self._cells.close()


class _PointFault(Exception):
    """A candidate's cell failed while it was tuned."""

    def __init__(self, cause: CellFault) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _merged(points: Sequence[Point], times: Sequence[PointTime], dead: Mapping[Point, str]) -> tuple[PointTime, ...]:
    """One PointTime for every point, in the order given."""
    known = {t.point: t for t in times}
    return tuple(known.get(p) or PointTime(point=p, time_ns=None, failure=dead.get(p, "not reached")) for p in points)
