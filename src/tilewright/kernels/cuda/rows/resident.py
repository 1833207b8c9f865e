"""Rows that stay on chip between sweeps: in a thread's registers, or in shared memory that it alone uses."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu.cpasync import CopyG2SOp

from ..common import math as m
from ..common.addresses import Addresses
from ..common.control import loop
from .plan import Plan

ELEMENT_BITS = {"f32": 32, "f16": 16, "bf16": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "u8": 8,
                "float8_e4m3fn": 8}  # fmt: skip


class Resident:
    """The operands of a CTA's chunk that sweeps after the first find on chip.

    In shared memory a thread's vectors lie at [slot][thread], so neighbours touch neighbouring banks; nobody reads what
    another wrote, so nothing has to be synchronised. `names` are the operands, `dtypes` those of all operands."""

    def __init__(
        self, plan: Plan, at: Addresses, *, names: tuple[str, ...], dtypes: dict[str, str], allocator: Any, thread: Any
    ) -> None:
        self._plan, self._at, self._dtypes, self._thread = plan, at, dtypes, thread
        self._in_registers = set(names) if plan.row_storage == "registers" else set()
        self._kept: dict[str, list[Any]] = {}
        self._shared: dict[str, Any] = {}
        self._filled: set[str] = set()  # in shared memory, or on the way there
        self.segments = 0  # commit groups of copies under way
        if plan.row_storage != "shared":
            return
        count = plan.blocks_per_chunk * plan.unroll * plan.threads * plan.space.vector
        for name in names:
            if dtypes[name] != "bool" and (at.lane_stride(name) == 1 or plan.space.vector == 1):
                layout = cute.make_layout((count,))
                kind = m.ELEMENT_TYPES[dtypes[name]]
                self._shared[name] = allocator.allocate_tensor(kind, layout, byte_alignment=16)

    def restart(self, at: Addresses) -> None:
        """Another group: nothing of the last is on chip any more."""
        self._at = at
        self._kept, self._filled = {}, set()

    def get(self, name: str, slots: list[Any]) -> list[Any] | None:
        """Fragments of these slots, if the operand is on chip."""
        if name in self._kept:
            return self._kept[name]
        if name not in self._filled:
            return None
        found = []
        for slot in slots:
            found.append(cute.make_rmem_tensor((self._plan.space.vector,), self._at.tensors[name].element_type))
            cute.autovec_copy(self._cell(name, slot), found[-1])
        return found

    def put(self, name: str, slots: list[Any], fragments: list[Any]) -> None:
        """Keep what was loaded, where the plan says so."""
        if name in self._in_registers:
            self._kept[name] = fragments
        if name in self._shared:
            for fragment, slot in zip(fragments, slots, strict=True):
                cute.autovec_copy(fragment, self._cell(name, slot))

    def swept(self, names: tuple[str, ...]) -> None:
        """A sweep over the whole chunk has put these."""
        self._filled |= {n for n in names if n in self._shared}

    def _cell(self, name: str, slot: Any) -> Any:
        vector = self._plan.space.vector
        place = (slot * self._plan.threads + self._thread) * vector
        pointer = self._shared[name].iterator + (cute.assume(place, divby=vector) if vector > 1 else place)
        return cute.make_tensor(pointer, cute.make_layout((vector,)))

    def segment(self, number: int, lo: Any, hi: Any) -> tuple[Any, Any]:
        """The blocks of one commit group of `prefetch`, below hi."""
        per_chunk = self._plan.blocks_per_chunk
        begin, end = (per_chunk * (number + more) // self.segments for more in (0, 1))
        return cutlass.min(lo + begin, hi), cutlass.min(lo + end, hi)

    def prefetch(self, chunk: Any, member: Any) -> None:
        """Start copying the whole chunk into shared memory, in up to four commit groups (`segments`; 0: none started,
        since cp.async moves 4, 8 or 16 bytes). Sweep 0 must wait for each before it reads its blocks."""
        plan, at = self._plan, self._at
        bits = {name: ELEMENT_BITS[self._dtypes[name]] * plan.space.vector for name in self._shared}
        if not bits or min(bits.values()) < 32:
            return
        self.segments = min(4, plan.blocks_per_chunk)
        self._filled |= set(self._shared)
        lo = chunk * plan.blocks_per_chunk
        hi = cutlass.min(lo + plan.blocks_per_chunk, Int32(plan.blocks))

        def issue(index: Any) -> None:
            for u in range(plan.unroll):
                step = index * plan.block_steps + (u * plan.group_threads) + member
                nearest = cutlass.min(step, Int32(plan.space.steps - 1))
                for name, width in bits.items():
                    source = at.vector(name, at.at_step(name, nearest), plan.space.vector)
                    atom = cute.make_copy_atom(CopyG2SOp(), at.tensors[name].element_type, num_bits_per_copy=width)
                    cute.copy(atom, source, self._cell(name, (index - lo) * plan.unroll + u))

        for number in range(self.segments):
            loop(*self.segment(number, lo, hi), issue)
            cute.arch.cp_async_commit_group()
