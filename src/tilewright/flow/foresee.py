"""What is known of a pattern's points before any is measured: on CUDA they are compiled on the CPU cores, off the
device; then they are put in order, and what spills, can't run or is another point's kernel is left out."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from ..edges.gpu.machine import threads
from ..facts.demand import Demand
from ..facts.machine import Machine
from ..facts.pattern import Pattern
from ..facts.run import Matched
from ..facts.space import Point
from ..stages.propose.targets import renderer
from ..stages.tune.predict import cpu_ns, cuda_ns, likeliest, resident_ctas

_LIMIT_S = 240.0
Say = Callable[[str], None]
Job = tuple[str, Point]  # a pattern's id and one of its points


def foreseen(
    matched: Sequence[Matched], machine: Machine, *, arch: str, known: Collection[str], say: Say
) -> tuple[Matched, ...]:
    """The same patterns with the points that are worth measuring, the likeliest first; those in `known`, whose winner
    is remembered, as they are. `arch`: what to compile for, e.g. "sm_90a"."""
    patterns = {p.id: p for m in matched for p in m.patterns if p.id not in known and len(p.space.points) > 1}
    if machine.target == "cpu":
        chosen = {p.id: _for_cpu(p, machine) for p in patterns.values()}
    else:
        demands = demanded(list(patterns.values()), arch=arch, processors=machine.processors)
        chosen = {p.id: _for_cuda(p, demands, machine, say) for p in patterns.values()}
    return tuple(replace(m, patterns=tuple(chosen.get(p.id, p) for p in m.patterns)) for m in matched)


def _for_cpu(pattern: Pattern, machine: Machine) -> Pattern:
    times = {p: cpu_ns(pattern.program, p, machine) for p in pattern.space.points}
    return replace(pattern, space=likeliest(pattern.space, times))


def _for_cuda(pattern: Pattern, demands: Mapping[Job, Demand | str], machine: Machine, say: Say) -> Pattern:
    found = {p: demands.get((pattern.id, p), "not known") for p in pattern.space.points}
    if "not known" in found.values():
        say(f"{pattern.id}: what its kernels take is not known here; its points stay in their order")
        return pattern
    plans: set[str] = set()
    times: dict[Point, float] = {}
    left_out: Counter[str] = Counter()
    for point, demand in found.items():
        why = _useless(demand, plans)
        left_out.update([why] if why else [])
        # Bytes say nothing of a product's time: its skeleton has its points in order by a model of its own.
        able_ns = 1.0 if isinstance(demand, str) or pattern.program.product else cuda_ns(demand, machine)
        times[point] = math.inf if why else able_ns
    space = likeliest(pattern.space, times)
    left_out["less likely"] = sum(math.isfinite(t) for t in times.values()) - len(space.points)
    told = ", ".join(f"{count} {why}" for why, count in left_out.items() if count > 0)
    say(f"{pattern.id}: {len(space.points)} of {len(found)} points to measure{f' ({told})' if told else ''}")
    return replace(pattern, space=space)


def _useless(demand: Demand | str, plans: set[str]) -> str:
    """Why a point is not measured, or ""; `plans` grows by its plan."""
    if isinstance(demand, str):
        return "not compiled"
    seen = demand.plan in plans
    plans.add(demand.plan)
    if seen:
        return "the same kernel as another"
    if demand.local_bytes:
        return "spilling registers"
    return "" if resident_ctas(demand) else "too large for a multiprocessor"


def demanded(patterns: Sequence[Pattern], *, arch: str, processors: int) -> dict[Job, Demand | str]:
    """What each point of the patterns takes of a GPU of this architecture with so many multiprocessors, or why it does
    not compile; a point of which nothing could be learnt is left out. Compiles in as many processes as there are cores;
    no GPU is needed."""
    jobs: list[Job] = [(p.id, point) for p in patterns for point in p.space.points]
    if not jobs:
        return {}
    make = renderer("cuda")
    count = min(threads(), -(-len(jobs) // 2))  # to start a process takes as long as some points
    with tempfile.TemporaryDirectory(prefix="tilewright-foresee-") as folder:
        for pattern in patterns:
            shared = make.skeleton_files([pattern.program])
            for file in (*shared, *make.render(pattern.program, pattern.id, pattern.space.points[0])):
                place = Path(folder, file.path)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(file.text, encoding="utf-8")
        shares = [jobs[i::count] for i in range(count)]
        with ThreadPoolExecutor(count) as pool:
            answers = pool.map(lambda share: _compiled(share, Path(folder), arch, processors), shares)
            return {job: answer for found in answers for job, answer in found.items()}


def _compiled(jobs: Sequence[Job], folder: Path, arch: str, processors: int) -> dict[Job, Demand | str]:
    files = [[str(folder / f"{pattern}.py"), dict(point)] for pattern, point in jobs]
    roots = (str(folder), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    asked = json.dumps({"arch": arch, "processors": processors, "jobs": files})
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tilewright.kernels.cuda.demand"], input=asked, capture_output=True, text=True,
            timeout=_LIMIT_S, check=False, cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, roots)), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {}
    return answered(jobs, done.stdout)


def answered(jobs: Sequence[Job], text: str) -> dict[Job, Demand | str]:
    """A child's answers, a line for each job in order; one that died answers fewer, the last in part perhaps."""
    found: dict[Job, Demand | str] = {}
    for job, line in zip(jobs, text.splitlines(), strict=False):
        try:
            answer = json.loads(line)
            found[job] = str(answer["failure"]) if "failure" in answer else Demand(**answer)
        except (ValueError, TypeError):
            break
    return found
