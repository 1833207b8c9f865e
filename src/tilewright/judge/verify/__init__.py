"""Verifiers: what can be said of a candidate's text before it is built, by tools that decide and signs that rank."""

from __future__ import annotations

from ...facts.candidate import Candidate
from ...facts.verdict import Verdict, Verified
from .compiles import compiles
from .memory import memory, with_memory
from .numerics import numerics
from .reading import Reading
from .specification import specification
from .subject import VerifiedSubject

__all__ = ["VerifiedSubject", "verified", "with_memory"]


def verified(candidate: Candidate, subject: VerifiedSubject) -> Verified:
    """Nothing of it is run. What can't be parsed has a verdict on its compilation alone."""
    reading = Reading(candidate)
    first = compiles(reading)
    if reading.tree is None:
        rest: tuple[Verdict, ...] = ()
    else:
        rest = memory(reading), numerics(reading, subject), specification(reading, subject)
    return Verified(verdicts=(first, *rest))
