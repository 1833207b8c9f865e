"""A real judge for tests of its verdicts: short timing, no torch.compile, a machine whose floor nobody meets."""

from __future__ import annotations

from pathlib import Path

from fakes.realisers import H200
from tilewright.edges.gpu.machine import machine, threads
from tilewright.edges.problems import read_problem
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import Failure, Timed
from tilewright.facts.pattern import Choice, Pattern, without_idle
from tilewright.facts.problem import Problem
from tilewright.judge.client import CellLimits
from tilewright.judge.evaluate import Judge, JudgeOptions
from tilewright.judge.timing.measure import Effort
from tilewright.realise.compose import compose
from tilewright.run.matching import found_patterns


def context_judge(
    problem: Problem | str, folder: Path, *, limits: CellLimits | None = None, trace: bool = False
) -> Judge:
    """Not open yet. `problem`: one, or the text of one for the CPU. `trace`: opened, it gives graphs."""
    if isinstance(problem, str):
        problem = Problem(name="p", path=str(folder / "p.py"), source=problem, target="cpu")
    machine = Machine(
        target="cpu", device="any", driver="", torch="", dsl="", processors=threads(),
        cache_bytes=4096, copy_bytes_per_s=1e13, matmul_flops_per_s=(("f32", 1e16),),
    )  # fmt: skip
    return Judge(
        problem, machine=machine, seed=1, workdir=folder, say=print,
        options=JudgeOptions(
            compile_baseline=False, trace=trace,
            effort=Effort(tight=0.2, budget_s=0.3, min_rounds=3, max_rounds=6, verified=1, most_calls=10),
            limits=limits or CellLimits(build_s=300.0, call_s=120.0, memory_bytes=3 << 30),
        ),
    )  # fmt: skip


def judge_on_gpu(source: str, folder: Path, *, racecheck: bool = False) -> Judge:
    """Not open yet, of the machine as it is measured. `source`: the text of a problem file, which is put into the
    folder."""
    (folder / "problem.py").write_text(source)
    return Judge(
        read_problem(folder / "problem.py", target="cuda"), machine=machine("cuda", cache_dir=folder), seed=1,
        workdir=folder, say=print,
        options=JudgeOptions(
            compile_baseline=False, effort=Effort(tight=0.2, budget_s=0.5, min_rounds=3, max_rounds=6, verified=2),
            racecheck=racecheck,
        ),
    )  # fmt: skip


def judged_at_first_points(source: str, folder: Path) -> tuple[list[Pattern], Timed | Failure]:
    """What a GPU's matcher finds in the first case, as far as it fits, each at its first point; and the verdict."""
    with judge_on_gpu(source, folder) as judge:
        cases = judge.open()
        matched = found_patterns(cases, H200)
        patterns = matched[0].patterns
        recipe = without_idle([patterns], tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in patterns))
        chosen = {c.pattern for c in recipe}
        timed = judge.evaluate(compose((folder / "problem.py").read_text(), cases, matched, recipe, device=H200))
    return [p for p in patterns if p.id in chosen], timed
