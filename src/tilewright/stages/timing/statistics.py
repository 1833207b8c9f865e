"""Statistics of paired, interleaved bursts: medians, ratios and their 95% bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...facts.outcome import Interval

RESAMPLES = 2000
_Burst = Sequence[float]


def burst_medians(bursts: Sequence[_Burst]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([float(np.median(b)) for b in bursts], dtype=np.float64)


def _interval(values: np.ndarray[tuple[int], np.dtype[np.float64]], seed: int) -> Interval:
    """Median of the values with the 2.5% and 97.5% quantiles of resampled medians."""
    if len(values) == 0:
        raise ValueError("no bursts to summarise")
    picks = np.random.default_rng(seed).integers(0, len(values), size=(RESAMPLES, len(values)))
    medians = np.median(values[picks], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Interval(low=float(low), mid=float(np.median(values)), high=float(high))


def time_interval(bursts: Sequence[_Burst], seed: int = 0) -> Interval:
    """ns per call: the median over bursts of the bursts' medians."""
    return _interval(burst_medians(bursts), seed)


def ratio_interval(slow: Sequence[_Burst], fast: Sequence[_Burst], seed: int = 0) -> Interval:
    """Time of `slow` over time of `fast`, burst by burst: the two are paired by round, so that what disturbs a whole
    round cancels."""
    if len(slow) != len(fast):
        raise ValueError(f"{len(slow)} bursts can't be paired with {len(fast)}")
    return _interval(burst_medians(slow) / burst_medians(fast), seed)


def half_width(interval: Interval) -> float:
    """Relative to the middle."""
    return (interval.high - interval.low) / 2 / interval.mid
