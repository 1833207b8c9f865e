"""The judge's verdict on values, in this process: what a check asks of a candidate's result on one set of inputs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tilewright.cell import boundary, budget
from tilewright.cell.ensemble import Budget, Ensemble, Question
from tilewright.cell.reference import Reference
from tilewright.cell.subject import Subject
from tilewright.stages.check import metric

BOUNDARY, BRIEF = "boundary", "twelve_bits"


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

    def trial(self, family: str, seed: int, number: int = 0) -> Trial | None:
        """Inputs of a family, with what verdicts are made by; None where they say nothing. `number`: of the trials of
        the boundary family."""
        turned = 0
        if family == BRIEF:
            self.reference.redraw(seed, brief=True)
        _, inputs = self.reference.inputs(seed, "own" if family == BOUNDARY else family)
        if family == BOUNDARY:
            moved = boundary.approach(self.reference, self.args, inputs, seed=seed, number=number, state=True)
            inputs, turned = moved.inputs, moved.turned
        (truth,), own = self.reference.truth(self.args, inputs, seed, again=True), self.run(inputs)
        found = metric.distance(own, truth, own)
        if metric.differing_specials(own, truth) or found.norm > metric.hopeless(own.dtype):
            return None
        if family == "own":
            self._own = found.norm, found.worst
        mine = max(found.norm, self._own[0]), max(found.worst, self._own[1])
        return Trial(self, inputs, truth=truth, own=own, error=mine, seed=seed, turned=turned)


class Trial:
    """One set of inputs. What an appeal needs is shared by all who appeal."""

    def __init__(
        self, bench: Bench, inputs: tuple[Tensor, ...], *, truth: Tensor, own: Tensor, error: tuple[float, float],
        seed: int, turned: int,
    ) -> None:  # fmt: skip
        self._bench, self.inputs, self._seed, self.turned = bench, inputs, seed, turned
        self._truth, self._own, self._error = truth, own, error
        self._budget: Budget | None = None

    def verdict(self, got: Tensor) -> Verdict:
        """Whether the check accepts this result: by the plain contract, or by the budget of each element."""
        found = metric.distance(got, self._truth, self._own)
        allowed = metric.allowance(self._own.dtype, self._error, length=self._bench.longest_sum)
        if found.misplaced == 0 and found.norm <= allowed[0] and found.worst <= allowed[1]:
            return Verdict(True, "")
        judged = budget.judged(self._asked(), 0, got=got, own=self._own)
        return Verdict(judged.right, judged.why)

    def _asked(self) -> Budget:
        if self._budget is None:
            question = Question(args=self._bench.args, inputs=self.inputs, seed=self._seed)
            self._budget = Ensemble(self._bench.reference, question).budget()
        return self._budget
