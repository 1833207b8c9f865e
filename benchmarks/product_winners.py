"""Tunes matrix products bare, so that their winners can be shipped with the package: KernelBench's, and what stands
beside them in its modules, and transformers'.

    python benchmarks/product_winners.py KERNELBENCH [--devices 0,1] [--only fp32,16-bit] [--seconds 150] \\
        [--into winners.db] [--json FILE] [--trace FILE | --traced FILE]
    tilewright winners merge winners.db && tilewright winners export --add src/tilewright/search/tune/shipped.db

KERNELBENCH holds `level1` and `level2`. Modules are traced without their tensors. Processes take patterns in turn: each
compiles all points of its pattern and measures them while it has the device alone, in random turns, with cold caches,
launches hidden. A point whose result is not that of the others, or of torch where a product is alone, is not timed.
Times are of the pattern by itself, not of a module, which sets these winners apart from those of `tilewright tune`.
`--trace` only writes the patterns into a file, on any machine; `--traced` takes them from there.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from harness import Child, answering, spread
from kernelbench import GROUPS, numbers
from on_h200 import cuda
from restamped import patterns_of
from results import about, write
from subjects import device, imported, sampled
from tables import transformers
from torch import Tensor

from tilewright.edges.gpu.machine import identity, machine, threads
from tilewright.facts import codec
from tilewright.facts.devices import device_of
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import PointTime, Tuned
from tilewright.facts.pattern import Pattern
from tilewright.facts.problem import Work
from tilewright.facts.space import Space
from tilewright.facts.version import VERSION
from tilewright.facts.winner import Winner, toolchain
from tilewright.ir.program import Operand
from tilewright.judge.timing.statistics import median_interval
from tilewright.kernels.cuda.rows.plan import Gpu
from tilewright.kernels.ops import DTYPES
from tilewright.realise.digests import skeleton_digests
from tilewright.realise.gemm.shape import sizes
from tilewright.run.winners import made_by
from tilewright.search.strategies.tuning import winning
from tilewright.search.tune.memory import remember

ROUNDS, LIMIT_S = 12, 300.0  # LIMIT_S: for one pattern, with its compilers
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
        for index, source in enumerate(sorted({task.source for task in transformers()})):
            (place / f"{index}_linear.py").write_text(source)
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


# ---- a child: one pattern after the other


def operand(told: Operand) -> Tensor:
    dtype = DTYPES[told.dtype]
    whole = torch.empty_strided(told.shape, told.strides, dtype=dtype, device="cuda")
    if not dtype.is_floating_point:
        return whole.zero_()
    return whole.uniform_() if dtype == torch.float32 else whole.normal_()  # as KernelBench's inputs; as weights


def modules(pattern: Pattern, folder: Path, here: Gpu) -> dict[Any, Any]:
    """By point the fused file as a module, compiled for this device, or why it does not compile."""
    made: dict[Any, Any] = {}
    for file in (
        *cuda.render(pattern.program, pattern.id, pattern.space.points[0]),
        *cuda.skeleton_files([pattern.program]),
    ):
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).write_text(file.text)
    sys.path.insert(0, str(folder))
    for at in pattern.space.points:
        for other in [n for n in sys.modules if n.startswith(f"{pattern.id}_")]:
            del sys.modules[other]
        try:
            made[at] = imported(folder / f"{pattern.id}.py")
            made[at].configure(**dict(at))
            made[at]._FUSED.prepare(here)
        except Exception as error:  # told beside the others' times
            made[at] = _said(error)
    sys.path.remove(str(folder))
    return made


def measured(pattern: Pattern, made: dict[Any, Any]) -> Tuned:
    program, product = pattern.program, pattern.program.product
    torch.manual_seed(0)
    given = {o.name: operand(o) for o in program.operands}
    truth = None
    if product is not None and len(program.body) == 1:
        truth = given[product.left.operand].float() @ given[product.right.operand].float()
    calls, failures = {}, {at: module for at, module in made.items() if isinstance(module, str)}
    for at in [at for at in made if at not in failures]:
        try:
            found = made[at].run(*given.values())[0].float()
            truth = found if truth is None else truth
            off = float((found - truth).norm() / truth.norm().clamp_min(1e-30))
            if not off <= LIMITS[program.operands[0].dtype]:
                raise ValueError(f"off by {off:.2g}")
            calls[json.dumps(at)] = partial(made[at].run, *given.values())
        except Exception as error:
            failures[at] = _said(error)
    truth = found = None
    times, points = sampled(calls, ROUNDS, delay_cycles=AHEAD_CYCLES), []
    for at in pattern.space.points:
        samples = [ms * 1e6 for ms in times.get(json.dumps(at), ())]
        interval = median_interval(samples) if samples else None
        points.append(PointTime(point=at, time_ns=interval, failure=failures.get(at, "")))
    return Tuned(points=tuple(points))


def _said(error: Exception) -> str:
    return " ".join(repr(error).split())[-300:]


def served(line: str) -> str:
    """Of a Pattern what was measured of it, and how many seconds it had the device."""
    pattern, here = codec.loads(line), identity("cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            known: dict[str, Any] = {**device_of(here).plan_facts}
            made = modules(pattern, Path(folder), Gpu(**known))
            with device(alone=True):
                began = time.monotonic()
                tuned = measured(pattern, made)
    except Exception as error:  # its operands find no room, or the device is sick
        tuned = Tuned(
            points=tuple(PointTime(point=at, time_ns=None, failure=_said(error)) for at in pattern.space.points)
        )
    torch.cuda.empty_cache()
    return json.dumps([time.monotonic() - began, codec.dumps(tuned)])


# ---- the whole


def winner_of(pattern: Pattern, tuned: Tuned, here: Machine) -> Winner | None:
    point = winning(tuned)
    if point is None:
        return None
    (time_ns,) = (p.time_ns for p in tuned.points if p.point == point)
    assert time_ns is not None
    batch, m, n, k = sizes(pattern.program) if pattern.program.product else (0, 0, 0, 0)
    tensors: list[Any] = [*pattern.program.operands, *pattern.program.outputs]
    moved = [prod(t.shape) * DTYPES[t.dtype].itemsize for t in tensors]
    outputs = len(pattern.program.outputs)
    work = Work(bytes_read=sum(moved[:-outputs]), bytes_written=sum(moved[-outputs:]), conv_flops=0,
                matmul_flops=2 * batch * m * n * k, dtype=pattern.program.operands[0].dtype)  # fmt: skip
    versions = {"tilewright": VERSION, **dict(skeleton_digests("cuda"))}
    return Winner(
        target="cuda", device=here.device, shape_class=pattern.shape_class, title=pattern.title, point=point,
        toolchain=toolchain(here, tilewright=made_by(pattern, versions, device_of(here))), tried=tuned.points,
        floor_share=here.floor_ns(work) / time_ns.mid, found_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def record_of(pattern: Pattern, tuned: Tuned, winner: Winner | None, seconds: float) -> dict[str, Any]:
    """A pattern's record in the result file. `seconds`: of the device."""
    domain = sizes(pattern.program) if pattern.program.product else pattern.program.domain
    record = {"title": pattern.title, "sizes": list(domain), "dtype": pattern.program.operands[0].dtype,
              "seconds": seconds, "points": len(tuned.points)}  # fmt: skip
    if winner is None:
        return record
    first, won = tuned.points[0].time_ns, " ".join(f"{k}={v}" for k, v in winner.point)
    more = {"us": winner.time_ns.mid / 1e3, "floor_share": winner.floor_share, "won": won}
    return record | more | ({"first_over_best": first.mid / winner.time_ns.mid} if first else {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernelbench", type=Path, nargs="?")
    parser.add_argument("--devices", default="0")
    parser.add_argument("--only", default="fp32,16-bit")
    parser.add_argument("--most", type=int, default=1000, help="patterns")
    parser.add_argument("--seconds", type=float, default=1e9, help="after so many nothing more is begun")
    parser.add_argument("--into", type=Path, default=Path("winners.db"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trace", type=Path, help="only write the patterns that are found into this file")
    parser.add_argument("--traced", type=Path, help="take the patterns from such a file")
    parser.add_argument("--jobs", type=int, default=max(1, threads() - 2), help="processes a device")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        answering(served)
        return 0
    if asked.traced:
        found = list(codec.loads(lzma.decompress(asked.traced.read_bytes()).decode()))
        found = [p for p in found if ("fp32" if p.program.operands[0].dtype == "f32" else "16-bit") in asked.only]
    else:
        with tempfile.TemporaryDirectory() as made:
            found = patterns_in(files(asked.kernelbench, asked.only.split(","), Path(made)))
    found = found[: asked.most]
    if asked.trace:
        asked.trace.write_bytes(lzma.compress(codec.dumps(tuple(found)).encode()))
        return 0
    records = list(tuned_all(found, asked))
    print(f"{len(records)} of {len(found)} tuned; devices held for {sum(r['seconds'] for r in records):.0f} s in all")
    return 0 if len(records) == len(found) else 1


def tuned_all(found: Sequence[Pattern], asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The patterns' records as they come; winners are remembered, the file is kept."""
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    children = [Child(command, CUDA_VISIBLE_DEVICES=d) for d in asked.devices.split(",") for _ in range(asked.jobs)]
    ends, head, records = time.monotonic() + asked.seconds, about(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        here = machine("cuda", cache_dir=Path(folder))
    for number, line in spread([codec.dumps(p) for p in found], children, limit_s=LIMIT_S, ends=ends):
        if not line:
            print(f"{found[number].title}: its process broke off, or took too long", flush=True)
            continue
        seconds, text = json.loads(line)
        tuned = codec.loads(text)
        winner = winner_of(found[number], tuned, here)
        if winner is not None:
            remember(asked.into, winner)
        records.append(record_of(found[number], tuned, winner, seconds))
        print(records[-1], flush=True)
        write(asked.json, head | {"patterns": records})
        yield records[-1]


if __name__ == "__main__":
    sys.exit(main())
