"""How far fp32 products are from float64: cuBLAS's, those in TF32, and ours, over 200 shapes and six families.

    python benchmarks/accuracy.py --devices 0,1,2,3 --json benchmarks/results/h200/accuracy.json
    python benchmarks/accuracy.py --again benchmarks/results/h200/accuracy.json --over 1.9    # these shapes alone
    python benchmarks/accuracy.py --draw benchmarks/results/h200/accuracy.json     # docs/accuracy.md and .svg, no GPU

K goes from 1 to a million, in all four transposes; the inputs are the judge's families
(`judge/reference_process/families.py`). Two errors, over all of C: `norm`, relative in Frobenius' norm, and `worst`,
that of the worst element relative to the norms of its row of A and its column of B. Ours is each way of splitting that
strategies propose, at its first point: `planes` (both operands split beforehand; in three of bf16 where K is below 32)
and `streamed` (one of them by whoever multiplies). What strategies leave to torch (K below 8) is measured all the
same, and counted apart.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gemm import Task, operands, program
from on_h200 import cuda
from torch import Tensor

from tilewright.faces.deliver import commit
from tilewright.judge.reference_process.families import FAMILIES
from tilewright.kernels.cuda.gemm.fused import DEFAULTS, is_turned, make_point
from tilewright.kernels.cuda.gemm.launch import Gemm

CHOSEN = ("normal", "uniform", "wide", "spikes", "one_sided", "subnormals")
SHAPES = 200
SHORT = 24  # of them with K below 32
LEAST_SIDE, MOST_SIDE, LEAST_K, MOST_K = 64, 4096, 32, 1_000_000
LEAST_WORK, MOST_WORK, MOST_ELEMENTS = 1 << 25, 1e11, 1.5e8  # M N K; elements of both operands
LAYOUTS = ("nn", "nt", "tn", "tt")
OURS = ("planes", "streamed")
LIMIT = 2.0  # times torch's fp32


def shapes() -> Iterator[Task]:
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
        yield (0, m, n, k, LAYOUTS[i // 2 % 4], "f32", "")


def ours(task: Task, source: Path) -> tuple[dict[str, Gemm], str]:
    """The first point of each way, not yet compiled; and why strategies leave this shape to torch, if they do. What is
    compiled is kept beside `source`."""
    whole = program(task)
    why = cuda.unsupported(whole) or ""
    points = [DEFAULTS] if why else [dict(p) for p in cuda.space(whole).points]
    found: dict[str, Gemm] = {}
    for knobs in points:
        way = "planes" if knobs["streamed"] == "none" else "streamed"
        if way not in found:
            scheme = "wide" if knobs["split"] == "bf16x6" else "scaled"
            found[way] = Gemm(make_point(knobs, scheme=scheme), "f32", turned=is_turned(knobs), source=source)
    return found, why


def errors(found: Tensor, truth: Tensor, scale: Tensor) -> dict[str, float]:
    off = found.double() - truth
    norm = float(off.norm() / truth.norm().clamp_min(1e-300))
    return {"norm": norm, "worst": float((off.abs_() / scale).max())}


def drawn(task: Task, family: str) -> tuple[Tensor, Tensor]:
    a, b = operands(task, "cuda")
    source = torch.Generator(device="cuda").manual_seed(task[1] * 7 + task[3])
    return tuple(x.copy_(FAMILIES[family](x, source)) for x in (a, b))  # type: ignore[return-value]


def measure(task: Task, family: str, gemms: dict[str, Gemm]) -> dict[str, Any]:
    a, b = drawn(task, family)
    x, y = a.double(), b.double()
    truth = x @ y
    scale = (x.norm(dim=1)[:, None] * y.norm(dim=0)[None, :]).clamp_min(1e-300)
    del x, y
    result: dict[str, Any] = {}
    for name, tf32 in (("torch", False), ("tf32", True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        result[name] = errors(a @ b, truth, scale)
    for name, gemm in gemms.items():
        result[name] = errors(gemm(a, b), truth, scale)
    return result


def chosen(again: Path | None, over: float) -> list[Task]:
    """All shapes, or those that strategies take and at which, in this file, ours was so many times as far off."""
    if again is None:
        return list(shapes())
    records = [r for r in json.loads(again.read_text())["shapes"] if not r["left_to_torch"]]
    found = dict.fromkeys(
        (0, r["m"], r["n"], r["k"], r["layout"], "f32", "") for r in records
        if any(e["planes"][x] > over * e["torch"][x] for e in r["families"].values() for x in ("norm", "worst"))
    )  # fmt: skip
    return list(found)


def work(part: int, parts: int, families: list[str], source: Path, tasks: list[Task]) -> None:
    """A process: compiles what its shapes need, then measures them. A line of JSON a shape."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a compiler prints is no answer
    mine = tasks[part::parts]
    made = [(task, *ours(task, source)) for task in mine]
    for task, gemms, _ in made:
        a, b = operands(task, "meta")
        for gemm in gemms.values():
            gemm(a, b)
    for task, gemms, why in made:
        record: dict[str, Any] = {"m": task[1], "n": task[2], "k": task[3], "layout": task[4], "left_to_torch": why}
        try:
            record["families"] = {family: measure(task, family, gemms) for family in families}
        except Exception as error:  # a table with a hole is worth more than none
            record |= {"families": {}, "failure": " ".join(repr(error).split())[-300:]}
        print(json.dumps(record), file=answers, flush=True)
        torch.cuda.empty_cache()


def run_all(
    devices: list[str], workers: int, families: list[str], folder: Path, more: list[str]
) -> list[dict[str, Any]]:
    """Processes share what they compile, in this folder."""
    source = folder / "product.py"
    source.write_text("")
    command = [sys.executable, __file__, *more, "--families", ",".join(families), "--source", str(source), "--part"]
    count = len(devices) * workers
    processes = [
        subprocess.Popen(
            [*command, f"{part}/{count}"], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": devices[part % len(devices)]},
        )
        for part in range(count)
    ]  # fmt: skip
    lines = [line for process in processes for line in process.communicate()[0].splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda r: (r["k"], r["m"], r["n"]))


# ---- what comes out of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Our error and that of torch's fp32, in one measure, on one shape and family."""

    ours: float
    torch: float
    where: str

    @property
    def ratio(self) -> float:
        return self.ours / self.torch if self.torch else (math.inf if self.ours else 0.0)


def compared(records: list[dict[str, Any]], way: str, measure: str, *, left: bool) -> list[Found]:
    """On the shapes that strategies leave to torch, or on the others."""
    return [
        Found(ours=e[way][measure], torch=e["torch"][measure],
              where=f"{r['m']} x {r['n']} x {r['k']} {r['layout']}, {family}")
        for r in records if bool(r["left_to_torch"]) == left for family, e in r["families"].items() if way in e
    ]  # fmt: skip


def table(records: list[dict[str, Any]]) -> str:
    lines = [
        "| family | measure | cuBLAS fp32 | cuBLAS TF32 | ours, planes | ours, streamed | ours / fp32, the most |",
        "|---|---|---|---|---|---|---|",
    ]
    taken = [r for r in records if not r["left_to_torch"]]
    for family in dict.fromkeys(f for r in taken for f in r["families"]):
        of_family = [r["families"][family] for r in taken if family in r["families"]]
        for measure in ("norm", "worst"):
            cells = []
            for player in ("torch", "tf32", *OURS):
                values = [e[player][measure] for e in of_family if player in e]
                cells.append(f"{median(values):.1e}, {max(values):.1e}" if values else "")
            only = [{**r, "families": {family: r["families"][family]}} for r in taken if family in r["families"]]
            most = max(f.ratio for way in OURS for f in compared(only, way, measure, left=False))
            lines.append(f"| {family} | {measure} | {' | '.join(cells)} | {most:.2f} |")
    return "\n".join(lines)


def summary(records: list[dict[str, Any]]) -> list[str]:
    said = []
    for left in (False, True):
        for way in OURS:
            for measure in ("norm", "worst"):
                found = sorted(compared(records, way, measure, left=left), key=lambda f: -f.ratio)
                if not found:
                    continue
                over = [f for f in found if f.ratio > LIMIT]
                line = (
                    f"{'left to torch' if left else 'taken'}, {way}, {measure}: median "
                    f"{median(f.ratio for f in found):.2f} of cuBLAS fp32, most {found[0].ratio:.2f} "
                    f"({found[0].where}); over {LIMIT:g}: {len(over)} of {len(found)}"
                )
                if over:
                    highest = max(f.ours for f in over), max(f.torch for f in over)
                    line += f" (there ours is at most {highest[0]:.1e}, cuBLAS {highest[1]:.1e})"
                said.append(line)
    return said


COLOURS = {"torch": "#8a8a8a", "tf32": "#d98c2b", "planes": "#2b6cd9", "streamed": "#23a06b"}
NAMES = {"torch": "cuBLAS fp32", "tf32": "cuBLAS TF32", "planes": "ours", "streamed": "ours, streamed"}
TITLES = {"norm": "norm of the error / norm of the product", "worst": "worst element / (row norm x column norm)"}
WIDTH, HEIGHT, LEFT, TOP = 440, 300, 56, 40
LOWEST, HIGHEST = -9, -2  # powers of ten
DOTS = 'stroke-width="3" stroke-linecap="round" stroke-opacity="0.6"'


def _panel(records: list[dict[str, Any]], measure: str, shift: int) -> Iterator[str]:
    def x(k: float) -> float:
        return shift + LEFT + WIDTH * math.log10(k) / 6

    def y(error: float) -> float:
        power = min(max(math.log10(max(error, 1e-30)), LOWEST), HIGHEST)
        return TOP + HEIGHT * (HIGHEST - power) / (HIGHEST - LOWEST)

    yield f'<text x="{x(1)}" y="{TOP - 16}" font-weight="bold">{TITLES[measure]}</text>'
    for power in range(7):
        yield f'<line x1="{x(10**power)}" y1="{TOP}" x2="{x(10**power)}" y2="{TOP + HEIGHT}" stroke="#ddd"/>'
        yield f'<text x="{x(10**power)}" y="{TOP + HEIGHT + 16}" text-anchor="middle">1e{power}</text>'
    for power in range(LOWEST, HIGHEST + 1):
        yield f'<line x1="{x(1)}" y1="{y(10.0**power)}" x2="{x(1e6)}" y2="{y(10.0**power)}" stroke="#ddd"/>'
        yield f'<text x="{x(1) - 6}" y="{y(10.0**power) + 4}" text-anchor="end">1e{power}</text>'
    yield f'<text x="{x(1000)}" y="{TOP + HEIGHT + 34}" text-anchor="middle">K</text>'
    for player in ("tf32", "torch", *OURS):
        dots = [
            f"M{x(r['k']):.0f} {y(errors[player][measure]):.1f}h0"
            for r in records for errors in r["families"].values() if player in errors
        ]  # fmt: skip
        yield f'<path stroke="{COLOURS[player]}" {DOTS} d="{"".join(dots)}"/>'


def drawing(records: list[dict[str, Any]]) -> str:
    wide, high = 2 * (WIDTH + LEFT + 24), TOP + HEIGHT + 70
    parts = [*_panel(records, "norm", 0), *_panel(records, "worst", WIDTH + LEFT + 24)]
    for i, (player, colour) in enumerate(COLOURS.items()):
        at = LEFT + 130 * i
        parts.append(f'<circle cx="{at}" cy="{high - 14}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{at + 9}" y="{high - 10}">{NAMES[player]}</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect width="{wide}" height="{high}" fill="white"/>', *parts, "</svg>\n"])


PAGE = """# fp32 products: how accurate

Errors against float64 of matrix products in fp32: {shapes} shapes, K from 1 to {k:,}, sides from {least} to {most}, all
four transposes, {families} families of inputs. {device}, torch {torch}, commit {commit}, {date}; made by
`{command}`,
drawn from `{source}` by `benchmarks/accuracy.py --draw`. This page is written by that script.
{note}

![errors over K](accuracy.svg)

`norm`: relative in Frobenius' norm. `worst`: of the worst element, relative to the norms of its row of A and its column
of B. Median and largest of {taken} shapes that strategies take; the last column is the largest ratio of our error to
that of cuBLAS in fp32 on the same inputs.

{table}

{summary}

What strategies take of K below 32 is made of six products of bf16: a split in two fp16 numbers keeps 23 bits of a
factor where fp32 has 24, which shows where hardly anything is summed. Sums of few results, and short ones, are promoted
every 32 or 16 terms, since the tensor core's sums are cut off, not rounded, always to the same side
([precision.md](precision.md)). K below 8 strategies leave to torch; what three products of fp16 would give there is
counted apart.
"""


def draw(path: Path, docs: Path) -> None:
    whole = json.loads(path.read_text())
    records = whole["shapes"]
    sides = [r[side] for r in records for side in ("m", "n")]
    (docs / "accuracy.svg").write_text(drawing(records))
    text = PAGE.format(
        shapes=len(records), k=max(r["k"] for r in records), least=min(sides), most=max(sides),
        families=len(records[0]["families"]), taken=sum(not r["left_to_torch"] for r in records), source=path,
        table=table(records), summary="\n".join(f"- {line}" for line in summary(records)),
        **{name: whole[name] for name in ("device", "torch", "date", "command")}, commit=whole["commit"][:7],
        note=whole.get("note", ""),
    )  # fmt: skip
    (docs / "accuracy.md").write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="0")
    parser.add_argument("--workers", type=int, default=6, help="processes a device")
    parser.add_argument("--families", default=",".join(CHOSEN))
    parser.add_argument("--again", type=Path, help="a file of an earlier run, of whose shapes some are measured again")
    parser.add_argument("--over", type=float, default=1.9, help="those at which ours was so many times as far off")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--draw", type=Path, help="write docs/accuracy.md and docs/accuracy.svg from this file")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    families = options.families.split(",")
    if options.draw:
        draw(options.draw, Path("docs"))
        return 0
    if options.part:
        part, parts = map(int, options.part.split("/"))
        work(part, parts, families, options.source, chosen(options.again, options.over))
        return 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        more = ["--again", str(options.again), "--over", str(options.over)] if options.again else []
        records = run_all(options.devices.split(","), options.workers, families, Path(folder), more)
    if options.json:
        about = {
            "command": shlex.join(["python", *sys.argv]), "commit": commit(), "date": time.strftime("%Y-%m-%d"),
            "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        }  # fmt: skip
        options.json.write_text(json.dumps(about | {"shapes": records}) + "\n")
    failed = [r for r in records if "failure" in r]
    wanted = len(chosen(options.again, options.over))
    print(f"{len(records)} shapes of {wanted}, {len(failed)} failed, {time.monotonic() - begin:.0f} s")
    for line in [*summary(records), table(records), *(r["failure"] for r in failed[:3])]:
        print(line)
    return 0 if len(records) == wanted and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
