"""Intervals of paired bursts: true ratios lie in them, and nothing is seen where nothing is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.facts.outcome import LEAST_GAIN, Interval
from tilewright.judge.timing import statistics

Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def _bursts(rng: np.random.Generator, mean: float, rounds: int, drift: Values) -> list[tuple[float, ...]]:
    return [tuple(float(x) for x in mean * drift[i] * rng.lognormal(0, 0.03, size=10)) for i in range(rounds)]


def test_the_true_ratio_is_found_under_common_drift() -> None:
    rng = np.random.default_rng(1)
    drift = np.linspace(1.0, 1.5, 20)
    slow, fast = _bursts(rng, 200.0, 20, drift), _bursts(rng, 100.0, 20, drift)
    found = statistics.ratio_interval(slow, fast)
    assert found.low < 2.0 < found.high and statistics.half_width(found) < 0.03


@pytest.mark.parametrize(("count", "left_out"), [(3, 0), (8, 0), (11, 0), (12, 1)])
def test_the_interval_lies_between_order_statistics(count: int, left_out: int) -> None:
    """P(all n on one side) = 2 / 2^n is 0.8% for 8, and two more cases of each side in 12 make 0.6%."""
    found = statistics.median_interval([float(v) for v in range(count)])
    assert (found.low, found.high) == (left_out, count - 1 - left_out)


def test_many_rounds_count_as_twelve_blocks() -> None:
    """A disturbance of five rounds in sixty moves one block, and one block at each end is left out."""
    values = [1.0] * 60
    values[20:25] = [9.0] * 5
    assert statistics.median_interval(values) == Interval(low=1.0, mid=1.0, high=1.0)


def _noise(rng: np.random.Generator, rounds: int, *, memory: float) -> Values:
    """Differences of the logarithm of paired times: heavy tails, and each round remembers the one before."""
    shocks = 0.03 * rng.standard_t(2, size=rounds)
    found = np.empty(rounds)
    last = 0.0
    for i in range(rounds):
        last = found[i] = memory * last + shocks[i]
    return found


def _claims(rng: np.random.Generator, *, gain: float, memory: float) -> bool:
    """What the judge would say, looking as often as it may and stopping when it likes what it sees."""
    ratios = (1 + gain) * np.exp(_noise(rng, statistics.LOOKS[-1], memory=memory))
    for rounds in statistics.LOOKS:
        found = statistics.median_interval(ratios[:rounds])
        if statistics.half_width(found) < 0.01 or (rounds >= 60 and found.low > 1 + LEAST_GAIN):
            break
    return found.low > 1 + LEAST_GAIN


@pytest.mark.few(2)
@pytest.mark.parametrize("memory", [0.0, 0.3, 0.6])
def test_the_same_code_is_called_faster_in_fewer_than_1_of_100_runs(memory: float) -> None:
    rng = np.random.default_rng(3)
    assert sum(_claims(rng, gain=0.0, memory=memory) for _ in range(1000)) < 10


def test_a_gain_of_a_tenth_is_seen_through_that_noise() -> None:
    rng = np.random.default_rng(4)
    assert sum(_claims(rng, gain=0.1, memory=0.3) for _ in range(200)) > 180


def test_one_disturbed_burst_does_not_move_the_middle() -> None:
    bursts = [(100.0, 101.0)] * 9 + [(5000.0, 5000.0)]
    assert statistics.time_interval(bursts).mid == pytest.approx(100.5)


def test_unpaired_bursts_are_refused() -> None:
    with pytest.raises(ValueError, match="paired"):
        statistics.ratio_interval([(1.0,)], [(1.0,), (2.0,)])


def test_the_level_is_what_is_said() -> None:
    """For every number of blocks that hold it, the tails left out weigh at most 1%, and one more value would not."""
    for count in range(8, statistics.BLOCKS + 1):
        cut = statistics._cut(count)
        weight = 2 * sum(math.comb(count, k) for k in range(cut + 1)) / 2**count
        assert weight <= 0.01 < weight + 2 * math.comb(count, cut + 1) / 2**count
