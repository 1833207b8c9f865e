"""Knobs and the Spaces they span: what a tuner may turn on a skeleton."""

from __future__ import annotations

from dataclasses import dataclass

KnobValue = int | str | bool
Point = tuple[tuple[str, KnobValue], ...]  # one setting of every knob, sorted by name


def point(**settings: KnobValue) -> Point:
    return tuple(sorted(settings.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One choice of a skeleton: its legal values, and what it does in one line."""

    name: str
    values: tuple[KnobValue, ...]
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The knobs of one realisation and the points worth trying, the likeliest winner first (never empty). `guess`: a
    library may well be faster at the first of them."""

    knobs: tuple[Knob, ...]
    points: tuple[Point, ...]
    guess: bool = False

    def holds(self, point: Point) -> bool:
        """Whether the point sets every knob, and nothing else, to a legal value; it need not be among `points`."""
        legal = {knob.name: [(type(v), v) for v in knob.values] for knob in self.knobs}
        named = dict(point)
        return named.keys() == legal.keys() and all((type(v), v) in legal[name] for name, v in point)
