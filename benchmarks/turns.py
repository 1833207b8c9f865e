"""Calls on a GPU timed in turns, for the scripts beside this one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import torch

_FLUSH_ELEMENTS = 64 * 2**20  # of fp32: several times the last-level cache


def sampled(calls: Mapping[str, Callable[[], object]], rounds: int, *, delay_cycles: int = 0) -> dict[str, list[float]]:
    """ms of each call in each round, in random turns with cold caches, the first round left out. `delay_cycles`: how
    long the device is kept busy before, so that launches come ahead of their work."""
    flush = torch.empty(_FLUSH_ELEMENTS, dtype=torch.float32, device="cuda")
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order, draw = list(calls), random.Random(0)
    for turn in range(rounds + 1):
        draw.shuffle(order)
        for name in order:
            flush.zero_()
            if delay_cycles:
                torch.cuda._sleep(delay_cycles)  # type: ignore[no-untyped-call]
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            result = calls[name]()
            end.record()
            end.synchronize()
            del result
            if turn:
                samples[name].append(begin.elapsed_time(end))
    return samples
