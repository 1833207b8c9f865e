"""What an appeal costs: the budget of each element of a problem's main case, in seconds and in runs in float64.

    python benchmarks/appeal_cost.py --json benchmarks/results/cpu/appeal-cost.json examples/problems/*.py

`reckoned_s` is what the judge counts for a nominal machine (judge.reference_process.effort) and holds against its
limit.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from results import about, write
from torch import Tensor

from tilewright.edges.problems import read_problem
from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.reference_process.budget import Asked
from tilewright.judge.reference_process.describing import describe
from tilewright.judge.reference_process.ensemble import Question
from tilewright.judge.reference_process.reference import Reference

_REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    problem: str
    elements: int  # of all outputs
    call_s: float
    double_s: float  # one run in float64
    runs: int  # of the module in float64, whatever is put into them
    appeal_s: float
    reckoned_s: float  # of one run, on a nominal machine


def _median_s(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _cost(path: Path) -> Cost:
    problem = read_problem(path, target="cpu")
    reference = Reference(str(path), path.read_text(), problem.cases, subject=CandidateSubject("cpu"), compiled="")
    reference.construct(0, seed=1)
    described = describe(reference, 2, trace=False)
    text, inputs = reference.inputs(3, "own")
    runs, truth = 0, reference.double.truth

    def counted(*args: Any, **named: Any) -> tuple[Tensor, ...]:
        nonlocal runs
        runs += 1
        return truth(*args, **named)

    call_s = _median_s(lambda: reference.subject.run(text, inputs))
    double_s = _median_s(lambda: truth(text, inputs, 5, again=True))
    with patch.object(reference.double, "truth", counted):
        start = time.perf_counter()
        Asked(reference, Question(args=text, inputs=inputs, seed=5))
        appeal_s = time.perf_counter() - start
    return Cost(
        problem=path.stem, elements=sum(math.prod(o.spec.shape) for o in described.outputs), call_s=round(call_s, 6),
        double_s=round(double_s, 6), runs=runs, appeal_s=round(appeal_s, 4), reckoned_s=round(described.nominal_s, 6),
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=Path, nargs="+")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    costs = []
    for path in asked.problems:
        costs.append(cost := _cost(path))
        in_runs = cost.appeal_s / cost.double_s
        print(f"{cost.problem}: {cost.appeal_s:.3g} s, {cost.runs} runs, as {in_runs:.0f} without errors", flush=True)
    write(
        asked.json, {"what": "what the budget of each element costs"} | about() | {"costs": [asdict(c) for c in costs]}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
