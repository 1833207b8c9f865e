"""A session whose bench judges by what a candidate says of itself: budgets, the journal, a folder opened again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from fakes.facts import PROBLEM, context, pattern, timed
from tilewright.edges.ledger import Ledger
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import HarnessError, Lack, UserError
from tilewright.facts.machine import Machine
from tilewright.facts.move import Await, Inspect, Move, Outcome, Stop, Try
from tilewright.facts.outcome import Failure, Inspected, NamedTime, Station
from tilewright.facts.run import AGENT, Limits, Request, SearchContext, Timing
from tilewright.run.optimize import resume
from tilewright.run.places import Places, Say
from tilewright.run.session import Session, Terms
from tilewright.search.strategies.agent import library

TERMS = Terms(budget_s=100.0, limits=Limits(), timing=Timing(), sanitize=False)
SEEN = Inspected(longest=(NamedTime(name="aten::cos", origin="torch", times=3, ns=9.0),), kinds=1, ns=9.0)
WRONG = Failure(stage="check", reason="wrong_values", summary="output 0")


class Clock:
    """Goes on when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """`bad` in its text is refused, all else is twice as fast; a judgement takes five seconds."""

    opened = 0
    afresh = 0

    def __init__(self, request: Request, *, clock: Clock, during: Callable[[], None]) -> None:
        self.clock, self.request, self.during = clock, request, during

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def context(self, request: Request) -> SearchContext:
        type(self).opened += 1
        known = context(pattern("fused_0", points=1), budget_s=request.budget_s)
        return replace(known, run=request.run, problem=request.problem, strategy=AGENT, limits=request.limits)

    def start_afresh(self) -> None:
        type(self).afresh += 1

    def held(self) -> tuple[Station, ...]:
        return (Station(name="timing", seconds=4.0),)

    def perform(self, context: SearchContext, move: Move) -> Outcome:
        self.clock.now += 5.0
        self.during()
        if isinstance(move, Inspect):
            return SEEN
        assert isinstance(move, Try)
        return WRONG if isinstance(move.what, Candidate) and "bad" in move.what.files[0].text else timed(2.0)


def nothing() -> None: ...


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(
    path: Path, clock: Clock, terms: Terms = TERMS, during: Callable[[], None] = nothing, problem: object = PROBLEM
) -> Session:
    def bench_of(request: Request, *, places: Places, say: Say, machine: Machine | None) -> Bench:
        return Bench(request, clock=clock, during=during)

    places = Places(out=path, cache=path / "cache")
    return Session(problem, terms, places=places, agent="a 1", say=lambda _: None, bench_of=bench_of, clock=clock)  # type: ignore[arg-type]


def code(text: str) -> Candidate:
    return Candidate(files=(SourceFile(path="model.py", text=f"class ModelNew: {text!r}\n"),))


def test_the_agents_own_time_counts_and_no_try_is_begun_beyond_the_budget(tmp_path: Path, clock: Clock) -> None:
    session = opened(tmp_path / "run", clock)
    clock.now += 60.0
    assert session.submit(code("good"), "first").outcome == timed(2.0)
    assert (session.spending.spent.seconds, session.spending.spent.device_s, session.spending.spent.tries) == (
        65.0,
        5.0,
        1,
    )
    clock.now += 40.0
    with pytest.raises(UserError, match=r"the time is used up \(105 s\); call finish"):
        session.submit(code("more"), "second")
    finished = session.finish("no time")
    assert finished.stop.best == code("good") and (tmp_path / "run/candidate/model.py").exists()
    with pytest.raises(UserError, match="this run has ended"):
        session.inspect(None)
    assert [type(e.move) for e in session.events] == [Await, Try, Await, Await, Stop]
    session.close()


@pytest.mark.parametrize(
    ("limits", "said"),
    [(Limits(tries=2), r"the tries are used up \(2\)"), (Limits(device_s=9.0), r"the time on the device is used up")],
)
def test_tries_and_the_devices_time_are_limits_too(tmp_path: Path, clock: Clock, limits: Limits, said: str) -> None:
    session = opened(tmp_path, clock, replace(TERMS, limits=limits))
    session.submit(code("bad"), "first")
    session.submit(code("good"), "second")
    with pytest.raises(UserError, match=said):
        session.submit(code("third"), "third")
    session.close()


def test_what_the_machine_lacks_is_told_and_counts_as_no_try(tmp_path: Path, clock: Clock) -> None:
    def lacking() -> None:
        raise Lack.of("a C++ compiler that works", "no g++", "install one")

    session = opened(tmp_path, clock, during=lacking)
    with pytest.raises(UserError, match=r"^the machine lacks a C\+\+ compiler that works \(no g\+\+\); install one"):
        session.submit(code("good"), "first")
    assert session.spending.spent.tries == 0 and not [e for e in session.events if isinstance(e.move, Try)]
    session.close()


def test_a_folder_that_is_opened_again_goes_on_with_what_it_has_spent(tmp_path: Path, clock: Clock) -> None:
    """Without closing the first: nothing of it runs any more, as after kill -9; its lock went with its files."""
    session = opened(tmp_path, clock)
    clock.now += 10.0
    session.submit(code("bad"), "first")
    clock.now += 30.0  # thought, and lost: a move in flight is what a kill may cost
    session.close()
    Bench.opened = 0
    again = opened(tmp_path, clock, replace(TERMS, budget_s=5.0))
    assert Bench.opened == 0 and again.context == session.context and again.events == session.events
    assert (again.context.budget_s, again.spending.spent.seconds) == (100.0, 15.0)  # the run keeps its own terms
    assert again.attempt(1).outcome == WRONG and again.number_of(code("bad")) == 1
    with pytest.raises(UserError, match="there are attempts 1 to 1"):
        again.attempt(2)
    assert again.submit(library(again.context), "the library's").outcome == timed(2.0)
    again.finish("done")
    again.close()
    ended = opened(tmp_path, clock)
    assert ended.stop is not None and "2.00x" in ended.stop.why
    before = ended.events
    assert ended.finish("again").events == before  # handed over again, nothing else
    ended.close()


def test_what_the_end_of_the_process_does_to_a_judgement_is_not_kept(tmp_path: Path, clock: Clock) -> None:
    session = opened(tmp_path, clock, during=lambda: session.abandon())
    with pytest.raises(HarnessError, match="nothing of it was kept"):
        session.submit(code("good"), "cut off")
    session.close()
    with Ledger(tmp_path / "run.db", readonly=True) as ledger:
        assert [type(e.move) for e in ledger.events()] == [Await]


def test_after_a_fault_of_ours_the_next_move_gets_another_judge(tmp_path: Path, clock: Clock) -> None:
    faults = iter([HarnessError("the reference's cell died")])

    def during() -> None:
        for fault in faults:
            raise fault

    Bench.afresh = 0
    session = opened(tmp_path, clock, during=during)
    with pytest.raises(HarnessError, match="cell died"):
        session.submit(code("good"), "first")
    assert Bench.afresh == 1 and session.spending.spent.tries == 0  # nothing is booked on the agent
    assert session.submit(code("good"), "first").outcome == timed(2.0)
    session.close()


def test_other_folders_are_refused_and_the_way_out_is_named(tmp_path: Path, clock: Clock) -> None:
    session = opened(tmp_path, clock)
    with pytest.raises(UserError, match="another process is working on this run"):
        opened(tmp_path, clock)
    session.close()
    with pytest.raises(UserError, match="other text, cases or settings; choose another folder"):
        opened(tmp_path, clock, problem=replace(PROBLEM, source="other\n"))
    with pytest.raises(UserError, match=r"a coding agent makes the moves of this run; .* through `tilewright mcp`"):
        resume(places=Places(out=tmp_path, cache=tmp_path), say=lambda _: None)
    request = Request(run="r", problem=PROBLEM, strategy="catalog", seed=0, budget_s=1.0)
    with Ledger(tmp_path / "other" / "run.db") as ledger:
        ledger.write(request)
    with pytest.raises(UserError, match="holds a run of strategy 'catalog'; choose another folder"):
        opened(tmp_path / "other", clock)


def test_only_what_was_accepted_and_shows_knobs_is_tuned(tmp_path: Path, clock: Clock) -> None:
    session = opened(tmp_path, clock)
    session.submit(code("bad"), "first")
    session.submit(code("plain"), "second")
    knob = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: ...\nTILE = 1  # knob: 1, 2\n"),))
    session.submit(knob, "third")
    for number, said in ((1, "was refused"), (2, "shows no knob"), (4, "attempts 1 to 3")):
        with pytest.raises(UserError, match=said):
            session.tune(number)
    (turned,) = session.tune(3)
    assert isinstance(turned.move, Try) and turned.move.why == "knob TILE = 2"
    assert session.inspect(knob).outcome == SEEN
    session.close()
