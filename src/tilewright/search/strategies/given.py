"""The strategy of `evaluate`: try what was given, once; what is accepted goes under the sanitizer where that is asked
for."""

from __future__ import annotations

from collections.abc import Generator

from ...facts.candidate import Candidate
from ...facts.move import Event, Move, Sanitize, Stop, Try
from ...facts.outcome import Failure, Timed


def given(
    candidate: Candidate, *, sanitize: bool = False
) -> Generator[Move | tuple[Move, ...], Event | tuple[Event, ...], None]:
    event = yield Try(what=candidate, why="given")
    accepted = isinstance(event, Event) and isinstance(event.outcome, Timed)
    if accepted and sanitize:
        event = yield Sanitize(what=candidate)
        accepted = isinstance(event, Event) and not isinstance(event.outcome, Failure)
    yield Stop(best=candidate if accepted else None, why=f"the judge {'accepted' if accepted else 'refused'} it")
