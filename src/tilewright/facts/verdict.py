"""What a verifier says of a candidate before it reaches the hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Verifier = Literal["compile", "memory", "numerics", "specification"]
VERIFIERS: tuple[Verifier, ...] = get_args(Verifier)
# A tool proves a fault, or sees a sign of one; it sees none; or it can't tell, since it can't read what is written.
Says = Literal["proven", "suspect", "clean", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`why`: each sign in a phrase; of a proof, what goes wrong and where."""

    verifier: Verifier
    says: Says
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """All verdicts on one candidate. What is proven is a veto; a suspicion ranks."""

    verdicts: tuple[Verdict, ...]

    @property
    def proven(self) -> Verdict | None:
        return next((v for v in self.verdicts if v.says == "proven"), None)

    @property
    def suspected(self) -> tuple[Verdict, ...]:
        return tuple(v for v in self.verdicts if v.says == "suspect")
