"""The sizes that a problem leaves open, as far as its module lets them be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..facts.problem import Problem
from .check.plan import secret
from .memories import Case
from .wire import messages as wire

if TYPE_CHECKING:
    from .opened import OpenProblem

_LIMIT_S = 300.0


def with_open_sizes(opened: OpenProblem, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The cases, of which each is told the sizes that its module lets be open; the user is told of the others."""
    problem = opened.problem
    if not (problem.open and opened.options.trace):
        return cases
    if problem.mode == "training":
        opened.say("sizes stay those of the cases: a training step is judged, and made, for its sizes alone")
        return cases
    opened.reference.ask(wire.ConstructCase(case=0, seed=cases[0].seed), wire.Constructed, limit_s=_LIMIT_S)
    request = wire.TryOpenSizes(sizes=problem.open, seed=secret(opened.rng))
    tried = opened.reference.ask(request, wire.TriedOpenSizes, limit_s=_LIMIT_S)
    if tried.why:
        left = [size.name for size in problem.open if size.name not in tried.names]
        opened.say(f"sizes that stay those of the cases: {', '.join(left)} ({tried.why})")
    return tuple(_opened(case, problem, tried.names) for case in cases)


def _opened(case: Case, problem: Problem, names: Sequence[str]) -> Case:
    numbers = json.loads(problem.cases[case.number])
    sizes = tuple(replace(size, size=numbers[size.name]) for size in problem.open if size.name in names)
    fixed = json.dumps({key: value for key, value in numbers.items() if key not in names}, sort_keys=True)
    return replace(case, open=sizes, fixed=fixed) if sizes else case
