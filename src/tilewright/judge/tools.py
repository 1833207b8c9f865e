"""Tools that look at a candidate's kernels in a process of its own, beside its judgement."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.machine import Machine
from ..facts.outcome import Captured, Failure, Inspected, Launches, Sanitized
from ..facts.problem import Problem, Target
from ..facts.profile import Question
from . import sanitize as sanitizing
from .build.build import build, failure
from .candidate_process.rerun import RECORDED
from .capture import captured
from .cells import Cells
from .check.check import Check, Findings, Refused
from .check.plan import secret
from .client import CellFault, Limits
from .discover import LookedInto, looked_into
from .inspect import of_the_cpu, summed
from .memory.sizes import check_room_sizes
from .profile.limits import Call
from .profiles import Look, diagnosed, lack
from .rooms import Case, Rooms
from .seats import seat
from .turns import Turns
from .wire import messages as wire


class Tools:
    """Those of one judge. The candidate is called on arguments that are recorded for it, anew each time."""

    def __init__(
        self, machine: Machine, target: Target, *, cells: Cells, rooms: Rooms, turns: Turns, rng: random.Random,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._machine, self._target = machine, target
        self._cells = cells
        self._rooms = rooms
        self._turns = turns
        self._rng = rng
        self._say = say

    def told(
        self, case: Case, found: wire.Profiled, candidate: Candidate | None = None, question: Question = "auto"
    ) -> Inspected:
        """What limits a call that torch's profiler saw; a candidate is run again for it, under ncu where it is."""
        launches = Launches(count=found.launches, cost_ns=found.launch_ns) if found.launches else None
        told = summed(found.spent, target=self._target, launches=launches)
        call = Call(self._machine, case.described.work, max(told.ns, 1.0))
        if self._target == "cpu":
            return of_the_cpu(told, call)
        why = lack(case.described)
        if candidate is None or why:
            known = diagnosed(None, found.spent, call, launches)
            return replace(told, diagnosis=replace(known, notes=(why,) if why else ()))
        with (
            self._cells.folder("profile") as folder, self._cells.folder("reports") as reports,
            self._turns.turn("profiling"),
        ):  # fmt: skip
            look = Look(job=self._job(candidate, case, folder), reports=reports, question=question, say=self._say)
            return replace(told, diagnosis=diagnosed(look, found.spent, call, launches))

    def sanitized(self, candidate: Candidate, case: Case) -> Sanitized | Failure:
        """What is seen of the candidate's use of memory on this case, by compute-sanitizer, or on a CPU by guard pages;
        what can't be had is noted."""
        lack = sanitizing.lack(case.described, self._target)
        if lack:
            return Sanitized(clean=(), notes=(lack,))
        with self._cells.folder("sanitizer") as folder, self._turns.turn("watching memory"):
            return sanitizing.watched(self._job(candidate, case, folder), target=self._target, say=self._say)

    def captured(
        self, problem: Problem, case: Case, candidate: Candidate, *, compiled: Sequence[Path]
    ) -> Captured | Failure:
        """The candidate's call on this case as a CUDA graph, and the module's; their cells end with it."""
        cell = self._cells.take_spare()
        found: Captured | None = None
        try:
            built = build(candidate, cell, limit_s=Limits().build_s, compiled=compiled)
            if isinstance(built, Failure):
                return built
            self._cells.settle_spare()
            with self._turns.turn("CUDA graphs"), self._rooms.room(case, sizes=check_room_sizes) as room:
                check = Check(room, cell, case=case.number, precision=problem.precision, findings=Findings())
                seat(check, construct_seed=case.seed, seed=secret(self._rng))
                found = captured(check, self._cells.reference, machine=self._machine, rng=self._rng)
        except Refused as refused:
            return refused.failure
        except CellFault as fault:
            if fault.source == cell.plan.name:
                return failure("check", fault)
            if found is None:  # else the reference's cell could not be tidied up, and ends anyway
                raise
        finally:
            cell.close()
            self._cells.renew_reference()
        return found

    def looked_into(self, problem: Problem, case: Case) -> LookedInto | None:
        """What the case spends its time in; see `discover.looked_into`."""
        seed = secret(self._rng)
        with self._turns.turn("discovering"), self._rooms.room(case, sizes=check_room_sizes) as room:
            return looked_into(
                problem, room=room, reference=self._cells.reference, machine=self._machine, seed=seed, say=self._say
            )

    def _job(self, candidate: Candidate, case: Case, folder: Path) -> sanitizing.Job:
        """What judge.candidate_process.rerun is to run; what the candidate is called with lies in the folder then."""
        with self._rooms.room(case, sizes=check_room_sizes) as room:
            room.state.take()
            room.draw(0, family="own", seed=secret(self._rng))
            room.record(0, folder / RECORDED)
        return sanitizing.Job(
            candidate=candidate, described=case.described, folder=folder, seed=case.seed,
            environment=self._cells.environment,
        )  # fmt: skip
