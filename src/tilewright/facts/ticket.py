"""What travels through the served judge: a Submission, its Ticket, and what came of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from .candidate import Candidate
from .problem import Mode, Precision, Target
from .run import Timing

TicketState = Literal["queued", "judging", "judged", "faulted", "cancelled"]
ENDED: tuple[TicketState, ...] = ("judged", "faulted", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A candidate for a problem. The problem is the `problem` of that name under one of the server's roots, or the text
    `source` of a problem file, whose name is `problem` then. `version`: a digest of the files under the root. `repeat`
    tells apart submissions of equal content that are to be judged each."""

    problem: str
    source: str
    version: str
    candidate: Candidate
    mode: Mode | None = None
    precision: Precision = "reference"
    repeat: int = 0

    @property
    def about(self) -> str:
        """Digest of the problem: submissions with the same one can share an open judge."""
        text = "\0".join((self.problem, self.source, self.version, self.mode or "", self.precision))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def digest(self) -> str:
        """Digest of the whole content."""
        candidate = self.candidate
        found = hashlib.sha256(f"{self.about}\0{self.repeat}\0{candidate.entry}\0{candidate.language}\0".encode())
        for file in sorted(candidate.files, key=lambda f: f.path):
            found.update(f"{file.path}\0{len(file.text)}\0{file.text}\0".encode())
        return found.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketVerdict:
    """What the judge said. `lows`: the lower bound of baseline time / candidate time, by baseline; `claimed`: the
    baselines over which a gain may be claimed, beyond noise; `shown`: the verdict as JSON text, with fields of
    `evaluate --json`."""

    accepted: bool
    lows: tuple[tuple[str, float], ...]
    claimed: tuple[str, ...]
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketFault:
    """Why there is no verdict; the candidate is not to blame for it, and it is never scored."""

    whose: Literal["problem", "machine", "project"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A submission in the queue. `attempts`: how often a judge began with it. Times are Unix seconds, 0.0: not yet."""

    id: str
    owner: str
    priority: int
    state: TicketState
    attempts: int
    submitted_s: float
    taken_s: float
    ended_s: float
    outcome: TicketVerdict | TicketFault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A ticket that a judge is to work on."""

    id: str
    attempts: int
    submission: Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingTerms:
    """What a judging process is told when it starts: how it judges everything. `cache` as in Places; `folder`: where it
    keeps what it makes, "" for the usual place. `environment`: as in Problem."""

    target: Target
    timing: Timing
    seed: int
    cache: str
    folder: str = ""
    sanitize: bool = False
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingOrder:
    """What it is told then: to judge this. `path`: the problem's file or folder, "" where its text was sent."""

    path: str
    submission: Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingProgress:
    """A line of what it says meanwhile."""

    text: str
