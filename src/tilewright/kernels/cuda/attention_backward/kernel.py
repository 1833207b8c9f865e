"""The kernels of an attention's gradients (sm_90a), one for each Role.

    CTA             64 `groups` own rows; it visits tiles of `tile_n` others
    warp 0          loads, by TMA: own tiles once, visited ones in a ring of stages
    warpgroups 1 .. 64 own rows each: score = own first . visited first, gradient = own second . visited second (wgmma,
                    both from shared memory); the module's map in registers; result += factor . visited tile (wgmma,
                    the factor from registers, the visited tile read across)

Own and visited are (Q, dO) and (K, V), or where own rows are keys (K, V) and (Q, dO): then the products are the
transposes of the score and of the weight's gradient. A thread holds rows r and r + 8 of its warp's 16, and of every 8
columns the two from 2 (lane % 4) on. Each result is written by one CTA, in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import cutlass
from cutlass import BFloat16, Float16, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ..attention.order import TileOrder
from ..attention.planes import word
from ..attention.shape import Layers, layer_of
from ..attention.softmax import ROWS
from ..common import math as m
from ..common.control import loop, when
from ..common.views import ITEM_BYTES
from .maps import GradientMap
from .roles import GradientPoint, Role, VisitProtocol
from .shape import GradientShape

_OWN, _VISITED = (0, 1), (2, 3)  # places of factors: first and second of each


class GradientKernel:
    """A Role of a GradientShape at a GradientPoint, ready to be traced. `strides`: of query, key, value and upstream.
    `dtypes`: of these, and of what the role makes."""

    def __init__(
        self, shape: GradientShape, point: GradientPoint, role: Role, map_: GradientMap, *,
        dtypes: tuple[str, str],
        strides: Sequence[tuple[int, ...]],
    ) -> None:  # fmt: skip
        self.shape, self.point, self.role, self.map = shape, point, role, map_
        self.kind, self.dtype = (BFloat16 if dtypes[0] == "bf16" else Float16), dtypes[1]
        query = (shape.query, strides[0], shape.rows, shape.depth)
        key = (shape.key, strides[1], shape.keys, shape.depth)
        value = (shape.value, strides[2], shape.keys, shape.columns)
        upstream = (shape.upstream, strides[3], shape.rows, shape.columns)
        self.picked = (1, 2, 0, 3) if role.by_keys else (0, 3, 1, 2)  # of (query, key, value, upstream)
        self.factors: tuple[tuple[Layers, tuple[int, ...], int, int], ...] = tuple(
            (query, key, value, upstream)[i] for i in self.picked
        )
        self.order = TileOrder(shape=shape.by(keys=role.by_keys), tile_m=point.tile_m, tile_n=point.tile_n)
        self.holds = role.further < 0
        self.protocol = VisitProtocol(stages=point.stages, holds=self.holds)
        self.kept = [d for d in range(len(shape.batch)) if d not in role.summed]
        self.layers = prod(shape.batch[d] for d in self.kept)
        self.summed = prod(shape.batch[d] for d in role.summed)
        self.needs_gradient = role.further >= 0 or 0 in role.makes

    @property
    def work(self) -> int:
        """CTAs of a launch."""
        return self.layers * self.order.row_tiles * (1 if self.holds else self.order.key_tiles)

    def launch(self, factors: Sequence[Any], outs: Sequence[Any], operands: Sequence[Any], stream: Any) -> None:
        """Emit the launch. `factors`: query, key, value and upstream; `outs`: what the role makes."""
        p = self.point
        views = [self._view(factors[i], *own) for i, own in zip(self.picked, self.factors, strict=True)]
        rows, across = LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR
        widths = (p.depth, p.columns)
        own_stages = 1 if self.holds else p.stages
        layouts = [
            *(hopper_helpers.make_smem_layout_a(rows, (p.tile_m, p.tile_n, w), self.kind, own_stages) for w in widths),
            *(hopper_helpers.make_smem_layout_b(rows, (p.tile_m, p.tile_n, w), self.kind, p.stages) for w in widths),
            *(hopper_helpers.make_smem_layout_b(across, (p.tile_m, w, p.tile_n), self.kind, p.stages) for w in widths),
        ]
        sizes = (p.tile_m, p.tile_m, p.tile_n, p.tile_n)
        loads = [
            x
            for view, layout, n, width in zip(views, layouts, sizes, widths * 2, strict=False)
            for x in cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileG2SOp(), view, cute.slice_(layout, (None, None, 0)), (n, width),
                num_multicast=1,
            )
        ]  # fmt: skip
        major = OperandMajorMode.K
        products = [
            hopper_helpers.make_trivial_tiled_mma(
                self.kind, self.kind, major, major, Float32, (p.groups, 1, 1), tiler_mn=(64, p.tile_n)
            ),
            *(hopper_helpers.make_trivial_tiled_mma(
                self.kind, self.kind, major, OperandMajorMode.MN, Float32, (p.groups, 1, 1), tiler_mn=(64, w),
                a_source=warpgroup.OperandSource.RMEM,
            ) for w in widths),
        ]  # fmt: skip
        kernel = self._kernel(loads, list(outs), list(operands), products, layouts)
        kernel.launch(grid=[self.work, 1, 1], block=[p.threads, 1, 1], min_blocks_per_mp=1, stream=stream)

    @staticmethod
    def _view(tensor: Any, layers: Layers, strides: tuple[int, ...], rows: int, width: int) -> Any:
        """A factor as (rows, columns, batch ..), of which those of size 1 are left out."""
        *outer, _ = strides
        assert layers.at is not None
        row = (rows, outer.pop(layers.at))
        sizes = [step.size for step in layers.batch]
        modes = [row, (width, 1), *((n, step) for n, step in zip(sizes, outer, strict=True) if n > 1)]
        shape, steps = zip(*modes, strict=True)
        return cute.make_tensor(tensor.iterator, cute.make_layout(shape, stride=steps))

    @cute.kernel
    def _kernel(self, loads: list, outs: list, operands: list, products: list, layouts: list) -> None:
        p = self.point
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        shared = SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, self.protocol.barriers)
        staged = [
            shared.allocate_tensor(self.kind, layout.outer, byte_alignment=1024, swizzle=layout.inner)
            for layout in layouts[:4]
        ]
        across = [
            cute.make_tensor(cute.recast_ptr(tile.iterator, layout.inner, dtype=self.kind), layout.outer)
            for tile, layout in zip(staged[2:], layouts[4:], strict=True)
        ]
        when(cute.arch.thread_idx()[0] == 0, partial(self._make_barriers, barriers))
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        place = _Place(self, Int32(cute.arch.block_idx()[0]))
        if warp < 4:
            cute.arch.setmaxregister_decrease(p.registers[0])
            if warp == 0:
                self.protocol.load(_Loads(self, loads, staged, barriers, place), place.turns, loop)
        else:
            cute.arch.setmaxregister_increase(p.registers[1])
            own = _Products(self, products, (staged, across), barriers, place, operands)
            self.protocol.multiply(own, place.turns, loop)
            own.finish(outs)

    def _make_barriers(self, barriers: Any) -> None:
        for number, count in enumerate(self.protocol.arrivals(4 * self.point.groups)):
            cute.arch.mbarrier_init(barriers + number, count)


class _Place:
    """What a CTA has: its tile of own rows, its place in the batch, and what it visits in how many turns."""

    def __init__(self, kernel: GradientKernel, number: Any) -> None:
        self.kernel, order = kernel, kernel.order
        self.column_tile: Any = None
        if not kernel.holds:
            self.column_tile, number = number % order.key_tiles, number // order.key_tiles
        self.layer, tile = number // order.row_tiles, number % order.row_tiles
        falling = order.shape.visible[1] is not None  # the rows that see the most come first
        self.tile = order.row_tiles - 1 - tile if falling else tile
        first, last = order.visited(self.tile, m.smaller, m.larger)
        self.first, self.count = Int32(first), Int32(last) - Int32(first)
        self.turns = self.count * kernel.summed
        if self.column_tile is not None:
            seen = m.both(self.column_tile >= self.first, self.column_tile < Int32(last))
            self.turns = m.select(seen, Int32(kernel.summed), Int32(0))
        self.indices = self._spread(kernel.kept, self.layer)

    def _spread(self, dims: Sequence[int], number: Any) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for d in reversed(dims):
            size = self.kernel.shape.batch[d]
            found[d] = number % size if d != dims[0] else number
            number = number // size
        return found

    def visit(self, turn: Any) -> tuple[Any, dict[int, Any]]:
        """The tile of a turn, and its place in the batch."""
        summed = self.kernel.role.summed
        if self.column_tile is not None:
            return self.column_tile, {**self.indices, **self._spread(summed, turn)}
        if not summed:
            return self.first + turn, self.indices
        return self.first + turn % self.count, {**self.indices, **self._spread(summed, turn // self.count)}


class _Loads:
    """See `roles.VisitLoads`."""

    def __init__(
        self, kernel: GradientKernel, loads: list[Any], staged: list[Any], barriers: Any, place: _Place
    ) -> None:
        self.kernel, self.barriers, self.place = kernel, barriers, place
        p = kernel.point
        sizes = (p.tile_m, p.tile_m, p.tile_n, p.tile_n)
        self.copies = []
        for i, (n, width) in enumerate(zip(sizes, (p.depth, p.columns) * 2, strict=True)):
            tma, tensor = loads[2 * i], loads[2 * i + 1]
            parts = cute.local_tile(tensor, (n, width), (None,) * cute.rank(tensor))
            to, source = cpasync.tma_partition(
                tma, 0, cute.make_layout(1), cute.group_modes(staged[i], 0, 2), cute.group_modes(parts, 0, 2)
            )
            self.copies.append((tma, to, source, n * width * 2))

    def wait(self, barrier: Any, parity: Any) -> None:
        cute.arch.mbarrier_wait(self.barriers + barrier, parity)

    def own(self, barrier: Any) -> None:
        self._fetch([(i, self.place.tile) for i in _OWN], self.place.indices, 0, barrier)

    def visit(self, turn: Any, stage: Any, barrier: Any) -> None:
        tile, indices = self.place.visit(turn)
        own = [] if self.kernel.holds else [(i, self.place.tile) for i in _OWN]
        self._fetch([*own, *((i, tile) for i in _VISITED)], indices, stage, barrier)

    def _fetch(self, which: list[tuple[int, Any]], indices: dict[int, Any], stage: Any, barrier: Any) -> None:
        pointer, size = self.barriers + barrier, sum(self.copies[i][3] for i, _ in which)
        when(cute.arch.lane_idx() == 0, lambda: cute.arch.mbarrier_arrive_and_expect_tx(pointer, size))
        for i, tile in which:
            tma, to, source, _ = self.copies[i]
            layers = self.kernel.factors[i][0]
            layer = layer_of(tuple(step for step in layers.batch if step.size > 1), indices)
            cute.copy(tma, source[(None, tile, 0, *layer)], to[(None, stage)], tma_bar_ptr=pointer)


class _Products:
    """See `roles.VisitProducts`. Of a warpgroup, from the first product to what is written."""

    def __init__(
        self, kernel: GradientKernel, products: list[Any], tiles: tuple[list[Any], list[Any]], barriers: Any,
        place: _Place, operands: list[Any],
    ) -> None:  # fmt: skip
        self.kernel, self.products, self.barriers = kernel, products, barriers
        self.place, self.operands = place, operands
        p, role = kernel.point, kernel.role
        staged, across = tiles
        group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 128) - 1
        by_group = [mma.get_slice(cute.make_layout(p.groups, stride=128)(group)) for mma in products]
        self.own = [products[0].make_fragment_A(by_group[0].partition_A(staged[i])) for i in _OWN]
        self.visited = [products[0].make_fragment_B(by_group[0].partition_B(staged[i])) for i in _VISITED]
        self.across = [
            products[1 + i].make_fragment_B(by_group[1 + i].partition_B(across[i])) for i in range(len(across))
        ]

        def tile(width: int) -> Any:
            return cute.make_rmem_tensor(cute.make_layout(((2, 2, width // 8), 1, 1)), Float32)

        self.scores = tile(p.tile_n)
        self.gradients: Any = tile(p.tile_n) if kernel.needs_gradient else None
        self.results = [tile((p.depth, p.columns)[made]) for made in role.makes]
        self.factors = [cute.make_rmem_tensor(((2, 2, 2), 1, p.tile_n // 16), kernel.kind) for _ in role.makes]
        self.added: Any = tile(p.tile_n) if role.further >= 0 else None
        for result in (*self.results, *(() if self.added is None else (self.added,))):
            result.fill(0.0)
        lane = cute.arch.lane_idx()
        row = place.tile * p.tile_m + group * 64 + cute.arch.warp_idx() % 4 * 16 + lane // 4
        self.rows = [row, row + 8]
        self.column = lane % 4 * 2

    def wait(self, barrier: Any, parity: Any) -> None:
        cute.arch.mbarrier_wait(self.barriers + barrier, parity)

    def free(self, barrier: Any) -> None:
        pointer = self.barriers + barrier
        when(cute.arch.lane_idx() == 0, lambda: cute.arch.mbarrier_arrive(pointer))

    def begin(self, stage: Any) -> None:
        at = 0 if self.kernel.holds else stage
        for total, own, visited in zip((self.scores, self.gradients), self.own, self.visited, strict=True):
            if total is not None:
                pairs = [(own[(None, 0, k, at)], visited[(None, 0, k, stage)]) for k in range(cute.size(own, mode=[2]))]
                self._chain(self.products[0], total, pairs, onto=False)

    def begin_results(self, stage: Any) -> None:
        for made, factor, result in zip(self.kernel.role.makes, self.factors, self.results, strict=True):
            across = self.across[made]
            pairs = [(factor[(None, 0, k)], across[(None, 0, k, stage)]) for k in range(cute.size(across, mode=[2]))]
            self._chain(self.products[1 + made], result, pairs, onto=True)

    @staticmethod
    def _chain(mma: Any, total: Any, factors: list[tuple[Any, Any]], *, onto: bool) -> None:
        atom = cute.make_mma_atom(mma.op)
        warpgroup.fence()
        atom.set(warpgroup.Field.ACCUMULATE, onto)
        for left, right in factors:
            cute.mma_atom_call(atom, total[(None, 0, 0)], left, right, total[(None, 0, 0)])
            atom.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()

    def settle(self) -> None:
        warpgroup.wait_group(0)

    def map(self, turn: Any) -> None:
        kernel, order = self.kernel, self.kernel.order
        tile, indices = self.place.visit(turn)
        at = (indices, self.rows, tile * kernel.point.tile_n + self.column)
        tiles = (self.scores, self.gradients, self.added)
        apply = partial(kernel.map.apply, tiles, at, self.operands, further=kernel.role.further)
        if order.masks:
            first, last = order.unmasked(self.place.tile, m.smaller, m.larger)
            inner = m.both(tile >= first, tile < last)
            when(inner, partial(apply, masked=False))
            when(m.negated(inner), partial(apply, masked=True))
        else:
            apply(masked=True)
        kind = "bf16" if kernel.kind is BFloat16 else "f16"
        for made, factor in zip(kernel.role.makes, self.factors, strict=True):
            source, words = (self.gradients, self.scores)[made], cute.recast_tensor(factor, Int32)
            for i in range(cute.size(source) // 2):
                words[i] = word(source[2 * i], source[2 * i + 1], kind)

    def finish(self, outs: list[Any]) -> None:
        """Write what lies inside."""
        count = self.kernel.order.shape.rows
        for r in range(ROWS):
            when(self.rows[r] < count, partial(self._write, outs, r))

    def _write(self, outs: list[Any], r: int) -> None:
        kernel, s = self.kernel, self.kernel.shape
        line = Int64(self.place.layer) * kernel.order.shape.rows + self.rows[r]
        for made, result, out in zip(kernel.role.makes, self.results, outs, strict=False):
            width = (s.depth, s.columns)[made]
            for block in range(width // 8):
                held = cute.make_rmem_tensor((2,), out.element_type)
                for c in range(2):
                    held[c] = m.stored(result[4 * block + 2 * r + c], kernel.dtype)
                spot = out.iterator + (line * width + (block * 8 + self.column))
                cute.autovec_copy(
                    held, cute.make_tensor(spot.align(2 * ITEM_BYTES[kernel.dtype]), cute.make_layout((2,)))
                )
        if self.added is not None:
            self._write_further(outs[0], r, line)

    def _write_further(self, out: Any, r: int, line: Any) -> None:
        keys, first = self.kernel.shape.keys, self.place.column_tile * self.kernel.point.tile_n + self.column
        for i in range(self.kernel.point.tile_n // 8 * 2):
            column = first + (i // 2 * 8 + i % 2)
            value = self.added[i // 2 * 4 + 2 * r + i % 2]
            spot = cute.make_tensor(out.iterator + (line * keys + column), cute.make_layout((1,)))
            when(column < keys, partial(self._store, spot, value))

    def _store(self, spot: Any, value: Any) -> None:
        spot[0] = m.stored(value, self.kernel.dtype)
