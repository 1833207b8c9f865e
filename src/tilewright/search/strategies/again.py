"""What was handed over for this very problem before, by a run in which a model wrote it: it competes again."""

from __future__ import annotations

from ...facts.candidate import Candidate
from ...facts.move import Event, Try
from ...facts.outcome import Timed
from ...facts.run import SearchContext
from .tuning import Steps


def kept_before(context: SearchContext) -> Candidate | None:
    """The candidate that a model wrote for the whole problem, if the context knows of one and it may be used."""
    known = next((k.realised.what for k in context.known if k.name == ""), None)
    return known if isinstance(known, Candidate) and "table" not in context.without else None


def tried_again(candidate: Candidate) -> Steps[tuple[Candidate, Timed] | None]:
    """Moves: `Try`. None where the judge does not take it here."""
    event = yield Try(what=candidate, why="what a model wrote before")
    assert isinstance(event, Event)
    return (candidate, event.outcome) if isinstance(event.outcome, Timed) else None
