"""The judge's verdict on values, in this process: what a check asks of a candidate's result on one set of inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from tilewright.cell import boundary
from tilewright.cell.budget import Asked
from tilewright.cell.ensemble import Question
from tilewright.cell.reference import Reference
from tilewright.cell.subject import Subject
from tilewright.stages.check import metric
from tilewright.stages.check.plan import BOUNDARY, BRIEF, SPECIALS, spread_of
from tilewright.stages.check.plan import Trial as Planned


@dataclass(frozen=True, slots=True)
class Verdict:
    accepted: bool
    why: str


class Bench:
    """A problem file, open on a device; one set of parameters at a time."""

    def __init__(self, problem: str, device: str) -> None:
        self.reference = Reference("/sweep/problem.py", problem, ["{}"], subject=Subject(device), compiled=False)
        self.device = device
        self.reference.construct(0, seed=1)
        described = self.reference.describe(2, trace=False)
        self.longest_sum, self.args = described.longest_sum, described.args
        self._own = (0.0, 0.0)

    def construct(self, seed: int) -> None:
        self.reference.construct(0, seed=seed)
        self._own = (0.0, 0.0)

    @property
    def state(self) -> tuple[Tensor, ...]:
        return tuple(p.detach() for p in self.reference.subject.built.parameters())

    def run(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """The module's own result."""
        result: Tensor = self.reference.subject.run(self.args, inputs)
        return result

    def trial(self, planned: Planned, number: int = 0) -> Trial | None:
        """Inputs and state of a trial, with what verdicts are made by; None where they say nothing. `number`: of the
        trials of the boundary family."""
        family, seed, turned = planned.family, planned.seed, 0
        if planned.redraw:
            spread = spread_of(planned.redraw)
            self.reference.redraw(planned.redraw, spread=spread, brief=family == BRIEF)
        _, inputs = self.reference.inputs(seed, "own" if family == BOUNDARY else family)
        if family == BOUNDARY:
            moved = boundary.approach(self.reference, self.args, inputs, seed=seed, number=number, state=True)
            inputs, turned = moved.inputs, moved.turned
        self.reference.forget_double()
        (truth,), own = self.reference.truth(self.args, inputs, seed, again=True), self.run(inputs)
        found = metric.distance(own, truth, own)
        if family != "own" and (metric.differing_specials(own, truth) or found.norm > metric.hopeless(own.dtype)):
            return None
        if family == "own":
            self._own = max(found.norm, self._own[0]), max(found.worst, self._own[1])
        error = max(found.norm, self._own[0]), max(found.worst, self._own[1])
        return Trial(self, planned, inputs, truth=truth, own=own, error=error, turned=turned)


class Trial:
    """One set of inputs. What an appeal needs is shared by all who appeal."""

    def __init__(
        self, bench: Bench, planned: Planned, inputs: tuple[Tensor, ...], *, truth: Tensor, own: Tensor,
        error: tuple[float, float], turned: int,
    ) -> None:  # fmt: skip
        self._bench, self._planned, self.inputs, self.turned = bench, planned, inputs, turned
        self._truth, self._own, self._error = truth, own, error
        self._asked: Asked | None = None

    def verdict(self, got: Tensor) -> Verdict:
        """Whether the check accepts this result: by the plain contract, or by the budget of each element."""
        found = metric.distance(got, self._truth, self._own)
        allowed = metric.allowance(self._own.dtype, self._error, length=self._bench.longest_sum)
        special = found.misplaced and self._planned.family == SPECIALS
        if special and not metric.masks_infinity(got, self._truth, self._own):
            found = replace(found, misplaced=0)
        if found.misplaced == 0 and found.norm <= allowed[0] and found.worst <= allowed[1]:
            return Verdict(True, "")
        if self._asked is None:
            question = Question(args=self._bench.args, inputs=self.inputs, seed=self._planned.seed)
            self._asked = Asked(self._bench.reference, question)
        judged = self._asked.judged(0, got=got, own=self._own)
        return Verdict(judged.right, judged.why)
