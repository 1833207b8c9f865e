"""What kernels of a convolution have in common (sm_90a): who does what, and how the sums leave.

    first warps          gather rows of the product into stages of shared memory: `_fill`
    thread 0             fetches the weights, which `prepare` has packed as shared memory has them: once, if they are
                         resident, else into the same stages
    last two warpgroups  wgmma on a stage once it is full, 64 rows each (several times): `_chain`; then the epilogue,
                         straight to the output's rows

CTAs are persistent: each takes tiles of rows, and of columns of one group, as far apart as there are CTAs. fp16x3 adds
hi*lo, lo*hi and hi*hi up in the tensor cores over a stage, and that to an fp32 sum in registers.

An fp32 number is scaled by the power of two that puts the largest of its sample into [2^14, 2^15), a weight by that of
its output channel, and the sum is scaled back; so fp16 reaches to 2^-39 of the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cutlass
from cutlass import BFloat16, Float16, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.utils import hopper_helpers

from ..common.control import when
from ..gemm.epilogue.epilogue import power_of_two
from ..gemm.fp32.pair import exponent_of
from ..gemm.mainloop.two_level import promote
from .epilogue import ConvEpilogue
from .ptx import copy_bulk
from .shape import ConvShape
from .sums import Sums
from .tiles import CONSUMERS, ConvPoint

_LARGEST_SHIFT = 126


def scale_exponent(bits: Any) -> Any:
    """The exponent of the power of two by which what has this largest magnitude is scaled."""
    return cutlass.max(cutlass.min(exponent_of(bits), Int32(_LARGEST_SHIFT)), Int32(-_LARGEST_SHIFT))


def arrive(barrier: Any) -> None:
    """One of a warp, for all of it."""
    when(cute.arch.lane_idx() == 0, lambda: cute.arch.mbarrier_arrive(barrier))


def product_of(kind: Any, abreast: int, columns: int) -> Any:
    """A tiled wgmma of 64 rows of each of so many warpgroups."""
    major = OperandMajorMode.K
    return hopper_helpers.make_trivial_tiled_mma(
        kind, kind, major, major, Float32, (abreast, 1, 1), tiler_mn=(64, columns)
    )


def blocks_of(kernel: ConvKernel) -> int:
    """A kernel's tiles of rows; where a chunk of neighbours belongs to one tile of columns, with the last one whole."""
    blocks, chunk = -(-kernel.rows // kernel.point.pixels), kernel.finish.together
    return blocks if kernel.tiles == 1 else -(-blocks // chunk) * chunk


def place_of(kernel: ConvKernel, work: Any) -> tuple[Any, Any]:
    """The number of a tile's columns, and of its rows."""
    if kernel.finish.together == 1 or kernel.tiles == 1:
        return work % kernel.tiles, work // kernel.tiles
    return work // blocks_of(kernel), work % blocks_of(kernel)


def following(work: Any, stride: Any, chunk: int) -> Any:
    """The tile after this one of a CTA, which takes chunks of so many neighbours, `stride` chunks apart."""
    if chunk == 1:
        return work + stride
    return work + 1 + Int32((work + 1) % chunk == 0) * ((stride - 1) * chunk)


def _copy(size: int, packed: Any, s_b: Any, numbers: tuple[Any, Any], barrier: Any) -> None:
    """A step's weights, so many bytes: from their number in memory to that in shared memory."""
    source = packed.iterator.toint() + Int64(numbers[0]) * size
    target = Int32(s_b.iterator.toint()) + numbers[1] * size
    copy_bulk(target, source, size, Int32(barrier.toint()))


class ConvKernel:
    """A ConvShape at a ConvPoint for inputs of one type, ready to be traced. `walk`: the strides of x along (sample,
    group, channel, three spatial dimensions)."""

    rows: int  # of the product
    steps: int  # stages of a tile
    tail = 0  # ATOMs of the last step, where it is shorter than the others
    abreast: int  # warpgroups that a wgmma of the tile is cut into

    def __init__(self, shape: ConvShape, point: ConvPoint, finish: ConvEpilogue, *, dtype: str, walk: Any) -> None:
        self.shape, self.point, self.finish, self.walk = shape, point, finish, tuple(walk)
        self.scaled = dtype == "f32"
        self.kind = BFloat16 if dtype == "bf16" else Float16
        self.item = 4 if self.scaled else 2
        self.tiles = point.tiles * shape.groups  # of columns
        self.sums = Sums(columns=point.columns)

    def launch(self, tensors: tuple[Any, ...], outs: list[Any], operands: list[Any], ctas: Any, stream: Any) -> None:
        """Emit the launch. `tensors`: x, packed weights, magnitudes of the samples, factors of the channels."""
        p = self.point
        self.all_work = blocks_of(self) * self.tiles
        mma = product_of(self.kind, self.abreast, p.columns)
        kernel = self._kernel(list(tensors), outs, operands, mma, self._layouts())
        grid = [cutlass.min(ctas, Int32(-(-self.all_work // self.finish.together))), 1, 1]
        kernel.launch(grid=grid, block=[p.threads, 1, 1], min_blocks_per_mp=1, stream=stream)

    @cute.kernel
    def _kernel(self, given: list, outs: list, operands: list, mma: cute.TiledMma, layouts: list) -> None:
        p = self.point
        x, packed, highest, factors = given
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        shared = SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 * p.stages + 1)
        s_a, s_b = self._memory(shared, layouts)
        when(thread == 0, partial(self._make_barriers, barriers))
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        first = cute.arch.block_idx()[0]
        first = first if self.finish.together == 1 else first * self.finish.together
        stride = cute.arch.grid_dim()[0]
        if warp < p.producers // 32:
            cute.arch.setmaxregister_decrease(p.registers[0])
            when(thread == 0, partial(self._fetch_resident, barriers, packed, s_b))
            work = first
            turn = Int32(0)
            while work < self.all_work:
                tile, block = place_of(self, work)
                state = self._state(x, highest, (block * p.pixels, tile // p.tiles), thread)
                self._fill_all(barriers, s_a, state, partial(self._fetch, barriers, packed, s_b, tile, thread), turn)
                turn += self.steps
                work = following(work, stride, self.finish.together)
        else:
            cute.arch.setmaxregister_increase(p.registers[1])
            group = warp // 4 - p.producers // 128
            fragments = self._fragments(mma, s_a, s_b, group)
            sums = [self.sums.make() for _ in range(p.parts)]
            waves = self.sums.make()
            carried = self.finish.carried()
            multiply = partial(self._multiply, partial(self._chain, (mma, fragments, group)), barriers, sums, waves)
            if cutlass.const_expr(p.resident):
                cute.arch.mbarrier_wait(barriers + 2 * p.stages, 0)
            work = first
            turn = Int32(0)
            while work < self.all_work:
                for part in cutlass.range_constexpr(p.parts):
                    self.sums.clear(sums[part])
                for step in cutlass.range(self.steps - (self.tail > 0), unroll=1):
                    multiply(step, turn + step, last=False)
                if cutlass.const_expr(self.tail > 0):
                    multiply(self.steps - 1, turn + (self.steps - 1), last=True)
                if cutlass.const_expr(p.planes == 1):
                    warpgroup.wait_group(0)
                    self._free(barriers, turn + (self.steps - 1))
                self._finish(sums, (work, group, carried), (highest, factors), outs, operands)
                turn += self.steps
                work = following(work, stride, self.finish.together)

    # ---- what a kind of kernel does in its own way

    _layouts: Callable[..., list[Any]]  # of the stages of rows, and of the weights that are held
    _memory: Callable[..., tuple[Any, Any]]  # both in shared memory
    _fragments: Callable[..., tuple[Any, Any]]  # as wgmma reads both
    _state: Callable[..., Any]  # of a thread that gathers, in a tile
    _fill_all: Callable[..., None]  # gathers all steps of it, from a turn on, each with what `fetch` does of it
    _chain: Callable[..., None]  # the wgmma of a step for a part of the rows
    _output: Callable[..., tuple[Any, Any]]  # the pixel of a row, and whether it is an output's

    # ---- barriers

    def _make_barriers(self, barriers: Any) -> None:
        p = self.point
        for stage in range(p.stages):
            cute.arch.mbarrier_init(barriers + stage, p.producers // 32 + (0 if p.resident else 1))
            cute.arch.mbarrier_init(barriers + p.stages + stage, CONSUMERS // 32)
        cute.arch.mbarrier_init(barriers + 2 * p.stages, 1)

    def _stage(self, turn: Any) -> tuple[Any, Any]:
        """The stage of a step that is number `turn` of the CTA's, and how often it has gone round, modulo 2."""
        return turn % self.point.stages, turn // self.point.stages % 2

    def _await_free(self, barriers: Any, turn: Any) -> None:
        """The stage of this step may be written."""
        stage, phase = self._stage(turn)
        cute.arch.mbarrier_wait(barriers + (self.point.stages + stage), phase ^ 1)

    def _free(self, barriers: Any, turn: Any) -> None:
        """A warp that multiplies is through with a stage."""
        arrive(barriers + (self.point.stages + self._stage(turn)[0]))

    # ---- weights

    def _fetch_resident(self, barriers: Any, packed: Any, s_b: Any) -> None:
        p = self.point
        if not p.resident:
            return
        barrier = barriers + 2 * p.stages
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, p.weight_bytes * self.steps)
        for step in range(self.steps):
            _copy(p.weight_bytes, packed, s_b, (step, step), barrier)

    def _fetch(self, barriers: Any, packed: Any, s_b: Any, tile: Any, thread: Any, step: Any, turn: Any) -> None:
        """The weights of a step into their stage, once that is free."""
        p = self.point
        if p.resident:
            return
        stage, _ = self._stage(turn)

        def fetch() -> None:
            self._await_free(barriers, turn)
            cute.arch.mbarrier_arrive_and_expect_tx(barriers + stage, p.weight_bytes)
            _copy(p.weight_bytes, packed, s_b, (tile * self.steps + step, stage), barriers + stage)

        when(thread == 0, fetch)

    # ---- products and what comes out

    def _multiply(
        self, chain: Any, barriers: Any, sums: list[Any], waves: list[Any], step: Any, turn: Any, *, last: bool
    ) -> None:
        """A step, for all parts."""
        p = self.point
        stage, phase = self._stage(turn)
        cute.arch.mbarrier_wait(barriers + stage, phase)
        if p.planes == 1:
            warpgroup.fence()
            for part, totals in enumerate(sums):
                chain(dict(enumerate(totals)), (part, stage, step), onto=True, last=last)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            when(Int32(step) > 0, partial(self._free, barriers, turn - 1))
            return
        for part, totals in enumerate(sums):
            for block, (total, wave) in enumerate(zip(totals, waves, strict=True)):
                warpgroup.fence()
                chain({block: wave}, (part, stage, step), onto=False, last=last)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                promote(total, wave)
        self._free(barriers, turn)

    def _finish(
        self, sums: list[Any], turn: tuple[Any, Any, list[Any]], scales: tuple[Any, Any], outs: list[Any],
        operands: list[Any],
    ) -> None:  # fmt: skip
        """Scale the sums back and write what the epilogue makes of them. `turn`: the tile, the warpgroup, and what the
        thread keeps from one tile to the next."""
        p, (work, group, carried) = self.point, turn
        rows = self._rows(sums, work, group, scales)
        more: Any = None
        if carried:
            block, blocks = place_of(self, work)[1], -(-self.rows // p.pixels)
            number = block * p.pixels
            first, last = self._output(number)[0][0], self._output(number + (p.pixels - 1))[0][0]
            if blocks_of(self) > blocks:  # no sample is behind the last
                last = last - Int32(block >= blocks) * (last - first + 1)
            warp = group * 4 + cute.arch.warp_idx() % 4
            more = block, warp, carried, (first, last), self.rows // self.shape.batch, blocks
        self.finish.tile(rows, more, outs, operands, p.columns * p.tiles > self.shape.columns)

    def _rows(self, sums: list[Any], work: Any, group: Any, scales: tuple[Any, Any]) -> Iterator[tuple[Any, ...]]:
        """Of each row that this thread has: its sums, (pixel, group, first channel), whether there is one, factors."""
        p = self.point
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx() % 4
        tile, block = place_of(self, work)
        column = tile % p.tiles * p.columns + lane % 4 * self.finish.run
        for part, totals in enumerate(sums):
            for r in range(1 if self.finish.pairs else 2):
                row = lane // 4 * 2 if self.finish.pairs else lane // 4 + 8 * r
                number = block * p.pixels + part * 128 + group * 64 + warp * 16 + row
                at, inside = self._output(number)
                inverse = power_of_two(-scale_exponent(scales[0][at[0]])) if self.scaled else None
                own = partial(self.sums.pixel, totals) if self.finish.pairs else partial(self.sums.one, totals, r)
                yield own, (at, tile // p.tiles, column), inside, (inverse, scales[1])
