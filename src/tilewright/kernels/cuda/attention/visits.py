"""Which tiles of keys a CTA visits where only the operands tell: a list for each tile of queries, made before.

    flags       (layers, row tiles, key tiles) int32: bit 0: some score of the tile is kept, bit 1: all are
    visited     (layers, row tiles, 1 + key tiles) int32: how many tiles, then number * 2 + (all kept) of each, in
                order; one at least, so that a row that sees nothing is written
    infinite    (layers of the value) int32, zero before the launch: whether a value there is not finite. Then all tiles
                are visited, unless values need not be read: 0 times such a value is NaN

A layer is what the batch dimensions tell along which the condition moves, so heads that share a mask share a list.
"""

from __future__ import annotations

from math import prod
from typing import Any

import cutlass
from cutlass import Int32, Int64, cute
from cutlass.memory import SmemAllocator

from ..common import math as m
from ..common.control import loop, when
from ..common.views import ITEM_BYTES
from .order import TileOrder
from .scores import ScoreMap
from .shape import Layers, layer_number

THREADS = 256
_WARPS = THREADS // 32
_MOST_CTAS = 1056  # 8 a multiprocessor of the largest GPUs


class MapTiles:
    """Flags and lists of a condition, which is the `whole` of `kept`."""

    def __init__(self, order: TileOrder, kept: ScoreMap) -> None:
        self.order, self.kept = order, kept
        shape = order.shape
        assert shape.sparse is not None
        self.dims = [(d, shape.domain[d]) for d in shape.sparse]
        self.layers = prod(size for _, size in self.dims)

    def launch(self, operands: list, flags: Any, visited: Any, stream: Any) -> None:
        """Emit both launches."""
        tiles = self.layers * self.order.row_tiles
        self._flags(operands, flags).launch(
            grid=[tiles * self.order.key_tiles, 1, 1], block=[THREADS, 1, 1], stream=stream
        )
        self._lists(flags, visited).launch(grid=[tiles, 1, 1], block=[32, 1, 1], stream=stream)

    @cute.kernel
    def _flags(self, operands: list, flags: cute.Tensor) -> None:
        self._look(operands, flags)

    @cute.kernel
    def _lists(self, flags: cute.Tensor, visited: cute.Tensor) -> None:
        self._compact(flags, visited)

    def _look(self, operands: list, flags: Any) -> None:
        """One tile of a CTA, an element of a thread at a time, neighbours along keys."""
        order, shape = self.order, self.order.shape
        number = Int32(cute.arch.block_idx()[0])
        tile, left = number % order.key_tiles, number // order.key_tiles
        row_tile, layer = left % order.row_tiles, left // order.row_tiles
        places: dict[int, Any] = {}
        for d, size in reversed(self.dims):
            places[d], layer = layer % size, layer // size
        seen = cute.make_rmem_tensor((2,), Int32)  # some are kept; some are not
        seen.fill(0)
        thread = Int32(cute.arch.thread_idx()[0])

        def one(i: Any) -> None:
            place = i * THREADS + thread
            row = row_tile * order.tile_m + place // order.tile_n
            key = tile * order.tile_n + place % order.tile_n
            at = {**places, shape.row: row, len(shape.domain) - 1: key}
            holds = m.both(self.kept.holds(at, operands), key < shape.keys)
            inside = row < shape.rows
            seen[0] = seen[0] | m.select(m.both(inside, holds), Int32(1), Int32(0))
            seen[1] = seen[1] | m.select(m.both(inside, m.negated(holds)), Int32(1), Int32(0))

        loop(Int32(0), Int32(-(-order.tile_m * order.tile_n // THREADS)), one)
        votes = [cute.arch.vote_ballot_sync(seen[i] != 0) != 0 for i in range(2)]
        shared = SmemAllocator().allocate_array(Int32, 2 * _WARPS)
        of_warps = cute.make_tensor(shared, cute.make_layout((2 * _WARPS,)))
        warp = thread // 32

        def put() -> None:
            for i, vote in enumerate(votes):
                of_warps[2 * warp + i] = m.select(vote, Int32(1), Int32(0))

        when(cute.arch.lane_idx() == 0, put)
        cute.arch.sync_threads()

        def write() -> None:
            some, lacks = Int32(0), Int32(0)
            for w in range(_WARPS):
                some, lacks = some | of_warps[2 * w], lacks | of_warps[2 * w + 1]
            flags[number] = some + m.select(lacks == 0, Int32(2), Int32(0))

        when(thread == 0, write)

    def _compact(self, flags: Any, visited: Any) -> None:
        tiles = self.order.key_tiles
        number = Int32(cute.arch.block_idx()[0])
        base, lane = number * (tiles + 1), Int32(cute.arch.lane_idx())
        count = cute.make_rmem_tensor((1,), Int32)
        count[0] = Int32(0)

        def some(chunk: Any) -> None:
            tile = chunk * 32 + lane
            flag = flags[number * tiles + m.smaller(tile, Int32(tiles - 1))]
            taken = m.both(tile < tiles, (flag & 1) != 0)
            votes = Int32(cute.arch.vote_ballot_sync(taken))
            before = cute.arch.popc(votes & ((Int32(1) << lane) - 1))
            spot = base + 1 + count[0] + before

            def put() -> None:
                visited[spot] = tile * 2 + (flag >> 1)

            when(taken, put)
            count[0] = count[0] + cute.arch.popc(votes)

        loop(Int32(0), Int32(-(-tiles // 32)), some)

        def write() -> None:
            def nothing() -> None:
                visited[base + 1] = Int32(0)

            when(count[0] == 0, nothing)
            visited[base] = cutlass.max(count[0], Int32(1))

        when(lane == 0, write)


class InfiniteLayers:
    """Which layers of a factor hold what is not finite. Its columns lie side by side, rows at multiples of 16 bytes."""

    def __init__(self, layers: Layers, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> None:
        self.dtype, self.each = dtype, 16 // ITEM_BYTES[dtype]
        own = [i for i in range(len(shape) - 1) if i != layers.at]
        self.batch = [(shape[i], strides[i]) for i in own]
        self.row = (1, 0) if layers.at is None else (shape[layers.at], strides[layers.at])
        self.across = shape[-1] // self.each
        self.layers = prod(n for n, _ in self.batch)
        self.groups = self.row[0] * self.across
        self.parts = min(-(-self.groups // THREADS), max(_MOST_CTAS // self.layers, 1))

    def launch(self, x: Any, infinite: Any, stream: Any) -> None:
        """Emit the launch."""
        self._look(x, infinite).launch(grid=[self.parts * self.layers, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def _look(self, x: cute.Tensor, infinite: cute.Tensor) -> None:
        self._each(x, infinite)

    def _each(self, x: Any, infinite: Any) -> None:
        number = Int32(cute.arch.block_idx()[0])
        layer, part = number // self.parts, number % self.parts
        start, left = Int64(0), layer
        for size, stride in reversed(self.batch):
            start, left = start + Int64(left % size) * stride, left // size
        held = cute.make_rmem_tensor((self.each,), x.element_type)
        words = cute.recast_tensor(held, Int32)
        found = cute.make_rmem_tensor((1,), Int32)
        found[0] = Int32(0)
        masks = {"f32": (0x7F800000,), "bf16": (0x7F80, 0x7F800000), "f16": (0x7C00, 0x7C000000)}[self.dtype]
        thread = Int32(cute.arch.thread_idx()[0])

        def some(i: Any) -> None:
            place = (i * self.parts + part) * THREADS + thread

            def one() -> None:
                row, column = Int64(place // self.across), Int64(place % self.across * self.each)
                spot = x.iterator + (start + row * self.row[1] + column)
                cute.autovec_copy(cute.make_tensor(spot.align(16), cute.make_layout((self.each,))), held)
                for w in range(cute.size(words)):
                    for mask in masks:
                        all_ones = (words[w] & Int32(mask)) == Int32(mask)
                        found[0] = found[0] | m.select(all_ones, Int32(1), Int32(0))

            when(place < self.groups, one)

        loop(Int32(0), Int32(-(-self.groups // (self.parts * THREADS))), some)

        def mark() -> None:
            infinite[layer] = Int32(1)

        when(found[0] != 0, mark)


class Visits:
    """The tiles of keys that a CTA visits, by turns from `span[0]` on and before `span[1]`. `lists` and `infinite` are
    as above, or None; `part` of `parts` is the CTA's share of them."""

    def __init__(
        self, order: TileOrder, at: tuple[Any, dict[int, Any]], lists: Any, infinite: Any, part: tuple[Any, int]
    ) -> None:  # fmt: skip
        self.order, self.lists, shape = order, lists, order.shape
        self.tile, indices = at
        self.dense: Any = None
        if infinite is not None:
            self.dense = infinite[layer_number(shape.value.batch, indices)] != 0
        if lists is None:
            first, last = order.visited(self.tile, m.smaller, m.larger)
        else:
            layer = Int32(0)
            for d in shape.sparse or ():
                layer = layer * shape.domain[d] + indices[d]
            self.base = (layer * order.row_tiles + self.tile) * (order.key_tiles + 1)
            first, last = Int32(0), lists[self.base]
        if self.dense is not None:
            first = m.select(self.dense, Int32(0), Int32(first))
            last = m.select(self.dense, Int32(order.key_tiles), Int32(last))
        number, parts = part
        if parts > 1:
            count = last - first
            first, last = first + count * number // parts, first + count * (number + 1) // parts
        self.span = (Int32(first), Int32(last))

    def tile_of(self, turn: Any) -> Any:
        """The tile of keys of a turn."""
        if self.lists is None:
            return turn
        tile = self.lists[self.base + 1 + turn] >> 1
        return tile if self.dense is None else m.select(self.dense, turn, tile)

    def kept(self, turn: Any) -> Any:
        """Whether all of the turn's scores are kept; None where no tile is masked."""
        if self.lists is not None:
            every = (self.lists[self.base + 1 + turn] & 1) != 0
            return every if self.dense is None else m.both(every, m.negated(self.dense))
        if not self.order.masks:
            return None
        first, last = self.order.unmasked(self.tile, m.smaller, m.larger)
        return m.both(turn >= first, turn < last)


def listed(layers: int, tiles: tuple[int, int]) -> tuple[tuple[int], tuple[int]]:
    """Shapes of flags and lists, of so many tiles of queries and of keys."""
    rows, keys = tiles
    return (layers * rows * keys,), (layers * rows * (keys + 1),)
