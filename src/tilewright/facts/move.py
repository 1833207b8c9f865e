"""Moves that a strategy makes, and the Events that a journal keeps."""

from __future__ import annotations

from dataclasses import dataclass

from .candidate import Candidate
from .dialogue import AS_IT_IS, Prompt, Reply, Sampling, ToolAnswer
from .outcome import Captured, Failure, Inspected, Interleaved, Sanitized, Station, Timed, Tuned
from .pattern import Recipe, Subproblem
from .profile import Question
from .run import SearchContext
from .space import Point
from .verdict import Verified


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Judge and time a candidate: one given whole, or one that `flow` composes from a recipe."""

    what: Candidate | Recipe
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune:
    """Measure one pattern's knobs, all points interleaved in one cell, the recipe's other patterns as given."""

    recipe: Recipe
    pattern: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleave:
    """Time candidates in turns, in the same rounds of the first case: what two judgements, minutes apart, can't tell
    apart, this does."""

    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTool:
    """Have a tool of facts.tools at work, as a model asked between two submissions. `candidates`: what its edits made
    of the files; `text`: a query, a name, or which elements of a tensor."""

    tool: str
    candidates: tuple[Candidate, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanitize:
    """Watch the memory of an accepted candidate: by compute-sanitizer on a GPU, by guard pages on a CPU."""

    what: Candidate | Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Record a call of an accepted candidate as a CUDA graph, on a GPU, and replay it beside the module's own."""

    what: Candidate | Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Say what can be said of a candidate before it is judged: by its text, and on a CPU by guard pages."""

    what: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Put a prompt to a model. `turn` counts the Asks of a run, so that equal prompts are told apart."""

    prompt: Prompt
    model: str
    turn: int
    why: str
    sampling: Sampling = AS_IT_IS


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """Wait for what a coding agent does next: where one makes the moves, its time counts, too. `agent`: as it names
    itself."""

    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect:
    """Profile a candidate that has been judged; None: the module as it is, in eager mode."""

    what: Candidate | Recipe | None
    question: Question = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compose:
    """Write out what a recipe means, for somebody to change it; its outcome is the Candidate. Nothing is run."""

    recipe: Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Enter:
    """Make a subproblem of the module a problem of its own; its outcome is the SearchContext of that problem."""

    subproblem: Subproblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """A move in the problem of a subproblem that was entered."""

    subproblem: Subproblem
    move: Try | Tune | Sanitize | Inspect


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the search. `best` is the recipe or candidate to hand over; None: keep the module as it is."""

    best: Candidate | Recipe | None
    why: str


Move = (
    Try | Tune | Interleave | CallTool | Sanitize | Capture | Verify | Ask | Await | Inspect | Compose | Enter | Within
    | Stop
)  # fmt: skip
Outcome = (
    Timed | Tuned | Interleaved | ToolAnswer | Sanitized | Captured | Verified | Inspected | Candidate | Reply
    | SearchContext | Failure | None
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A move and its outcome, as the journal keeps them. `held`: for what the device was held meanwhile, and how long;
    nobody else could measure on it then."""

    seq: int
    move: Move
    outcome: Outcome
    wall_s: float
    held: tuple[Station, ...] = ()
