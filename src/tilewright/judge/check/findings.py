"""What a check finds: errors, notes, and the refusal that ends it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ...facts.outcome import Failure, OutputError

_NEAR = 0.9  # of an allowance


@dataclass(slots=True)
class Findings:
    """What is gathered over the trials."""

    errors: list[OutputError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    own: dict[tuple[int, str, int], tuple[float, float]] = field(default_factory=dict)
    moved: set[tuple[int, str]] = field(default_factory=set)  # masks and indices by case and name
    stuck: set[tuple[int, str]] = field(default_factory=set)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def note_stuck(self) -> None:
        """Tell which masks and indices were never re-drawn."""
        never = sorted(self.stuck - self.moved)
        for case in sorted({case for case, _ in never}):
            names = [name for c, name in never if c == case]
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            self.note(
                f"case {case}: not re-drawn, for want of a way that the reference bears and shows: "
                f"{', '.join(names[:8])}{more}"
            )

    def note_nearest(self) -> None:
        """Tell where a result came near what is allowed."""
        nearest = max(self.errors, key=lambda e: e.share, default=None)
        if nearest is not None and _NEAR <= nearest.share <= 1.0:
            left = 100 * (1 - nearest.share)
            self.note(
                f"case {nearest.case}: output {nearest.output} on {nearest.family} inputs is right by a narrow margin, "
                f"within {max(1, math.ceil(left))}% of the allowance"
            )


class RefusedByCheck(Exception):
    """Ends a check; carries the Failure."""

    def __init__(self, reason: str, summary: str, excerpt: str = "") -> None:
        super().__init__(summary)
        self.failure = Failure(stage="check", reason=reason, summary=summary, excerpt=excerpt)
