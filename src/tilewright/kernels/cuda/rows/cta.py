"""What one CTA does with its part of its rows: sweeps, combination, results; traced inside a kernel (see `engine`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..common import math as m
from ..common.spec import reads
from .blocks import Block, CtaBlocks
from .combine import Held, combine_columns, combine_rows
from .cta_rows import ALL

__all__ = ["ALL", "Block", "Cta"]

BATCH = 16  # elements that a thread reduces as one tree: more cost registers, fewer cost merges


class Cta(CtaBlocks):
    """All sweeps in one launch, or one of them (see `CtaRows`)."""

    def _reduce(self, sweep: int) -> list[Held]:
        """Sweep over this CTA's chunk; afterwards all its threads hold the states of their groups' chunks."""
        spec, lanes = self.spec.sweeps[sweep], len(self.rows)
        helds = [Held(r, lanes) for r in self.kernel.reducers[sweep]]
        self._walk(sweep, self._reducing(sweep, helds))
        self.resident.swept(reads(spec.elements))
        self._combine(sweep, helds)
        return helds

    def _reducing(self, sweep: int, helds: list[Held]) -> Callable[[Block], None]:
        """What a sweep does with a block: merge it into `helds`."""
        spec = self.spec.sweeps[sweep]

        def body(block: Block) -> None:
            lanes = len(self.rows)
            fragments = self._fetch_all(block, spec.elements)
            batch = max(BATCH // self.space.vector, 1)
            for start in range(0, len(block.steps), batch):
                turns = range(start, min(start + batch, len(block.steps)))
                results = {u: self._step(block, spec.elements, fragments, u) for u in turns}
                for number, held in enumerate(helds):
                    for row in range(lanes):
                        cells = [(u, j) for u in turns for j in range(row, self.space.vector, lanes)]
                        values = [held.reducer.prepare(results[u][j][number]) for u, j in cells]
                        valid, places = self._where(block, held.reducer, cells)
                        if self.shares is not None and self.shares.of(sweep, number):
                            held.merge(row, self.shares.keep(held.reducer, values, valid, cells))
                        else:
                            held.merge(row, held.reducer.block(values, valid, places))

        return body

    def _combine(self, sweep: int, helds: list[Held]) -> None:
        plan, boards = self.plan, self.boards[sweep]
        where = {"group": self.group, "member": self.member, "group_threads": plan.group_threads}
        if self.space.front == "row":
            combine_rows(helds, boards, **where)
        else:
            combine_columns(helds, boards, groups=plan.groups_per_cta, **where)

    def _write_elements(self) -> None:
        self._walk(len(self.spec.sweeps), self._writing())

    def _writing(self) -> Callable[[Block], None]:
        """What the last sweep does with a block."""
        final = self.spec.final
        assert final is not None
        if self.shares is not None:
            final = self.shares.close(self.rows[0])

        def body(block: Block) -> None:
            fragments = self._fetch_all(block, final)
            for u in range(len(block.steps)):
                self._write_results(block, u, self._step(block, final, fragments, u))

        return body

    def _write_rows(self) -> None:
        """Row-level outputs, by the first member of the first chunk."""
        outputs = [o for o in self.spec.aligned_outputs if o.name not in self.spec.element_outputs]
        if not outputs:
            return

        def body() -> None:
            for output in outputs:
                values = [m.stored(row[output.name], output.dtype) for row in self.rows]
                self.at.store(f"out_{output.name}", self.at.base[f"out_{output.name}"], values)

        first = self.member == 0
        self._guarded(first if self.chunks == 1 else m.both(first, self.chunk == 0), body)

    def run(self) -> None:
        self._load_rows()
        self._compute_rows(self.spec.head)
        if self.stage == ALL:
            self._run_all()
            return
        for sweep in range(self.stage):
            self._finish(sweep, self._gather(sweep))
        if self.stage == len(self.spec.sweeps):
            self._end()
        else:
            self._scatter(self.stage, self._reduce(self.stage))

    def _run_all(self) -> None:
        """All sweeps in one launch: a CTA, or a cluster, has whole rows."""
        if self.exchange is not None:
            self.exchange.open(self.member)
        self.resident.prefetch(self.chunk, self.member)
        for sweep in range(len(self.spec.sweeps)):
            helds = self._reduce(sweep)
            if self.exchange is not None:
                if sweep == 0:
                    self.exchange.ready()
                self.exchange.combine(sweep, helds, rank=self.chunk, thread=self.member)
            self._finish(sweep, helds)
        self._end()

    def _end(self) -> None:
        if self.spec.final is not None:
            self._write_elements()
        self._write_rows()

    def _row_index(self) -> Any:
        return self.group_index * len(self.rows)

    def _scatter(self, sweep: int, helds: list[Held]) -> None:
        """This chunk's states to the workspace."""

        def body() -> None:
            for held, space in zip(helds, self.kernel.workspaces[sweep], strict=True):
                for lane in range(held.lanes):
                    space.put(self.work, self.chunk, self._row_index() + lane, held[lane])

        self._guarded(self.member == 0, body)

    def _gather(self, sweep: int) -> list[Held]:
        """The states of whole rows, from the workspace."""
        helds = [Held(r, len(self.rows)) for r in self.kernel.reducers[sweep]]
        for held, space in zip(helds, self.kernel.workspaces[sweep], strict=True):
            space.gather(
                self.work, held, row=self._row_index(), member=self.member, group_threads=self.plan.group_threads
            )  # fmt: skip
        self._combine(sweep, helds)
        return helds
