"""A run whose moves come from outside: a coding agent submits, profiles, tunes and ends; each outcome is durable before
it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from ..edges.ledger import Ledger
from ..facts.candidate import Candidate
from ..facts.errors import HarnessError, UserError
from ..facts.move import Await, CallTool, Event, Inspect, Move, Outcome, Stop, Try
from ..facts.outcome import Station, Timed
from ..facts.pattern import Recipe
from ..facts.problem import Problem
from ..facts.profile import Question
from ..facts.run import AGENT, Limits, Request, SearchContext, Timing
from ..search.strategies import agent as agents
from ..search.strategies.knobs import knobs_of
from ..search.strategies.spending import Spending
from ..search.strategies.tuning import Steps
from .drive import Elsewhere
from .evaluator import Evaluator
from .optimize import Finished, hand_over, new_run, progress, sanitized_by_default
from .places import Bench, BenchOf, Places, Say
from .remote import Remote

_MOST_TEXT = 300  # characters of a query


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms a new run begins; one that lies in the folder already keeps its own."""

    budget_s: float
    limits: Limits
    timing: Timing
    sanitize: bool | None = None  # None: where compute-sanitizer can be had
    seed: int = 0
    evaluator: str = ""  # as in Request


class RunRecord:
    """What a run has made, which may be asked from any thread; who makes moves adds to it."""

    def __init__(self, ledger: Ledger, context: SearchContext, *, say: Say, clock: Callable[[], float]) -> None:
        self._ledger, self._say, self._clock = ledger, say, clock
        self._keeping = threading.Lock()  # held while an event is kept
        self._abandoned = False
        self.context = context
        self.events: tuple[Event, ...] = ledger.events()
        self.spending = Spending(context)
        for event in self.events:
            self.spending.count(event)
        self._idle_since = clock()

    @property
    def stop(self) -> Stop | None:
        """How the run ended; None while it goes on."""
        return next((e.move for e in self.events if isinstance(e.move, Stop)), None)

    def attempt(self, number: int) -> Event:
        """A candidate that was judged, the first by number 1."""
        found = agents.attempts(self.events)
        if not 1 <= number <= len(found):
            have = f"there are attempts 1 to {len(found)}" if found else "nothing was submitted yet"
            raise UserError(f"no attempt {number}: {have}")
        return found[number - 1]

    def number_of(self, what: Candidate | Recipe) -> int | None:
        """The attempt at which just this was judged first; None if it was not."""
        tried = [e.move.what for e in agents.attempts(self.events) if isinstance(e.move, Try)]
        return tried.index(what) + 1 if what in tried else None

    def abandon(self) -> None:
        """From now on nothing is kept: what the end of this process does to a judgement says nothing of a candidate."""
        with self._keeping:
            self._abandoned = True

    def _keep(self, move: Move, outcome: Outcome, *, wall_s: float, held: tuple[Station, ...] = ()) -> Event:
        with self._keeping:
            if self._abandoned:
                raise HarnessError("the server ended while this was judged; nothing of it was kept")
            event = self._ledger.append(move, outcome, wall_s=wall_s, held=held)
        self.spending.count(event)
        self.events = (*self.events, event)
        self._idle_since = self._clock()
        self._say(progress(event))
        return event


class Session(RunRecord):
    """One run, opened by `Session(...)` and closed by `close`. It belongs to the thread that opened it, all but
    `context`, `events`, `over` and `abandon`.

    A folder that holds a run goes on with it, with all that it has spent. Raises UserError for a folder that holds
    another run or is open elsewhere, and for a fault of the problem's."""

    def __init__(
        self, problem: Problem, terms: Terms, *, places: Places, agent: str, say: Say, bench_of: BenchOf = Evaluator,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.agent, self._places = agent, places
        with ExitStack() as opened:
            ledger = opened.enter_context(Ledger(places.journal))
            request = ledger.request()
            if request is None:
                request = _request(problem, terms)
                ledger.write(request)
            _require_same(request, problem, places)
            context = ledger.context()
            machine = context.machine if context else None
            self._bench: Bench | Remote = (
                Remote(request, made=ledger.count, wait=True, say=say) if request.evaluator
                else bench_of(request, places=places, say=say, machine=machine)
            )  # fmt: skip
            opened.enter_context(self._bench)
            if context is None:
                context = self._bench.context(request)
                ledger.write(context)
            self._close = opened.pop_all().close
        super().__init__(ledger, context, say=say, clock=clock)

    # ---- what the agent does

    def submit(self, what: Candidate | Recipe, why: str) -> Event:
        """Have a candidate judged, or what the library makes of the module."""
        self._begin()
        return self._make(Try(what=what, why=why))

    def inspect(self, what: Candidate | Recipe | None, question: Question = "auto") -> Event:
        """Have a call profiled: of what was judged, or of the module as it is (None)."""
        self._begin()
        return self._make(Inspect(what=what, question=question))

    def use(self, tool: str, candidates: tuple[Candidate, ...] = (), text: str = "") -> Event:
        """Have a tool of facts.tools at work."""
        self._begin()
        return self._make(CallTool(tool=tool, candidates=candidates, text=text[:_MOST_TEXT]))

    def tune(self, number: int) -> tuple[Event, ...]:
        """Have the knobs of an accepted attempt turned; what was measured."""
        attempt = self.attempt(number)
        if not isinstance(attempt.outcome, Timed):
            raise UserError(f"attempt {number} was refused; only what the judge accepted can be tuned")
        assert isinstance(attempt.move, Try)
        what = attempt.move.what
        if isinstance(what, Candidate) and not knobs_of(what):
            raise UserError(
                f"attempt {number} shows no knob; write one on a line of its own, as in "
                "`TILE = 64  # knob: 32, 64, 128` or `constexpr int TILE = 64;  // knob: 32, 64, 128`"
            )
        self._begin()
        left_s = max(self.context.budget_s - self.spending.spent.seconds, 0.0)
        return self._made(agents.tuned(self.context, attempt, left_s=left_s, over=self.spending.over))

    def finish(self, why: str) -> Finished:
        """End the run with the best of it, and hand that over; a run that has ended is handed over again."""
        ended = self.stop
        if ended is None:
            self._await()
            self._made(agents.ended(self.context, self.events, why))
        stop = self.stop
        assert stop is not None
        return hand_over(
            self.context, self.events, stop, places=self._places, say=self._say, remember=ended is None
        )  # fmt: skip

    def close(self) -> None:
        """End the cells and give the journal back. Safe to call twice."""
        self._close()

    # ---- the journal

    def _begin(self) -> None:
        """Count the agent's own time; raises UserError where no further move may be begun."""
        if self.stop is not None:
            raise UserError(f"this run has ended ({self.stop.why}); open another folder to go on")
        self._await()
        if over := self.spending.over():
            raise UserError(f"{over}; call finish, which hands over the best and writes the report")

    def _await(self) -> None:
        self._keep(Await(agent=self.agent), None, wall_s=self._clock() - self._idle_since)

    def _made(self, steps: Steps[None]) -> tuple[Event, ...]:
        """Carry out moves that follow from one another."""
        made: list[Event] = []
        try:
            step = next(steps)
            while True:
                assert not isinstance(step, tuple)
                made.append(self._make(step))
                step = steps.send(made[-1])
        except StopIteration:
            return tuple(made)

    def _make(self, move: Move) -> Event:
        start = self._clock()
        try:
            done = None if isinstance(move, Stop) else self._bench.perform(self.context, move)
        except HarnessError:
            self._bench.start_afresh()
            raise
        if not isinstance(done, Elsewhere):
            done = Elsewhere(outcome=done, wall_s=self._clock() - start)
        return self._keep(move, done.outcome, wall_s=done.wall_s, held=self._bench.held())


def _request(problem: Problem, terms: Terms) -> Request:
    return Request(
        run=new_run(), problem=problem, strategy=AGENT, seed=terms.seed, budget_s=terms.budget_s,
        sanitize=sanitized_by_default(problem, terms.evaluator) if terms.sanitize is None else terms.sanitize,
        timing=terms.timing, limits=terms.limits, evaluator=terms.evaluator,
    )  # fmt: skip


def _require_same(request: Request, problem: Problem, places: Places) -> None:
    """That the folder holds no other run than this problem's, made by an agent."""
    if not request.from_outside:
        raise UserError(f"{places.out}: holds a run of strategy {request.strategy!r}; choose another folder")
    if request.problem.digest != problem.digest:
        raise UserError(
            f"{places.out}: holds a run of problem {request.problem.name!r} as it was then, with other text, cases or "
            "settings; choose another folder"
        )
