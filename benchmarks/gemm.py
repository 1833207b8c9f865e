"""Matrix products on a GPU: the points that strategies propose, against torch, for KernelBench's shapes.

    python benchmarks/gemm.py [--only 1_,6_,bf16] [--json FILE]

One process a task compiles its kernels beforehand, all of them side by side; then they measure one after another,
calls in random turns, the L2 cache flushed before each and the GPU kept busy until the host has queued it. `error` is
relative in the norm, against float64, on a corner of C. torch's fp32 is without TF32. Nothing here is a claim: the
judge measures what is claimed. TFLOP/s count the whole product, zeros too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from math import exp, log
from multiprocessing.connection import wait
from pathlib import Path
from statistics import median

import torch
from on_h200 import GPU, cuda
from torch import Tensor
from turns import sampled

from tilewright.ir.program import Operand, Output, Product, Program, Statement
from tilewright.kernels.cuda import math as m
from tilewright.kernels.cuda.gemm.finish import ALL, Diagonals
from tilewright.kernels.cuda.gemm.fused import is_turned, make_point
from tilewright.kernels.cuda.gemm.launch import Epilogue, Gemm
from tilewright.kernels.cuda.gemm.plan import Point, make_grid
from tilewright.kernels.cuda.gemm.reach import NO_ZEROS, Zeros

CORNER = 128
WRONG = 4e-5  # relative in the norm: the most that docs/precision.md allows an fp32 product
READY_S, TASK_S = 150, 45
AHEAD_CYCLES = 300_000  # of the GPU's clock, in which the host queues a call

# batch (0: none), M, N, K, layout of A and B ("n" as in A[M, K] and B[K, N], "t" stored transposed), dtype, what
# follows the product
Task = tuple[int, int, int, int, str, str, str]
TASKS: dict[str, Task] = {
    "1_square": (0, 4096, 4096, 4096, "nn", "f32", ""),
    "2_standard": (0, 2048, 4096, 8192, "nn", "f32", ""),
    "3_batched": (128, 512, 2048, 1024, "nn", "f32", ""),
    "6_large_k": (0, 256, 256, 524288, "nn", "f32", ""),
    "7_small_k": (0, 32768, 32768, 64, "nn", "f32", ""),
    "8_irregular": (0, 8205, 5921, 2949, "nn", "f32", ""),
    "9_tall_skinny": (0, 32768, 32768, 32, "nn", "f32", ""),
    "10_3d": (0, 16384, 768, 2048, "nn", "f32", ""),
    "11_4d": (0, 1048576, 768, 256, "nn", "f32", ""),
    "13_symmetric": (0, 4096, 4096, 4096, "nn", "f32", ""),
    "14_upper": (0, 4096, 4096, 4096, "nn", "f32", "triu"),
    "15_lower": (0, 4096, 4096, 4096, "nn", "f32", "tril"),
    "16_transposed_a": (0, 2048, 4096, 8192, "tn", "f32", ""),
    "17_transposed_b": (0, 2048, 4096, 8192, "nt", "f32", ""),
    "18_transposed_both": (0, 2048, 4096, 8192, "tt", "f32", ""),
    "layer_128": (0, 128, 32768, 32768, "nt", "f32", ""),
    "layer_128_half": (0, 128, 16384, 16384, "nt", "f32", ""),
    "bf16_4096": (0, 4096, 4096, 4096, "nt", "bf16", ""),
    "bf16_8192": (0, 8192, 8192, 8192, "nt", "bf16", ""),
    # So many tiles of 128 x 256 on 132 multiprocessors: what balance costs, beside one whole wave (`--only tiles`).
    **{
        f"tiles_{tiles}_{dtype}": (0, rows, columns, k, "nt", dtype, "")
        for tiles, rows, columns, k in (
            (8, 512, 512, 65536),
            (32, 1024, 1024, 8192),
            (64, 1024, 2048, 8192),
            (96, 1536, 2048, 8192),
            (132, 1536, 2816, 8192),
            (144, 2048, 2304, 8192),
            (192, 2048, 3072, 8192),
        )
        for dtype in ("bf16", "f32")
    },
    # Zeros in a factor, which declared algebra leaves out; each point beside the same without that.
    **{
        f"zeros_{shape}_{n}_{dtype}": (0, n, n, n, "nn", dtype, f"of {shape}")
        for shape, n in (
            ("lower", 4096), ("lower", 2048), ("lower", 8192), ("upper", 4096), ("both", 4096), ("band", 8192)
        )
        for dtype in ("bf16", "f32")
    },
    "zeros_lower_8192_by_16": (0, 8192, 16, 8192, "nn", "bf16", "of lower"),
}  # fmt: skip
# Of both factors the diagonals with elements.
ZEROS: dict[str, Zeros] = {
    "of lower": ((None, 0), ALL), "of upper": (ALL, (0, None)), "of both": ((None, 0), (None, 0)),
    "of band": ((-256, 256), ALL),
}  # fmt: skip
KEPT: dict[str, tuple[int | None, int | None]] = {"triu": (0, None), "tril": (None, 0)}
FOLLOWING = {"triu": torch.triu, "tril": torch.tril, **dict.fromkeys(("", *ZEROS), lambda c: c)}


def upper(product, index_0, index_1):  # type: ignore[no-untyped-def]
    return m.where(m.ge(index_1, index_0, "bool"), product, 0, "f32")


def lower(product, index_0, index_1):  # type: ignore[no-untyped-def]
    return m.where(m.le(index_1, index_0, "bool"), product, 0, "f32")


def operands(task: Task, device: str) -> tuple[Tensor, Tensor]:
    batch, rows, columns, k, layout, dtype, follows = task
    kind = torch.float32 if dtype == "f32" else torch.bfloat16

    def make(height: int, width: int, stored: str) -> Tensor:
        front = (batch,) if batch else ()
        shape = (*front, height, width) if stored == "n" else (*front, width, height)
        x = torch.empty(shape, device=device, dtype=kind)
        if device != "meta":
            x.uniform_()  # as KernelBench's inputs
        return x if stored == "n" else x.transpose(-1, -2)

    zeros = ZEROS.get(follows, NO_ZEROS)
    return between(make(rows, k, layout[0]), zeros[0]), between(make(k, columns, layout[1]), zeros[1])


def between(x: Tensor, diagonals: Diagonals) -> Tensor:
    low, high = diagonals
    x = x if high is None else x.tril(high)
    return x if low is None else x.triu(low)


def program(task: Task) -> Program:
    """As the matcher has it."""
    batch, rows, columns, k, layout, dtype, follows = task
    front = (batch,) if batch else ()
    places = tuple(range(len(front)))
    order = (*places, len(front) + 1, len(front))
    left = Operand(name="x0", dtype=dtype, shape=(*front, rows, k), indexed=True, order=order * (layout[0] == "t"))
    right = Operand(name="x1", dtype=dtype, shape=(*front, k, columns), indexed=True, order=order * (layout[1] == "t"))
    zeros = ZEROS.get(follows, NO_ZEROS)
    body: list[Product | Statement] = [Product(result="v0", left="x0", right="x1", dtype=dtype, zeros=zeros)]
    if follows in KEPT:
        positions = [Statement(result=f"i{d}", op="index", args=(d,), dtype="i64") for d in range(2)]
        compare = Statement(result="c", op="ge" if follows == "triu" else "le", args=("i1", "i0"), dtype="bool")
        body += [*positions, compare, Statement(result="y", op="where", args=("c", "v0", 0), dtype=dtype)]
    out = Output(name="y" if follows in KEPT else "v0", dtype=dtype, shape=(*front, rows, columns))
    return Program(domain=out.shape, operands=(left, right), body=tuple(body), outputs=(out,))


def gemms(task: Task, count: int, store: str, stream_k: bool = False) -> dict[str, Gemm]:
    """The first points that are proposed, not yet compiled; with `stream_k` the same that way, too."""
    whole = program(task)
    if why := cuda.unsupported(whole):
        raise SystemExit(why)
    follows, made, compiled = task[-1], {}, {}
    triangle = upper if follows == "triu" else lower
    epilogue = Epilogue(function=triangle, diagonals=KEPT[follows]) if follows in KEPT else None
    proposed = [dict(p) for p in cuda.space(whole).points[:count]]
    if stream_k:
        proposed += [{**p, "split_k": 1, "store": "direct", "schedule": "stream_k"} for p in proposed
                     if p["streamed"] == "none" and p["sum"] == "kernel" and p["split"] == "fp16x3"]  # fmt: skip
    for knobs in proposed:
        fp32 = "wide" if knobs["split"] == "bf16x6" else "scaled"
        try:
            point = make_point(
                knobs | ({"store": store} if store else {}), scheme=fp32 if task[5] == "f32" else "plain"
            )
        except ValueError:  # no room in shared memory
            continue
        for zeros in dict.fromkeys((ZEROS.get(follows, NO_ZEROS), NO_ZEROS)):
            name = label(point, knobs) + (" whole" if follows in ZEROS and zeros == NO_ZEROS else "")
            made[name] = Gemm(point, task[5], epilogue, turned=is_turned(knobs), compiled=compiled, zeros=zeros)
    return made


def label(point: Point, knobs: dict[str, object]) -> str:
    streamed = "" if knobs["streamed"] == "none" else f" streamed {knobs['streamed']}"
    return (
        f"{knobs['tile']} {knobs['cluster']} s{point.depth_stages} k{point.split_k} "
        f"{point.scheme}{' bulk' if point.bulk else ''}{streamed}{' stream-K' if point.stream_k else ''}"
    )


def error(result: Tensor, a: Tensor, b: Tensor, follows: str) -> float:
    left, right = (a[-1], b[-1]) if a.ndim == 3 else (a, b)
    corner = (result[-1] if result.ndim == 3 else result)[-CORNER:, -CORNER:].double()
    truth = FOLLOWING[follows](left[-CORNER:].double() @ right[:, -CORNER:].double())
    return float((corner - truth).norm() / truth.norm())


def measure(task: Task, gemms: dict[str, Gemm], rounds: int) -> dict[str, object]:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    a, b = operands(task, "cuda")
    follows = FOLLOWING[task[-1]]
    calls: dict[str, Callable[[], object]] = {"torch": lambda: follows(a @ b)}
    errors, failures = {"torch": error(follows(a @ b), a, b, task[-1])}, {}
    for name, gemm in gemms.items():
        try:
            found = error(gemm(a, b), a, b, task[-1])
            torch.cuda.synchronize()
        except Exception as caught:  # a table with a hole is worth more than none
            failures[name] = repr(caught)[-300:]
            continue
        errors[name] = found
        limit = WRONG if task[5] == "f32" else 2 * errors["torch"]
        if found <= limit:
            calls[name] = lambda gemm=gemm: gemm(a, b)  # type: ignore[misc]
        else:
            failures[name] = f"wrong: {found:.2g}"
    halved = next((g for name, g in gemms.items() if name in calls and "scaled" in name and "stream" not in name), None)
    if halved is not None:  # the two splits by themselves
        grid = make_grid(halved.point, *task[1:4], batch=max(task[0], 1), processors=GPU.processors)
        x, y = (a if a.ndim == 3 else a[None]).permute(1, 2, 0), (b if b.ndim == 3 else b[None]).permute(2, 1, 0)
        calls["split A"] = lambda: halved.split_operand(x, grid)
        calls["split B"] = lambda: halved.split_operand(y, grid, along=True)
    samples = sampled(calls, rounds, delay_cycles=AHEAD_CYCLES)
    times = {name: median(each) for name, each in samples.items()}
    return {"times_ms": times, "errors": errors, "failures": failures}


def work(name: str, *, rounds: int, points: int, store: str, stream_k: bool) -> None:
    """A task's process: compiles, says "ready", measures when told to."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a compiler prints is no answer
    begin = time.perf_counter()
    a, b = operands(TASKS[name], "meta")
    ready, failures = {}, {}
    for point, gemm in gemms(TASKS[name], points, store, stream_k).items():
        try:
            gemm(a, b)
            ready[point] = gemm
        except Exception as caught:
            failures[point] = repr(caught)[-300:]
    print("ready", file=answers, flush=True)
    compiled_s = time.perf_counter() - begin
    if not sys.stdin.readline():  # nobody is there to be told
        return
    result = measure(TASKS[name], ready, rounds)
    result["failures"].update(failures)  # type: ignore[attr-defined]
    print(json.dumps(result | {"compile_s": compiled_s}), file=answers, flush=True)


def best_ratio(result: dict[str, object]) -> float:
    """torch's time over that of the best point; 1 where none is right."""
    times = result["times_ms"]
    assert isinstance(times, dict)
    ours = [ms for name, ms in times.items() if name != "torch" and not name.startswith("split ")]
    return float(times["torch"] / min(ours)) if ours else 1.0


def line_within(process: subprocess.Popen[str], seconds: float) -> str:
    """The process's next line, or nothing."""
    assert process.stdout is not None
    return process.stdout.readline() if wait([process.stdout], seconds) else ""


def show(name: str, result: dict[str, object]) -> None:
    times, errors = result["times_ms"], result["errors"]
    assert isinstance(times, dict) and isinstance(errors, dict)
    ours = {k: v for k, v in times.items() if k != "torch" and not k.startswith("split ")}
    batch, rows, columns, k, *_ = TASKS[name]
    flops = 2 * max(batch, 1) * rows * columns * k
    best = min(ours, key=ours.__getitem__, default="none")
    if best != "none":
        splits = times.get("split A", 0.0) + times.get("split B", 0.0)
        print(
            f"{name:18s} torch {times['torch']:8.3f} ms  ours {ours[best]:8.3f} ({times['torch'] / ours[best]:5.2f}x, "
            f"{flops / ours[best] / 1e9:4.0f} TFLOP/s, splits {splits:.3f})  error {errors[best]:.1e} / "
            f"{errors['torch']:.1e}  {best}"
        )
        for point, ms in sorted(ours.items(), key=lambda item: item[1]):
            print(f"    {ms:8.3f}  {errors[point]:.1e}  {point}")
    for point, text in result["failures"].items():  # type: ignore[attr-defined]
        print(f"    {point}: {text}")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of tasks' names, between commas")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--points", type=int, default=8, help="of a task")
    parser.add_argument("--store", default="", help="direct or bulk, instead of what is proposed")
    parser.add_argument("--stream-k", action="store_true", help="the same points by stream-K, too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, rounds=options.rounds, points=options.points, store=options.store,
             stream_k=options.stream_k)  # fmt: skip
        return 0
    wanted = options.only.split(",")
    names = [n for n in TASKS if any(n.startswith(part) for part in wanted)]
    command = [sys.executable, __file__, "--rounds", str(options.rounds), "--points", str(options.points),
               "--store", options.store, *(["--stream-k"] if options.stream_k else []), "--worker"]  # fmt: skip
    pipe = subprocess.PIPE
    workers = {n: subprocess.Popen([*command, n], stdin=pipe, stdout=pipe, text=True) for n in names}
    begin = time.perf_counter()
    lost = [n for n in names if line_within(workers[n], max(READY_S - (time.perf_counter() - begin), 1)) != "ready\n"]
    print(f"{torch.cuda.get_device_name()}  torch {torch.__version__}  compiled in {time.perf_counter() - begin:.0f} s")
    results = {}
    for name in names:
        process, text = workers[name], ""
        if name not in lost:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            text = line_within(process, TASK_S)
        if text:
            results[name] = json.loads(text)
            show(name, results[name])
        else:
            print(f"{name}: no answer (it failed, or hung)", flush=True)
        process.kill()
        process.wait()
    ratios = [log(best_ratio(r)) for name, r in results.items() if TASKS[name][5] == "f32"]
    if ratios:
        print(f"fp32: geometric mean {exp(sum(ratios) / len(ratios)):.2f} over {len(ratios)} tasks")
    if options.json:
        about = {"command": " ".join(sys.argv), "device": torch.cuda.get_device_name(), "torch": torch.__version__}
        options.json.write_text(json.dumps(about | {"tasks": results}, indent=1) + "\n")
    print(f"{time.perf_counter() - begin:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
