"""Holds the tuner's model against measured sweeps: what it would have left out, and what its first guess costs.

    PYTHONPATH=src:tests python benchmarks/foreseen.py benchmarks/results/h200/kernels.json [--only NAME,NAME]
    PYTHONPATH=src:tests python benchmarks/foreseen.py WINNERS.db --problems KERNELBENCH/level1

The file is what `kernels.py --all-points --json` wrote, or one of winners, whose evidence are the points that were
measured, for patterns of the problem files. Needs no GPU: every point is compiled here for the GPU
of `--device` (h200). For each case: how many points are left to measure; the
time of the model's first point, of the skeleton's first point and of the best point left, over the best of all. For
winners, the slowest stands in the place of the best left, and beside it: of pairs of points whose times differ by over
3%, how many there are, how many the model tells apart, and how many of these in the right order.
"""

from __future__ import annotations

import argparse
import json
import math
import sqlite3
import sys
import tempfile
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean

from kernels import CASES
from on_h200 import cuda
from restamped import patterns_of

from tilewright.facts.demand import Demand
from tilewright.facts.device import Device
from tilewright.facts.devices import DEVICES
from tilewright.facts.pattern import Pattern
from tilewright.facts.run import Matched
from tilewright.facts.space import Point
from tilewright.run.ahead import Objects
from tilewright.run.foresee import demanded, foreseen
from tilewright.search.tune.predict import cuda_ns, likeliest
from tilewright.search.tune.store import COLUMNS, from_row

HEADS = ("model's first", "skeleton's first", "best left")


def label(point: Point) -> str:
    """The name that kernels.py gives a point."""
    return ",".join(f"{k[0] if k != 'residence' else 'R'}={v}" for k, v in point)


def pattern(name: str) -> Pattern:
    program = CASES[name][0]()
    return Pattern(id=name, title=name, kind="", nodes=(), program=program, space=cuda.space(program))


def ratios(before: Pattern, after: Pattern, times_ms: dict[str, float]) -> tuple[float, ...] | None:
    """In the order of HEADS; None where the file holds no time of most points."""
    found = {p: times_ms[label(p)] for p in before.space.points if label(p) in times_ms}
    if len(found) < 2 or before.space.points[0] not in found:
        return None
    best = min(found.values())
    left = [found.get(p, math.nan) for p in after.space.points]
    return left[0] / best, found[before.space.points[0]] / best, min(left) / best


def of_winners(file: Path, problems: Path, device: Device) -> int:
    """The model against the evidence of winners that were measured with this very tree's skeletons."""
    with sqlite3.connect(f"{file.absolute().as_uri()}?immutable=1", uri=True) as rows:
        known = [from_row(row) for row in rows.execute(f"SELECT {COLUMNS} FROM winners")]
    times = {w.shape_class: {t.point: t.time_ns.mid for t in w.tried if t.time_ns is not None} for w in known}
    patterns = [p for p in patterns_of(problems) if p.shape_class in times]
    with tempfile.TemporaryDirectory() as folder:
        demands = demanded(patterns, device=device, folder=Path(folder), objects=Objects())
    seen, counts = [], [0, 0, 0]
    for one in patterns:
        found = {p: t for p, t in times[one.shape_class].items() if p in one.space.points}
        taken = {p: demands.get((one.id, p), "not known") for p in found}
        model = {p: cuda_ns(d, device) for p, d in taken.items() if isinstance(d, Demand)}
        if len(found) < 2 or len(model) < len(found):
            continue
        points = tuple(p for p in one.space.points if p in found)
        first = likeliest(replace(one.space, points=points), model).points[0]
        best = min(found.values())
        pairs = [(a, b) for a, b in combinations(points, 2) if abs(math.log(found[a] / found[b])) > math.log(1.03)]
        told = [(a, b) for a, b in pairs if model[a] != model[b]]
        right = [(a, b) for a, b in told if (found[a] < found[b]) == (model[a] < model[b])]
        seen.append((found[first] / best, found[points[0]] / best, max(found.values()) / best))
        here = (len(pairs), len(told), len(right))
        counts = [sum(both) for both in zip(counts, here, strict=True)]
        print(f"{one.title[:34]:34s}{len(found):8d}", *(f"{r:17.3f}" for r in seen[-1]), here)
    print(f"{'geometric mean':42s}", *(f"{geometric_mean(column):17.3f}" for column in zip(*seen, strict=True)), counts)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="h200", choices=DEVICES)
    parser.add_argument("--problems", type=Path, help="with a file of winners: the problem files that have them")
    options = parser.parse_args()
    if options.problems:
        return of_winners(options.file, options.problems, DEVICES[options.device])
    measured = json.loads(options.file.read_text())
    device = replace(DEVICES[options.device], copy_bytes_per_ns=measured["copy_bytes_per_s"] * 1e-9)
    wanted = [c for c in measured["cases"] if any(part in c["name"] for part in options.only.split(","))]
    before = tuple(pattern(c["name"]) for c in wanted if c["name"] in CASES)
    given = (Matched(case=0, patterns=before, unmatched=()),)
    with tempfile.TemporaryDirectory() as folder:
        (after,) = foreseen(
            given, device, known=(), say=lambda line: print(line, file=sys.stderr),
            folder=Path(folder), objects=Objects(),
        )  # fmt: skip
    times = {c["name"]: c["times_ms"] for c in wanted}
    seen = []
    print(f"{'':34s}{'points':>8s}", *(f"{c:>17s}" for c in HEADS))
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
