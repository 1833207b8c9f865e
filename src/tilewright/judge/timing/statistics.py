"""Statistics of paired, interleaved bursts: medians, ratios, and their 99% intervals.

The interval of a median is taken between two order statistics (the sign test turned round): it holds for any
distribution, heavy tails and all, and for the few rounds that there are. What it needs is independence, and timing
noise is not independent from round to round: so more than twelve rounds are first gathered into twelve blocks of
neighbours, each represented by its median, and a disturbance that lasts some rounds counts once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...facts.outcome import Interval

CONFIDENCE = 0.99
BLOCKS = 12
LOOKS = (8, 12, 16, 24, 36, 48, 60, 84, 120, 168, 240)  # rounds after which it may be asked whether they suffice
_Burst = Sequence[float]
_Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def burst_medians(bursts: Sequence[_Burst]) -> _Values:
    return np.array([float(np.median(b)) for b in bursts], dtype=np.float64)


def median_interval(values: Sequence[float] | _Values) -> Interval:
    """The median with its interval. Fewer than eight values hold no 99%: then it is all that was seen."""
    if len(values) == 0:
        raise ValueError("no bursts to summarise")
    whole = np.asarray(values, dtype=np.float64)
    blocks = whole
    if len(whole) > BLOCKS:
        blocks = np.array([float(np.median(b)) for b in np.array_split(whole, BLOCKS)])
    ordered = np.sort(blocks)
    cut = _cut(len(ordered))
    return Interval(low=float(ordered[cut]), mid=float(np.median(whole)), high=float(ordered[-1 - cut]))


def _cut(count: int) -> int:
    """How many of `count` ordered values may be left out at each end."""
    tail, cut = 2.0 / 2**count, 0
    while cut + 1 < count / 2 and tail + 2 * math.comb(count, cut + 1) / 2**count <= 1 - CONFIDENCE:
        cut += 1
        tail += 2 * math.comb(count, cut) / 2**count
    return cut


def time_interval(bursts: Sequence[_Burst]) -> Interval:
    """ns per call: the median over bursts of the bursts' medians."""
    return median_interval(burst_medians(bursts))


def ratio_interval(slow: Sequence[_Burst], fast: Sequence[_Burst]) -> Interval:
    """Time of `slow` over time of `fast`, burst by burst: the two are paired by round, so that what disturbs a whole
    round cancels."""
    if len(slow) != len(fast):
        raise ValueError(f"{len(slow)} bursts can't be paired with {len(fast)}")
    return median_interval(burst_medians(slow) / burst_medians(fast))


def half_width(interval: Interval) -> float:
    """Relative to the middle."""
    return (interval.high - interval.low) / 2 / interval.mid
