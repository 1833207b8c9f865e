"""A sweep over the points of a Space: each is set, verified and timed against an anchor; the slow drop out early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...edges.sandbox.cell import CellFault
from ...facts.outcome import Interval, PointTime
from ...facts.space import Point
from .interleave import Player, Table
from .statistics import burst_medians, time_interval

_FIRST_BURSTS = 4
_MORE_BURSTS = 4
_KEPT_SHARE = 0.5
_MOST_DRIFT = 1.5  # clocks and heat do no more; what an anchor varies beyond is noise of its own
_NEAR = 1.15  # points within this factor of the best are measured again


@dataclass(frozen=True, slots=True)
class Contender:
    """`set_point(point)` configures the candidate and verifies one call; it gives "" or why the point does not work."""

    ours: Player
    anchor: Player
    set_point: Callable[[Point], str]


def sweep(table: Table, contender: Contender, points: Sequence[Point]) -> tuple[PointTime, ...]:
    """Times of all points, in the order given. Setting a point may compile, so each is set once a pass and its bursts
    alternate with the anchor's; times are scaled by what the anchor did meanwhile, which takes out slow drift."""
    table.players = [contender.ours, contender.anchor]
    mine: dict[int, list[tuple[float, ...]]] = {}
    anchors: dict[int, list[tuple[float, ...]]] = {}
    failures: dict[int, str] = {}
    alive = list(range(len(points)))
    for bursts in (_FIRST_BURSTS, _MORE_BURSTS):
        for index in table.rng.sample(alive, len(alive)):
            why = contender.set_point(points[index])
            if why:
                failures[index] = why
                continue
            table.bursts = {}
            try:
                table.warm_up()
                for _ in range(bursts):
                    table.round()
            except CellFault as fault:
                if fault.source != contender.ours.cell.plan.name or not contender.ours.cell.alive:
                    raise
                failures[index] = str(fault)[:500]
                continue
            mine.setdefault(index, []).extend(table.bursts[contender.ours.name])
            anchors.setdefault(index, []).extend(table.bursts[contender.anchor.name])
        alive = _survivors({i: scaled(mine[i], anchors[i], anchors) for i in alive if i in mine and i not in failures})
        if len(alive) < 2:
            break
    times = {i: scaled(mine[i], anchors[i], anchors) for i in mine if i not in failures}
    return tuple(PointTime(point=p, time_ns=times.get(i), failure=failures.get(i, "")) for i, p in enumerate(points))


def scaled(
    mine: Sequence[tuple[float, ...]], anchor: Sequence[tuple[float, ...]], anchors: dict[int, list[tuple[float, ...]]]
) -> Interval:
    """ns per call, as if the anchor had run at its overall median beside every burst."""
    overall = float(np.median(np.concatenate([burst_medians(b) for b in anchors.values()])))
    factors = np.clip(overall / burst_medians(anchor), 1 / _MOST_DRIFT, _MOST_DRIFT)
    return time_interval([(float(m * f),) for m, f in zip(burst_medians(mine), factors, strict=True)])


def _survivors(times: dict[int, Interval]) -> list[int]:
    """The faster half, and whoever is near the best."""
    ranked = sorted(times, key=lambda i: times[i].mid)
    if not ranked:
        return []
    best = times[ranked[0]].mid
    keep = max(1, round(_KEPT_SHARE * len(ranked)))
    return [i for place, i in enumerate(ranked) if place < keep or times[i].mid <= _NEAR * best]
