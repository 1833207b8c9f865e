"""The strategy of `evaluate`: try what was given, once."""

from __future__ import annotations

from collections.abc import Generator

from ..facts.candidate import Candidate
from ..facts.move import Event, Move, Stop, Try
from ..facts.outcome import Timed


def given(candidate: Candidate) -> Generator[Move | tuple[Move, ...], Event | tuple[Event, ...], None]:
    event = yield Try(what=candidate, why="given")
    accepted = isinstance(event, Event) and isinstance(event.outcome, Timed)
    yield Stop(best=candidate if accepted else None, why=f"the judge {'accepted' if accepted else 'refused'} it")
