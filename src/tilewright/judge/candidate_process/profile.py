"""What one call of a module spends its time in, by name: kernels on a GPU, torch's operators on the CPU.

torch's profiler lists them, in the process of the code under test: a candidate that wants to can forge the names.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from math import prod
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ..memory import driver
from ..wire.parts import SpentClocks

_REST = "outside torch's operators"  # on the CPU: the call's time in which no operator of torch was at work
_LONGEST_NAME = 1000
_MOST_NAMES = 500
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of the trace's events
_BATCHES, _LAUNCHES = 11, 100


def launch_ns() -> float:
    """What it takes the host to start a kernel that does nearly nothing, as torch starts its own: the median of a few
    batches, each begun on an idle GPU."""
    one = torch.zeros(1, device="cuda")
    batches = []
    for _ in range(_BATCHES):
        driver.synchronize()
        start = time.perf_counter_ns()
        for _ in range(_LAUNCHES):
            one.add_(1.0)
        batches.append((time.perf_counter_ns() - start) / _LAUNCHES)
    return median(batches)


def spent(device: str, call: Callable[[], Any], *, launches: bool = False) -> tuple[SpentClocks, ...]:
    """The entries of one call, the longest first; names may repeat. On the CPU a first profile warms the profiler up;
    a GPU keeps the time of its kernels itself. `launches`: with what each took of a multiprocessor."""
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    for _ in range(1 if device == "cuda" else 2):
        with profile(activities=[activity], acc_events=True) as seen:
            if device == "cuda":
                call()
                driver.synchronize()
            else:
                with record_function(_REST):
                    call()
    found = _traced(seen) if launches and device == "cuda" else _listed(seen, device)
    return tuple(sorted(found, key=lambda s: -s.ns)[:_MOST_NAMES])


def _listed(seen: profile, device: str) -> list[SpentClocks]:
    on_gpu = device == "cuda"
    wanted = "CUDA" if on_gpu else "CPU"
    return [
        SpentClocks(
            name=e.name[:_LONGEST_NAME], ns=1e3 * float(e.self_device_time_total if on_gpu else e.self_cpu_time_total)
        )
        for e in seen.events() or ()
        if e.device_type.name == wanted
    ]


def _traced(seen: profile) -> list[SpentClocks]:
    """From the trace, which holds more of a launch than the profiler's own list."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        seen.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
    return [launch_of(event) for event in trace["traceEvents"] if event.get("cat") in _ON_GPU]


def launch_of(event: dict[str, Any]) -> SpentClocks:
    """A kernel, a copy or a fill, as the trace tells of it."""
    told = event.get("args", {})
    return SpentClocks(
        name=str(event["name"])[:_LONGEST_NAME], ns=1e3 * float(event["dur"]),
        registers=int(told.get("registers per thread", 0)), shared_bytes=int(told.get("shared memory", 0)),
        threads=prod(map(int, told.get("block", (0,)))), ctas=prod(map(int, told.get("grid", (0,)))),
    )  # fmt: skip
