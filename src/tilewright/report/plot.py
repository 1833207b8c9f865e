"""Steps drawn: the best so far against what was spent; geometry only, a template turns it into SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..facts.outcome import Interval
from . import words
from .curves import Axis, Comparison, Curve, amount, mean_at

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 14, 40
_TITLES = {
    "calls": "calls of a model", "tokens": "tokens", "usd": "US dollars", "device": "seconds of the device",
    "seconds": "seconds", "tries": "candidates judged",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`path`: the `d` of an SVG path; `dots`: single results; `whiskers`: x, and the ends of an interval."""

    label: str
    path: str
    dots: tuple[tuple[float, float], ...] = ()
    whiskers: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTick:
    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    lines: tuple[Line, ...]
    across: tuple[AxisTick, ...]
    up: tuple[AxisTick, ...]
    title: str  # of the axis along the bottom


class _Scale:
    def __init__(self, most_x: float, most_y: float) -> None:
        self._x, self._y = most_x or 1.0, max(most_y, 1.1)

    def x(self, spend: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * spend / self._x, 1)

    def y(self, ratio: float) -> float:
        """From 1 upwards; what is slower lies on the line."""
        share = max(min(ratio, self._y) - 1, 0) / (self._y - 1)
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

    def across(self) -> tuple[AxisTick, ...]:
        return tuple(AxisTick(at=self.x(v), text=_short(v)) for v in _round(0.0, self._x))

    def up(self) -> tuple[AxisTick, ...]:
        return tuple(AxisTick(at=self.y(v), text=f"{_short(v)}×") for v in _round(1.0, self._y))

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Level until the next point, then up to it."""
        first = f"M{self.x(points[0][0])} {self.y(points[0][1])}"
        return first + "".join(f" H{self.x(spend)} V{self.y(ratio)}" for spend, ratio in points[1:])


def run_plot(curve: Curve) -> Plot | None:
    """One run against its calls, with a dot for each candidate that was right; None where a model was hardly asked."""
    if curve.spent.calls == 0 or len(curve.steps) < 2:
        return None
    seen = [(float(s.spent.calls), s.ratio.mid) for s in curve.steps if s.ratio is not None]
    best = [(0.0, 1.0), *((float(s.spent.calls), s.best.mid) for s in curve.steps)]
    best.append((float(curve.spent.calls), best[-1][1]))
    scale = _Scale(float(curve.spent.calls), 1.05 * max(ratio for _, ratio in (*seen, *best)))
    dots = tuple((scale.x(spend), scale.y(ratio)) for spend, ratio in seen)
    line = Line(label="best so far", path=scale.path(best), dots=dots)
    return Plot(lines=(line,), across=scale.across(), up=scale.up(), title=_TITLES["calls"])


def comparison_plot(found: Comparison) -> Plot:
    """A line for each strategy, with intervals at the spends of the table."""
    axis, most_x = found.axis, found.grid[-1]
    ratios = [r for s in found.strategies for r in s.ratios]
    highest = min(max(r.high for r in ratios), 1.5 * max(r.mid for r in ratios))  # a wide interval leaves the picture
    scale = _Scale(most_x, 1.05 * highest)
    lines = []
    for number, row in enumerate(found.strategies):
        mine = [c for c in found.curves if c.label == row.label]
        spends = sorted({0.0, most_x, *(s for c in mine for s in _changes(c, axis) if s <= most_x)})
        groups = [[c for c in mine if c.problem == name] for name in found.problems]
        points = [(spend, mean_at(groups, axis, spend)) for spend in spends]
        aside = 3.0 * (number - (len(found.strategies) - 1) / 2)  # so that intervals don't lie over one another
        whiskers = tuple(
            _whisker(scale, spend, ratio, aside) for spend, ratio in zip(found.grid, row.ratios, strict=True)
        )
        lines.append(Line(label=row.label, path=scale.path(points), whiskers=whiskers))
    return Plot(lines=tuple(lines), across=scale.across(), up=scale.up(), title=_TITLES[axis])


def _whisker(scale: _Scale, spend: float, ratio: Interval, aside: float) -> tuple[float, float, float]:
    return (round(scale.x(spend) + aside, 1), scale.y(ratio.low), scale.y(ratio.high))


def _changes(curve: Curve, axis: Axis) -> list[float]:
    return [amount(step.spent, axis) for step in curve.steps]


def _round(least: float, most: float) -> list[float]:
    """Round numbers between the two, five or so."""
    raw = (most - least) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * f for f in (1, 2, 5, 10) if size * f >= raw)
    first = math.ceil(least / step - 1e-9)
    return [n * step for n in range(first, math.floor(most / step + 1e-9) + 1)]


def _short(value: float) -> str:
    return f"{value:g}" if value < 10_000 else words.amount(int(value), "").strip()
