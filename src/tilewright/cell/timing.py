"""The clocks of a cell, bound before any code under test is loaded: bursts of timed calls, with cold caches."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import driver

_clock = time.perf_counter_ns
_touch = torch.Tensor.sum
_wipe = torch.Tensor.zero_


class Flush:
    """Evicts caches by walking through a buffer larger than they are."""

    def __init__(self, size_bytes: int, device: str) -> None:
        self._buffer = torch.zeros(
            size_bytes // 4, dtype=torch.int32 if device == "cuda" else torch.float32, device=device
        )
        self._device = device

    def __call__(self) -> None:
        if self._device == "cuda":
            _wipe(self._buffer)
        else:
            _touch(self._buffer)  # reading is enough, and leaves no dirty lines to be written back in timed code


class Timer:
    """Times bursts on one device. On a GPU, events on the default stream; on the CPU, the monotonic clock."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._flush: Flush | None = None
        self._flush_bytes = 0

    def burst(
        self, calls: Sequence[Callable[[], Any]], *, keep: int, flush_bytes: int
    ) -> tuple[tuple[float, ...], Any]:
        """ns of each call, in order, and what call `keep` returned (None for -1)."""
        if flush_bytes != self._flush_bytes:
            self._flush = Flush(flush_bytes, self._device) if flush_bytes else None
            self._flush_bytes = flush_bytes
        gc.collect()
        gc.disable()
        try:
            return self._on_gpu(calls, keep) if self._device == "cuda" else self._on_cpu(calls, keep)
        finally:
            gc.enable()

    def _on_cpu(self, calls: Sequence[Callable[[], Any]], keep: int) -> tuple[tuple[float, ...], Any]:
        samples: list[float] = []
        kept = None
        for index, call in enumerate(calls):
            if self._flush is not None:
                self._flush()
            start = _clock()
            result = call()
            samples.append(float(_clock() - start))
            if index == keep:
                kept = result
            del result
        return tuple(samples), kept

    def _on_gpu(self, calls: Sequence[Callable[[], Any]], keep: int) -> tuple[tuple[float, ...], Any]:
        events = driver.Events(2 * len(calls))
        kept = None
        driver.synchronize()
        for index, call in enumerate(calls):
            if self._flush is not None:
                self._flush()
            events.record(2 * index)
            result = call()
            events.record(2 * index + 1)
            if index == keep:
                kept = result
            del result
        driver.synchronize()
        samples = tuple(events.elapsed_ns(2 * i, 2 * i + 1) for i in range(len(calls)))
        events.close()
        return samples, kept
