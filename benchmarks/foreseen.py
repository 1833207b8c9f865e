"""Holds the tuner's model against measured sweeps: what it would have left out, and what its first guess costs.

    PYTHONPATH=src:tests python benchmarks/foreseen.py benchmarks/results/h200/kernels.json [--only NAME,NAME]

The file is what `kernels.py --all-points --json` wrote. Needs no GPU: every point is compiled here for the architecture
of `--arch` (sm_90a) and 132 multiprocessors (`--processors`). For each case: how many points are left to measure; the
time of the model's first point, of the skeleton's first point and of the best point left, over the best of all.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from statistics import geometric_mean

from kernels import CASES

from tilewright.facts.machine import Machine
from tilewright.facts.pattern import Pattern
from tilewright.facts.run import Matched
from tilewright.facts.space import Point
from tilewright.flow.ahead import Objects
from tilewright.flow.foresee import foreseen
from tilewright.stages.propose import cuda

COLUMNS = ("model's first", "skeleton's first", "best left")


def label(point: Point) -> str:
    """The name that kernels.py gives a point."""
    return ",".join(f"{k[0] if k != 'residence' else 'R'}={v}" for k, v in point)


def pattern(name: str) -> Pattern:
    program = CASES[name][0]()
    return Pattern(id=name, title=name, kind="", nodes=(), program=program, space=cuda.space(program))


def ratios(before: Pattern, after: Pattern, times_ms: dict[str, float]) -> tuple[float, ...] | None:
    """In the order of COLUMNS; None where the file holds no time of most points."""
    found = {p: times_ms[label(p)] for p in before.space.points if label(p) in times_ms}
    if len(found) < 2 or before.space.points[0] not in found:
        return None
    best = min(found.values())
    left = [found.get(p, math.nan) for p in after.space.points]
    return left[0] / best, found[before.space.points[0]] / best, min(left) / best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--processors", type=int, default=132)
    options = parser.parse_args()
    measured = json.loads(options.file.read_text())
    machine = Machine(
        target="cuda", device=measured["device"], driver="", torch=measured["torch"], dsl="",
        processors=options.processors, cache_bytes=0, copy_bytes_per_s=measured["copy_bytes_per_s"],
        matmul_flops_per_s=(),
    )  # fmt: skip
    wanted = [c for c in measured["cases"] if any(part in c["name"] for part in options.only.split(","))]
    before = tuple(pattern(c["name"]) for c in wanted if c["name"] in CASES)
    given = (Matched(case=0, patterns=before, unmatched=()),)
    with tempfile.TemporaryDirectory() as folder:
        (after,) = foreseen(
            given, machine, arch=options.arch, known=(), say=lambda line: print(line, file=sys.stderr),
            folder=Path(folder), objects=Objects(),
        )  # fmt: skip
    times = {c["name"]: c["times_ms"] for c in wanted}
    seen = []
    print(f"{'':34s}{'points':>8s}", *(f"{c:>17s}" for c in COLUMNS))
    for one, left in zip(before, after.patterns, strict=True):
        found = ratios(one, left, times[one.id])
        if found is None:
            print(f"{one.id:34s} was not measured at all points; run kernels.py with --all-points")
            continue
        seen.append(found)
        print(f"{one.id:34s}{len(left.space.points):4d}/{len(one.space.points)} ", *(f"{r:17.3f}" for r in found))
    if seen:
        print(f"{'geometric mean':42s}", *(f"{geometric_mean(column):17.3f}" for column in zip(*seen, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
