"""The museum: every cheat is refused with a reason that names what was seen, every honest look-alike passes.

The head of an exhibit says which problem it is for, and which reasons it may be refused with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilewright.edges.sandbox.cell import Limits
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import Failure, Timed
from tilewright.facts.problem import Problem, Target
from tilewright.flow.evaluate import Judge
from tilewright.stages.build import load_candidate
from tilewright.stages.timing.measure import Effort

HERE = Path(__file__).parent
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
EFFORT = Effort(tight=0.2, budget_s=0.3, min_rounds=3, max_rounds=6, verified=2)
LIMITS = Limits(build_s=60.0, call_s=15.0, memory_bytes=3 << 30)
CUDA_LIMITS = Limits(build_s=120.0, call_s=30.0, memory_bytes=12 << 30)  # a CUDA process starts out large


Judges = dict[tuple[str, str], Judge]


@dataclass(frozen=True)
class Exhibit:
    path: Path
    problem: str
    reasons: frozenset[str]


def _head(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines()
    return dict(line[2:].split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)


def _exhibits(room: str) -> list[Exhibit]:
    found = []
    for path in sorted((HERE / room).glob("*.py")):
        head = _head(path)
        reasons = frozenset(head["refused"].split(",")) if "refused" in head else frozenset()
        found.append(Exhibit(path, head["problem"], reasons))
    return sorted(found, key=lambda e: e.problem)


def machine(target: Target) -> Machine:
    """A slow imaginary machine: its floor never decides here."""
    return Machine(
        target=target, device="any", driver="", torch="", dsl="", processors=len(os.sched_getaffinity(0)),
        cache_bytes=(4 if target == "cpu" else 60) << 20, copy_bytes_per_s=1e12, matmul_flops_per_s=(("f32", 1e15),),
    )  # fmt: skip


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judges]:
    """One open judge at a time, by problem: exhibits come sorted by problem."""
    found: dict[tuple[str, str], Judge] = {}
    yield found
    for judge in found.values():
        judge.close()


def _judge(judges: Judges, name: str, target: Target, workdir: Path) -> Judge:
    if (name, target) not in judges:
        for other in list(judges):
            judges.pop(other).close()
        path = HERE / "problems" / f"{name}.py"
        problem = Problem(name=name, path=str(path), source=path.read_text(), target=target)
        judge = Judge(
            problem, machine=machine(target), seed=1, workdir=workdir, say=print,
            effort=EFFORT, limits=LIMITS if target == "cpu" else CUDA_LIMITS, compile_baseline=False,
        )  # fmt: skip
        judges[name, target] = judge
        judge.open()
    return judges[name, target]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", CUDA])
@pytest.mark.parametrize("exhibit", _exhibits("refused"), ids=lambda e: e.path.stem)
def test_cheat_is_refused(exhibit: Exhibit, target: Target, judges: Judges, tmp_path: Path) -> None:
    outcome = _judge(judges, exhibit.problem, target, tmp_path).evaluate(load_candidate(exhibit.path))
    assert isinstance(outcome, Failure), "it passed"
    assert outcome.reason in exhibit.reasons, f"{outcome.reason}: {outcome.summary}\n{outcome.excerpt}"
    assert len(outcome.excerpt.encode()) <= 4096


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", CUDA])
@pytest.mark.parametrize("exhibit", _exhibits("honest"), ids=lambda e: e.path.stem)
def test_honest_one_passes(exhibit: Exhibit, target: Target, judges: Judges, tmp_path: Path) -> None:
    outcome = _judge(judges, exhibit.problem, target, tmp_path).evaluate(load_candidate(exhibit.path))
    assert isinstance(outcome, Timed), f"{outcome.reason}: {outcome.summary}\n{outcome.excerpt}"
    assert outcome.checked.worst_error is not None
    assert outcome.checked.worst_error.share <= 1.0
