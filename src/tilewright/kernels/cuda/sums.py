"""Sums over the rows beside what is done along them: the rows of a part pass through one group of threads, which keeps
each column's sum in registers; traced inside a kernel (see `engine`).

    row     x x x x ... x    a thread takes the same columns of every row of its part
    row     x x x x ... x
    part    + + + + ... +    written once, [part][column], in fp32

Parts, and the order of rows in each, are fixed: results repeat to the last bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from . import math as m
from .control import loop
from .cta import Block, Cta
from .spec import reads
from .views import POSITION


class SumsCta(Cta):
    """`groups_per_cta` parts at once, each a share of the rows in order, row by row. Rows stay in registers."""

    def _place(self) -> None:
        super()._place()
        plan = self.plan
        block, _, _ = cute.arch.block_idx()
        index = block * plan.groups_per_cta + self.group
        self.present = index < plan.parts if plan.parts % plan.groups_per_cta else None
        self.part = cutlass.min(index, Int32(plan.parts - 1))
        each, more = divmod(self.space.groups, plan.parts)
        begin, end = (
            part * each + Int32(Uint32(part * more) // Uint32(plan.parts)) for part in (self.part, self.part + 1)
        )
        self.first_row, self.count = begin, end - begin
        self.turns, self.uneven = each + (more > 0), more > 0
        self.group_index, self.alive = self.first_row, self.present

    def run(self) -> None:
        vector = self.space.vector
        self.totals = {n: cute.make_rmem_tensor((self.plan.unroll * vector,), Float32) for n in self.spec.sums}
        for total in self.totals.values():
            total.fill(0.0)
        self.lasting = self._load_lasting()
        loop(Int32(0), Int32(self.turns), self._row)
        self.group_index, self.alive = self.first_row, self.present
        self.at = self._addresses()
        for u in range(self.plan.unroll):
            self._write_totals(u)

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
        return self.lasting[name] if name in self.lasting else super()._fetch(block, name)

    def _row(self, turn: Any) -> None:
        self.alive = self.present
        if self.uneven:
            here = turn < self.count
            self.alive = here if self.present is None else m.both(self.present, here)
        self.group_index = cutlass.min(self.first_row + turn, Int32(self.space.groups - 1))
        self.at = self._addresses()
        self.resident.restart(self.at)
        self.rows = self._new_rows()
        self._load_rows()
        self._compute_rows(self.spec.head)
        for sweep in range(len(self.spec.sweeps)):
            self._finish(sweep, self._reduce(sweep))
        self._end()
        if self.cells:
            cute.arch.sync_threads()  # boards are free again

    def _write_elements(self) -> None:
        spec, final = self.spec, self.spec.final
        assert final is not None
        dtypes = {o.name: o.dtype for o in spec.outputs}

        def body(block: Block) -> None:
            fragments = self._fetch_all(block, final)
            for u, step in enumerate(block.steps):
                results = self._step(block, final, fragments, u)
                for number, name in enumerate(spec.element_outputs):
                    values = [m.stored(lane[number], dtypes[name]) for lane in results]
                    self._write_step(f"out_{name}", block, u, step, values)
                for number, name in enumerate(spec.sums, len(spec.element_outputs)):
                    self._add(name, u, [lane[number] for lane in results])

        self._walk(len(spec.sweeps), body)

    def _add(self, name: str, u: int, values: list[Any]) -> None:
        total = self.totals[name]
        for lane, value in enumerate(values):
            cell = u * self.space.vector + lane
            added = value if self.alive is None else m.select(self.alive, value, Float32(0.0))
            total[cell] = total[cell] + added

    def _write_totals(self, u: int) -> None:
        """The sums of step u's columns; steps beyond the row have made some, too."""
        plan, space, vector = self.plan, self.space, self.space.vector
        step = self.member + u * plan.group_threads
        inside = None if plan.block_steps <= space.steps else step < space.steps
        place = self.at.at_step(POSITION, cutlass.min(step, Int32(space.steps - 1)))
        offset = self.at.kind(self.part) * space.inner + place
        for name, total in self.totals.items():
            fragment = cute.make_rmem_tensor((vector,), Float32)
            for lane in range(vector):
                fragment[lane] = total[u * vector + lane]
            self._guarded(inside, partial(self._put, name, offset, fragment))

    def _put(self, name: str, offset: Any, fragment: Any) -> None:
        cute.autovec_copy(fragment, self.at.vector(f"out_{name}", offset, self.space.vector))
