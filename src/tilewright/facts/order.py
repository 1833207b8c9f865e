"""What travels between a machine that talks to models and one that judges: an Order, and the Answer to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .dialogue import ToolAnswer
from .move import Event, Move
from .outcome import Captured, Failure, Inspected, Interleaved, Sanitized, Station, Timed, Tuned
from .run import Request, SearchContext
from .verdict import Verified


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A move to carry out, what the run knows of its problem, and what was done before: from that follows what comes
    next, as long as no model is asked."""

    context: SearchContext
    move: Move
    before: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Work for another machine. `number` counts a run's orders: its opening is 0, its first event 1; `attempt` counts
    those before that ended in a Fault."""

    request: Request
    number: int
    job: Job | None  # None: open the problem, and say what a strategy may know of it
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why an order could not be carried out: by the user's fault, to be mended there, or by ours; never scored."""

    whose: Literal["user", "harness"]
    text: str


# What an order that is carried out comes to.
Found = SearchContext | Timed | Tuned | Interleaved | ToolAnswer | Sanitized | Captured | Verified | Inspected | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of an order. `machine` is the key of the machine that carried it out (facts.machine), `version` its
    Tilewright's. `ahead`: moves that follow from it, carried out at once, so that nobody has to bring them."""

    what: Found | Fault
    wall_s: float
    held: tuple[Station, ...]  # for what the device was held, and how long; of a SearchContext it says itself
    machine: str
    version: str
    ahead: tuple[Event, ...] = ()
