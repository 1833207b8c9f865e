"""Windows that overlap along the lanes: a CTA takes a stretch of neighbours, and what they read goes through shared
memory once; traced inside a kernel (see `engine`).

    x       - - | x x x x x x x x x x x x |    the stretch, copied in vectors; outside of the tensor: the fill
    window        [x . . x . . x]              each thread reads its windows from there, lanes side by side,
    next            [x . . x . . x]            at offsets known when the kernel is made: nothing is checked any more
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu.cpasync import CopyG2SOp

from ..common import math as m
from ..common.addresses import Addresses, Source
from ..common.control import when
from ..common.operands import overlap, stretch
from ..common.views import ITEM_BYTES
from .cta import Cta


class SharedWindow(Source):
    """A Source of which the lines that are read lie in shared memory, from `first` on along its last dimension."""

    def __init__(self, source: Source, shared: Any, first: Any) -> None:
        self.__dict__ |= source.__dict__
        self._shared, self._first = shared, first

    def load(self, at: tuple[Any, ...], checked: tuple[int, ...] = (), fill: Any = None) -> Any:
        return m.cast(self._shared[at[-1] - self._first], self.dtype)


class WindowCta(Cta):
    """`plan.windows` neighbours of one line: thread t takes the windows t, t + threads, ..."""

    def _place(self) -> None:
        operand = overlap(self.spec)
        assert operand is not None
        self.operand, self.source = operand, self.sources[operand.name]
        self.lanes = self.space.group_sizes[-1]
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        tiles = -(-self.lanes // self.plan.windows)
        line, self.start = block // tiles, block % tiles * self.plan.windows
        self.chunk, self.member, self.group = Int32(0), Int32(0), thread
        self.group_index, self.alive = line * self.lanes, None
        self._measure()

    def _measure(self) -> None:
        """The stretch, in vectors of the tensor's last dimension: which elements it holds."""
        self.vector = 16 // ITEM_BYTES[self.operand.dtype]  # which divides the windows of a CTA
        if self.source.tensor.iterator.alignment < 16 or any(s % self.vector for s in self.source.strides[:-1]):
            self.vector = 1
        apart, begin, self.vectors = stretch(self.spec, self.operand, self.plan.windows, self.vector)
        self.first = self.start * apart + begin

    def _allocate(self) -> None:
        super()._allocate()
        kind = self.source.tensor.element_type
        layout = cute.make_layout((self.vectors * self.vector,))
        self.shared = self.allocator.allocate_tensor(kind, layout, byte_alignment=16)

    def run(self) -> None:
        self._copy_window()
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        self.sources[self.operand.name] = SharedWindow(self.source, self.shared, self.first)
        line = self.at
        for turn in range(self.plan.windows // self.plan.threads):
            self._window(line, self.start + turn * self.plan.threads + self.group)

    def _window(self, line: Addresses, lane: Any) -> None:
        """One window, if there is one."""
        if self.lanes % self.plan.windows:
            self.alive = lane < self.lanes
            lane = cutlass.min(lane, Int32(self.lanes - 1))
        self.at = copy(line)
        self.at.base = {
            n: base + self.at.kind(lane) * self.space.views[n].group_strides[-1] for n, base in line.base.items()
        }
        self.rows = self._new_rows()
        self._load_rows()
        self._compute_rows(self.spec.head)
        self._finish(0, self._reduce(0))
        self._write_rows()

    # ---- the stretch -----------------------------------------------------------------------------------------------

    def _copy_window(self) -> None:
        source, threads = self.source, self.plan.threads
        offset = source.kind(0)
        for (begin, walk), stride in zip(self.operand.at[:-1], source.strides[:-1], strict=True):
            place = sum((self.at.base[f"index_{d}"] * step for d, step in walk), Int32(begin))
            offset = offset + source.kind(place) * source.kind(stride)
        for turn in range(-(-self.vectors // threads)):
            number = self.group + turn * threads
            there = None if (turn + 1) * threads <= self.vectors else number < self.vectors
            place = self.first + number * self.vector
            whole = m.both(place >= 0, place + self.vector <= source.sizes[-1])
            border = (place < 0) | (place + self.vector > source.sizes[-1])
            for condition, body in ((whole, self._copy_vector), (border, self._copy_border)):
                condition = condition if there is None else m.both(there, condition)
                when(condition, partial(body, offset, place, number * self.vector))

    def _copy_vector(self, line: Any, place: Any, cell: Any) -> None:
        kind, lanes = self.shared.element_type, self.vector
        source = self._vector(self.source.tensor.iterator, line + place)
        target = self._vector(self.shared.iterator, cell)
        if lanes * kind.width < 32:
            cute.autovec_copy(source, target)
            return
        atom = cute.make_copy_atom(CopyG2SOp(), kind, num_bits_per_copy=lanes * kind.width)
        cute.copy(atom, source, target)

    def _vector(self, pointer: Any, offset: Any) -> Any:
        lanes = self.vector
        return cute.make_tensor(
            pointer + (cute.assume(offset, divby=lanes) if lanes > 1 else offset), cute.make_layout((lanes,))
        )

    def _copy_border(self, line: Any, place: Any, cell: Any) -> None:
        """Element by element; outside lies the fill."""
        kind = self.shared.element_type
        for lane in range(self.vector):
            nearest = cutlass.max(cutlass.min(place + lane, Int32(self.source.sizes[-1] - 1)), Int32(0))
            single = cute.make_tensor(self.source.tensor.iterator + (line + nearest), cute.make_layout((1,)))
            inside = m.both(place + lane >= 0, place + lane < self.source.sizes[-1])
            self.shared[cell + lane] = m.select(inside, single[0], kind(self.operand.fill))
