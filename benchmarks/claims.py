"""What is aimed at in matrix products, and what was reached; and one command that measures all of it anew.

    python benchmarks/claims.py [--results benchmarks/results/h200]
    python benchmarks/claims.py --measure KERNELBENCH --results OUT [--seconds 1700]

The first reads result files and prints a table. The second makes them in OUT, on one GPU; KERNELBENCH is a folder that
holds `level1` and `level2`. Each part has a command of its own, one after the other, since compilers of two would
starve each other. Given again, it leaves out the parts that came to their end at this commit, and those of many tasks
go on where they were stopped. Exit code 1: an aim was not reached, or was not measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from kernelbench import HERE, JUDGED, command, measure, of_both
from results import compact, write

from tilewright.report import bench_summary

Found = tuple[str, float]  # what is told, and the figure that the aim is about


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """`least` and `most`: what the figure has to be; neither where it is only shown."""

    title: str
    file: str
    figure: Callable[[Mapping[str, Any]], Found]
    least: float | None = None
    most: float | None = None

    def is_reached(self, figure: float) -> bool:
        return (self.least is None or figure >= self.least) and (self.most is None or figure <= self.most)


# ---- figures of result files


def level(number: int, result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tasks of one level, in a file of both or of this one."""
    runs = result.get("runs") or [{"command": result["command"], "tasks": [t["problem"] for t in result["tasks"]]}]
    names = {name for run in runs if f"level{number}" in run["command"] for name in run["tasks"]}
    return [t for t in result["tasks"] if t["problem"] in names]


def over_eager(number: int, *, algebra: bool) -> Callable[[Mapping[str, Any]], Found]:
    def figure(result: Mapping[str, Any]) -> Found:
        told: Mapping[str, Any] = bench_summary(level(number, result))
        without = None if algebra else told["geomean_eager_without_algebra"]
        ratio = float(without or told["geomean_eager"])
        return f"{ratio:.2f} ({told['passed']} of {told['tasks']} right)", ratio

    return figure


def passed(number: int) -> Callable[[Mapping[str, Any]], Found]:
    def figure(result: Mapping[str, Any]) -> Found:
        told: Mapping[str, Any] = bench_summary(level(number, result))
        return f"{told['passed']} of {told['tasks']}", float(told["passed"])

    return figure


def square(result: Mapping[str, Any]) -> Found:
    (task,) = (t for t in level(1, result) if t["problem"].startswith("1_"))
    ratio = task["ratio"]["eager"]
    if ratio is None:
        raise ValueError("its task is not right, or no faster")
    return f"{ratio['mid']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]", float(ratio["mid"])


def times_as_far_off(result: Mapping[str, Any]) -> Found:
    """Of all shapes and families our error over that of cuBLAS's fp32, the most."""
    taken = [shape for shape in result["shapes"] if not shape.get("left_to_torch")]
    most, shape = max(((max(map(max, s["over"].values())), s) for s in taken), key=lambda found: found[0])
    where = f"{shape['m']} x {shape['n']} x {shape['k']}"
    return f"{most:.2f} ({where}; {len(result['shapes'])} shapes, {result['errors']} errors)", most


def beside_others(
    kinds: Sequence[str], others: Sequence[str], *, count: int, least: bool = False
) -> Callable[[Mapping[str, Any]], Found]:  # fmt: skip
    """The better other's time over ours: the geometric mean, or the least. What is left to torch is torch's. `kinds`:
    words of tasks' names; `count`: tasks that there are."""

    def figure(result: Mapping[str, Any]) -> Found:
        ratios = []
        for task in result["tasks"]:
            times = task.get("us", {})
            mine = times.get("ours") or (times.get("eager") if task.get("unmatched") else None)
            known = [times[who] for who in others if times.get(who)]
            if set(kinds) & set(task["name"].split(":")) and mine and known:
                ratios.append((min(known) / mine, task["name"]))
        if least:
            found, name = min(ratios)
            under = sum(ratio < LEAST for ratio, _ in ratios)
            return f"{found:.3f} ({name}; under {LEAST}: {under} of {len(ratios)})", found
        mean = geometric_mean(ratio for ratio, _ in ratios)
        return f"{mean:.3f} ({len(ratios)} of {count} tasks)", mean

    return figure


def training(result: Mapping[str, Any]) -> Found:
    ratios = [t["us"]["eager"] / t["us"]["ours"] for t in result["tasks"] if "ours" in t.get("us", {})]
    mean = geometric_mean(ratios)
    return f"{mean:.2f} ({len(ratios)} layers, least {min(ratios):.2f})", mean


def judged_in_training(result: Mapping[str, Any]) -> Found:
    told: Mapping[str, Any] = bench_summary(result["tasks"])
    return f"{told['geomean_eager']:.2f} ({told['passed']} of {told['tasks']} right)", float(told["geomean_eager"])


def longest_tuning(result: Mapping[str, Any]) -> Found:
    most = max(p["seconds"] for p in result["patterns"])
    return f"{most:.1f} s of the GPU at most ({len(result['patterns'])} patterns)", float(most)


LEAST = 0.9
BARE, FUSED = 104, 14  # of transformer_shapes.py
PRODUCTS, SHAPES = "kernelbench-products.json", "transformer-shapes.json"
AIMS = (
    Aim(title="KernelBench level 1's products, over eager", file=PRODUCTS, least=3.3,
        figure=over_eager(1, algebra=False)),
    Aim(title="of them judged right", file=PRODUCTS, least=16, figure=passed(1)),
    Aim(title="square of 4096, over eager", file=PRODUCTS, least=4.2, figure=square),
    Aim(title="level 2's products, over eager, without algebra", file=PRODUCTS, least=3.7,
        figure=over_eager(2, algebra=False)),
    Aim(title="of them judged right", file=PRODUCTS, least=35, figure=passed(2)),
    Aim(title="the same with algebra", file=PRODUCTS, figure=over_eager(2, algebra=True)),
    Aim(title="error against float64, over cuBLAS's in fp32, the most", file="accuracy.json", most=2.0,
        figure=times_as_far_off),
    Aim(title="transformers in 16 bits, over the better of cuBLAS and quack", file=SHAPES, least=1.0,
        figure=beside_others(("prefill", "decode"), ("eager", "quack"), count=BARE)),
    Aim(title="the least of them", file=SHAPES, least=LEAST,
        figure=beside_others(("prefill", "decode"), ("eager", "quack"), count=BARE, least=True)),
    *(Aim(title=f"{told} alone", file=SHAPES, figure=beside_others((kind,), ("eager", "quack"), count=count))
      for told, kind, count in (("prefill", "prefill", 49), ("decoding", "decode", 55))),
    Aim(title="their layers with GELU or SwiGLU, over torch.compile", file=SHAPES, least=1.15,
        figure=beside_others(("fused",), ("compile",), count=FUSED)),
    *(Aim(title=f"{told} alone", file=SHAPES, figure=beside_others((kind,), ("compile",), count=count))
      for told, kind, count in (("bias, GELU and residual", "gelu", 6), ("SwiGLU", "swiglu", 8))),
    Aim(title="linear layers in training, forward and backward, over eager", file="linear-training.json", least=3.0,
        figure=training),
    Aim(title="feed-forwards in training (GELU, SwiGLU), judged", file="training-judged.json", least=3.0,
        figure=judged_in_training),
    Aim(title="tuning one pattern bare", file="product-winners.json", most=60.0, figure=longest_tuning),
)  # fmt: skip


def table(results: Path) -> tuple[list[str], bool]:
    """A line an aim, and whether all are reached."""
    lines, all_reached = [], True
    for aim in AIMS:
        wanted = f"at least {aim.least:g}" if aim.least is not None else f"at most {aim.most:g}" if aim.most else ""
        try:
            told, figure = aim.figure(json.loads((results / aim.file).read_text()))
            missed = "" if aim.is_reached(figure) else "NOT REACHED"
        except (OSError, ValueError, KeyError) as error:  # cut short, not there, or nothing of it measured
            told, missed = f"not measured: {' '.join(repr(error).split())[:80]}", "NOT REACHED"
        all_reached &= not missed
        lines.append(f"{aim.title:62s} {wanted:14s} {told}  {missed}".rstrip())
    return lines, all_reached


# ---- measuring


def parts(kernelbench: Path, into: Path) -> dict[str, list[str]]:
    """Files of results, and what makes them, the shortest first."""
    harness = [sys.executable, str(HERE / "harness.py")]
    bench = [sys.executable, "-m", "tilewright", "bench", str(HERE / "problems" / "training"), "--mode", "training"]
    return {
        "linear-training.json": [*harness, "training", "--points", "1", "--without", "compile"],
        "accuracy.json": [sys.executable, str(HERE / "accuracy.py"), "--jobs", "12"],
        **{f"{level}.json": command(kernelbench, level, into) for level in ("level1", "level2")},
        "training-judged.json": [*bench, *JUDGED, "--out", str(into / "training")],
        SHAPES: [*harness, "layers", "transformers"],
        "product-winners.json": [sys.executable, str(HERE / "product_winners.py"), str(kernelbench), "--into", str(into / "winners.db")],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "h200")
    parser.add_argument("--measure", type=Path, metavar="KERNELBENCH", help="its folder of levels; results are made anew")
    parser.add_argument("--seconds", type=float, default=1e9, help="of all parts")
    asked = parser.parse_args()
    if asked.measure:
        if asked.results == HERE / "results" / "h200":
            parser.error("--results: name a folder of their own for new results")
        measure(parts(asked.measure, asked.results), asked.results, asked.seconds)
        levels = [asked.results / f"level{number}.json" for number in (1, 2)]
        if all(path.exists() for path in levels):
            write(asked.results / PRODUCTS, compact(of_both(*(json.loads(path.read_text()) for path in levels))))
    lines, reached = table(asked.results)
    print("\n".join(lines))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
