"""The machine and the judge of a run, each opened when it is first needed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ..edges.gpu.machine import identity, threads
from ..edges.gpu.machine import known as known_machine
from ..edges.gpu.machine import machine as measured_machine
from ..edges.sandbox.forkserver import start_ahead
from ..edges.toolchain.languages import cutlass_headers
from ..facts.candidate import Candidate
from ..facts.device import Device
from ..facts.devices import device_of
from ..facts.machine import Machine
from ..facts.outcome import Station
from ..facts.pattern import INDUCTOR, Recipe
from ..facts.run import AGENT, GIVEN, CaseFacts, Request
from ..facts.time_budget import UNBOUNDED, TimeBudget
from ..realise.digests import skeleton_digests
from ..realise.library.inductor import baselines
from .ahead import Objects, built_by_nvcc, compiled_ahead
from .places import Places, Say

if TYPE_CHECKING:
    from ..judge.evaluate import Judge
    from ..judge.patience import Patience


class OpenedJudge:
    """Of one request; `machine`: where it is known beforehand; `time`: what is left to the run."""

    def __init__(
        self, request: Request, *, places: Places, say: Say, machine: Machine | None, time: TimeBudget = UNBOUNDED
    ) -> None:
        self.time = time
        self._request, self._places, self._say = request, places, say
        self._machine = machine
        self._judge: Judge | None = None
        self._cases: tuple[CaseFacts, ...] = ()

    def close(self) -> None:
        judge, self._judge = self._judge, None
        if judge is not None:
            judge.close()

    def held(self) -> tuple[Station, ...]:
        """For what the device was held since this was last asked, and how long."""
        return self._judge.held() if self._judge is not None else ()

    @property
    def device(self) -> Device:
        """What kernels are made for: this machine's."""
        return device_of(self.machine)

    @property
    def machine(self) -> Machine:
        if self._machine is None:
            self.judge  # noqa: B018  has it measured, once the problem is known to run
        assert self._machine is not None
        return self._machine

    def _measured(self, patience: Patience) -> Machine:
        """Raises TooBusy where calm does not come; but a given candidate may be refused without a clock."""
        (patience.calm if self._request.strategy == GIVEN else patience.require)("measuring this machine")
        self._machine = measured_machine(self._request.problem.target, cache_dir=self._places.cache, say=self._say)
        return self._machine

    @property
    def judge(self) -> Judge:
        if self._judge is None:
            asked, cache = self._request, self._places.cache
            target = asked.problem.target
            self._machine = self._machine or known_machine(target, cache_dir=cache)
            machine = self._machine or identity(target)
            threads = machine.processors if machine.target == "cpu" else 0
            start_ahead(threads, machine.target, asked.problem.imports)  # torch, while we import it
            threading.Thread(target=skeleton_digests, args=(target,), daemon=True).start()  # while cells are waited for
            from ..judge.evaluate import Judge, JudgeOptions
            from ..judge.timing.measure import Effort

            self._say(f"on {machine.device}: running and tracing {self._request.problem.name}")
            work = (self._places.out / "work").resolve()
            work.mkdir(parents=True, exist_ok=True)
            self._judge = Judge(
                self._request.problem, machine=machine, seed=asked.seed, workdir=work, say=self._say,
                options=JudgeOptions(
                    effort=Effort(budget_s=asked.timing.budget_s), compile_baseline=asked.timing.compiled,
                    compile_modes=baselines(asked.problem, asked.timing.modes), baselines=cache,
                    explains=asked.model is not None or asked.strategy == AGENT, algebra=asked.algebra,
                    time=self.time, racecheck=asked.racecheck,
                ), rates=self._measured if self._machine is None else None,
            )  # fmt: skip
            self._cases = self._judge.open()
        return self._judge

    @property
    def cases(self) -> tuple[CaseFacts, ...]:
        self.judge  # noqa: B018  running the reference once tells them
        return self._cases

    def compiled(self, candidate: Candidate, choices: Recipe, objects: Objects) -> tuple[Path, ...]:
        """Its kernels at these choices, compiled on all processors while no device is leased; those of others compile
        themselves."""
        self.judge  # noqa: B018  opened first: on the CPU, what it runs then would share the processors
        written = {c.pattern: c.written.candidate for c in choices if c.written is not None}
        ours = tuple(c for c in choices if c.pattern != INDUCTOR and c.pattern not in written)
        folder, jobs = self._places.libraries, threads()
        theirs = built_by_nvcc(
            (candidate, *written.values()), headers=cutlass_headers(), folder=folder, jobs=jobs, objects=objects
        )
        return theirs + compiled_ahead(
            candidate, ours, folder=folder, jobs=jobs, device=self.device, objects=objects, time=self.time
        )
