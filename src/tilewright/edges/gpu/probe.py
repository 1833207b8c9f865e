"""A script for a child process: measures one device's memory and matrix rates and prints them as one JSON line.

    python -P probe.py cuda          python -P probe.py cpu THREADS LLC_BYTES

Every figure is the best of many short runs: these rates are ceilings from which floors are computed, so a disturbed
sample must not lower them. Operands of products are random, since zeros save power and run faster than data does.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

_PR_SET_PDEATHSIG = 1
_BUDGET_S = {"cuda": 0.1, "cpu": 0.15}  # for one figure at one size
_SIZES = {"cuda": (2048, 4096, 8192), "cpu": (256, 512, 1024, 2048)}  # of square products
_SLICES = 16
_IN_CACHE_BUDGET_S = 0.05
_BATCH = 20  # copies within a cache that are timed together: one takes no longer than it takes to start
_LARGEST_CACHE_BYTES, _CLEARLY_FASTER = 512 << 20, 1.4
_ROUNDS_S, _MOST_OTHERS = 8.0, 0.08  # on a CPU: how long to wait for a round that others hardly disturb
_LONGEST_S = {"cuda": 0.04, "cpu": 0.12}  # one product takes no longer than about this


def seconds(run: Callable[[], object], device: str) -> float:
    """One run's time: between device events on a GPU, by the host's clock otherwise."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def best_seconds(run: Callable[[], object], device: str, budget_s: float = 0.0) -> float:
    """The shortest of at least three runs after one to warm up, for as long as the budget lasts."""
    run()
    stop = time.perf_counter() + (budget_s or _BUDGET_S[device])
    best = min(seconds(run, device) for _ in range(3))
    while time.perf_counter() < stop:
        best = min(best, seconds(run, device))
    return best


def matmul_rate(dtype: torch.dtype, device: str) -> float:
    """The best rate over square products of growing size, flop/s; 0.0 where the device refuses the dtype."""
    best = 0.0
    for size in _SIZES[device]:
        if best and 2.0 * size**3 / best > _LONGEST_S[device]:
            break
        try:
            a, b = (torch.randn(size, size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
            out = torch.empty(size, size, device=device, dtype=dtype)
            multiply = partial(torch.mm, a, b, out=out)
            best = max(best, 2.0 * size**3 / best_seconds(multiply, device))
        except (RuntimeError, NotImplementedError):  # an unsupported dtype, or too little memory for this size
            break
    return best


def stream_rates(array_bytes: int, device: str) -> dict[str, float]:
    """Bytes/s, read + written as the program counts them, of a copy and, on a CPU, of reading and of two reads a write.

    A CPU's plain stores first fetch the line that they write, which a copy pays and a read does not: there the copy
    alone is no ceiling (AMD EPYC, 2 threads, 2026-11-20: copy 48, sum 58, add 78 GB/s). Its arrays are gone through in
    slices: each is cold when its turn comes, and short enough to have a chance between other processes."""
    x, y = (torch.full((array_bytes // 4,), 1.5, device=device) for _ in range(2))
    if device == "cuda":
        return {"copy": 2 * array_bytes / best_seconds(lambda: y.copy_(x), device)}
    slices = tuple(zip(x.chunk(_SLICES), y.chunk(_SLICES), strict=True))
    turns = {name: cycle(slices) for name in ("copy", "sum", "add")}

    def over(name: str, run: Callable[[torch.Tensor, torch.Tensor], object]) -> float:
        return best_seconds(lambda: run(*next(turns[name])), device)

    slice_bytes = slices[0][0].numel() * 4
    return {
        "copy": 2 * slice_bytes / over("copy", lambda x, y: y.copy_(x)),
        "sum": slice_bytes / over("sum", lambda x, _: torch.sum(x)),
        "add": 3 * slice_bytes / over("add", lambda x, y: torch.add(x, y, out=y)),
    }


def cache_rate(cache_bytes: int, device: str, threads: int = 1) -> float:
    """The best bytes/s, read + written, over arrays that lie in the caches together: parts of the last one and, on a
    CPU, of what each thread's own hold. On a GPU launches are recorded as a graph: each takes as long as its kernel."""
    sizes = {cache_bytes // 4, cache_bytes // 16} | ({64 << 10, 256 << 10} if device == "cpu" else {cache_bytes // 2})
    best = 0.0
    for size in sorted(sizes):
        count = size * (threads if size <= 256 << 10 else 1) // 12  # of three arrays
        x, y, z = (torch.full((count,), 1.5, device=device) for _ in range(3))
        for moved, run in ((2, partial(y.copy_, x)), (3, partial(torch.add, x, y, out=z)), (1, partial(torch.sum, x))):
            taken_s = best_seconds(_batch_of(run, device), device, _IN_CACHE_BUDGET_S)
            best = max(best, _BATCH * moved * 4 * count / taken_s)
    return best


def _batch_of(run: Callable[[], object], device: str) -> Callable[[], object]:
    if device == "cpu":
        return lambda: [run() for _ in range(_BATCH)]
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_BATCH):
            run()
    return graph.replay


def measured_cache_bytes() -> int:
    """Where nothing tells how large the last-level cache is: twice the largest array that is read clearly faster than
    one far beyond all caches, so that half of what lies between two sizes is not missed."""
    rates = {}
    size = 4 << 20
    while size <= _LARGEST_CACHE_BYTES:
        x = torch.full((size // 4,), 1.5)
        rates[size] = size / best_seconds(partial(torch.sum, x), "cpu", _IN_CACHE_BUDGET_S)
        size *= 2
    beyond = rates[size // 2]
    return 2 * max((s for s, rate in rates.items() if rate > _CLEARLY_FASTER * beyond), default=16 << 20)


def measure_cuda() -> dict[str, Any]:
    """Device 0's peaks. "f32_split" is a third of the fp16 rate: fp32 accuracy from three fp16 products."""
    device = torch.cuda.get_device_properties(0)
    free_bytes, _ = torch.cuda.mem_get_info(0)
    array_bytes = min(1 << 30, free_bytes // 4) // 256 * 256
    rates = {}
    for name, dtype in (("f32", torch.float32), ("tf32", torch.float32), ("f64", torch.float64),
                        ("bf16", torch.bfloat16), ("f16", torch.float16)):  # fmt: skip
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        rates[name] = matmul_rate(dtype, "cuda")
    return {
        "device": device.name,
        "processors": device.multi_processor_count,
        "cache_bytes": device.L2_cache_size,
        "cache_rate": cache_rate(device.L2_cache_size, "cuda"),
        "streams": stream_rates(array_bytes, "cuda"),
        "matmul": rates | {"f32_split": rates["f16"] / 3},
        # Processes beside us are kept off the GPU by the lease, not by us; what they leave of its memory must do.
        "calm": array_bytes >= 4 * device.L2_cache_size,
    }


def measure_cpu(threads: int, cache_bytes: int) -> dict[str, Any]:
    """The peaks of this many threads, over arrays of at least four, preferably eight, times the last-level cache (0:
    which is measured first), as far as memory allows.

    One round takes about three seconds. Where other processes take part of the processors, more rounds follow, and
    `calm` says whether there was one without them: a starved round tells rates far too low."""
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cache_bytes = cache_bytes or measured_cache_bytes()
    array_bytes = max(min(4 * cache_bytes, free_bytes // 4), min(8 * cache_bytes, free_bytes // 8), 64 << 20)
    dtypes = (("f32", torch.float32), ("f64", torch.float64), ("bf16", torch.bfloat16))
    streams: dict[str, float] = {}
    products: dict[str, float] = {}
    within = 0.0
    stop, calm = time.perf_counter() + _ROUNDS_S, False
    while not calm and (not streams or time.perf_counter() < stop):
        before = MachineLoad.now()
        streams = larger(streams, stream_rates(array_bytes, "cpu"))
        within = max(within, cache_rate(cache_bytes, "cpu", threads))
        products = larger(products, {name: matmul_rate(dtype, "cpu") for name, dtype in dtypes})
        calm = before.others_share(MachineLoad.now()) < _MOST_OTHERS
    return {
        "processors": threads, "cache_bytes": cache_bytes, "cache_rate": within, "streams": streams, "matmul": products,
        "calm": calm,
    }  # fmt: skip


def larger(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: max(rate, one.get(name, 0.0)) for name, rate in other.items()}


@dataclass(frozen=True)
class MachineLoad:
    """Processor seconds used until now: by all on the processors that we may use, and by us."""

    at_s: float
    all_s: float
    own_s: float
    processors: int

    @classmethod
    def now(cls, own_s: float | None = None) -> MachineLoad:
        """`own_s`: what we used, where that is more than this process did."""
        own_s = time.process_time() if own_s is None else own_s
        mine = {f"cpu{n}" for n in os.sched_getaffinity(0)}
        used = 0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name in mine:  # user nice system idle iowait irq softirq steal ...
                used += sum(map(int, ticks[:8])) - int(ticks[3]) - int(ticks[4])
        return cls(time.perf_counter(), used / os.sysconf("SC_CLK_TCK"), own_s, len(mine))

    def others_share(self, later: MachineLoad) -> float:
        """The share of these processors' time that others took meanwhile (a hypervisor's steal among them)."""
        others = (later.all_s - self.all_s) - (later.own_s - self.own_s)
        return others / ((later.at_s - self.at_s) * self.processors)


def main(arguments: list[str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody waits for us once our parent is gone
    with torch.inference_mode():
        measured = measure_cuda() if arguments[0] == "cuda" else measure_cpu(int(arguments[1]), int(arguments[2]))
    json.dump(measured | {"torch": torch.__version__}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
