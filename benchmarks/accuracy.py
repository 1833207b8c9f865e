"""How far fp32 products are from float64: cuBLAS's, those in TF32, and ours, over 200 shapes and six families.

    python benchmarks/accuracy.py --devices 0,1,2,3 --json benchmarks/results/h200/accuracy.json
    python benchmarks/accuracy.py --show benchmarks/results/h200/accuracy.json      # Markdown, no GPU

K goes from 1 to a million, in all four transposes; the inputs are the judge's families
(`judge/reference_process/families.py`). Two errors, over all of C: `norm`, relative in Frobenius' norm, and `worst`,
that of the worst element relative to the norms of its row of A and its column of B. Ours is each way of splitting that
is proposed, at its first point: `planes` (both operands split beforehand) and `streamed` (one of them in the kernel).
`over` of a shape is the largest ratio of our error to that of cuBLAS's fp32 over the families, in both measures.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from harness import Child, answering, spread
from results import about, rounded, write

FAMILIES = ("normal", "uniform", "wide", "spikes", "one_sided", "subnormals")
WAYS, MEASURES = ("planes", "streamed"), ("norm", "worst")
SHAPES, SHORT = 200, 24  # of them with K below 32
LEAST_SIDE, MOST_SIDE, LEAST_K, MOST_K = 64, 4096, 32, 1_000_000
LEAST_WORK, MOST_WORK, MOST_ELEMENTS = 1 << 25, 1e11, 1.5e8  # M N K; elements of both operands
LAYOUTS = ("nn", "nt", "tn", "tt")
Shape = tuple[int, int, int, str]
Errors = dict[str, dict[str, list[float]]]  # by family and subject, in both measures


def shapes() -> Iterator[Shape]:
    """K in even steps of its logarithm, every other one a multiple of 64; sides at random, as large as fits."""
    draw = random.Random(5)
    for i in range(SHAPES):
        step = (i - SHORT) / (SHAPES - SHORT - 1)
        k = 1 + i * 30 // (SHORT - 1) if i < SHORT else round(LEAST_K * (MOST_K / LEAST_K) ** step)
        k = round(k / 64) * 64 if i % 2 and k > 48 else k
        most = max(min(MOST_SIDE, MOST_ELEMENTS / 2 / k, math.sqrt(MOST_WORK / k)), LEAST_SIDE)
        m = LEAST_SIDE * (most / LEAST_SIDE) ** draw.random()
        least = min(max(LEAST_WORK / m / k, LEAST_SIDE), MOST_SIDE)
        n = least * max(most / least, 1.0) ** draw.random()
        if least >= MOST_SIDE:
            m = LEAST_WORK / n / k
        sides = [min(math.ceil(side), 2 * MOST_SIDE) for side in (m, n)]
        m, n = ((side + 7) // 8 * 8 if i % 3 else side for side in sides)
        yield m, n, k, LAYOUTS[i // 2 % 4]


def measured(shape: Shape) -> dict[str, Any]:
    """A shape's record, with the errors of each family; none where the product is left to torch."""
    import torch
    from subjects import Way, built, forward, graph_of, opened, ours
    from tables import F32, matmul

    from tilewright.judge.reference_process import families

    m, n, k, layout = shape
    task = matmul("product", 0, m, n, k, layout, F32)
    made: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        eager, inputs = opened(task, "cuda", Path(name))
        for _, recipe, candidate in ours(task, graph_of(task, eager, inputs), Way(points=64)):
            way = WAYS[dict(recipe[0].point).get("streamed", "none") != "none"]
            made.setdefault(way, (f"ours {way}", recipe, candidate))
        calls = {who.split()[1]: forward(module, inputs) for who, module in
                 (built(eager, list(made.values()), Way(), Path(name)) if made else {}).items()}  # fmt: skip
        found: Errors = {}
        for family in FAMILIES if calls else ():
            source = torch.Generator(device="cuda").manual_seed(m * 7 + k)
            for x in inputs:
                x.copy_(families.FAMILIES[family](x, source))
            a, b = (x.double() for x in inputs)
            truth, scale = a @ b, (a.norm(dim=1)[:, None] * b.norm(dim=0)[None, :]).clamp_min(1e-300)
            found[family] = {}
            for who, tf32 in (("torch", False), ("tf32", True), *((way, False) for way in calls)):
                torch.backends.cuda.matmul.allow_tf32 = tf32
                off = calls.get(who, forward(eager, inputs))().double() - truth
                norm = float(off.norm() / truth.norm().clamp_min(1e-300))
                found[family][who] = [norm, float((off.abs_() / scale).max())]
    torch.cuda.empty_cache()
    return {"m": m, "n": n, "k": k, "layout": layout, "left_to_torch": not calls, "errors": found}


def ratios(errors: Errors, way: str, measure: int) -> list[float]:
    return [e[way][measure] / e["torch"][measure] for e in errors.values() if way in e and e["torch"][measure]]


def summed(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the file holds: of each shape the largest ratios, of each family and measure medians and largest errors."""
    kept: list[dict[str, Any]] = []
    families: dict[str, Any] = {}
    every: list[dict[str, Any]] = []
    for record in sorted(records, key=lambda r: (r["k"], r["m"], r["n"])):
        errors = record.pop("errors", {})
        there = [way for way in WAYS if any(way in e for e in errors.values())]
        over = {way: [max(ratios(errors, way, m), default=0.0) for m in (0, 1)] for way in there}
        kept.append({**record, "over": rounded(over, 3)})
        every.append(errors)
    for family in FAMILIES:
        of = [errors[family] for errors in every if family in errors]
        for i, measure in enumerate(MEASURES):
            found = {who: [e[who][i] for e in of if who in e] for who in ("torch", "tf32", *WAYS)}
            row: dict[str, Any] = {who: [median(v), max(v)] for who, v in found.items() if v}
            beyond = [e[w][i] / e["torch"][i] for e in of for w in WAYS if w in e and e["torch"][i]]
            families[f"{family}, {measure}"] = row | {"over": rounded(max(beyond, default=0.0), 3)}
    all_ratios = [r for errors in every for way in WAYS for m in (0, 1) for r in ratios(errors, way, m)]
    return {"errors": len(all_ratios), "over_median": median(all_ratios or [0.0]), "shapes": kept, "families": families}


def markdown(result: Mapping[str, Any]) -> Iterator[str]:
    taken = [shape for shape in result["shapes"] if not shape.get("left_to_torch")]
    yield f"{result['device']}, {result['date']}, {result['commit'][:7]}, `{result['command']}`"
    yield f"{len(taken)} of {len(result['shapes'])} shapes are taken; median and largest error of each:"
    yield from (
        "",
        "| family, measure | cuBLAS fp32 | cuBLAS TF32 | ours, planes | ours, streamed | ours / fp32, the most |",
    )
    yield "|---|---|---|---|---|---|"
    for name, row in result["families"].items():
        cells = [", ".join(f"{v:.1e}" for v in row.get(who, ())) for who in ("torch", "tf32", *WAYS)]
        yield f"| {name} | {' | '.join(cells)} | {row['over']:.2f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="0")
    parser.add_argument("--jobs", type=int, default=6, help="processes a device")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for a shape")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        answering(lambda line: json.dumps(measured(tuple(json.loads(line)))))
        return 0
    if asked.show:
        print("\n".join(markdown(json.loads(asked.show.read_text()))))
        return 0
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    children = [
        Child(command, CUDA_VISIBLE_DEVICES=device) for device in asked.devices.split(",") for _ in range(asked.jobs)
    ]
    lines, begin = [json.dumps(shape) for shape in shapes()], time.monotonic()
    answers = spread(lines, children, limit_s=asked.limit, ends=math.inf)
    found = [json.loads(answer) for _, answer in answers if answer]
    result = about() | summed(found)
    write(asked.json, result)
    print("\n".join(markdown(result)))
    print(f"{len(found)} of {len(lines)} shapes, {time.monotonic() - begin:.0f} s")
    return 0 if len(found) == len(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
