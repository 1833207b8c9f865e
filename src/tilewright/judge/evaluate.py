"""The Judge: build, check, time. It holds the reference's cell, the baselines' and the clock; candidates come and go.

    with Judge(problem, machine=machine, seed=1, workdir=folder, say=print) as judge:
        facts = judge.open()
        outcome = judge.evaluate(candidate)      # Timed or Failure

A candidate's faults are Failures; the user's raise UserError; everything else raises HarnessError and is never scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..edges.gpu.lease import quarantine
from ..edges.toolchain.tripwires import tripwires
from ..facts.candidate import Candidate
from ..facts.errors import SickDevice
from ..facts.machine import Machine
from ..facts.outcome import Captured, Failure, Inspected, Sanitized, Timed, Tuned
from ..facts.problem import Problem
from ..facts.profile import Question
from ..facts.run import CaseFacts
from ..facts.space import Point
from . import tools
from .build.build import build, failure
from .check import hidden
from .check.check import RefusedByCheck
from .client import CellFault
from .discover import LookedInto
from .judgement import Hoarding, Judging
from .looking import CandidateLooks
from .memory.sizes import available_bytes
from .opened import JudgeOptions as JudgeOptions
from .opened import OpenProblem
from .patience import Patience, when_calm
from .timing.measure import Implausible
from .tune_case import tuned


class Judge:
    """See the module's docstring. One per problem; not thread-safe. `rates` measures the machine, of which `machine`
    holds no rate then, once the problem has run."""

    def __init__(
        self, problem: Problem, *, machine: Machine, seed: int, workdir: Path, say: Callable[[str], None],
        options: JudgeOptions | None = None, rates: Callable[[Patience], Machine] | None = None,
    ) -> None:  # fmt: skip
        self.opened = OpenProblem(
            problem, machine=machine, seed=seed, workdir=workdir, say=say, options=options or JudgeOptions()
        )
        self._rates = rates
        self.held = self.opened.turns.held

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> tuple[CaseFacts, ...]:
        """Load the problem, run and trace every case, and start the baselines. Raises UserError for what is wrong
        with the problem file, HarnessError for what is wrong with us, and what `rates` raises."""
        self.opened.open(self._rates)
        return tuple(case.facts for case in self.opened.cases)

    def evaluate(
        self, candidate: Candidate, *, foreign: bool = False, compiled: Sequence[Path] = (), vouched: bool = False
    ) -> Timed | Failure:
        """Build, check on all cases, time on the first. At the text of a foreign candidate static detectors look, too:
        what they find becomes notes. A device that fails under it is tried once more, with fresh cells; then it is put
        under quarantine and SickDevice raised; TooBusy where others' load allows no verdict. `compiled`: its kernels
        that were built ahead. `vouched`: these very files passed at hidden cases here before: they are left out."""
        notes = (tripwires(candidate) if foreign else ()) + (hidden.VOUCHED,) * vouched
        evaluation = _Evaluation(
            self.opened, candidate, notes=notes, compiled=tuple(compiled), foreign=foreign, vouched=vouched
        )
        return when_calm(
            evaluation.run, self.opened.machine, budget_s=self.opened.effort().budget_s, say=self.opened.say,
            renew=self.opened.cells.renew_dead_reference,
        )  # fmt: skip

    def tune(
        self, candidate: Candidate, pattern: str, points: Sequence[Point], *, compiled: Sequence[Path] = ()
    ) -> Tuned | Failure:
        """Check and time all points of one pattern in one cell, on the first case. A point at which the cell dies is
        recorded, and the others go on in a new one. `compiled`: as in `evaluate`."""
        return tuned(self.opened, candidate, pattern, points, compiled=compiled)

    @property
    def looks(self) -> CandidateLooks:
        """What is looked at without a verdict: candidates in turns, and what tools see of one."""
        return CandidateLooks(self.opened)

    def inspect(self, candidate: Candidate | None, question: Question = "auto") -> Inspected | Failure:
        """Profile a call of the first case: of a candidate that was judged, in a fresh cell and under ncu, or of the
        module as it is."""
        return tools.inspected(self.opened, candidate, question)

    def sanitize(self, candidate: Candidate) -> Sanitized | Failure:
        """Watch a candidate's memory on the smallest case: by compute-sanitizer, on a CPU by guard pages."""
        with self.opened.harness_fault():
            return tools.sanitized(self.opened, candidate)

    def look_into(self) -> LookedInto | None:
        """Of the first case; see `discover.looked_into`."""
        with self.opened.harness_fault():
            return tools.look_into(self.opened)

    def capture(self, candidate: Candidate, *, compiled: Sequence[Path] = ()) -> Captured | Failure:
        """Record the first case's call as a CUDA graph, and replay it; `compiled`: as in `evaluate`."""
        with self.opened.harness_fault():
            return tools.graph_captured(self.opened, candidate, compiled=compiled)

    def close(self) -> None:
        """End all cells and remove their folders. Safe to call twice."""
        self.opened.cells.close()


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """The judgements of one candidate: a second one where the first may not have been its own fault."""

    opened: OpenProblem
    candidate: Candidate
    notes: tuple[str, ...]
    compiled: tuple[Path, ...]
    foreign: bool
    vouched: bool

    def run(self) -> Timed | Failure:
        """In fresh cells once more where the device fails; then it goes under quarantine, and SickDevice is raised."""
        try:
            return self._judged()
        except SickDevice as sick:
            self.opened.say(f"{sick}; once more, in fresh cells")
        try:
            self.opened.cells.renew_reference()
            return self._judged()
        except SickDevice as sick:
            quarantine(self.opened.device, str(sick))
            raise

    def _judged(self) -> Timed | Failure:
        """Once more where it seems to have kept others from memory: another process may have given back its own just
        when this candidate's cell was ended. That does not happen twice."""
        try:
            return self._judged_once()
        except Hoarding as hoarding:
            self.opened.say(f"{hoarding.failure.summary}; once more, to be sure that it was this candidate")
        try:
            return self._judged_once()
        except Hoarding as hoarding:
            return hoarding.failure

    def _judged_once(self) -> Timed | Failure:
        opened = self.opened
        with opened.harness_fault():
            opened.inform()
        with opened.candidate_cell(self.compiled) as cell:
            free_bytes = available_bytes(opened.problem.target)
            built = build(self.candidate, cell, limit_s=opened.options.limits.build_s, compiled=self.compiled)
            if isinstance(built, Failure):
                return built
            opened.say(f"built in {built.build_s:.1f} s")
            judgement = Judging(
                opened=opened, cell=cell, foreign=self.foreign, vouched=self.vouched, free_bytes=free_bytes
            )
            judgement.findings.notes.extend(self.notes)
            judgement.stations.add("build", built.build_s)
            try:
                with opened.harness_fault(cell):
                    return judgement.run(built)
            except Hoarding:
                raise
            except (RefusedByCheck, Implausible) as refused:
                return refused.failure
            except CellFault as fault:
                return failure("check", fault)
