"""What a thread that multiplies has of 64 rows of a tile: fp32 sums in registers, of each block of phases by itself.
Where wgmma of different widths add to parts of one fragment, ptxas has each of them wait for the one before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Float32, cute


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """`columns` of a tile, of each phase; `blocks`: the phases of the same windows."""

    columns: int
    blocks: tuple[tuple[int, ...], ...] = ((0,),)

    def make(self) -> list[Any]:
        """Of each block ((2 columns, 2 rows, every 8 columns of each phase), 1, 1)."""
        layouts = [cute.make_layout(((2, 2, self.columns // 8 * len(own)), 1, 1)) for own in self.blocks]
        return [cute.make_rmem_tensor(layout, Float32) for layout in layouts]

    @staticmethod
    def clear(totals: list[Any]) -> None:
        for total in totals:
            total.fill(0.0)

    def one(self, totals: list[Any], r: int, phase: int, number: int) -> Any:
        """The sum of a phase and of row r, by its number; 0 where the phase meets no tap."""
        for own, total in zip(self.blocks, totals, strict=True):
            if phase in own:
                eight = own.index(phase) * (self.columns // 8) + number // 2
                return total[((number % 2, r, eight), 0, 0)]
        return Float32(0.0)

    def pixel(self, totals: list[Any], pixel: int, number: int) -> Any:
        """The sum of the first or second of a pair of pixels, by its number."""
        return self.one(totals, pixel, 0, number)
