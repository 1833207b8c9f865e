"""Whose fault it is that a candidate could not run: the machine's, where a touchstone of what it needs fails, too, and
the library needs that as well, or the run has offered it to whoever writes candidates."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.errors import Lack
from ..facts.move import Outcome
from ..facts.outcome import Failure, Sanitized, Tuned
from ..facts.problem import Target
from ..facts.verdict import Verified
from ..realise.cpu.renderer import skeleton_files
from .build.build import build
from .build.touchstone import Touchstone, needed
from .client import Cell, CellPlan

_LIMIT_S = 120.0
_MOST_SAID = 300  # characters
# Reasons of a candidate that did not come to an answer; whoever gave a wrong one lacked nothing.
_UNANSWERED = ("does_not_load", "raised", "hung", "crashed", "out_of_memory", "broke_the_protocol")


class Lacks:
    """What was found to work is not tried again. `workdir`: where cells may lie; `hidden`: what they must not read."""

    def __init__(self, target: Target, *, workdir: Path, hidden: tuple[Path, ...]) -> None:
        self._target: Target = target
        self._workdir, self._hidden = workdir, hidden
        self._works: set[str] = set()

    def require(self, candidate: Candidate, outcome: Outcome, *, offered: Collection[str] | None) -> Outcome:
        """The outcome; of a candidate that asks for what the machine lacks and was not offered, its Failure says so.
        `offered`: the languages that its author was told of; None: the user's own, or the library's, may need anything.
        Raises Lack where the outcome says that the candidate did not run, and the machine lacks what it may need."""
        said = _said(outcome)
        for touchstone in needed(candidate, self._target, said) if said is not None else ():
            if touchstone.what in self._works:
                continue
            fault = self._fault(touchstone)
            if fault is None:
                self._works.add(touchstone.what)
            elif offered is None or touchstone.wanted(self._target, offered):
                raise Lack.of(touchstone.what, _first_error(fault), touchstone.remedy)
            elif isinstance(outcome, Failure):
                told = f"it may need {touchstone.what}, which is not offered here ({_first_error(fault)})"
                return replace(outcome, summary=f"{outcome.summary}; {told}")
        return outcome

    def _fault(self, touchstone: Touchstone) -> Failure | None:
        from .memory.sizes import cell_memory_bytes  # imports torch

        self._workdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="touchstone-", dir=self._workdir) as folder:
            plan = CellPlan(
                name="touchstone", device="cpu", folder=Path(folder) / "cell", memory_bytes=cell_memory_bytes(),
                hidden=self._hidden,
            )  # fmt: skip
            with Cell(plan) as cell:
                built = build(touchstone.candidate(skeleton_files()), cell, limit_s=_LIMIT_S)
        return built if isinstance(built, Failure) else None


def _said(outcome: Outcome) -> str | None:
    """All that an outcome tells of a candidate that did not run; None where it ran, or was judged by its answers."""
    match outcome:
        case Failure() if outcome.reason in _UNANSWERED:
            return f"{outcome.summary}\n{outcome.excerpt}"
        case Tuned():
            failures = "\n".join(p.failure for p in outcome.points)
            return failures if re.search(r"BuildError|compil|No module", failures) else None
        case Verified():
            return outcome.proven.why if outcome.proven is not None and "no module" in outcome.proven.why else None
        case Sanitized():
            return "\n".join(outcome.notes) if outcome.notes and not outcome.clean else None
    return None


def _first_error(fault: Failure) -> str:
    """The line that tells most: a compiler's first error, or else what Python said."""
    lines = [line.strip() for line in fault.excerpt.splitlines()]
    of_a_compiler = (line for line in lines if re.search(r"(?<!\w)error: ", line))
    of_python = (
        line.partition(": ")[2] for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception|Built): ", line)
    )
    return (*of_a_compiler, *of_python, fault.summary)[0][:_MOST_SAID]
