"""A problem as a command reads it: with the variables that its cells are to see, and a line for those they lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..edges.problems import environment_read, read_problem
from ..facts.problem import Mode, Precision, Problem, Target
from . import config
from .exits import line


def problem_of(
    path: Path, *, target: Target, precision: Precision = "reference", mode: Mode | None = None,
    env: Sequence[str] = (), warn: Callable[[str], object] = lambda text: line(text, 0),
) -> Problem:  # fmt: skip
    """As `read_problem`; `env` names variables that are passed on. Where the text reads others that are set here,
    `warn` is told: in a cell they are not, and the module may be another one there."""
    read = read_problem(path, target=target, precision=precision, mode=mode)
    problem = replace(read, environment=config.environment(env))
    passed = {name for name, _ in problem.environment}
    reads = environment_read(problem.source)
    missed = [name for name in config.hidden(reads.names) if name not in passed]
    if missed:
        flags = " ".join(f"--env {name}" for name in missed)
        warn(
            f"{path}: reads {', '.join(missed)} from the environment, which cells do not see: the module may be "
            f"another one there; pass it on with {flags}"
        )
    if reads.others:
        warn(
            f"{path}: reads the environment by names that can't be told from its text; cells see few variables: pass "
            "on what it needs with --env NAME"
        )
    return problem
