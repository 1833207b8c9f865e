"""What one call of a module spends its time in, by name: kernels on a GPU, torch's operators on the CPU.

torch's profiler lists them, in the process of the code under test: a candidate that wants to can forge the names.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from . import driver
from .wire import Spent

_REST = "outside torch's operators"  # on the CPU: the call's time in which no operator of torch was at work
_LONGEST_NAME = 1000
_MOST_NAMES = 500
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


def spent(device: str, call: Callable[[], Any]) -> tuple[Spent, ...]:
    """The entries of one call, the longest first; names may repeat. On the CPU a first profile warms the profiler up;
    a GPU keeps the time of its kernels itself."""
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    for _ in range(1 if device == "cuda" else 2):
        with profile(activities=[activity], acc_events=True) as seen:
            if device == "cuda":
                call()
                driver.synchronize()
            else:
                with record_function(_REST):
                    call()
    on_gpu = device == "cuda"
    wanted = "CUDA" if on_gpu else "CPU"
    found = [
        Spent(
            name=e.name[:_LONGEST_NAME], ns=1e3 * float(e.self_device_time_total if on_gpu else e.self_cpu_time_total)
        )
        for e in seen.events() or ()
        if e.device_type.name == wanted
    ]
    return tuple(sorted(found, key=lambda s: -s.ns)[:_MOST_NAMES])
