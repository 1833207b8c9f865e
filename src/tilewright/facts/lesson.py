"""A Lesson: what a change did in an earlier run, with its measured effect, for runs on such work to know of."""

from __future__ import annotations

from dataclasses import dataclass

from .winner import Toolchain


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """`effect`: the time before the change over the time after it, by one judgement each or in turns; 0.0: the judge
    refused it, as `text` says. It holds for this device and toolchain alone. `shape_class`: of the main case's
    inputs."""

    category: str  # of search.strategies.category
    target: str
    device: str
    toolchain: Toolchain
    shape_class: str
    problem: str
    text: str
    effect: float
    found_at: str  # UTC, ISO 8601

    @property
    def line(self) -> str:
        """For a prompt."""
        told = "refused by the judge" if not self.effect else f"{self.effect:.2f}x as fast as before it"
        return f"{self.text} ({told}; {self.problem}, {self.shape_class})"
