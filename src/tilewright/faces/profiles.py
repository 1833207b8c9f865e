"""`tilewright profile`: what limits a call of a module, or of a candidate for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..edges.gpu.machine import machine
from ..facts.outcome import Failure
from ..facts.problem import Mode, Target
from ..facts.profile import Question
from ..judge.build import load_candidate
from ..judge.look import profile
from ..report import profile_lines, profile_object, profile_table
from . import config
from .printing import Shown
from .reading import problem_of


def profiled(
    file: Path, candidate: Path | None, *, target: Target, mode: Mode | None, question: Question, seed: int,
    say: Callable[[str], None], env: Sequence[str] = (),
) -> Shown:  # fmt: skip
    """Of the first case. What keeps the candidate from running is told, and nothing else."""
    problem = problem_of(file, target=target, mode=mode, env=env)
    given = load_candidate(candidate, problem) if candidate is not None else None
    here = machine(target, cache_dir=config.cache_dir())
    found = profile(problem, given, machine=here, question=question, seed=seed, say=say)
    of = f"candidate {given.id}" if given else "the module as it is"
    if isinstance(found, Failure):
        told = {"profile_of": of, "failure": {"reason": found.reason, "summary": found.summary}}
        line = f"{of} could not be profiled: {found.reason}: {found.summary}\n{found.excerpt}".strip()
        return Shown(object=told, drawn=(line,), refused=True)
    table = profile_table(found, f"{problem.name} on {here.device}: a call of {of}")
    return Shown(
        object={"profile_of": of, "device": here.device, **profile_object(found)},
        drawn=(table, *profile_lines(found)),
    )  # fmt: skip
