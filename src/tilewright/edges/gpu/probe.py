"""A script for a child process: measures one device's memory and matrix rates and prints them as one JSON line.

    python -P probe.py cuda          python -P probe.py cpu THREADS LLC_BYTES

Every figure is the best of many short runs: these rates are ceilings from which floors are computed, so a disturbed
sample must not lower them. Operands of products are random, since zeros save power and run faster than data does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

_BUDGET_S = {"cuda": 0.12, "cpu": 0.15}  # for one figure at one size
_LARGEST = {"cuda": 8192, "cpu": 2048}
_LONGEST_S = {"cuda": 0.04, "cpu": 0.12}  # one product takes no longer than about this


def seconds(run: Callable[[], object], device: str) -> float:
    """One run's time: between device events on a GPU, by the host's clock otherwise."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def best_seconds(run: Callable[[], object], device: str) -> float:
    """The shortest of at least three runs after one to warm up, for as long as the budget lasts."""
    run()
    stop = time.perf_counter() + _BUDGET_S[device]
    best = min(seconds(run, device) for _ in range(3))
    while time.perf_counter() < stop:
        best = min(best, seconds(run, device))
    return best


def matmul_rate(dtype: torch.dtype, device: str) -> float:
    """The best rate over square products of growing size, flop/s; 0.0 where the device refuses the dtype."""
    best, size = 0.0, 512
    while size <= _LARGEST[device]:
        try:
            a, b = (torch.randn(size, size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
            out = torch.empty(size, size, device=device, dtype=dtype)
            best = max(best, 2.0 * size**3 / best_seconds(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), device))  # type: ignore[misc]
        except (RuntimeError, NotImplementedError):  # an unsupported dtype, or too little memory for this size
            return best
        if 8 * 2.0 * size**3 / best > _LONGEST_S[device]:
            break
        size *= 2
    return best


def stream_rates(array_bytes: int, device: str) -> dict[str, float]:
    """Bytes/s, read + written as the program counts them, of a copy and, on a CPU, of reading and of two reads a write.

    A CPU's plain stores first fetch the line that they write, which a copy pays and a read does not: there the copy
    alone is no ceiling (AMD EPYC, 2 threads, 2026-11-20: copy 48, sum 58, add 78 GB/s)."""
    count = array_bytes // 4
    x, y = (torch.empty(count, device=device, dtype=torch.float32).fill_(1.5) for _ in range(2))
    rates = {"copy": 2 * array_bytes / best_seconds(lambda: y.copy_(x), device)}
    if device == "cpu":
        rates["sum"] = array_bytes / best_seconds(lambda: torch.sum(x), device)
        rates["add"] = 3 * array_bytes / best_seconds(lambda: torch.add(x, y, out=y), device)
    return rates


def measure_cuda() -> dict[str, Any]:
    """Device 0's peaks. "f32_split" is a third of the fp16 rate: fp32 accuracy from three fp16 products."""
    device = torch.cuda.get_device_properties(0)
    free_bytes, _ = torch.cuda.mem_get_info(0)
    rates = {}
    for name, dtype in (("f32", torch.float32), ("tf32", torch.float32), ("f64", torch.float64),
                        ("bf16", torch.bfloat16), ("f16", torch.float16)):  # fmt: skip
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        rates[name] = matmul_rate(dtype, "cuda")
    return {
        "device": device.name,
        "processors": device.multi_processor_count,
        "cache_bytes": device.L2_cache_size,
        "streams": stream_rates(min(1 << 30, free_bytes // 4) // 256 * 256, "cuda"),
        "matmul": rates | {"f32_split": rates["f16"] / 3},
    }


def measure_cpu(threads: int, cache_bytes: int) -> dict[str, Any]:
    """The peaks of this many threads, over arrays of at least four, preferably eight, times the last-level cache."""
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    array_bytes = max(4 * cache_bytes, min(8 * cache_bytes, free_bytes // 8), 64 << 20)
    dtypes = (("f32", torch.float32), ("f64", torch.float64), ("bf16", torch.bfloat16))
    early = stream_rates(array_bytes, "cpu")
    products = {name: matmul_rate(dtype, "cpu") for name, dtype in dtypes}
    late = stream_rates(array_bytes, "cpu")  # again: a neighbour's burst of work must not become the ceiling
    return {
        "processors": threads,
        "cache_bytes": cache_bytes,
        "streams": {name: max(early[name], late[name]) for name in early},
        "matmul": products,
    }


def main(arguments: list[str]) -> None:
    with torch.inference_mode():
        measured = measure_cuda() if arguments[0] == "cuda" else measure_cpu(int(arguments[1]), int(arguments[2]))
    json.dump(measured | {"torch": torch.__version__}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
