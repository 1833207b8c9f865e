"""The judge's verdict on values, in this process: a check's own contract, over a room without cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.check import metric
from tilewright.judge.check.contract import Contract
from tilewright.judge.check.plan import BOUNDARY, BRIEF, OWN, spread_of
from tilewright.judge.check.plan import Trial as Planned
from tilewright.judge.memory.case_memory import CaseMemory
from tilewright.judge.reference_process import boundary
from tilewright.judge.reference_process.budget import Asked
from tilewright.judge.reference_process.describing import describe
from tilewright.judge.reference_process.ensemble import Question
from tilewright.judge.reference_process.reference import Reference
from tilewright.judge.wire import messages as wire


@dataclass(frozen=True, slots=True)
class Verdict:
    accepted: bool
    why: str


class Bench:
    """A problem file, open on a device; one set of parameters at a time."""

    def __init__(self, problem: str, device: str) -> None:
        self.reference = Reference("/sweep/problem.py", problem, ["{}"], subject=CandidateSubject(device), compiled="")
        self.reference.construct(0, seed=1)
        self.described = describe(self.reference, 2, trace=False)
        self.own: dict[tuple[int, str, int], tuple[float, float]] = {}  # errors of the reference, as a check keeps them

    def construct(self, seed: int) -> None:
        self.reference.construct(0, seed=seed)
        self.own.clear()

    @property
    def state(self) -> tuple[Tensor, ...]:
        return tuple(p.detach() for p in self.reference.subject.built.parameters())

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """The module's own result."""
        result: Tensor = self.reference.subject.run(self.described.args, inputs)
        return result

    def trial(self, planned: Planned, number: int = 0) -> Trial | None:
        """Inputs and state of a trial, with what verdicts are made by; None where they say nothing. `number`: of the
        trials of the boundary family."""
        family, seed, turned, args = planned.family, planned.seed, 0, self.described.args
        if planned.redraw:
            self.reference.state.redraw(planned.redraw, spread=spread_of(planned.redraw), context=family == BRIEF)
        _, inputs = self.reference.inputs(seed, OWN if family == BOUNDARY else family)
        if family == BOUNDARY:
            moved = boundary.approach(self.reference, args, inputs, seed=seed, number=number, state=True)
            inputs, turned = moved.inputs, moved.turned
        self.reference.double.forget()
        (truth,), own = self.reference.double.truth(args, inputs, seed, again=True), self.run(inputs)
        found = metric.distance(own, truth, own)
        if family != OWN and (metric.differing_specials(own, truth) or found.norm > metric.hopeless(own.dtype)):
            return None
        before = self.own.get((0, family, 0), (0.0, 0.0))
        self.own[0, family, 0] = max(before[0], found.norm), max(before[1], found.worst)
        return Trial(self, planned, inputs, truth=truth, own=own, turned=turned)


class Trial:
    """One set of inputs. What an appeal needs is shared by all who appeal."""

    def __init__(
        self, bench: Bench, planned: Planned, inputs: tuple[Tensor, ...], *, truth: Tensor, own: Tensor, turned: int
    ) -> None:
        self._bench, self._planned, self.inputs, self.turned = bench, planned, inputs, turned
        self._truth, self._own = truth, own
        self._asked: Asked | None = None

    def verdict(self, got: Tensor) -> Verdict:
        """Whether the check accepts this result."""
        memory = cast(CaseMemory, _Bare(self, self._bench.described, got, self._truth, self._own))
        contract = Contract(memory, case=0, precision="reference", own=self._bench.own)
        found = contract.compare(self._planned, 0)
        return Verdict(not found.refusal, found.refusal[1] if found.refusal else "")

    def judged(self, got: Tensor, *, seed: int, least: float) -> wire.Judged:
        """By the budget of each element."""
        if self._asked is None:
            question = Question(args=self._bench.described.args, inputs=self.inputs, seed=seed, least=least)
            self._asked = Asked(self._bench.reference, question)
        return self._asked.judged(0, got=got, own=self._own)


@dataclass(frozen=True, slots=True)
class _Bare:
    """What a contract asks of a room, for one result."""

    trial: Trial
    described: wire.Described
    got: Tensor
    expected: Tensor
    reference: Tensor

    def results(self, _: int) -> tuple[Tensor, ...]:
        return (self.got,)

    @property
    def truths(self) -> _Bare:
        return self

    appeals = truths

    def truth(self) -> tuple[Tensor, ...]:
        return (self.expected,)

    def own(self) -> tuple[Tensor, ...]:
        return (self.reference,)

    def slack(self) -> tuple[None, ...]:
        return (None,)

    def appeal(self, _: int, outputs: Sequence[int], *, place: int, seed: int, least: float = 0.0) -> wire.Judgement:
        return wire.Judgement(judged=(self.trial.judged(self.got, seed=seed, least=least),))
