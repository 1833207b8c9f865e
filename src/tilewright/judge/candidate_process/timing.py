"""The clock of a cell, bound before any code under test is loaded: one timed call, with cold or with warm caches."""

from __future__ import annotations

import gc
import operator
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..memory import driver
from ..memory.mapped import Mapped
from ..wire import calls as wire
from ..wire import walks
from . import values
from .hooks import Hooks
from .step import Call

_clock = time.perf_counter_ns
_cpu = time.process_time_ns
_touch = torch.Tensor.sum
_any = torch.Tensor.any
_wipe = torch.Tensor.zero_
_clone = torch.Tensor.clone
_copy = torch.Tensor.copy_
_detach = torch.Tensor.detach
_apply: Callable[[Callable[[], Any]], Any] = operator.call
_MOST_COPIED_BYTES = 32 << 20
_PARTS, _PART = 1024, 64
_SCATTERED = 1 << 12
_delay = torch.cuda._sleep
_below = secrets.randbelow
_CYCLES_A_NS = 2.0  # at the clocks of a Hopper
_SHARED_OUT, _TRIES = 1 << 16, 16  # elements of which torch gives each thread a part; attempts of some 0.1 ms each


def _let_pending_run() -> None:
    """Have the interpreter make the calls that were left pending with it, while the clock runs: 32 with each turn of a
    loop. More than these would take longer than the judge's clock forgives."""
    for _ in range(16):
        pass


class Flush:
    """Evicts caches by walking through a buffer of its own that is larger than they are."""

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

    def overwrite(self, seed: int) -> float:
        """On a GPU: what the walk of this seed found."""
        driver.release_kept_lines()
        return walks.overwritten(self._buffer, seed)


@dataclass(frozen=True, slots=True)
class Sample:
    """Parts of a large tensor: `_PART` elements from `start` on, in every `step` of its elements."""

    start: int
    step: int
    values: Tensor

    def put_into(self, place: Tensor) -> None:
        """Put the parts where they were taken from, in a contiguous tensor of that shape."""
        _copy(_parts(place, self.start, self.step), self.values)


@dataclass(frozen=True, slots=True)
class Scatter:
    """Single elements of a large tensor whose elements do not lie in order."""

    places: tuple[Tensor, ...]
    values: Tensor

    def put_into(self, place: Tensor) -> None:
        place[self.places] = self.values


Parts = Sample | Scatter
Copies = tuple[Tensor | Parts | None, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a result was when it was looked at: its structure, its tensors, what kind each is of, and copies of them,
    where those were asked for. `lack`: what it holds that can't travel; the rest is empty then."""

    tree: Any
    tensors: tuple[Tensor, ...]
    kinds: tuple[str, ...]
    copies: Copies = ()
    lack: str = ""

    @staticmethod
    def of(result: Any) -> Seen:
        tensors: list[Tensor] = []
        try:
            tree = values.taken_apart(result, tensors, sort_keys=True)
        except values.CannotTravel as error:
            return Seen(None, (), (), lack=str(error))
        return Seen(tree, tuple(tensors), tuple(map(values.kind_of, tensors)))


def as_it_is(result: Any, into: Copies) -> Seen:
    """A result as it is now: what another thread has yet to do to its tensors or its containers is not in it. Of a
    large tensor parts are copied, at places that nobody can foresee; None of one that is not plain. Copies take the
    place of those `into`, where they are alike: fresh memory costs one process more than another, and the judge's
    clock runs."""
    seen = Seen.of(result)
    old = into if len(into) == len(seen.tensors) else (None,) * len(seen.tensors)
    copies = (
        _copy_of(t, o) if k == values.PLAIN else None for t, k, o in zip(seen.tensors, seen.kinds, old, strict=True)
    )
    return Seen(seen.tree, seen.tensors, seen.kinds, tuple(copies), seen.lack)


def _copy_of(tensor: Tensor, old: Tensor | Parts | None) -> Tensor | Parts:
    tensor = _detach(tensor)
    if tensor.numel() * tensor.element_size() > _MOST_COPIED_BYTES:
        return _sample_of(tensor) if tensor.is_contiguous() else _scatter_of(tensor)
    if isinstance(old, Tensor) and (old.shape, old.dtype, old.stride()) == (
        tensor.shape,
        tensor.dtype,
        tensor.stride(),
    ):
        return _copy(old, tensor)
    return _clone(tensor)


def _scatter_of(tensor: Tensor) -> Scatter:
    source = torch.Generator(tensor.device).manual_seed(_below(1 << 62))
    places = tuple(
        torch.randint(extent, (_SCATTERED,), generator=source, device=tensor.device) for extent in tensor.shape
    )
    return Scatter(places, tensor[places])


def _sample_of(tensor: Tensor) -> Sample:
    step = tensor.numel() // _PARTS
    start = _below(step - _PART + 1)
    return Sample(start, step, _clone(_parts(tensor, start, step)))


def _parts(tensor: Tensor, start: int, step: int) -> Tensor:
    return tensor.view(-1)[: _PARTS * step].view(_PARTS, step)[:, start : start + _PART]


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

    # No method can be hidden in an instance.
    __slots__ = tuple("_device _events _flush _flush_bytes _hooks _started _team _walked".split())

    def __init__(self, device: str) -> None:
        self._device = device
        self._flush: Flush | None = None
        self._flush_bytes = 0
        self._events: driver.Events | None = None
        self._started = 0
        self._walked = 0.0
        self._hooks = Hooks()
        self._team = torch.ones(_SHARED_OUT * torch.get_num_threads() * (device == "cpu"), dtype=torch.bool)

    def evict(self, flush_bytes: int, block: Mapped | None, *, seed: int = -1) -> wire.Cleared | None:
        """Evict caches of so many bytes: by a walk through the judge's block or, on a GPU, our own, of which is told
        what was found, or where no `seed` is given by one that nobody looks at. The device is waited for: how long that
        takes is not the same in all cells."""
        found = None
        if flush_bytes and seed >= 0 and block is not None:
            return wire.Cleared(found=walks.walked(walks.pages(block.data), seed))
        if flush_bytes and flush_bytes != self._flush_bytes:
            self._flush = Flush(flush_bytes, self._device)
            self._flush_bytes = flush_bytes
        if flush_bytes and self._flush is not None:
            found = self._flush.overwrite(seed) if seed >= 0 and self._device == "cuda" else self._flush()
        if self._device == "cuda":
            driver.synchronize()
        return None if found is None else wire.Cleared(found=found)

    def prepare(self, change: Callable[[], None] | None, warm: Sequence[Tensor], request: wire.TimedCall) -> None:
        """Have the contents changed, and read `warm`. They change at the last moment: whoever watches the inputs has
        no time to work before the clock runs. On a GPU, caches are evicted here, since the judge writes to the slot
        after all else, and the device is kept busy for `delay_ns`: what is launched meanwhile is queued by the time
        that the clock starts there, and launches are not timed."""
        cleared = self.evict(request.flush_bytes, None, seed=request.flush_seed) if request.flush_bytes else None
        self._walked = 0.0 if cleared is None else cleared.found
        self._started = _clock()
        if self._device == "cuda":
            _delay(int(_CYCLES_A_NS * request.delay_ns))  # type: ignore[no-untyped-call]
        if change is not None:
            change()
        for data in warm:
            _read(data)
        self._gather()

    def _gather(self) -> None:
        """Have torch's threads at work, each on a processor of its own, as in mid-program. Threads that have slept may
        all wake on one processor, where they wait out each other's turns: ten times what a call takes."""
        for _ in range(_TRIES if self._team.numel() > _SHARED_OUT else 0):
            wall, used = -_clock(), -_cpu()
            _any(self._team)
            if 2 * (used + _cpu()) > 3 * (wall + _clock()):
                return

    def time(self, call: Call, into: Copies) -> tuple[wire.Tick, Seen]:
        """What the call took, launches counted from `prepare`, and what it returned, as it is then. Raises
        CodeRaised("tampering") where the call leaves on what could work once the clock has stopped."""
        gc.disable()  # until the result is copied: a collection calls back, too
        try:
            tick, result, hooks = self._on_gpu(call) if self._device == "cuda" else self._on_cpu(call)
            self._hooks.require_unchanged(hooks)
            return tick, as_it_is(result, into)
        finally:
            gc.enable()

    def _on_cpu(self, call: Call) -> tuple[wire.Tick, Any, list[Any]]:
        # In one expression without variables: from the call's frame nothing leads to the clock that comes after it, and
        # the interpreter does not look for signals before it is known who handles them.
        before, start, result, _, end, after, *hooks = map(
            _apply, (_cpu, _clock, call, _let_pending_run, _clock, _cpu, *self._hooks.all)
        )
        return wire.Tick(ns=float(end - start), cpu_ns=float(after - before)), result, hooks

    def _on_gpu(self, call: Call) -> tuple[wire.Tick, Any, list[Any]]:
        """The device is waited for, all streams of it, before the cell goes on: what a call leaves running is seen by
        the judge's clock, and, where that is disturbed, by a third event, and can't hide behind what comes next."""
        if self._events is None:
            self._events = driver.Events(3)
        before = _cpu()
        self._events.record(0)
        result = call()
        self._events.record(1)
        launched_ns = float(_clock() - self._started)
        driver.synchronize()
        used_ns = float(_cpu() - before)
        self._events.record(2)
        hooks = list(map(_apply, self._hooks.all))
        driver.synchronize()
        ns, after_ns = self._events.elapsed_ns(0, 1), self._events.elapsed_ns(1, 2)
        tick = wire.Tick(ns=ns, launched_ns=launched_ns, after_ns=after_ns, cpu_ns=used_ns, walked=self._walked)
        return tick, result, hooks
