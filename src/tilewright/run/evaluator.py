"""The evaluator of a run: what is done with a problem on the machine that has the device, all but asking a model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ..facts.candidate import Candidate
from ..facts.errors import UserError
from ..facts.machine import Machine
from ..facts.move import (
    CallTool,
    Capture,
    Compose,
    Enter,
    Inspect,
    Interleave,
    Move,
    Outcome,
    Sanitize,
    Try,
    Tune,
    Verify,
    Within,
)
from ..facts.outcome import Station
from ..facts.pattern import Choice, Recipe
from ..facts.run import GIVEN, Request, SearchContext
from ..facts.time_budget import UNBOUNDED, TimeBudget
from ..facts.verdict import Verified
from ..judge.lacks import Lacks
from ..judge.verify import VerifiedSubject, verified, with_memory
from .ahead import Objects
from .learning import Learning
from .matching import composed
from .opened import OpenedJudge
from .places import Places, Say
from .realisations import vouched
from .subproblems import Subproblems
from .tool_calls import answered

if TYPE_CHECKING:
    from ..judge.evaluate import Judge


class Evaluator:
    """The machine and the judge, each opened when a move first needs it."""

    def __init__(
        self, request: Request, *, places: Places, say: Say, machine: Machine | None = None,
        objects: Objects | None = None, time: TimeBudget = UNBOUNDED,
    ) -> None:  # fmt: skip
        """`objects`: what others of the same run have compiled, to share. `time`: what is left to the run."""
        self.request, self.places, self.say = request, places, say
        self._time = time
        self._opened = OpenedJudge(request, places=places, say=say, machine=machine, time=time)
        self._objects = objects if objects is not None else Objects()
        self._pieces: Subproblems | None = None
        self._lacks = Lacks(
            request.problem.target, workdir=(places.out / "work").resolve(),
            hidden=(Path.home(), Path(request.problem.path).absolute()),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """End the judge and its cells; the next move that needs one opens another."""
        if self._pieces is not None:
            self._pieces.close()
        self._opened.close()

    @property
    def machine(self) -> Machine:
        return self._opened.machine

    @property
    def judge(self) -> Judge:
        return self._opened.judge

    def announce(self, context: SearchContext, moves: tuple[Move, ...]) -> None:
        """Nothing: moves are carried out when they are made."""

    def context(self, request: Request) -> SearchContext:
        """Opens the judge: what the cases do comes from running the reference once."""
        return Learning(request, self._opened, places=self.places, say=self.say, objects=self._objects).context()

    def held(self) -> tuple[Station, ...]:
        """For what the device was held since this was last asked, and how long."""
        subproblems = self._pieces.held() if self._pieces is not None else ()
        return (*subproblems, *self._opened.held())

    @property
    def subproblems(self) -> Subproblems:
        """The benches of the module's subproblems; the module's own cells make room for theirs."""
        self._opened.close()
        if self._pieces is None:
            self._pieces = Subproblems(
                self.request, places=self.places, machine=self.machine, say=self.say,
                bench_of=partial(Evaluator, objects=self._objects, time=self._time),
            )  # fmt: skip
        return self._pieces

    def perform(self, context: SearchContext, move: Move) -> Outcome:
        """What comes of a move. Raises Lack where the machine lacks what the move's candidate may need."""
        outcome = self._performed(context, move)
        match move:
            case Try(what=what) | Inspect(what=what) | Sanitize(what=what) | Capture(what=what) | Verify(what=what):
                about: Candidate | Recipe | None = what
            case Tune(recipe=recipe):
                about = recipe
            case _:
                about = None
        if about is None:
            return outcome
        candidate = about if isinstance(about, Candidate) else composed(context, about)
        offered = [name for name, _ in context.languages] if _by_others(context, about, self._objects) else None
        return self._lacks.require(candidate, outcome, offered=offered)

    def _performed(self, context: SearchContext, move: Move) -> Outcome:
        self._objects.ours.update(c.written.candidate.id for c in context.libraries if c.written is not None)
        if isinstance(move, Enter):
            return self.subproblems.entered(context, move.subproblem)
        if isinstance(move, Within):
            return self.subproblems.perform(context, move)
        if self._pieces is not None:
            self._pieces.close()
        compiled = partial(self._opened.compiled, objects=self._objects)
        match move:
            case Try(what=Candidate() as candidate):
                return self.judge.evaluate(candidate, foreign=True, compiled=compiled(candidate, ()))
            case Try(what=tuple() as recipe):
                ours = composed(context, recipe)
                foreign = any(choice.written is not None for choice in recipe)
                return self.judge.evaluate(
                    ours, foreign=foreign, compiled=compiled(ours, recipe), vouched=vouched(context, ours)
                )
            case Compose(recipe=recipe):
                return composed(context, recipe)
            case Inspect(what=tuple() as recipe, question=question):
                return self.judge.inspect(composed(context, recipe), question)
            case Inspect(what=(Candidate() | None) as what, question=question):
                return self.judge.inspect(what, question)
            case Sanitize(what=Candidate() as candidate):
                return self.judge.sanitize(candidate)
            case Sanitize(what=tuple() as recipe):
                return self.judge.sanitize(composed(context, recipe))
            case Capture(what=what):
                ours = what if isinstance(what, Candidate) else composed(context, what)
                choices = () if isinstance(what, Candidate) else what
                return self.judge.capture(ours, compiled=compiled(ours, choices))
            case CallTool():
                return answered(lambda: self.judge, context, move, realised=self.places.realised)
            case Interleave(candidates=candidates):
                return self.judge.looks.interleave(candidates)
            case Verify():
                return _verified(self, context, move.what)
            case Tune():
                ours = composed(context, move.recipe)
                tries = tuple(Choice(pattern=move.pattern, point=point) for point in move.points)
                built = compiled(ours, (*move.recipe, *tries))
                return self.judge.tune(ours, move.pattern, move.points, compiled=built)
        raise UserError(f"strategy {context.strategy!r} made a {type(move).__name__} move, which nobody carries out")


def _by_others(context: SearchContext, about: Candidate | Recipe, objects: Objects) -> bool:
    """Whether a model or an agent has written the candidate, or a part of the recipe."""
    if isinstance(about, Candidate):
        written = [about]
    else:
        written = [choice.written.candidate for choice in about if choice.written is not None]
    return context.strategy != GIVEN and any(candidate.id not in objects.ours for candidate in written)


def _verified(bench: Evaluator, context: SearchContext, candidate: Candidate) -> Verified:
    """By its text; what addresses memory also runs between guard pages, where the text proves nothing. On a GPU
    the winner alone goes under compute-sanitizer."""
    found = verified(
        candidate, VerifiedSubject(problem=context.problem, cases=context.cases, device=bench.machine.device)
    )
    unknown = any(v.verifier == "memory" and v.says == "unknown" for v in found.verdicts)
    if context.problem.target != "cpu" or found.proven or not unknown:
        return found
    return with_memory(found, bench.judge.sanitize(candidate))
