"""Tunes matrix products bare, so that their winners can be shipped with the package: KernelBench's, and what stands
beside them in its modules, and transformers'.

    python benchmarks/product_winners.py KERNELBENCH [--devices 0,1] [--only fp32,16-bit] [--seconds 150] \\
        [--into winners.db] [--json FILE] [--trace FILE | --traced FILE]
    tilewright winners merge winners.db && tilewright winners export --add src/tilewright/search/tune/shipped.db

KERNELBENCH is a folder that holds `level1` and `level2`. Modules are traced without their tensors; the points of all
their patterns are compiled on all cores, pattern by pattern, while others are measured, one at a time on a device: the
calls of a pattern at every point in random turns, with cold caches, launches hidden. A point whose result is not that
of the others, or of torch where a product is alone, is not timed. Times are of the pattern by itself, not of a module;
that alone sets these winners apart from those of `tilewright tune`. `seconds`: after so many nothing more is begun.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from harness import Child, answering
from kernelbench import GROUPS, numbers
from restamped import patterns_of
from results import about, write
from subjects import imported, sampled
from tables import transformers
from torch import Tensor

from tilewright.edges.gpu.machine import identity, machine, threads
from tilewright.facts import codec
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import PointTime, Tuned
from tilewright.facts.pattern import Pattern
from tilewright.facts.problem import Work
from tilewright.facts.space import Point, Space
from tilewright.facts.version import VERSION
from tilewright.facts.winner import Winner, toolchain
from tilewright.ir.program import Operand
from tilewright.judge.timing.statistics import median_interval
from tilewright.kernels.cuda.plan import Device
from tilewright.kernels.ops import DTYPES
from tilewright.realise.digests import skeleton_digests
from tilewright.realise.gemm.sides import sizes
from tilewright.realise.rows import renderer as cuda
from tilewright.run.winners import made_by
from tilewright.search.strategies.tuning import winning
from tilewright.search.tune.memory import remember

ROUNDS = 12
LIMIT_S = 300.0  # for what a child is asked
MOST_OVER_S = 3.0  # for what is being measured when time is up
AHEAD_CYCLES = 400_000  # of the GPU's clock, in which the host queues a call
LIMITS = {"f32": 4e-5, "f16": 1e-3, "bf16": 8e-3}  # relative in the norm, from the others' results


def files(kernelbench: Path, only: Sequence[str], folder: Path) -> Iterator[Path]:
    """Folders of problem files, those of a kind in one."""
    for level in ("level1", "level2") if "fp32" in only else ():
        place = folder / level
        place.mkdir()
        for file in (kernelbench / level).glob("*.py"):
            if (number := file.stem.split("_")[0]).isdigit() and int(number) in numbers(GROUPS[level][1]):
                (place / file.name).write_text(file.read_text())
        yield place
    if "16-bit" in only:
        place = folder / "linear"
        place.mkdir()
        for number, source in enumerate(sorted({task.source for task in transformers()})):
            (place / f"{number}_linear.py").write_text(source)
        yield place


def patterns_in(folders: Iterator[Path]) -> list[Pattern]:
    """One of each class, numbered through. First the products of level 1; then, in turn, one of each shape of the
    others, those with the longest epilogues first; what stands beside them; those of 16 bits."""
    found: dict[str, tuple[tuple[int, int], Pattern]] = {}
    seen: Counter[object] = Counter()
    for folder in folders:
        for pattern in sorted(patterns_of(folder), key=lambda p: -len(p.program.body)):
            if pattern.shape_class in found:
                continue
            rank = (2, 0)
            if pattern.program.product:
                shape = sizes(pattern.program)
                rank = {"level1": (0, 0), "level2": (1, seen[shape])}.get(folder.name, (3, 0))
                seen[shape] += folder.name == "level2"
            found[pattern.shape_class] = rank, pattern
    ordered = sorted(found.values(), key=lambda each: each[0])
    return [replace(p, id=f"fused_{n}", space=_worth_it(p.space)) for n, (_, p) in enumerate(ordered)]


def _worth_it(space: Space) -> Space:
    """Without six products of bf16: they take 1.64 to 1.71 times as long as three of fp16 (docs/measured.md)."""
    return replace(space, points=tuple(p for p in space.points if dict(p).get("split") != "bf16x6") or space.points)


# ---- measuring: a child process a device


def operand(told: Operand) -> Tensor:
    dtype = DTYPES[told.dtype]
    whole = torch.empty_strided(told.shape, told.strides, dtype=dtype, device="cuda")
    if not dtype.is_floating_point:
        return whole.zero_()
    return whole.uniform_() if dtype == torch.float32 else whole.normal_()  # as KernelBench's inputs; as weights


def loaded(folder: Path, name: str, point: Point) -> Any:
    """The fused file as a module at a point, beside those at others."""
    for other in [n for n in sys.modules if n.startswith(f"{name}_")]:
        del sys.modules[other]
    module = imported(folder / f"{name}.py")
    module.configure(**dict(point))
    return module


def measured(pattern: Pattern, folder: Path) -> Tuned:
    program, product = pattern.program, pattern.program.product
    torch.manual_seed(0)
    given = {o.name: operand(o) for o in program.operands}
    dtype = program.operands[0].dtype
    bare = product is not None and len(program.body) == 1
    truth = given[product.left].float() @ given[product.right].float() if bare else None
    calls, failures = {}, {}
    for at in pattern.space.points:
        try:
            run = loaded(folder, pattern.id, at).run
            found = run(*given.values())[0].float()
            truth = found if truth is None else truth
            off = float((found - truth).norm() / truth.norm().clamp_min(1e-30))
            if not off <= LIMITS[dtype]:
                raise ValueError(f"off by {off:.2g}")
            calls[json.dumps(at)] = partial(run, *given.values())
        except Exception as error:  # told beside the others' times
            failures[at] = " ".join(repr(error).split())[-300:]
    truth = found = None
    times = sampled(calls, ROUNDS, delay_cycles=AHEAD_CYCLES)
    points = []
    for at in pattern.space.points:
        samples = [ms * 1e6 for ms in times.get(json.dumps(at), ())]
        interval = median_interval(samples) if samples else None
        points.append(PointTime(point=at, time_ns=interval, failure=failures.get(at, "")))
    return Tuned(points=tuple(points))


def compiled(line: str, folder: Path) -> str:
    """Of [pattern's id, point, processors]: "compiled", or why not."""
    name, at, processors = json.loads(line)
    try:
        module = loaded(folder, name, tuple((knob, value) for knob, value in at))
        module._FUSED.prepare(Device(arch="sm_90a", processors=processors))
    except Exception as error:  # the point fails again where it is measured, and is told there
        return " ".join(repr(error).split())[-300:]
    return "compiled"


def served(line: str, folder: Path) -> str:
    """Of a Pattern what was measured of it."""
    pattern = codec.loads(line)
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.no_grad():
            tuned = measured(pattern, folder)
    except Exception as error:  # its operands find no room, or the device is sick
        failed = PointTime(point=(), time_ns=None, failure=" ".join(repr(error).split())[-300:])
        tuned = Tuned(points=tuple(replace(failed, point=at) for at in pattern.space.points))
    torch.cuda.empty_cache()
    return codec.dumps(tuned)


# ---- the whole


class Tuning:
    """Patterns on their way from the compilers to the devices; what is measured is told at once."""

    def __init__(self, patterns: Sequence[Pattern], folder: Path, *, processors: int, ends: float) -> None:
        self.folder, self.processors, self.ends = folder, processors, ends
        self.began = time.monotonic()
        self.ready = queue.SimpleQueue[Pattern]()
        self.left = len(patterns)
        self.jobs = queue.SimpleQueue[tuple[Pattern, Point]]()
        self.missing = {p.id: len(p.space.points) for p in patterns}
        self.lock = threading.Lock()
        for pattern in patterns:
            for at in pattern.space.points:
                self.jobs.put((pattern, at))
        (folder / "build").mkdir()
        for pattern in patterns:
            for file in cuda.render(pattern.program, pattern.id, pattern.space.points[0]):
                (folder / file.path).write_text(file.text)
        for file in cuda.skeleton_files([p.program for p in patterns]):
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / file.path).write_text(file.text)

    def compile(self) -> None:
        """In a process of its own, point by point: a pattern is ready when the last of its points is there."""
        child = self._child("--compile")  # one that saw no GPU answered nothing in 150 s (H200, 2026-11-23)
        while time.monotonic() < self.ends:
            try:
                pattern, at = self.jobs.get_nowait()
            except queue.Empty:
                break
            why = child.ask(json.dumps([pattern.id, at, self.processors]), LIMIT_S)
            if why != "compiled":
                print(f"{pattern.title} {dict(at)}: {why or 'its compiler died'}", flush=True)
            with self.lock:
                self.missing[pattern.id] -= 1
                if not self.missing[pattern.id]:
                    self.ready.put(pattern)
                    self.say(f"{pattern.title}: compiled")
        child.end()

    def measure(self, device: str, tell: Callable[[Pattern, Tuned, float], None]) -> None:
        """In a process of the device's, and in another after an error that the first may not survive."""
        child = self._child("--serve", CUDA_VISIBLE_DEVICES=device)
        while self.left > 0 and time.monotonic() < self.ends:
            try:
                pattern = self.ready.get(timeout=0.5)
            except queue.Empty:
                continue
            started = time.monotonic()
            line = child.ask(codec.dumps(pattern), LIMIT_S)
            self.left -= 1
            if line:
                tell(pattern, codec.loads(line), time.monotonic() - started)
            if not line or "CUDA" in line:
                print(f"{pattern.title}: device {device}'s process is started anew", flush=True)
                child.end()
        child.end()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:.0f} s] {text}", flush=True)

    def _child(self, part: str, **environment: str) -> Child:
        return Child([sys.executable, str(Path(__file__).resolve()), part, str(self.folder)], **environment)


def winner_of(pattern: Pattern, tuned: Tuned, here: Machine) -> Winner | None:
    point = winning(tuned)
    if point is None:
        return None
    (time_ns,) = (p.time_ns for p in tuned.points if p.point == point)
    assert time_ns is not None
    batch, m, n, k = sizes(pattern.program) if pattern.program.product else (0, 0, 0, 0)
    moved = [prod(t.shape) * DTYPES[t.dtype].itemsize for t in (*pattern.program.operands, *pattern.program.outputs)]
    outputs = len(pattern.program.outputs)
    work = Work(bytes_read=sum(moved[:-outputs]), bytes_written=sum(moved[-outputs:]), conv_flops=0,
                matmul_flops=2 * batch * m * n * k, dtype=pattern.program.operands[0].dtype)  # fmt: skip
    versions = {"tilewright": VERSION, **dict(skeleton_digests("cuda"))}
    return Winner(
        target="cuda", device=here.device, shape_class=pattern.shape_class, title=pattern.title, point=point,
        toolchain=toolchain(here, tilewright=made_by(pattern, versions)), tried=tuned.points,
        floor_share=here.floor_ns(work) / time_ns.mid, found_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernelbench", type=Path, nargs="?")
    parser.add_argument("--devices", default="0")
    parser.add_argument("--only", default="fp32,16-bit")
    parser.add_argument("--most", type=int, default=1000, help="patterns")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--into", type=Path, default=Path("winners.db"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trace", type=Path, help="only write the patterns that are found into this file")
    parser.add_argument("--traced", type=Path, help="take the patterns from such a file")
    parser.add_argument("--jobs", type=int, default=max(1, threads() - 2), help="processes that compile")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--compile", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    for place, answer in ((asked.serve, served), (asked.compile, compiled)):
        if place:
            sys.path.insert(0, str(place))
            answering(partial(answer, folder=place))
            return 0
    if asked.traced:
        found = list(codec.loads(lzma.decompress(asked.traced.read_bytes()).decode()))
        found = [p for p in found if ("fp32" if p.program.operands[0].dtype == "f32" else "16-bit") in asked.only]
    else:
        with tempfile.TemporaryDirectory() as made:
            found = patterns_in(files(asked.kernelbench, asked.only.split(","), Path(made)))
    found = found[: asked.most]
    print(f"{len(found)} patterns, {asked.jobs} processes to compile", flush=True)
    if asked.trace:
        asked.trace.write_bytes(lzma.compress(codec.dumps(tuple(found)).encode()))
        return 0
    ends = time.monotonic() + asked.seconds
    folder = Path(tempfile.mkdtemp())
    tuning = Tuning(found, folder, processors=identity("cuda").processors, ends=ends)
    for _ in range(asked.jobs):
        threading.Thread(target=tuning.compile, daemon=True).start()
    said = Said(asked, machine("cuda", cache_dir=folder))
    tuning.say("the machine's rates are known")
    measuring = [
        threading.Thread(target=tuning.measure, args=(d, said.tell), daemon=True) for d in asked.devices.split(",")
    ]
    for thread in measuring:
        thread.start()
    for thread in measuring:
        thread.join(max(0.0, ends - time.monotonic()) + MOST_OVER_S)
    spent = [r["seconds"] for r in said.records]
    print(f"{len(spent)} of {len(found)} tuned; devices held for {sum(spent):.0f} s in all, at most "
          f"{max(spent, default=0.0):.1f} s for one", flush=True)  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0 if len(spent) == len(found) else 1)  # whoever still compiles is not waited for


class Said:
    """What was found, kept as it comes."""

    def __init__(self, asked: argparse.Namespace, here: Machine) -> None:
        self.asked, self.here, self.lock = asked, here, threading.Lock()
        self.records: list[dict[str, Any]] = []
        self.about = about() | {"device": here.device}

    def tell(self, pattern: Pattern, tuned: Tuned, seconds: float) -> None:
        winner = winner_of(pattern, tuned, self.here)
        domain = sizes(pattern.program) if pattern.program.product else pattern.program.domain
        first = tuned.points[0].time_ns
        record: dict[str, Any] = {"title": pattern.title, "sizes": list(domain), "dtype": pattern.program.operands[0].dtype,
                                  "seconds": seconds, "points": len(tuned.points)}  # fmt: skip
        if winner is not None:
            best_us = winner.time_ns.mid / 1e3
            record |= {"us": best_us, "floor_share": winner.floor_share, "won": " ".join(f"{k}={v}" for k, v in winner.point),
                       "first_over_best": first.mid / 1e3 / best_us if first else None}  # fmt: skip
        with self.lock:
            if winner is not None:
                remember(self.asked.into, winner)
            print(f"{pattern.title[:44]:44s} {' x '.join(map(str, domain)):28s} {self._told(record)}", flush=True)
            self.records.append(record)
            write(self.asked.json, self.about | {"patterns": self.records})

    @staticmethod
    def _told(record: dict[str, Any]) -> str:
        best = f"{record['us']:.1f} us, floor {record['floor_share']:.2f}" if "us" in record else "nothing ran"
        gain = f", first {record['first_over_best']:.2f}" if record.get("first_over_best") else ""
        return f"{record['dtype']:4s} {best}{gain}, {record['points']} points in {record['seconds']:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
