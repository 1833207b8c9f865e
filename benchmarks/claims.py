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
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tilewright.faces.deliver import commit
from tilewright.report import bench_summary

HERE = Path(__file__).resolve().parent
LEVEL1 = "1-4,6-11,13-18"
LEVEL2 = "9,12,14,18,22,28-30,33,37,39-41,45,51,53,55,56,59,62-64,66,68,70,75,76,80,81,84,86,88,94,95,97-99"
JUDGED = ("--target", "cuda", "--budget", "1s", "--timing", "2s", "--no-compile", "--without", "tuning", "--jobs", "5")
LEAVING_S = 5.0  # a part that was told to stop writes down what it has
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
    over = [
        (family[way][measure] / family["torch"][measure], shape)
        for shape in result["shapes"] if not shape.get("left_to_torch")
        for family in shape["families"].values()
        for way in ("planes", "streamed") if way in family
        for measure in ("norm", "worst") if family["torch"][measure]
    ]  # fmt: skip
    most, shape = max(over, key=lambda found: found[0])
    where = f"{shape['m']} x {shape['n']} x {shape['k']}"
    return f"{most:.2f} ({where}; {len(result['shapes'])} shapes, {len(over)} errors)", most


def beside_others(
    kinds: Sequence[str], others: Sequence[str], *, count: int, least: bool = False
) -> Callable[[Mapping[str, Any]], Found]:  # fmt: skip
    """The better other's time over ours: the geometric mean, or the least. What is left to torch is torch's. `kinds`:
    words of tasks' names; `count`: tasks that there are."""

    def figure(result: Mapping[str, Any]) -> Found:
        ratios = []
        for task in result["tasks"]:
            times = task.get("times_us", {})
            mine = times.get("ours") or (times.get("torch") if task.get("left_to_torch") else None)
            known = [times[who] for who in others if times.get(who)]
            if set(kinds) & set(task["name"].split(":")) and mine and known:
                ratios.append((min(known) / mine, task["name"]))
        if least:
            found, name = min(ratios)
            under = sum(ratio < LEAST for ratio, _ in ratios)
            return f"{found:.3f} ({name}; under {LEAST}: {under} of {len(ratios)})", found
        mean = geomean(ratio for ratio, _ in ratios)
        return f"{mean:.3f} ({len(ratios)} of {count} tasks)", mean

    return figure


def training(result: Mapping[str, Any]) -> Found:
    ratios = [t["times_ms"]["eager"] / t["times_ms"]["ours"] for t in result["tasks"] if "ours" in t["times_ms"]]
    mean = geomean(ratios)
    return f"{mean:.2f} ({len(ratios)} layers, least {min(ratios):.2f})", mean


def judged_in_training(result: Mapping[str, Any]) -> Found:
    told: Mapping[str, Any] = bench_summary(result["tasks"])
    return f"{told['geomean_eager']:.2f} ({told['passed']} of {told['tasks']} right)", float(told["geomean_eager"])


def longest_tuning(result: Mapping[str, Any]) -> Found:
    most = max(p["seconds"] for p in result["patterns"])
    return f"{most:.1f} s of the GPU at most ({len(result['patterns'])} patterns)", float(most)


def geomean(ratios: Iterable[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    if not logs:
        raise ValueError("nothing was measured")
    return math.exp(sum(logs) / len(logs))


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
        figure=beside_others(("prefill", "decode"), ("torch", "quack"), count=BARE)),
    Aim(title="the least of them", file=SHAPES, least=LEAST,
        figure=beside_others(("prefill", "decode"), ("torch", "quack"), count=BARE, least=True)),
    *(Aim(title=f"{told} alone", file=SHAPES, figure=beside_others((kind,), ("torch", "quack"), count=count))
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


def parts(kernelbench: Path, into: Path) -> Iterator[tuple[str, list[str]]]:
    """Files of results, and what makes them, the shortest first."""
    python = [sys.executable]
    yield "linear-training.json", [*python, str(HERE / "linear_training.py"), "--points", "1", "--without", "compile"]
    yield "accuracy.json", [*python, str(HERE / "accuracy.py"), "--workers", "12"]
    for number, only in ((1, LEVEL1), (2, LEVEL2)):
        where = f"kernelbench:{kernelbench / f'level{number}'}"
        out = str(into / f"level{number}")
        yield (
            f"level{number}.json",
            [*python, "-m", "tilewright", "bench", where, "--only", only, *JUDGED, "--out", out],
        )
    yield (
        "training-judged.json",
        [*python, "-m", "tilewright", "bench", str(HERE / "problems" / "training"), "--mode", "training", *JUDGED,
         "--out", str(into / "training")],
    )  # fmt: skip
    yield SHAPES, [*python, str(HERE / "transformer_shapes.py"), "--points", "3", "--ready", "160"]
    yield "product-winners.json", [
        *python, str(HERE / "product_winners.py"), str(kernelbench), "--only", "fp32,16-bit",
        "--into", str(into / "winners.db"),
    ]  # fmt: skip


def measure(kernelbench: Path, into: Path, seconds: float) -> None:
    """All parts, as far as the time goes; what a part prints goes beside its file."""
    into.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    here = commit()
    for name, command in parts(kernelbench, into):
        ended = into / f"{name}.ended"
        if ended.exists() and ended.read_text() == here:
            continue
        with open(into / f"{name}.log", "a") as log:
            code = ended_by([*command, "--json", str(into / name)], end, log)
        if code == 0:
            ended.write_text(here)
        told = "cut off" if code is None else f"exit code {code}"
        print(f"{name}: {told}, {seconds - end + time.monotonic():.0f} s so far", flush=True)
        if time.monotonic() > end:
            break
    levels = [into / f"level{number}.json" for number in (1, 2)]
    if all(path.exists() for path in levels):
        (into / PRODUCTS).write_text(json.dumps(of_both(*(json.loads(path.read_text()) for path in levels)), indent=1))


def ended_by(command: Sequence[str], end: float, log: IO[str]) -> int | None:
    """The exit code of a command; None where it had to be stopped. What it began and left running is ended with it."""
    with subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as process:
        try:
            return process.wait(timeout=max(end - time.monotonic(), LEAVING_S))
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGINT)
                    process.wait(timeout=LEAVING_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def of_both(*levels: Mapping[str, Any]) -> dict[str, Any]:
    """The results of both levels as one file."""
    tasks = [task for one in levels for task in one["tasks"]]
    runs = [{"command": one["command"], "commit": one["commit"], "tasks": [t["problem"] for t in one["tasks"]]}
            for one in levels]  # fmt: skip
    return {"tasks": tasks, "summary": bench_summary(tasks), "command": "see `runs`", "commit": levels[0]["commit"],
            "machine": levels[0]["machine"], "runs": runs}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "h200")
    parser.add_argument(
        "--measure", type=Path, metavar="KERNELBENCH", help="its folder of levels; results are made anew"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="of all parts")
    asked = parser.parse_args()
    if asked.measure:
        if asked.results == HERE / "results" / "h200":
            parser.error("--results: name a folder of their own for new results")
        measure(asked.measure, asked.results, asked.seconds)
    lines, reached = table(asked.results)
    print("\n".join(lines))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
