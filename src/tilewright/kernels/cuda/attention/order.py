"""Which tiles of keys a tile of queries visits, which of them need a mask, and in which order CTAs take tiles: integer
arithmetic that runs on Python's numbers and, while a kernel is traced, on the device's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .shape import AttentionShape

_SECTION_BYTES = 24 << 20  # of keys and values that CTAs at work share: half of an L2 cache
Choose = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TileOrder:
    """Of tiles of `tile_m` queries and `tile_n` keys. Elements have `item` bytes."""

    shape: AttentionShape
    tile_m: int
    tile_n: int
    item: int = 2

    @property
    def row_tiles(self) -> int:
        return -(-self.shape.rows // self.tile_m)

    @property
    def key_tiles(self) -> int:
        return -(-self.shape.keys // self.tile_n)

    @property
    def work(self) -> int:
        """CTAs of a launch."""
        return self.row_tiles * self.shape.batches

    @property
    def section(self) -> int:
        """How many neighbours of the batch are worked on together: their keys and values fit the cache."""
        s = self.shape
        each = s.keys * (s.depth + s.columns) * self.item
        return min(max(_SECTION_BYTES // each, 1), s.batches)

    def place(self, number: Any, smaller: Choose = min) -> tuple[Any, Any]:
        """The tile of queries and the number in the batch that CTA `number` has: those with the most keys first within
        a section, which is the last to have fewer of the batch."""
        whole = self.section * self.row_tiles
        begin = number // whole * self.section
        wide = smaller(self.shape.batches - begin, self.section)
        inside = number % whole
        tile = inside // wide
        falling = self.shape.visible[1] is not None and self.shape.spares
        return (self.row_tiles - 1 - tile if falling else tile), begin + inside % wide

    def visited(self, tile: Any, smaller: Choose = min, larger: Choose = max) -> tuple[Any, Any]:
        """The first tile of keys that a tile of queries visits, and the one behind the last: one at least."""
        low, high = self.shape.visible if self.shape.spares else (None, None)
        first, last, n = 0, self.key_tiles, self.tile_n
        top = tile * self.tile_m
        if low is not None:
            first = smaller(larger(top + low, 0) // n, self.key_tiles - 1)
        if high is not None:
            end = smaller(top + self.tile_m, self.shape.rows) + high  # behind the last key that a query sees
            last = smaller((larger(end, 0) + n - 1) // n, self.key_tiles)
        if low is not None or high is not None:
            last = larger(last, first + 1)
        return first, last

    def unmasked(self, tile: Any, smaller: Choose = min, larger: Choose = max) -> tuple[Any, Any]:
        """The tiles of keys, from the first on and before the last, of which every query of a tile sees all keys."""
        low, high = self.shape.visible
        first, last, n = 0, self.shape.keys // self.tile_n, self.tile_n
        top = tile * self.tile_m
        if low is not None:
            first = (larger(top + self.tile_m - 1 + low, 0) + n - 1) // n
        if high is not None:
            last = smaller(larger(top + high + 1, 0) // n, last)
        return first, last

    @property
    def masks(self) -> bool:
        """Whether any tile is masked."""
        return self.shape.visible != (None, None) or self.shape.keys % self.tile_n > 0
