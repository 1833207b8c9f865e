"""How far off an fp32 product in three of fp16 may be, by the interval of its promotions. Pure Python."""

from __future__ import annotations

from ..host.plan import DEPTH

# By interval what planes, lo*lo and the tensor cores take of a sum, in units of 2^-23 of its terms' sizes.
CUTS = {64: 26.0, 32: 15.5, 16: 10.3}


def error_bound(interval: int, *, k: int, splits: int = 1) -> float:
    """Of an fp32 product in three of fp16: the most that an element is off, over the sum of |a||b|; docs/precision."""
    promotions = -(-k // DEPTH) * (DEPTH // interval) + splits
    return CUTS[interval] * 2.0**-23 + promotions * 2.0**-24


def intervals(k: int) -> tuple[int, ...]:
    """Those of which the bound is no more than that of one fp32 accumulator, K x 2^-24."""
    return tuple(interval for interval in CUTS if error_bound(interval, k=k) <= k * 2.0**-24)
