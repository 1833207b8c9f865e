"""Sums over the rows beside what is done along them, or with each element alone: the rows of a part pass through one
group of threads, which keeps each column's sum in registers; traced inside a kernel (see `engine`).

    row     x x x x ... x    a thread takes the same columns of every row of its part
    row     x x x x ... x
    part    + + + + ... +    written once, [part][column], in fp32

    ring    | row t, vector 0 | 1 | 2 | row t + 1, vector 0 | 1 ->    of each thread, in shared memory

The last sweep is done with a vector, and has its place filled anew with what comes `plan.slots` vectors later: so
loads and stores go on side by side, also where the ring holds little more than a row. Where cp.async can't bring the
rows, they stay in registers, and none is on its way while another is done.

Parts, and the order of rows in each, are fixed: results repeat to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from ..common import math as m
from ..common.addresses import Addresses
from ..common.control import loop, when
from ..common.operands import passing_operands
from ..common.spec import reads
from ..common.views import POSITION
from .combine import Held, combine_rows
from .cta import Block, Cta
from .ring import Ring

PIECES = 4  # of a row, at most: each is merged as soon as it has come


class PassingRows(Cta):
    """Which rows pass through a group, and how they come: what the next row has by itself, and vectors of a ring."""

    lasting: dict[str, list[Any]]  # of what is the same for all rows
    coming: dict[str, Any]  # of the next row
    first_step: int

    def _place(self) -> None:
        super()._place()
        plan = self.plan
        block, _, _ = cute.arch.block_idx()
        index = block // self.chunks * plan.groups_per_cta + self.group
        self.present = index < plan.parts if plan.parts % plan.groups_per_cta else None
        self.part = cutlass.min(index, Int32(plan.parts - 1))
        each, more = divmod(self.space.groups, plan.parts)
        begin, end = (
            part * each + Int32(Uint32(part * more) // Uint32(plan.parts)) for part in (self.part, self.part + 1)
        )
        self.first_row, self.count = begin, end - begin
        self.turns, self.uneven = each + (more > 0), more > 0
        self.group_index, self.alive = self.first_row, self.present

    def _row_storage(self, allocator: Any, thread: Any) -> Any:
        if not self.plan.slots:
            return super()._row_storage(allocator, thread)
        names = passing_operands(self.spec, self.space)
        return Ring(self.plan, names=names, dtypes=self.dtypes, allocator=allocator, thread=thread)

    def _load_lasting(self) -> dict[str, list[Any]]:
        """What is the same for all rows, read once: a norm's weight would else be a third of what is read of L2."""
        functions = [*(sweep.elements for sweep in self.spec.sweeps), self.spec.final]
        used = {name for function in functions for name in reads(function)}
        names = [o.name for o in self.spec.element_operands if o.name in used and not self._moves(o.name)]
        steps = self._make_block(self.chunk, self.chunk, masked=True).steps
        return {n: [self.at.load(n, self.at.at_step(n, step)) for step in steps] for n in names}

    def _moves(self, name: str) -> bool:
        return any(self.space.views[name].group_strides)

    def _fetch(self, block: Block, name: str) -> list[Any]:
        if name in self.lasting:
            return self.lasting[name][self.first_step : self.first_step + len(block.steps)]
        return super()._fetch(block, name)

    def _row_of(self, turn: Any) -> Any:
        return cutlass.min(self.first_row + turn, Int32(self.space.groups - 1))

    def _row_operand(self, name: str) -> Any:
        return self.coming[name]

    def _ask_for_row(self, turn: Any) -> None:
        """What the next row has by itself is on its way while this one is done."""
        at = Addresses(self.space, self.tensors, self._row_of(turn), wide=self.plan.wide)
        for name, fragment in self.coming.items():
            found = at.load(name, at.base[name])
            for lane in range(cute.size(fragment)):
                fragment[lane] = found[lane]

    def _request(self, turn: Any, numbers: range) -> None:
        """Copy the vectors of these numbers, counted from this turn's first, where there are such rows; a commit group
        each."""
        plan = self.plan
        places: dict[int, tuple[Any, Any]] = {}
        for number in numbers:
            row, u = divmod(number, plan.unroll)
            if row not in places:
                at = Addresses(self.space, self.tensors, self._row_of(turn + row), wide=plan.wide)
                places[row] = at, turn + row < self.count
            at, follows = places[row]
            slot = (turn * plan.unroll + number) % plan.slots
            when(follows, partial(self.resident.request, at, [self._nearest(u)], [slot]))
            cute.arch.cp_async_commit_group()

    def _nearest(self, u: int) -> Any:
        """Step u of this thread, or the row's last."""
        step = self._own(u)
        return step if self.whole else cutlass.min(step, Int32(self.space.steps - 1))

    def _own(self, u: int) -> Any:
        return self.chunk * self.plan.block_steps + self.member + u * self.plan.group_threads

    @property
    def whole(self) -> bool:
        """Whether all of a row's steps are inside."""
        return self.chunks * self.plan.block_steps <= self.space.steps


class SumsCta(PassingRows):
    """`groups_per_cta` parts at once, each a share of the rows in order, row by row."""

    def run(self) -> None:
        vector = self.space.vector
        self.totals = {n: cute.make_rmem_tensor((self.plan.unroll * vector,), Float32) for n in self.spec.sums}
        for total in self.totals.values():
            total.fill(0.0)
        if self.exchange is not None:
            self.exchange.open(self.member)
        self._request(Int32(0), range(self.plan.slots))
        self.lasting = self._load_lasting()
        names = [o.name for o in self.spec.aligned_operands if self.spec.at_row_level(o.shape)]
        self.coming = {n: self.at.load(n, self.at.base[n]) for n in names}  # of the next row
        if self.exchange is not None:
            self.exchange.ready()
        loop(Int32(0), Int32(self.turns), self._row)
        self.group_index, self.alive = self.first_row, self.present
        self.at = self._addresses()
        for u in range(self.plan.unroll):
            self._write_totals(u)

    def _row(self, turn: Any) -> None:
        self.turn, self.first_step = turn, 0
        self.alive = self.present
        if self.uneven:
            here = turn < self.count
            self.alive = here if self.present is None else m.both(self.present, here)
        self.group_index = self._row_of(turn)
        self.at = self._addresses()
        if not self.plan.slots:
            self.resident.restart(self.at)
        self.rows = self._new_rows()
        self._load_rows()
        self._ask_for_row(turn + 1)
        self._compute_rows(self.spec.head)
        for sweep in range(len(self.spec.sweeps)):
            helds = self._reduce(sweep)
            if self.exchange is not None:
                self.exchange.combine(sweep, helds, rank=self.chunk, thread=self.member, turn=turn)
            self._finish(sweep, helds)
        self._end()

    def _combine(self, sweep: int, helds: list[Held]) -> None:
        """On boards of every second row, so that nobody waits until they are free again: who is at the next row but one
        has met all others after they read this one's."""
        group = self.group + self.turn % 2 * self.plan.groups_per_cta
        combine_rows(helds, self.boards[sweep], group=group, member=self.member, group_threads=self.plan.group_threads)

    def _walk(self, sweep: int, body: Callable[[Block], None]) -> None:
        plan = self.plan
        if not plan.slots:
            super()._walk(sweep, body)
            return
        block = self._make_block(self.chunk, self.chunk, masked=not self.whole)
        block.slots = [(self.turn * plan.unroll + u) % plan.slots for u in range(plan.unroll)]
        last = sweep == len(self.spec.sweeps)
        size = 1 if last else -(-plan.unroll // PIECES) if sweep == 0 else plan.unroll
        for u in range(0, plan.unroll, size):
            self.first_step, end = u, min(u + size, plan.unroll)
            if sweep == 0:
                cute.arch.cp_async_wait_group(plan.slots - (size if last else end))
            body(Block(block.steps[u:end], block.valid[u:end], block.slots[u:end], by_element=False))
            if last:
                self._request(self.turn, range(u + plan.slots, u + plan.slots + 1))

    def _write_elements(self) -> None:
        spec, final = self.spec, self.spec.final
        assert final is not None

        def body(block: Block) -> None:
            fragments = self._fetch_all(block, final)
            for u in range(len(block.steps)):
                results = self._step(block, final, fragments, u)
                self._write_results(block, u, results)
                for number, name in enumerate(spec.sums, len(spec.element_outputs)):
                    self._add(name, self.first_step + u, [lane[number] for lane in results])

        self._walk(len(spec.sweeps), body)

    def _add(self, name: str, u: int, values: list[Any]) -> None:
        total = self.totals[name]
        for lane, value in enumerate(values):
            cell = u * self.space.vector + lane
            added = value if self.alive is None else m.select(self.alive, value, Float32(0.0))
            total[cell] = total[cell] + added

    def _write_totals(self, u: int) -> None:
        """The sums of step u's columns; steps beyond the row have made some, too."""
        space, vector = self.space, self.space.vector
        step = self._own(u)
        inside = None if self.whole else step < space.steps
        place = self.at.at_step(POSITION, cutlass.min(step, Int32(space.steps - 1)))
        offset = self.at.kind(self.part) * space.inner + place
        for name, total in self.totals.items():
            fragment = cute.make_rmem_tensor((vector,), Float32)
            for lane in range(vector):
                fragment[lane] = total[u * vector + lane]
            self._guarded(inside, partial(self._put, name, offset, fragment))

    def _put(self, name: str, offset: Any, fragment: Any) -> None:
        cute.autovec_copy(fragment, self.at.vector(f"out_{name}", offset, self.space.vector))
