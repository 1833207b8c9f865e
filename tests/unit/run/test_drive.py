"""The drive makes every outcome durable, and continues a journal to the same end from any event."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.facts import context, pattern, timed
from tilewright.edges.ledger import Ledger
from tilewright.facts.errors import HarnessError
from tilewright.facts.move import Event, Move, Outcome, Stop, Try, Tune
from tilewright.facts.outcome import Failure, Interval, PointTime, Tuned
from tilewright.run.drive import JournalMismatch, drive
from tilewright.search.strategies.catalog import catalog

PATTERNS = (pattern("fused_0"), pattern("fused_1"), pattern("fused_2"))


class Killed(Exception):
    """Stands for kill -9: nothing after it runs."""


def scripted(move: Move) -> Outcome:
    """An evaluator: unroll 2 is faster; fused_1 is refused; every accepted pattern brings 1.5x."""
    if isinstance(move, Tune):
        return Tuned(
            points=tuple(PointTime(point=p, time_ns=Interval(low=1, mid=10.0 / p[0][1], high=99)) for p in move.points)
        )
    assert isinstance(move, Try)
    names = [c.pattern for c in move.what]
    if "fused_1" in names:
        return Failure(stage="check", reason="wrong_values", summary="fused_1 is wrong")
    return timed(1.5 ** len(names))


def undisturbed(path: Path, perform: Callable[[Move], Outcome] = scripted) -> tuple[Stop, tuple[Event, ...]]:
    with Ledger(path) as ledger:
        stop = drive(
            catalog(context(*PATTERNS)), ledger=ledger, perform=perform, watch=lambda e: None, clock=lambda: 0.0
        )
        return stop, ledger.events()


def test_the_refused_pattern_is_found_by_halving_and_left_out(tmp_path: Path) -> None:
    stop, events = undisturbed(tmp_path / "run.db")
    assert [c.pattern for c in stop.best] == ["fused_0", "fused_2"]
    assert all(c.point == (("unroll", 2),) for c in stop.best)
    assert isinstance(events[-1].move, Stop)


def test_killed_before_any_event_and_resumed_gives_the_same_journal(tmp_path: Path) -> None:
    stop, events = undisturbed(tmp_path / "whole.db")
    for survive in range(len(events)):
        path = tmp_path / f"killed-{survive}.db"
        made = 0

        def dies(move: Move, survive: int = survive) -> Outcome:
            nonlocal made
            if made == survive:
                raise Killed
            made += 1
            return scripted(move)

        with contextlib.suppress(Killed):
            undisturbed(path, dies)
        calls: list[Move] = []

        def counted(move: Move, calls: list[Move] = calls) -> Outcome:
            calls.append(move)
            return scripted(move)

        assert undisturbed(path, counted) == (stop, events)
        assert len(calls) == max(len(events) - 1 - survive, 0)  # nothing recorded was done twice


def test_a_finished_run_is_replayed_without_any_work(tmp_path: Path) -> None:
    first = undisturbed(tmp_path / "run.db")

    def never(move: Move) -> Outcome:
        raise AssertionError("performed again")

    assert undisturbed(tmp_path / "run.db", never) == first


def test_a_journal_of_other_moves_stops_and_says_where_and_why(tmp_path: Path) -> None:
    undisturbed(tmp_path / "run.db")
    other = context(pattern("fused_0", points=3))
    with Ledger(tmp_path / "run.db") as ledger, pytest.raises(JournalMismatch, match=r"event 0 .*Tune.recipe was"):
        drive(catalog(other), ledger=ledger, perform=scripted, watch=lambda e: None)


def test_parallel_moves_come_back_in_order_and_replay_in_part(tmp_path: Path) -> None:
    moves = tuple(Try(what=(), why=str(i)) for i in range(3))

    def strategy():
        events = yield moves
        yield Stop(best=None, why=",".join(e.move.why for e in events))

    performed: list[str] = []

    def dies_at_last(move: Move) -> Outcome:
        if move.why == "2" and performed == ["0", "1"]:
            performed.append("x")
            raise Killed
        performed.append(move.why)
        return timed(1.0)

    for _ in range(2):
        with Ledger(tmp_path / "run.db") as ledger:
            try:
                stop = drive(strategy(), ledger=ledger, perform=dies_at_last, watch=lambda e: None)
            except Killed:
                continue
    assert stop.why == "0,1,2"
    assert performed == ["0", "1", "x", "2"]


def test_a_strategy_that_ends_without_stop_is_our_fault(tmp_path: Path) -> None:
    def strategy():
        yield Try(what=(), why="")

    with Ledger(tmp_path / "run.db") as ledger, pytest.raises(HarnessError, match="without a Stop"):
        drive(strategy(), ledger=ledger, perform=lambda m: timed(1.0), watch=lambda e: None)
