"""The clock of a cell, bound before any code under test is loaded: one timed call, with cold or with warm caches."""

from __future__ import annotations

import gc
import operator
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import driver, values, wire
from .arena import exchange
from .step import Call

_clock = time.perf_counter_ns
_touch = torch.Tensor.sum
_wipe = torch.Tensor.zero_
_clone = torch.Tensor.clone
_copy = torch.Tensor.copy_
_MOST_COPIED_BYTES = 32 << 20
_PARTS, _PART = 1024, 64
_delay = torch.cuda._sleep
_below = secrets.randbelow
_CYCLES_A_NS = 2.0  # at the clocks of a Hopper


class Flush:
    """Evicts caches by walking through a buffer larger than they are."""

    def __init__(self, size_bytes: int, device: str) -> None:
        self._buffer = torch.zeros(
            size_bytes // 4, dtype=torch.int32 if device == "cuda" else torch.float32, device=device
        )
        self._device = device

    def __call__(self) -> None:
        if self._device == "cuda":
            driver.release_kept_lines()
            _wipe(self._buffer)
        else:
            _touch(self._buffer)  # reading is enough, and leaves no dirty lines to be written back in timed code


@dataclass(frozen=True, slots=True)
class Sample:
    """Parts of a large tensor: `_PART` elements from `start` on, in every `step` of its elements."""

    start: int
    step: int
    values: Tensor

    def put_into(self, place: Tensor) -> None:
        """Put the parts where they were taken from, in a contiguous tensor of that shape."""
        _copy(_parts(place, self.start, self.step), self.values)


Copies = tuple[Tensor | Sample | None, ...]


def as_it_is(result: Any, into: Copies) -> Copies:
    """Copies of a result's tensors as they are now: what another thread has yet to do is not in them. Of a large one
    parts, at places that nobody can foresee; None of one that is not plain, or large and not contiguous. They take the
    place of the copies `into`, where they are alike: fresh memory costs one process more than another, and the judge's
    clock runs."""
    tensors: list[Tensor] = []
    try:
        values.encode(result, tensors, sort_keys=True)
    except values.CannotTravel:
        return ()
    old = into if len(into) == len(tensors) else (None,) * len(tensors)
    return tuple(_copy_of(t, o) for t, o in zip(tensors, old, strict=True))


def _copy_of(tensor: Tensor, old: Tensor | Sample | None) -> Tensor | Sample | None:
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not plain:
        return None
    if tensor.numel() * tensor.element_size() > _MOST_COPIED_BYTES:
        return _sample_of(tensor.detach()) if tensor.is_contiguous() else None
    if isinstance(old, Tensor) and (old.shape, old.dtype, old.stride()) == (
        tensor.shape,
        tensor.dtype,
        tensor.stride(),
    ):
        return _copy(old, tensor.detach())
    return _clone(tensor.detach())


def _sample_of(tensor: Tensor) -> Sample:
    step = tensor.numel() // _PARTS
    start = _below(step - _PART + 1)
    return Sample(start, step, _clone(_parts(tensor, start, step)))


def _parts(tensor: Tensor, start: int, step: int) -> Tensor:
    return tensor.view(-1)[: _PARTS * step].view(_PARTS, step)[:, start : start + _PART]


class Dealt:
    """The slots of the calls to come, and what the last one returned, with the inputs that it was given."""

    __slots__ = ("args", "copies", "result", "slots")

    def __init__(self, deal: wire.Deal, slots: Sequence[tuple[Tensor, ...]]) -> None:
        self.args = deal.args
        self.slots = slots
        self.result: tuple[Any, tuple[Tensor, ...]] | None = None
        self.copies: Copies = ()  # of what it was when the clock stopped

    def stir(self, swaps: Sequence[wire.Swap]) -> None:
        for swap in swaps:
            one, other = self.slots[swap.slot][swap.input], self.slots[swap.other][swap.input]
            if swap.dim >= 0:
                one = one.narrow(swap.dim, swap.start, swap.count)
                other = other.narrow(swap.dim, swap.other_start, swap.count)
            exchange(one, other)


def repeated(call: Call, times: int) -> Call:
    """The calls in a row, as one."""

    def calls() -> Any:
        for _ in range(times - 1):
            call()
        return call()

    return calls


def _read(tensor: Tensor) -> None:
    """Read a tensor, so that it lies in the caches as far as it fits."""
    if tensor.is_floating_point() and tensor.element_size() == 1:
        tensor = tensor.view(torch.uint8)
    _touch(tensor)


class Timer:
    """Times calls on one device. On a GPU, events on the legacy default stream; on the CPU, the monotonic clock."""

    __slots__ = ("_device", "_events", "_flush", "_flush_bytes", "_started")  # no method can be hidden in an instance

    def __init__(self, device: str) -> None:
        self._device = device
        self._flush: Flush | None = None
        self._flush_bytes = 0
        self._events: driver.Events | None = None
        self._started = 0

    def evict(self, flush_bytes: int) -> None:
        """Evict caches of so many bytes. The device is waited for: how long that takes is not the same in all cells."""
        if flush_bytes and flush_bytes != self._flush_bytes:
            self._flush = Flush(flush_bytes, self._device)
            self._flush_bytes = flush_bytes
        if flush_bytes and self._flush is not None:
            self._flush()
        if self._device == "cuda":
            driver.synchronize()

    def prepare(self, dealt: Dealt, swaps: Sequence[wire.Swap], warm: Sequence[Tensor], *, delay_ns: float) -> None:
        """Carry out the swaps, and read `warm`. The contents change at the last moment: whoever watches the inputs has
        no time to work before the clock runs. On a GPU, the device is kept busy for `delay_ns` first: what is launched
        meanwhile is queued by the time that the clock starts there, and launches are not timed."""
        self._started = _clock()
        if self._device == "cuda":
            _delay(int(_CYCLES_A_NS * delay_ns))  # type: ignore[no-untyped-call]
        dealt.stir(swaps)
        for data in warm:
            _read(data)

    def time(self, call: Call) -> tuple[float, float, Any]:
        """ns of the call, ns from `prepare` until all of it was launched (0 on the CPU), and what it returned."""
        gc.disable()
        try:
            return self._on_gpu(call) if self._device == "cuda" else self._on_cpu(call)
        finally:
            gc.enable()

    def _on_cpu(self, call: Call) -> tuple[float, float, Any]:
        # In one expression without variables: from the call's frame nothing leads to the clock that comes after it.
        start, result, end = map(operator.call, (_clock, call, _clock))
        return float(end - start), 0.0, result

    def _on_gpu(self, call: Call) -> tuple[float, float, Any]:
        """The device is waited for, all streams of it, before the cell goes on: what a call leaves running is seen by
        the judge's clock and can't hide behind what comes next."""
        if self._events is None:
            self._events = driver.Events(2)
        self._events.record(0)
        result = call()
        self._events.record(1)
        launched_ns = float(_clock() - self._started)
        driver.synchronize()
        return self._events.elapsed_ns(0, 1), launched_ns, result
