"""A bar chart of times with intervals and the floor: geometry only, the page's template turns it into SVG."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from ..facts.outcome import Interval, Timed
from . import words

WIDTH, LABELS, VALUES = 760, 118, 128  # of the chart, of the names on its left, of the figures on its right
ROW, BAR, TOP = 46, 18, 26
_DOTS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One implementation: its bar's length, its interval's ends and its bursts' medians, as x positions."""

    name: str
    ours: bool
    y: float
    length: float
    low: float
    high: float
    dots: tuple[float, ...]
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    bars: tuple[Bar, ...]
    height: float
    floor_x: float
    floor: str
    floor_on_left: bool  # where the floor's label would run out of the picture on the right


def chart(timed: Timed, *, ours: str = "ours") -> Chart | None:
    """Bars from 0, on one scale; None where nothing was timed. `ours` is how our bar is called."""
    times = [(name, time) for name, time in timed.times_ns if name in ("eager", "compile", "ours")]
    times.sort(key=lambda pair: ("eager", "compile", "ours").index(pair[0]))
    if not times:
        return None
    span = WIDTH - LABELS - VALUES
    scale = span / (1.04 * max(timed.floor_ns, *(time.high for _, time in times)))
    bursts = {s.name: [median(b) for b in s.bursts_ns if b] for s in timed.samples}
    bars = tuple(
        _bar(
            time,
            scale=scale,
            row=row,
            name=ours if name == "ours" else words.named(name, timed),
            bursts=bursts.get(name, []),
        )
        for row, (name, time) in enumerate(times)
    )
    floor_x = round(LABELS + timed.floor_ns * scale, 1)
    return Chart(
        bars=bars, height=TOP + ROW * len(bars) + 6, floor_x=floor_x, floor=f"floor {words.duration(timed.floor_ns)}",
        floor_on_left=floor_x > WIDTH - VALUES - 90,
    )  # fmt: skip


def _bar(time: Interval, *, scale: float, row: int, name: str, bursts: list[float]) -> Bar:
    right = WIDTH - VALUES
    thinned = bursts[:: max(1, -(-len(bursts) // _DOTS))]
    return Bar(
        name=name, ours=name != "eager" and not name.startswith("torch.compile"), y=TOP + ROW * row + (ROW - BAR) / 2,
        length=round(time.mid * scale, 1), low=round(LABELS + time.low * scale, 1),
        high=round(LABELS + time.high * scale, 1),
        dots=tuple(x for b in thinned if (x := round(LABELS + b * scale, 1)) <= right), value=words.duration(time.mid),
    )  # fmt: skip
