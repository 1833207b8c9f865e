"""Profile one call alone: of a module, or of a candidate for it, which need not have been judged."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.machine import Machine
from ..facts.outcome import Failure, Inspected
from ..facts.problem import Problem
from ..facts.profile import Question
from .evaluate import Judge, JudgeOptions


def profile(
    problem: Problem, candidate: Candidate | None, *, machine: Machine, question: Question, seed: int,
    say: Callable[[str], None],
) -> Inspected | Failure:  # fmt: skip
    """Of the first case; None: the module as it is. Nothing is said of whether the candidate is right."""
    with (
        tempfile.TemporaryDirectory(prefix="tilewright-profile-") as folder,
        Judge(
            problem, machine=machine, seed=seed, workdir=Path(folder), say=say,
            options=JudgeOptions(compile_baseline=False, trace=False),
        ) as judge,
    ):  # fmt: skip
        judge.open()
        return judge.inspect(candidate, question)
