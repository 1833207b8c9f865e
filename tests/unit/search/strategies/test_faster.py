"""When a step counts as faster than what it started from."""

from dataclasses import replace

from fakes.facts import timed
from tilewright.facts.outcome import Interval, Timed
from tilewright.search.strategies.faster import faster


def judged(ns: float, *, eager: tuple[float, float, float]) -> Timed:
    """Accepted at this time, beside an eager of these times: low, mid, high."""
    low, mid, high = eager
    ours = Interval(low=ns * 0.99, mid=ns, high=ns * 1.01)
    ratio = Interval(low=low / ours.high, mid=mid / ns, high=high / ours.low)
    times = (("ours", ours), ("eager", Interval(low=low, mid=mid, high=high)))
    return replace(timed(mid / ns), times_ns=times, ratios=(("eager", ratio),))


STEADY, JUMPY = (2400.0, 2410.0, 2420.0), (2400.0, 2410.0, 2930.0)


def test_ratios_apart_are_a_gain_and_overlapping_ones_of_like_times_are_none() -> None:
    assert faster(judged(70, eager=STEADY), judged(83, eager=STEADY))
    assert not faster(judged(83, eager=STEADY), judged(70, eager=STEADY))
    assert not faster(judged(82, eager=STEADY), judged(83, eager=STEADY))


def test_an_eager_that_jumps_hides_no_gain_that_ones_own_times_show() -> None:
    new, best = judged(70, eager=STEADY), judged(83, eager=JUMPY)
    assert new.ratio("eager").low < best.ratio("eager").high  # type: ignore[union-attr]
    assert faster(new, best)


def test_where_the_machine_itself_changed_its_pace_own_times_say_nothing() -> None:
    slower_machine = (2800.0, 2810.0, 3400.0)
    assert not faster(judged(70, eager=STEADY), judged(82, eager=slower_machine))
