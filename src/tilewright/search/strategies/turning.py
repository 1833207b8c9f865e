"""Knobs turned without a model: those that stand in a candidate's text, and those of the library's kernels in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ...facts.candidate import Candidate
from ...facts.run import SearchContext, patterns_by_id
from ...facts.space import Point
from .knobs import knobs_of, turned

_MOST_POINTS = 3  # of each of the library's kernels, beside the one in use


@dataclass(frozen=True, slots=True)
class KnobTurn:
    """One knob at another value: `of` makes the change in a candidate, which may have changed elsewhere since."""

    name: str
    of: Callable[[Candidate], Candidate]


def of_the_text(candidate: Candidate) -> Iterator[KnobTurn]:
    """Each knob of the text at each other value."""
    for knob in knobs_of(candidate):
        for value in knob.others:
            yield KnobTurn(f"knob {knob.name} = {value}", lambda now, k=knob, v=value: turned(now, k, v))  # type: ignore[misc]


def of_the_library(context: SearchContext, candidate: Candidate) -> Iterator[KnobTurn]:
    """The library's kernels that lie in the candidate at other points of their spaces, the likeliest first. A kernel
    that was rewritten until its settings are not the library's any more is left out."""
    for pattern in patterns_by_id(context.matched).values():
        text = next((f.text for f in candidate.files if f.path == f"{pattern.id}.py"), "")
        own = next((p for p in pattern.space.points if text.count(_text(p)) == 1), None)
        if own is None:
            continue
        for point in [p for p in pattern.space.points if p != own][:_MOST_POINTS]:
            settings = ", ".join(f"{name}={value}" for name, value in point if (name, value) not in own)
            yield KnobTurn(f"{pattern.id} at {settings}", _Setting(f"{pattern.id}.py", own, point))


@dataclass(frozen=True, slots=True)
class _Setting:
    path: str
    old: Point
    new: Point

    def __call__(self, candidate: Candidate) -> Candidate:
        files = (
            replace(f, text=f.text.replace(_text(self.old), _text(self.new))) if f.path == self.path else f
            for f in candidate.files
        )
        return replace(candidate, files=tuple(files))


def _text(point: Point) -> str:
    """As renderers write a point into a kernel's file."""
    return repr(dict(point))
