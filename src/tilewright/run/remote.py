"""A bench that has its work done by another machine: each move lies in a bundle as an order until its answer does."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

from ..edges.bundle import Bundle
from ..facts.candidate import Candidate
from ..facts.dialogue import ToolAnswer
from ..facts.errors import HarnessError, Pending, UserError
from ..facts.move import (
    CallTool,
    Capture,
    Compose,
    Enter,
    Event,
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
from ..facts.order import Answer, Fault, Job, Order
from ..facts.outcome import Captured, Failure, Inspected, Interleaved, Sanitized, Station, Timed, Tuned
from ..facts.problem import Problem
from ..facts.run import Request, SearchContext
from ..facts.verdict import Verified
from .drive import Elsewhere
from .matching import composed

_POLL_S = 1.0
_KIND = "bundle"
_ANSWERED_BY = {
    Try: (Timed, Failure), Tune: (Tuned, Failure), Sanitize: (Sanitized, Failure), Inspect: (Inspected, Failure),
    Interleave: (Interleaved,), CallTool: (ToolAnswer,), Capture: (Captured, Failure),
    Verify: (Verified,), Enter: (SearchContext, Failure),
    Within: (Timed, Tuned, Sanitized, Inspected, Failure),
}  # fmt: skip


def bundle_folder(evaluator: str) -> Path:
    """The folder that `bundle:DIR` names; UserError on anything else."""
    kind, _, folder = evaluator.partition(":")
    if kind != _KIND or not folder:
        raise UserError(f"--evaluator {evaluator!r}: unknown; write bundle:DIR")
    return Path(folder)


class Remote:
    """See the module's docstring. `made` counts what the run's journal holds, the context and the events: it numbers
    the orders, and those of smaller numbers are withdrawn from the bundle. `events`: those of the journal; with them
    the other machine goes on by itself until a model is wanted.

    Without `wait` raises Pending where an answer has not come yet. What the other machine calls the user's fault is a
    UserError here, its own a HarnessError; the order then lies there once more, for whenever that is mended."""

    def __init__(
        self, request: Request, *, made: Callable[[], int], wait: bool, say: Callable[[str], None],
        events: Callable[[], tuple[Event, ...]] = lambda: (), sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._request = request
        self._events = events
        self._ahead: deque[Event] = deque()
        self._bundle = Bundle(bundle_folder(request.evaluator))
        self._made, self._wait, self._say, self._sleep = made, wait, say, sleep
        self._held: tuple[Station, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._withdraw()

    def start_afresh(self) -> None:
        """Nothing: what is open is open elsewhere."""

    def context(self, request: Request) -> SearchContext:
        """As the other machine found it; what the user asked for is not that machine's to say."""
        order = self._order(0)
        answer = self._answer(order, "opening the problem")
        found = answer.what
        if not isinstance(found, SearchContext):
            raise self._wrong(order, f"is a {type(found).__name__}, for the opening of a problem")
        self._ahead = deque(answer.ahead)
        return as_asked(found, request)

    def announce(self, context: SearchContext, moves: tuple[Move, ...]) -> None:
        """All orders of moves that were made together lie there before the first is waited for."""
        known = [event.move for event in self._ahead]
        for index, move in enumerate(moves):
            if type(move) in _ANSWERED_BY and known[: index + 1] != list(moves[: index + 1]):
                self._bundle.post(self._order(self._made() + index, context, move))

    def perform(self, context: SearchContext, move: Move) -> Elsewhere:
        if self._ahead and self._ahead[0].move == move and _fits(move, self._ahead[0].outcome):
            event = self._ahead.popleft()
            self._held = event.held
            return Elsewhere(outcome=_bare(event.outcome), wall_s=event.wall_s)
        self._ahead.clear()  # another version went on otherwise
        if isinstance(move, Compose):  # it takes no device
            return Elsewhere(outcome=composed(context, move.recipe), wall_s=0.0)
        if type(move) not in _ANSWERED_BY:
            raise UserError(
                f"strategy {context.strategy!r} made a {type(move).__name__} move, which nobody carries out"
            )
        self._withdraw()
        order = self._order(self._made(), context, move)
        answer = self._answer(order, type(move).__name__.lower())
        if answer.machine != context.machine.key:
            raise self._wrong(order, f"comes from another machine than the run began on, {context.machine.device}")
        found = answer.what
        if isinstance(found, Fault) or not _fits(move, found):
            raise self._wrong(order, f"is a {type(found).__name__}, for a {type(move).__name__}")
        self._held = answer.held
        self._ahead = deque(answer.ahead)
        return Elsewhere(outcome=_bare(found), wall_s=answer.wall_s)

    def held(self) -> tuple[Station, ...]:
        """For what the other machine's device was held since this was last asked, and how long."""
        held, self._held = self._held, ()
        return held

    def _wrong(self, order: Order, why: str) -> HarnessError:
        place = self._bundle.place_of_answer(order)
        return HarnessError(f"{place}: it {why}; remove it, it counts for nothing")

    def _order(self, number: int, context: SearchContext | None = None, move: Move | None = None) -> Order:
        """What travels names no place of this machine."""
        job: Job | None = None
        if context is not None and move is not None:
            job = Job(
                context=replace(context, problem=_without_path(context.problem)), move=move, before=self._events()
            )
        request = self._request
        model = replace(request.model, base_url="") if request.model else None
        bare = replace(request, problem=_without_path(request.problem), model=model, evaluator="")
        return Order(request=bare, number=number, job=job)

    def _answer(self, order: Order, what: str) -> Answer:
        told = False
        while True:
            answer = self._bundle.answer(order)
            if answer is not None:
                if not isinstance(answer.what, Fault):
                    return answer
                order = replace(order, attempt=order.attempt + 1)
                if self._bundle.post(order):
                    kind = UserError if answer.what.whose == "user" else HarnessError
                    raise kind(f"{what}, on the other machine: {answer.what.text} (it is asked once more)")
                continue
            self._bundle.post(order)
            place = self._bundle.place_of_answer(order)
            if not self._wait:
                raise Pending(f"{what} waits for {place}{', which is not whole yet' if place.exists() else ''}")
            if not told:
                self._say(f"{what}: waiting for {place}")
                told = True
            self._sleep(_POLL_S)

    def _withdraw(self) -> None:
        self._bundle.withdraw(self._request.run, before=self._made())


def as_asked(found: SearchContext, request: Request) -> SearchContext:
    """What another machine found, with what the user asked for."""
    return replace(
        found, run=request.run, problem=request.problem, strategy=request.strategy, seed=request.seed,
        budget_s=request.budget_s, limits=request.limits, sanitize=request.sanitize, without=request.without,
        model=request.model.name if request.model else "",
    )  # fmt: skip


def _fits(move: Move, outcome: Outcome) -> bool:
    return isinstance(outcome, Candidate if isinstance(move, Compose) else _ANSWERED_BY.get(type(move), ()))


def _bare(outcome: Outcome) -> Outcome:
    return replace(outcome, problem=_without_path(outcome.problem)) if isinstance(outcome, SearchContext) else outcome


def _without_path(problem: Problem) -> Problem:
    return replace(problem, path="")
