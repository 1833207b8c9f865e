"""Intervals of paired bursts: true ratios lie in them, and nothing is seen where nothing is."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.stages.timing import statistics


def _bursts(rng: np.random.Generator, mean: float, rounds: int, drift: np.ndarray) -> list[tuple[float, ...]]:  # type: ignore[type-arg]
    return [tuple(float(x) for x in mean * drift[i] * rng.lognormal(0, 0.03, size=10)) for i in range(rounds)]


def test_the_true_ratio_is_found_under_common_drift() -> None:
    rng = np.random.default_rng(1)
    drift = np.linspace(1.0, 1.5, 20)
    slow, fast = _bursts(rng, 200.0, 20, drift), _bursts(rng, 100.0, 20, drift)
    found = statistics.ratio_interval(slow, fast)
    assert found.low < 2.0 < found.high and statistics.half_width(found) < 0.03


def test_equal_implementations_seldom_differ() -> None:
    rng = np.random.default_rng(2)
    claimed = 0
    for _ in range(200):
        drift = rng.lognormal(0, 0.1, size=12)
        a, b = _bursts(rng, 100.0, 12, drift), _bursts(rng, 100.0, 12, drift)
        claimed += statistics.ratio_interval(a, b).low > 1.0
    assert claimed <= 16  # 2.5% expected of a 95% interval; 8% would be a broken one


def test_one_disturbed_burst_does_not_move_the_middle() -> None:
    bursts = [(100.0, 101.0)] * 9 + [(5000.0, 5000.0)]
    assert statistics.time_interval(bursts).mid == pytest.approx(100.5)


def test_unpaired_bursts_are_refused() -> None:
    with pytest.raises(ValueError, match="paired"):
        statistics.ratio_interval([(1.0,)], [(1.0,), (2.0,)])
