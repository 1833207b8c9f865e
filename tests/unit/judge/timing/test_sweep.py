"""The sweep, on scripted times: it halves, repeats, and stops when nobody can win beyond noise."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.facts.outcome import Interval
from tilewright.facts.space import Point, point
from tilewright.judge.client import CellFault
from tilewright.judge.timing.sweep import TunedSubject, survivors, sweep

POINTS = tuple(point(unroll=u) for u in range(8))


class Script:
    """A table whose bursts are written beforehand: `times_ns[unroll]` is a point's true time, and a share of `noise`
    disturbs each burst. It counts how often each point was set, and can drift."""

    fill = 1  # calls that fill a burst

    def __init__(self, times_ns: list[float], *, noise: float = 0.0, drift: float = 0.0, device: str = "cpu") -> None:
        self.memory = SimpleNamespace(device=device)
        self.counts: set[int] = set()
        self.times_ns, self.noise, self.drift = times_ns, noise, drift
        self.rng = random.Random(7)
        self.subjects: tuple[Any, ...] = ()
        self.bursts: dict[str, list[tuple[float, ...]]] = {}
        self.sets: list[int] = []
        self.slow = 1.0
        self.calls: dict[str, int] = {}
        self.warmed: list[list[str]] = []
        self.broken: set[int] = set()
        ours, eager = (SimpleNamespace(plan=SimpleNamespace(name=n), alive=True) for n in ("candidate", "reference"))
        self.subject: Any = TunedSubject(
            SimpleNamespace(name="ours", cell=ours), SimpleNamespace(name="eager", cell=eager), self.set_point
        )

    def set_point(self, given: Point) -> str:
        self.sets.append(given[0][1])
        return "wrong_values: far off" if self.times_ns[self.sets[-1]] < 0 else ""

    def warm_up(self, subjects: list[Any]) -> None:
        self.warmed.append([p.name for p in subjects])
        self.calls |= dict.fromkeys(self.warmed[-1], self.fill)
        if self.sets[-1] in self.broken:
            raise CellFault("raised", "it raises when it is timed", source="candidate", by_code=True)
        self.bursts = {"ours": [], "eager": []}

    def round(self) -> None:
        self.counts |= set(self.calls.values())
        self.slow *= 1 + self.drift
        for name, ns in (("ours", self.times_ns[self.sets[-1]]), ("eager", 1000.0)):
            shaken = ns * self.slow * (1 + self.noise * self.rng.uniform(-1, 1))
            self.bursts[name].append((shaken,) * 3)

    def play(self, points: tuple[Point, ...] = POINTS) -> dict[int, Any]:
        schedule: Any = self
        found = sweep(schedule, self.subject, points)
        assert [p.point for p in found] == list(points)
        return {p.point[0][1]: p for p in found}


def test_a_clear_winner_is_known_after_one_pass() -> None:
    script = Script([100.0, *[200.0] * 7], noise=0.01)
    found = script.play()
    assert sorted(script.sets) == list(range(8)), "each point was set once"
    assert found[0].time_ns.mid == pytest.approx(100.0, rel=0.02)


def test_the_anchor_is_warmed_up_once_and_each_point_whenever_it_is_set() -> None:
    script = Script([100.0, 101.0, *[200.0] * 6], noise=0.02)
    script.play()
    assert script.warmed == [["ours", "eager"], *[["ours"]] * (len(script.sets) - 1)] and len(script.sets) > 8


def test_a_long_call_on_a_gpu_is_made_three_times_in_a_burst() -> None:
    for device, fill, made in (("cuda", 7, 3), ("cuda", 40, 40), ("cuda", 2, 2), ("cpu", 7, 7)):
        script = Script([5000.0, 8000.0], device=device)
        script.fill = fill
        script.play(POINTS[:2])
        assert script.counts == {made}


def test_near_points_are_measured_again_until_one_cannot_win() -> None:
    script = Script([100.0, 104.0, 150.0, 160.0, 170.0, 180.0, 190.0, 200.0], noise=0.06)
    script.play()
    assert script.sets.count(7) == 1 and script.sets.count(0) > 1 and script.sets.count(1) > 1
    assert len(script.sets) < 20, "they were told apart before the last pass"


def test_equal_points_end_by_the_number_of_passes() -> None:
    script = Script([100.0, 100.0], noise=0.04)
    script.play(POINTS[:2])
    assert script.sets.count(0) == script.sets.count(1) == 4


def test_exactly_equal_points_are_no_reason_to_measure_again() -> None:
    script = Script([100.0] * 8)
    script.play()
    assert len(script.sets) == 8


def test_the_best_of_noisy_points_wins() -> None:
    script = Script([130.0, 121.0, 100.0, 128.0, 125.0, 140.0, 118.0, 119.0], noise=0.1)
    found = script.play()
    assert min(found, key=lambda u: found[u].time_ns.mid) == 2


def test_a_machine_that_slows_down_does_not_choose_the_winner() -> None:
    script = Script([100.0, 103.0, 106.0, 109.0], drift=0.004)
    found = script.play(POINTS[:4])
    assert [found[u].time_ns.mid for u in range(4)] == sorted(found[u].time_ns.mid for u in range(4))


def test_what_does_not_run_is_recorded_and_not_set_again() -> None:
    script = Script([100.0, -1.0, 101.0, 100.5], noise=0.04)
    script.broken = {3}
    found = script.play(POINTS[:4])
    assert found[1].failure == "wrong_values: far off" and found[1].time_ns is None
    assert "it raises when it is timed" in found[3].failure and found[3].time_ns is None
    assert script.sets.count(1) == script.sets.count(3) == 1 and script.sets.count(0) > 1


def test_nothing_runs() -> None:
    assert all(p.time_ns is None for p in Script([-1.0, -1.0]).play(POINTS[:2]).values())


def span(low: float, mid: float, high: float) -> Interval:
    return Interval(low=low, mid=mid, high=high)


def test_survivors_may_still_win_beyond_noise() -> None:
    best = span(99.9, 100.0, 100.1)
    assert survivors({}) == [] and survivors({4: best}) == [4]
    assert survivors({0: best, 1: span(99.5, 101.0, 102.0)}) == [0], "at best as fast as the best is"
    assert survivors({0: best, 1: span(95.0, 101.0, 102.0)}) == [0, 1], "it may be faster than it looks"
    assert survivors({0: span(99.0, 100.0, 110.0), 1: span(99.5, 101.0, 102.0)}) == [0, 1], "or the best slower"
    assert survivors({1: span(90.0, 120.0, 130.0), 0: best, 2: span(90.0, 130.0, 140.0)}) == [0, 1], "the faster half"


def test_where_time_is_over_what_was_not_reached_is_said_so() -> None:
    script = Script([100.0 + u for u in range(8)])
    found = sweep(script, script.subject, POINTS, lambda: len(script.sets) >= 3)  # type: ignore[arg-type]
    measured = [p for p in found if p.time_ns is not None]
    assert len(script.sets) == len(measured) == 3
    assert {p.failure for p in found if p.time_ns is None} == {"not reached: the time for tuning was over"}
    script = Script([100.0 + u for u in range(8)])
    found = sweep(script, script.subject, POINTS, lambda: True)  # type: ignore[arg-type]
    assert len(script.sets) == 1, "one is measured all the same"
