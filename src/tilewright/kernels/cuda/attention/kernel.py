"""Attention's kernel (sm_90a).

    CTA             64 `groups` queries of one of the batch; it visits tiles of `tile_n` keys
    warp 0          loads: queries once, keys and values in rings of stages, by TMA
    warpgroups 1 .. 64 queries each: S = Q K^T (wgmma, both from shared memory); the module's map of scores and the
                    online softmax in registers; O += P V (wgmma, P from registers: a thread's sums of S are its factors
                    of P)

Who waits for whom: `protocol`. Which tiles are visited, and in which order: `order`. A thread holds rows r and r + 8 of
its warp's 16, and of every 8 columns the two from 2 (lane % 4) on.

In `fp16x3` each factor is two fp16 planes, hi and lo of numbers that a power of two has scaled; hi lo, lo hi and hi hi
are added up by the tensor cores over one tile, and tiles are added in fp32 registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import cutlass
from cutlass import BFloat16, Float16, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ..common import math as m
from ..common.control import loop, when
from ..common.views import ITEM_BYTES
from ..conv.kernel import scale_exponent
from ..gemm.epilogue.epilogue import power_of_two
from ..gemm.mainloop.two_level import kept
from .combine import parts_of
from .order import TileOrder
from .planes import split_words, word
from .protocol import RingProtocol
from .scores import ScoreMap
from .shape import AttentionShape, Layers, layer_number, layer_of
from .softmax import LOG2_E, ROWS, OnlineScale, OnlineSoftmax, row_of
from .tiles import AttentionPoint
from .visits import Visits

SHIFT = 15  # of fp16x3: weights are at most 2^SHIFT, so that lo reaches far below the largest
MOST_SHIFT = 126  # of an exponent
PLANES = ((0, 1), (1, 0), (0, 0))  # products of fp16x3, small terms first


@dataclass(frozen=True, slots=True, kw_only=True)
class Normaliser:
    """What makes weights of scores: softmax, or nothing. A row whose scores are all minus infinity gives 0 where
    `empty_is_zero`. `sink`: the operand that is the score of one key more, whose value is 0; "": none."""

    softmax: bool = True
    empty_is_zero: bool = False
    sink: str = ""


def is_flagged(shape: AttentionShape, point: AttentionPoint) -> bool:
    """Whether what a tile hides may be left out only where its values are finite."""
    return not shape.spares and point.skips


def has_lists(shape: AttentionShape, point: AttentionPoint) -> bool:
    """Whether lists say which tiles are visited; else diagonals do."""
    return shape.sparse is not None and point.skips


def order_of(shape: AttentionShape, point: AttentionPoint) -> TileOrder:
    """Of tiles that a CTA visits where values are finite, or need not be."""
    own = replace(shape, spares=shape.spares or point.skips)
    return TileOrder(shape=own, tile_m=point.tile_m, tile_n=point.tile_n, item=2 * point.planes)


class AttentionKernel:
    """An AttentionShape at an AttentionPoint, ready to be traced. `strides`: of query, key and value, or of one of
    their planes. `scale`: what the products are multiplied with before anything else. Results have `dtype`; where CTAs
    share keys they are fp32, and a part's zeros where it saw nothing. `sink`: the operand that is one score more."""

    def __init__(
        self, shape: AttentionShape, point: AttentionPoint, scores: ScoreMap, *, dtype: str,
        strides: Sequence[tuple[int, ...]], scale: float, normaliser: Normaliser,
    ) -> None:  # fmt: skip
        self.shape, self.point, self.scores = shape, point, scores
        self.dtype = "f32" if point.splits > 1 else dtype
        self.strides, self.scale, self.softmax = tuple(strides), scale, normaliser.softmax
        self.empty_is_zero = normaliser.empty_is_zero or point.splits > 1
        self.sink = normaliser.sink
        self.kind = BFloat16 if dtype == "bf16" else Float16
        self.order = order_of(shape, point)
        self.flagged = is_flagged(shape, point)
        self.protocol = RingProtocol(stages=point.stages)
        self.products = PLANES if point.planes == 2 else ((0, 0),)

    def launch(self, factors: Sequence[Any], outs: Sequence[Any], operands: Sequence[Any], more: Sequence[Any],
               stream: Any) -> None:  # fmt: skip
        """Emit the launch. `outs`: the results, and the logarithms of the sums, if these are wanted; `more`: of fp16x3
        the largest magnitudes of query, key and value, then the lists of tiles, if they are skipped, then which layers
        of the value are not finite, if that counts."""
        p = self.point
        views = [
            self._view(tensor, layers, strides, width)
            for tensor, layers, strides, width in zip(
                factors, (self.shape.query, self.shape.key, self.shape.value), self.strides,
                (self.shape.depth, self.shape.depth, self.shape.columns), strict=True,
            )
        ]  # fmt: skip
        views[2] = _swapped(views[2])
        whole = (p.tile_m, p.tile_n, p.depth)
        rows, columns = LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR
        layouts = [
            hopper_helpers.make_smem_layout_a(rows, whole, self.kind, p.planes),
            hopper_helpers.make_smem_layout_b(rows, whole, self.kind, p.stages * p.planes),
            hopper_helpers.make_smem_layout_b(columns, (p.tile_m, p.columns, p.tile_n), self.kind, p.stages * p.planes),
        ]
        tiles = ((p.tile_m, p.depth), (p.tile_n, p.depth), (p.columns, p.tile_n))
        loads = [
            x
            for view, layout, tile in zip(views, layouts, tiles, strict=True)
            for x in cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileG2SOp(), view, cute.slice_(layout, (None, None, 0)), tile, num_multicast=1
            )
        ]
        major = OperandMajorMode.K
        products = [
            hopper_helpers.make_trivial_tiled_mma(
                self.kind, self.kind, major, major, Float32, (p.groups, 1, 1), tiler_mn=(64, p.tile_n)
            ),
            hopper_helpers.make_trivial_tiled_mma(
                self.kind, self.kind, major, OperandMajorMode.MN, Float32, (p.groups, 1, 1),
                tiler_mn=(64, p.columns), a_source=warpgroup.OperandSource.RMEM,
            ),
        ]  # fmt: skip
        kernel = self._kernel(loads, list(outs), list(operands), list(more), products, layouts)
        kernel.launch(
            grid=[self.order.work * p.splits, 1, 1], block=[p.threads, 1, 1], min_blocks_per_mp=1, stream=stream
        )

    def _view(self, tensor: Any, layers: Layers, strides: tuple[int, ...], width: int) -> Any:
        """A factor as (rows, columns, planes, batch ..), of which those of size 1 are left out."""
        sizes = [step.size for step in layers.batch]
        *outer, _ = strides
        row = (1, width)  # TMA wants a step of whole 16 bytes there, too
        if layers.at is not None:
            own = self.shape.rows if layers is self.shape.query else self.shape.keys
            row = (own, outer.pop(layers.at))
        apart = [(self.point.planes, self._apart(layers))] if self.point.planes > 1 else []
        modes = [row, (width, 1), *apart, *((n, step) for n, step in zip(sizes, outer, strict=True) if n > 1)]
        shape, steps = zip(*modes, strict=True)
        return cute.make_tensor(tensor.iterator, cute.make_layout(shape, stride=steps))

    def _apart(self, layers: Layers) -> int:
        """Elements from a plane to the next: planes are contiguous."""
        width = self.shape.columns if layers is self.shape.value else self.shape.depth
        rows = 1 if layers.at is None else self.shape.rows if layers is self.shape.query else self.shape.keys
        found = rows * width
        for step in layers.batch:
            found *= step.size
        return found

    @cute.kernel
    def _kernel(self, loads: list, outs: list, operands: list, more: list, products: list, layouts: list) -> None:
        p = self.point
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        shared = SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, self.protocol.barriers)
        staged = [
            shared.allocate_tensor(self.kind, layout.outer, byte_alignment=1024, swizzle=layout.inner)
            for layout in layouts
        ]
        when(cute.arch.thread_idx()[0] == 0, partial(self._make_barriers, barriers))
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        number, part = parts_of(Int32(cute.arch.block_idx()[0]), p.splits)
        tile, number = self.order.place(number, m.smaller)
        indices = self.shape.indices(number)
        lists, infinite = self._tables(more)
        visits = Visits(self.order, (tile, indices), lists, infinite, (part, p.splits))
        if warp < 4:
            cute.arch.setmaxregister_decrease(p.registers[0])
            if warp == 0:
                self.protocol.load(_Loads(self, loads, staged, barriers, visits, indices), visits.span, loop)
        else:
            cute.arch.setmaxregister_increase(p.registers[1])
            own = _Products(self, products, staged, barriers, (visits, part, indices), operands, more)
            self.protocol.multiply(own, visits.span, loop)
            own.finish(outs)

    def _tables(self, more: Sequence[Any]) -> tuple[Any, Any]:
        """The lists of tiles, and the layers that are not finite; None for what there is not."""
        own = list(more[3 if self.point.planes == 2 else 0 :])
        return own.pop(0) if has_lists(self.shape, self.point) else None, own.pop(0) if self.flagged else None

    def _make_barriers(self, barriers: Any) -> None:
        for number, count in enumerate(self.protocol.arrivals(4 * self.point.groups)):
            cute.arch.mbarrier_init(barriers + number, count)


def _swapped(view: Any) -> Any:
    """A factor with its columns first."""
    order = (1, 0, *range(2, cute.rank(view)))
    return cute.make_tensor(view.iterator, cute.select(view.layout, mode=list(order)))


class _Loads:
    """See `protocol.LoadingRole`."""

    def __init__(
        self, kernel: AttentionKernel, loads: list[Any], staged: list[Any], barriers: Any, visits: Visits,
        indices: dict[int, Any],
    ) -> None:  # fmt: skip
        self.kernel, self.barriers, self.visits = kernel, barriers, visits
        s, p = kernel.shape, kernel.point
        tiles = ((p.tile_m, p.depth), (p.tile_n, p.depth), (p.columns, p.tile_n))
        self.copies = []
        for i, (layers, tile) in enumerate(zip((s.query, s.key, s.value), tiles, strict=True)):
            tma, tensor = loads[2 * i], loads[2 * i + 1]
            parts = cute.local_tile(tensor, tile, (None,) * cute.rank(tensor))
            to, source = cpasync.tma_partition(
                tma, 0, cute.make_layout(1), cute.group_modes(staged[i], 0, 2), cute.group_modes(parts, 0, 2)
            )
            kept_steps = tuple(step for step in layers.batch if step.size > 1)
            self.copies.append((tma, to, source, layer_of(kept_steps, indices)))

    def wait(self, barrier: Any, parity: Any) -> None:
        cute.arch.mbarrier_wait(self.barriers + barrier, parity)

    def queries(self, barrier: Any) -> None:
        self._fetch(0, (self.visits.tile, 0), 0, (self.kernel.point.query_bytes, barrier))

    def keys(self, tile: Any, stage: Any, barrier: Any) -> None:
        self._fetch(1, (self.visits.tile_of(tile), 0), stage, (self.kernel.point.key_bytes, barrier))

    def values(self, tile: Any, stage: Any, barrier: Any) -> None:
        self._fetch(2, (0, self.visits.tile_of(tile)), stage, (self.kernel.point.value_bytes, barrier))

    def _fetch(self, which: int, at: tuple[Any, Any], stage: Any, signal: tuple[int, Any]) -> None:
        size, barrier = signal
        pointer = self.barriers + barrier
        when(cute.arch.lane_idx() == 0, lambda: cute.arch.mbarrier_arrive_and_expect_tx(pointer, size))
        tma, to, source, layer = self.copies[which]
        planes = self.kernel.point.planes
        for plane in range(planes):
            own = (plane,) if planes > 1 else ()
            cute.copy(
                tma, source[(None, *at, *own, *layer)], to[(None, stage * planes + plane)], tma_bar_ptr=pointer
            )  # fmt: skip


class _Products:
    """See `protocol.MultiplyingRole`. Of a warpgroup, from the first product to what is written."""

    def __init__(
        self, kernel: AttentionKernel, products: list[Any], staged: list[Any], barriers: Any,
        at: tuple[Any, Any, dict[int, Any]], operands: list[Any], more: list[Any],
    ) -> None:  # fmt: skip
        self.kernel, self.barriers, self.operands = kernel, barriers, operands
        p = kernel.point
        self.visits, self.part, self.indices = at
        thread = cute.arch.thread_idx()[0]
        group = cute.arch.make_warp_uniform(thread // 128) - 1
        by_group = [mma.get_slice(cute.make_layout(p.groups, stride=128)(group)) for mma in products]
        self.query = products[0].make_fragment_A(by_group[0].partition_A(staged[0]))
        self.key = products[0].make_fragment_B(by_group[0].partition_B(staged[1]))
        self.value = products[1].make_fragment_B(by_group[1].partition_B(staged[2]))
        self.products = products
        self.sums = cute.make_rmem_tensor(cute.make_layout(((2, 2, p.tile_n // 8), 1, 1)), Float32)
        result = cute.make_layout(((2, 2, p.columns // 8), 1, 1))
        self.results = cute.make_rmem_tensor(result, Float32)
        self.results.fill(0.0)
        self.wave = self.results
        if p.planes == 2:
            self.wave = cute.make_rmem_tensor(result, Float32)
            self.wave.fill(0.0)
        self.weights = [cute.make_rmem_tensor(((2, 2, 2), 1, p.tile_n // 16), kernel.kind) for _ in range(p.planes)]
        lane = cute.arch.lane_idx()
        row = self.visits.tile * p.tile_m + group * 64 + cute.arch.warp_idx() % 4 * 16 + lane // 4
        self.rows = [row, row + 8]
        self.column = lane % 4 * 2
        factor: Any = Float32(kernel.scale * LOG2_E)
        self.inverse: Any = None
        self.before: Any = None  # what products are multiplied with before the map of scores
        if p.planes == 2:
            scale, self.inverse = self._scales(more)
            if (
                kernel.scores.inner is None and kernel.softmax
            ):  # masks alone: any factor that is positive leaves them as they are
                factor = factor * scale
            else:
                self.before = scale
        self.softmax: Any = OnlineScale() if p.planes == 2 else None
        if kernel.softmax:
            self.softmax = OnlineSoftmax(factor, shift=SHIFT if p.planes == 2 else 0)

    def _scales(self, more: list[Any]) -> tuple[Any, Any]:
        """What undoes the scaling of query and key in a score, and that of the value in a result."""
        s = self.kernel.shape
        exponents = []
        for layers, largest in zip((s.query, s.key, s.value), more, strict=False):
            exponents.append(scale_exponent(largest[layer_number(layers.batch, self.indices)]))
        query, key, value = exponents
        both = cutlass.max(cutlass.min(-(query + key), Int32(MOST_SHIFT)), Int32(-MOST_SHIFT))
        return power_of_two(both), power_of_two(-value)

    def wait(self, barrier: Any, parity: Any) -> None:
        cute.arch.mbarrier_wait(self.barriers + barrier, parity)

    def free(self, barrier: Any) -> None:
        pointer = self.barriers + barrier
        when(cute.arch.lane_idx() == 0, lambda: cute.arch.mbarrier_arrive(pointer))

    def begin_scores(self, stage: Any) -> None:
        planes = self.kernel.point.planes
        self._chain(self.products[0], self.sums, [
            (self.query[(None, 0, k, a)], self.key[(None, 0, k, stage * planes + b)])
            for a, b in self.kernel.products for k in range(cute.size(self.query, mode=[2]))
        ], onto=False)  # fmt: skip

    def begin_results(self, stage: Any) -> None:
        planes = self.kernel.point.planes
        self._chain(self.products[1], self.wave, [
            (self.weights[a][(None, 0, k)], self.value[(None, 0, k, stage * planes + b)])
            for a, b in self.kernel.products for k in range(cute.size(self.value, mode=[2]))
        ], onto=planes == 1)  # fmt: skip

    @staticmethod
    def _chain(mma: Any, total: Any, factors: list[tuple[Any, Any]], *, onto: bool) -> None:
        atom = cute.make_mma_atom(mma.op)
        warpgroup.fence()
        atom.set(warpgroup.Field.ACCUMULATE, onto)
        for left, right in factors:
            cute.mma_atom_call(atom, total[(None, 0, 0)], left, right, total[(None, 0, 0)])
            atom.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()

    def settle(self, pending: int) -> None:
        warpgroup.wait_group(pending)

    def weigh(self, tile: Any) -> None:
        kernel = self.kernel
        at = (self.indices, self.rows, self.visits.tile_of(tile) * kernel.point.tile_n + self.column)
        apply = partial(kernel.scores.apply, self.sums, at, self.operands, scale=self.before)
        kept = self.visits.kept(tile)
        if kept is None:
            apply(masked=True)
        else:
            when(kept, partial(apply, masked=False))
            when(m.negated(kept), partial(apply, masked=True))
        if self.softmax is not None:
            self.softmax.weigh(self.sums)

    def rescale(self) -> None:
        if self.softmax is not None:
            for i in range(cute.size(self.results)):
                if self.kernel.point.planes == 2:
                    self.results[i] = kept("add.rn.f32 $0, $1, $2;", "=f,f,f", self.results[i], self.wave[i])
                self.results[i] = self.results[i] * self.softmax.onto[row_of(i)]
        words = [cute.recast_tensor(w, Int32) for w in self.weights]
        for i in range(cute.size(self.sums) // 2):
            pair = (self.sums[2 * i], self.sums[2 * i + 1])
            if self.kernel.point.planes == 2:
                words[0][i], words[1][i] = split_words(*pair)
            else:
                words[0][i] = word(*pair, "bf16" if self.kernel.kind is BFloat16 else "f16")

    def finish(self, outs: list[Any]) -> None:
        """Write the results that lie inside."""
        kernel, s = self.kernel, self.kernel.shape
        for r in range(ROWS):
            by, logarithm = None, None
            if self.softmax is not None:
                sink = _sink_of(self, self.rows[r]) if kernel.sink else None
                by, logarithm = self.softmax.finish(r, empty_is_zero=kernel.empty_is_zero, sink=sink)
            if self.inverse is not None:
                by = self.inverse if by is None else by * self.inverse
            when(self.rows[r] < s.rows, partial(self._write, outs, r, by, logarithm))

    def _write(self, outs: list[Any], r: int, by: Any, logarithm: Any) -> None:
        s, dtype = self.kernel.shape, self.kernel.dtype
        start, step = Int64(self.part) * prod(s.domain), 1
        of_row, row_step = Int64(self.part) * prod(s.domain[:-1]), 1
        for d in reversed(range(len(s.domain))):
            index = self.rows[r] if d == s.row else self.indices.get(d)
            if index is not None:
                start = start + Int64(index) * step
                of_row = of_row + Int64(index) * row_step
                row_step *= s.domain[d]
            step *= s.domain[d]
        for block in range(s.columns // 8):
            own = [self.results[4 * block + 2 * r + c] for c in range(2)]
            if self.wave is not self.results:
                own = [x + self.wave[4 * block + 2 * r + c] for c, x in enumerate(own)]
            held = cute.make_rmem_tensor((2,), outs[0].element_type)
            for c in range(2):
                held[c] = m.stored(own[c] if by is None else own[c] * by, dtype)
            spot = outs[0].iterator + (start + (block * 8 + self.column))
            cute.autovec_copy(held, cute.make_tensor(spot.align(2 * ITEM_BYTES[dtype]), cute.make_layout((2,))))
        if len(outs) > 1 and logarithm is not None:
            spot = cute.make_tensor(outs[1].iterator + of_row, cute.make_layout((1,)))
            spot[0] = logarithm


def _sink_of(products: _Products, row: Any) -> Any:
    """A row's sink, which the first part counts."""
    kernel = products.kernel
    found = kernel.scores.sink(kernel.sink, {**products.indices, kernel.shape.row: row}, products.operands)
    return found if kernel.point.splits == 1 else m.select(products.part == 0, found, Float32(float("-inf")))
