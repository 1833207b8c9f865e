"""The end of a product's tiles: what is made ready for it while they are multiplied, and how they leave.

one line after the other, two buffers a warpgroup      see `tma_store`
whole tiles in shared memory                           see `smem_tile`
by the threads that have the sums                      see `epilogue`
"""

from __future__ import annotations

import itertools
from typing import Any

from cutlass.cute.nvgpu import cpasync

from ..host.plan import Point
from .epilogue import EpilogueStore, Gate, Through
from .expression import TileAt
from .smem_tile import SmemTile, Staging
from .tma_store import ROWS, TmaStore


class TileEnd:
    """Of a Product, which says what `_sides` of a copy there are."""

    point: Point
    finish: EpilogueStore
    scales: int
    bulk: bool
    staging: Staging | None
    foresees: bool
    smem_store: TmaStore | None
    staged: SmemTile | None
    _sides: Any

    def _prefetch(self, *copies: Any) -> None:
        """What TMA reads of those of A, B, the second B, C and what comes staged that are used."""
        comes = self.staging is not None and self.staging.matrix is not None
        used = (True, True, self.point.dual, self.bulk or self.staging is not None, comes)
        for copy in itertools.compress(copies, used):
            cpasync.prefetch_descriptor(copy)

    def _smem_store(self, tma: Any, tensor: Any, layout: Any, shared: Any, group: Any, kind: Any) -> TmaStore | None:
        if not self.bulk:
            return None
        memory = shared.allocate_tensor(kind, layout.outer, byte_alignment=1024, swizzle=layout.inner)
        line = (ROWS, self.point.line_bytes * 8 // kind.width)
        staged, tiles = self._sides(tma, tensor, memory, line)
        return TmaStore(tma, memory, staged, tiles, group=group, width=kind.width, line_bytes=self.point.line_bytes)

    def _staged(self, shared: Any, group: Any, layout: Any, out: tuple[Any, Any], came: tuple[Any, Any]) -> Any:
        return None if self.staging is None else self.staging.place(shared, group, layout, out=out, came=came)

    def _begin(self, places: Any, operands: Any, corner: Any, sizes: Any, member: Any) -> list[dict[str, Any]]:
        """Before a tile is multiplied: what its end reads is on its way; returned is what comes into registers."""
        if self.staged is None:
            return []
        self.staged.turn_to(corner, member)
        if not self.foresees:
            self.staged.open()
        return self.finish.beside(self.staged, operands, places[(None, 0, 0)], line=0, corner=corner, sizes=sizes)

    def _finish(
        self, sums: list[Any], places: Any, c: Any, more: list[Any], *, at: TileAt, ahead: Any, phase: Any, span: Any
    ) -> None:
        """Write a tile. `span`: the first and the last step of K that was multiplied."""
        parts_m = self.point.tile_m // (ROWS * self.point.groups)
        spots = [places[(None, i % parts_m, i // parts_m)] for i in range(len(sums))]
        if self.point.dual and self.point.atom_n < self.point.tile_n:
            half = len(sums) // 2
            sums, spots = [Gate(*both) for both in zip(sums[:half], sums[half:], strict=True)], spots[:half]
        elif self.point.dual:
            sums = [Gate(total) for total in sums]
        if self.staged is not None:
            self.finish.exchange(sums, spots, self.staged, more, at=at, ahead=ahead, phase=phase)
            return
        for part, (total, of_part) in enumerate(zip(sums, spots, strict=True)):
            through = Through(self.smem_store, (part, part // parts_m)) if self.smem_store is not None else None
            self.finish.store(
                total, of_part, c, more[self.scales :], more[: self.scales], at=at, through=through,
                block=self.point.block,
            )  # fmt: skip

    @staticmethod
    def _open(leaving: TmaStore | SmemTile | None) -> None:
        if leaving is not None:
            leaving.open()

    def _close(self) -> None:
        for leaving in (self.smem_store, self.staged):
            if leaving is not None:
                leaving.close()
