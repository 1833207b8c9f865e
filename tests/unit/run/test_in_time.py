"""A budget bounds a run, and what was accepted is handed over whatever ends it: the clock, a signal, a fault."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.facts import PROBLEM, context, pattern, timed
from tilewright.facts.errors import HarnessError, TooBusy, UserError
from tilewright.facts.move import Event, Move, Outcome, Try, Tune
from tilewright.facts.outcome import Failure, Interval, PointTime, Tuned
from tilewright.facts.run import Request, SearchContext
from tilewright.facts.time_budget import UNBOUNDED, TimeBudget
from tilewright.run import in_time, optimize
from tilewright.run.children import shared_out
from tilewright.run.in_time import OutOfTime, best_of, ended_in_time
from tilewright.run.places import Places

GIVEN = context(*(pattern(f"fused_{n}", points=3) for n in range(3)))


class Bench:
    """What a run asks of an evaluator; `later` is what comes of a Tune."""

    def __init__(self, later: Callable[[Tune], Outcome], first: Outcome, takes_s: float = 0.0) -> None:
        self._later, self._first, self._takes_s = later, first, takes_s

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None: ...

    def context(self, request: Request) -> SearchContext:
        return replace(GIVEN, run=request.run, budget_s=request.budget_s)

    def announce(self, context: SearchContext, moves: tuple[Move, ...]) -> None: ...

    def perform(self, context: SearchContext, move: Move) -> Outcome:
        if isinstance(move, Try):
            sleeps(self._takes_s)
            return self._first
        return self._later(move) if isinstance(move, Tune) else None

    def held(self) -> tuple[()]:
        return ()


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Callable[[Tune], Outcome], *, budget_s: float = 1000.0,
    first: Outcome | None = None, takes_s: float = 0.0,
) -> optimize.Finished:  # fmt: skip
    """`first` is what comes of a Try, after `takes_s`."""
    monkeypatch.setattr(optimize, "_bench", lambda *a, **k: Bench(later, first or timed(2.0), takes_s))
    monkeypatch.setattr(optimize, "composed", lambda context, recipe: candidate(recipe))
    request = Request(run="r", problem=PROBLEM, strategy="catalog", seed=0, budget_s=budget_s)
    return optimize.optimize(request, places=Places(out=tmp_path / "run", cache=tmp_path), say=print)


def candidate(recipe: Any) -> Any:
    from tilewright.facts.candidate import Candidate, SourceFile

    return Candidate(files=(SourceFile(path="model.py", text=f"# {recipe}\n"),))


def sleeps(seconds: float) -> None:
    """Without a system call that waits long: between two of them a thread can be interrupted."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)


def fails(error: BaseException) -> Callable[[Tune], Outcome]:
    def later(move: Tune) -> Outcome:
        raise error

    return later


@pytest.mark.parametrize(
    ("error", "told"),
    [(KeyboardInterrupt(), "interrupted"), (RuntimeError("a later fault"), "a later step failed: RuntimeError"),
     (HarnessError("a cell died"), "a later step failed"), (TooBusy("others work"), "a later step failed")],
)  # fmt: skip
def test_what_was_accepted_is_handed_over_whatever_happens_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, told: str
) -> None:
    found = run(tmp_path, monkeypatch, fails(error))
    assert found.cut_short and told in found.stop.why and "2.00x as fast as eager" in found.stop.why
    assert found.stop.best is not None
    assert (tmp_path / "run" / "candidate" / "model.py").read_text() == f"# {found.stop.best}\n"
    assert isinstance(found.events[-1].move, type(found.stop))
    again = run_on(tmp_path, monkeypatch)  # the journal holds no end, and goes on
    assert not again.cut_short and [type(e.move) for e in again.events][:2] == [Try, Tune]


def run_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> optimize.Finished:
    monkeypatch.setattr(optimize, "_bench", lambda *a, **k: Bench(measured, timed(3.0)))
    return optimize.resume(places=Places(out=tmp_path / "run", cache=tmp_path), say=print)


def measured(move: Tune) -> Tuned:
    times = enumerate(reversed(move.points))
    return Tuned(points=tuple(PointTime(point=p, time_ns=Interval(low=i, mid=i + 1, high=i + 2)) for i, p in times))


def test_a_fault_before_anything_was_accepted_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Failure(stage="check", reason="wrong_values", summary="no")
    for error in (KeyboardInterrupt(), HarnessError("a cell died")):
        with pytest.raises(type(error)):
            run(tmp_path / type(error).__name__, monkeypatch, fails(error), first=refused)
    with pytest.raises(UserError):  # the user's to mend, whatever was accepted
        run(tmp_path, monkeypatch, fails(UserError("mend this")))


def test_the_candidate_lies_there_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def later(move: Tune) -> Tuned:
        seen.append((tmp_path / "run" / "candidate" / "model.py").is_file())
        return measured(move)

    found = run(tmp_path, monkeypatch, later)
    assert seen == [True] * 3 and not found.cut_short
    assert [type(e.move) for e in found.events[:5]] == [Try, Tune, Tune, Tune, Try]


@pytest.mark.parametrize("accepted", [True, False])
def test_a_budget_that_ends_in_the_middle_of_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    monkeypatch.setattr(in_time, "_GRACE_S", 0.1)

    started = time.monotonic()
    first = timed(2.0 if accepted else 0.9)
    found = run(tmp_path, monkeypatch, lambda move: sleeps(60.0), budget_s=2.0, first=first)  # type: ignore[func-returns-value]
    assert time.monotonic() - started < 20.0
    assert found.cut_short and (found.stop.best is not None) == accepted
    assert ("the budget ended in the middle" if accepted else "the budget of 2 s ended before") in found.stop.why


def test_a_first_candidate_has_its_verdict_however_small_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_time._FIRST_OVERRUN <= 1.2 and in_time._FIRST_GRACE_S + in_time._PATIENCE_S <= 20.0
    monkeypatch.setattr(in_time, "_GRACE_S", 0.1)
    found = run(tmp_path, monkeypatch, fails(AssertionError("nothing is tuned")), budget_s=0.2, takes_s=1.0)
    assert not found.cut_short and found.stop.best is not None, "the search ended by itself"
    monkeypatch.setattr(in_time, "_FIRST_GRACE_S", 0.3)
    late = run(tmp_path / "late", monkeypatch, fails(AssertionError("none")), budget_s=0.2, takes_s=60.0)
    assert late.stop.best is None and "the budget of 0.2 s ended before anything" in late.stop.why


def test_what_waits_for_a_child_is_woken_by_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.edges.sandbox.offspring import offspring

    monkeypatch.setattr(in_time, "_GRACE_S", 0.2)
    monkeypatch.setattr(in_time, "_PATIENCE_S", 0.2)
    started = time.monotonic()
    with (
        pytest.raises(OutOfTime),
        ended_in_time(TimeBudget.of(0.1)),
        offspring(["sleep", "60"], stdout=subprocess.PIPE) as child,
    ):
        child.communicate(timeout=60.0)
    assert time.monotonic() - started < 30.0


@pytest.mark.slow
def test_who_waits_for_compilers_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_time, "_GRACE_S", 0.5)
    monkeypatch.setattr(in_time, "_FIRST_GRACE_S", 0.6)
    (tmp_path / "child.py").write_text("import time\ntime.sleep(600)\n")
    shared_out("json", {}, [0], folder=tmp_path, jobs=1)  # the server has started
    with pytest.raises(OutOfTime), ended_in_time(TimeBudget.of(0.1)):
        shared_out("child", {}, [0, 0], folder=tmp_path, jobs=2)


def test_time_in_which_the_clock_stands_still_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while another task of a campaign measures."""
    monkeypatch.setattr(in_time, "_GRACE_S", 0.1)
    monkeypatch.setattr(in_time, "_FIRST_GRACE_S", 0.1)
    now, stood = [0.0], False
    with pytest.raises(OutOfTime), ended_in_time(TimeBudget.of(0.1, clock=lambda: now[0])):
        time.sleep(1.0)
        stood, now[0] = True, 100.0
        for _ in range(600):
            time.sleep(0.1)
    assert stood


def test_a_block_that_ends_in_time_is_left_alone() -> None:
    for budget in (UNBOUNDED, TimeBudget.of(1000.0)):
        with ended_in_time(budget):
            pass


def test_the_best_is_what_beats_eager_by_most() -> None:
    def tried(number: int, ratio: float) -> Event:
        return Event(seq=number, move=Try(what=(), why=str(number)), outcome=timed(ratio), wall_s=1.0)

    best = best_of([tried(0, 1.5), tried(1, 2.5), tried(2, 0.5)])
    assert best is not None and best.told.startswith("2.50x")
    assert best_of([tried(0, 0.9)]) is None


def test_what_is_left_of_a_budget() -> None:
    now = [100.0]
    budget = TimeBudget.of(60.0, spent_s=10.0, clock=lambda: now[0])
    assert (budget.left_s(), budget.left_s(0.5)) == (50.0, 20.0)
    assert budget.limit_s(240.0, share=0.5) == 20.0
    now[0] = 200.0
    assert budget.left_s() == 0.0 and budget.limit_s(240.0) == 1.0
    assert UNBOUNDED.limit_s(240.0) == 240.0


SCRIPT = """
import sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
import pytest
from test_in_time import run, timed
from tilewright.faces.exits import Interruptible, exit_code, obey_signals, stands

def sleeps(move):
    print("tuning", flush=True)
    time.sleep(60)

def optimized():
    with pytest.MonkeyPatch.context() as patch, Interruptible(Path("runs/x")):
        found = run(Path({folder!r}), patch, sleeps)
    if found.cut_short and found.stop.best is not None:
        stands()
    return 0

obey_signals()
sys.exit(exit_code(optimized))
"""


@pytest.mark.few(0)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_tuning_leaves_an_accepted_result(tmp_path: Path, number: signal.Signals) -> None:
    here = Path(__file__).parent
    script = SCRIPT.format(paths=[str(here), str(here.parents[1])], folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        while "tuning" not in (line := process.stdout.readline()):
            assert line, "it ended before it tuned"
        process.send_signal(number)
        told = process.stdout.read()
        assert process.wait(timeout=60) == 0, told
    assert "interrupted" in told and (tmp_path / "run" / "candidate" / "model.py").is_file()
