"""How a search ends that found something: with it, if it is faster than eager beyond noise, and clean where asked."""

from __future__ import annotations

from ..facts.candidate import Candidate
from ..facts.move import Event, Sanitize, Stop
from ..facts.outcome import Failure, Timed
from ..facts.pattern import Recipe
from ..facts.run import Brief
from .tuning import Steps


def handed_over(what: Candidate | Recipe, timed: Timed, *, brief: Brief, why: str = "") -> Steps[None]:
    """Moves: `Sanitize` where the brief asks for it and there is a gain; `Stop`. `why`: what ended the search."""
    before = f"{why}; " if why else ""
    ratio = timed.ratio("eager")
    told = f"{ratio.mid:.2f}x as fast as eager [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else "untimed"
    if not timed.faster_than("eager"):
        yield Stop(best=None, why=f"{before}judged right, not faster beyond noise: {told}")
        return
    if brief.sanitize:
        event = yield Sanitize(what=what)
        if isinstance(event, Event) and isinstance(event.outcome, Failure):
            yield Stop(best=None, why=f"{told}, and refused: {event.outcome.summary}")
            return
    yield Stop(best=what, why=f"{before}{told}")
