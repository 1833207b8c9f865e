"""A CTA in numpy: all its threads at once, in step, so that a kernel which moves data runs where there is no GPU.

Values are arrays over the threads. What `cute.assume` promises of an offset is checked, as is that nothing is touched
outside of its tensor. Of shared memory it counts how often the banks had to be gone through, and asserts that
between two barriers no thread reads what another one writes, writes what it reads, or writes something else there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

BANKS, BANK_BYTES = 32, 4
NOBODY, MANY = -1, -2  # instead of a thread's number


class Memory:
    """A tensor in memory, flat. `passes` counts trips through the banks, `least` those that its bytes ask for."""

    def __init__(self, values, strides=(), *, shared=False):
        self.values, self.stride, self.shared = values, strides, shared
        self.written = np.zeros(values.size, int)  # how often each element was
        self.passes = self.least = 0
        self.meet()
        self.iterator = Pointer(self, 0)
        self.element_type = values.dtype

    def touched(self, places, active, *, writes):
        assert places[active].size == 0 or (places[active].min() >= 0 and places[active].max() < self.values.size)
        if self.shared:
            self.race(places, active, writes=writes)
            self._count(places * self.values.itemsize, places.shape[1] * self.values.itemsize, active)

    def meet(self):
        """A barrier: from here on, what was done before is seen by all."""
        self.settled = np.zeros(self.values.size if self.shared else 0, bool)  # written since
        self._readers, self._writers = (np.full(self.values.size if self.shared else 0, NOBODY) for _ in range(2))

    def race(self, places, active, *, writes):
        """Notes which threads are where."""
        cells, threads = places[active], np.broadcast_to(np.arange(len(places))[:, None], places.shape)[active]
        others, own = (self._readers, self._writers) if writes else (self._writers, self._readers)
        assert np.all((others[cells] == NOBODY) | (others[cells] == threads)), "no barrier between"
        before = own[cells]
        own[cells] = threads
        several = (own[cells] != threads) | ((before != NOBODY) & (before != threads))
        own[cells[several]] = MANY

    def agree(self, cells, values):
        """Where several threads have written, or do now, they write the same."""
        if self.shared:
            before, several = self.values[cells], self._writers[cells] == MANY
            self.values[cells] = values
            same = np.array_equal(self.values[cells], values, equal_nan=values.dtype.kind == "f")
            kept = np.array_equal(before[several], values[several], equal_nan=values.dtype.kind == "f")
            assert same and (kept or not self.settled[cells][several].any()), "no barrier between"
            self.settled[cells] = True

    def _count(self, addresses, width, active):
        """Warps go in parts whose accesses make up 128 bytes; of each bank every word is a trip of its own."""
        lanes = max(1, min(32, BANKS * BANK_BYTES // width))
        for first in range(0, len(addresses), lanes):
            part = addresses[first : first + lanes][active[first : first + lanes]]
            if part.size:
                words = np.unique(part // BANK_BYTES)
                self.passes += int(np.bincount(words % BANKS).max())
                self.least += -(-len(words) // BANKS)


class Pointer:
    def __init__(self, memory, offset):
        self.memory, self.offset = memory, offset

    def __add__(self, more):
        return Pointer(self.memory, self.offset + more)


class Fragment:
    """`count` registers of every thread."""

    def __init__(self, threads, count, dtype):
        self.values = np.zeros((threads, count), dtype)

    def __getitem__(self, index):
        return self.values[:, index].copy()

    def __setitem__(self, index, value):
        self.values[:, index] = value


class Cta:
    """What `cute`, `cutlass` and `math` offer a kernel, for one block of one launch."""

    def __init__(self, threads, block):
        self.threads, self.active = threads, np.ones(threads, bool)
        self.shared: list[Memory] = []
        self.cute = SimpleNamespace(
            arch=SimpleNamespace(
                thread_idx=lambda: (np.arange(threads), 0, 0), block_idx=lambda: (np.int64(block), 0, 0),
                sync_threads=self._meet,
            ),
            make_layout=lambda shape: shape, size=lambda fragment: fragment.values.shape[1], recast_ptr=self._recast,
            make_rmem_tensor=lambda shape, dtype: Fragment(threads, shape[0], dtype), assume=self._assume,
            make_tensor=lambda pointer, shape: (pointer, shape[0]), autovec_copy=self._copy,
        )  # fmt: skip
        self.cutlass = SimpleNamespace(min=np.minimum, max=np.maximum)
        self.math = SimpleNamespace(
            cast=lambda x, dtype: x, stored=lambda x, dtype: x, both=np.logical_and,
            lane_of=lambda fragment, lane, dtype: fragment[lane], select=np.where,
            larger=np.maximum, smaller=np.minimum, value_type=lambda dtype: np.float32, FLOATS=("f32", "f16", "bf16"),
        )  # fmt: skip

    def allocator(self):
        def allocate(dtype, shape, byte_alignment):
            self.shared.append(Memory(np.zeros(shape[0], dtype), shared=True))
            return self.shared[-1]

        return SimpleNamespace(allocate_tensor=allocate)

    def _meet(self):
        for memory in self.shared:
            memory.meet()

    def when(self, condition, body):
        before = self.active
        self.active = before & condition
        body()
        self.active = before

    def _assume(self, offset, divby):
        assert np.all(np.asarray(offset) % divby == 0), f"an offset is no multiple of {divby}"
        return offset

    def _recast(self, pointer, dtype):
        return pointer

    def _places(self, tensor):
        pointer, count = tensor
        return np.broadcast_to(np.asarray(pointer.offset).reshape(-1, 1), (self.threads, 1)) + np.arange(count)

    def _copy(self, source, target):
        if isinstance(source, Fragment):
            places = self._places(target)
            target[0].memory.touched(places, self.active, writes=True)
            target[0].memory.agree(places[self.active], source.values[self.active])
            target[0].memory.values[places[self.active]] = source.values[self.active]
            np.add.at(target[0].memory.written, places[self.active], 1)
        else:
            places = self._places(source)
            source[0].memory.touched(places, self.active, writes=False)
            target.values[self.active] = source[0].memory.values[places[self.active]]


@contextmanager
def patched(monkeypatch, modules, threads, block) -> Iterator[Cta]:
    """These modules' own names for the device, as one block of `threads` threads sees it."""
    cta = Cta(threads, block)
    names = {"cute": cta.cute, "cutlass": cta.cutlass, "m": cta.math, "when": cta.when, "SmemAllocator": cta.allocator,
             "Uint8": np.uint8, "Float32": np.float32, "Boolean": np.asarray,
             **dict.fromkeys(("Int32", "Int64", "Uint32"), np.asarray)}  # fmt: skip
    with monkeypatch.context() as patch:
        for module in modules:
            for name, fake in names.items():
                if hasattr(module, name):
                    patch.setattr(module, name, fake)
        yield cta
