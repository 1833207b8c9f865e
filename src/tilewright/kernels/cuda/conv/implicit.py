"""A convolution as an implicit product (sm_90a): rows are pixels of the output, columns its channels, K is (c, tap).

    tile        `pixels` neighbours in the flattened output (n, o) x `columns` channels of one group; persistent CTAs
    stage       64 of K: pixels x 64 and, unless they are resident, columns x 64 of 16 bits, rows of 128 bytes whose
                chunks of 16 are swizzled (chunk q of row r lies at q ^ (r % 8)); hi and lo of fp16x3 behind one another

    first warps          one pixel a thread (two threads a pixel, half of K each, where there are twice as many): reads
                         x at the pixel's corner + the tap's offset, GROUP of K at a time, neighbours in a warp being
                         neighbours along the output's last dimension; scales, rounds or splits them; writes a chunk
    thread 0             fetches the weights, which `prepare` has packed as the tiles of shared memory have them
    last two warpgroups  64 pixels each (twice): wgmma, then the epilogue, straight to the output's rows

An fp32 number is scaled by the power of two that puts the largest of its sample into [2^14, 2^15), a weight by that of
its output channel, and the sum is scaled back; so fp16 reaches to 2^-39 of the largest. fp16x3 adds hi*lo, lo*hi and
hi*hi up in the tensor cores over 64 of K, and that to an fp32 sum in registers.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import cutlass
from cutlass import BFloat16, Float16, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ..common.control import when
from ..gemm.epilogue.epilogue import power_of_two
from ..gemm.fp32.pair import exponent_of
from ..gemm.mainloop.two_level import promote
from .epilogue import ConvEpilogue
from .ptx import copy_bulk, read_group, rounded_pair, split_pair, write_chunk
from .shape import ATOM, DEPTH, GROUP, ConvShape
from .tiles import CONSUMERS, ConvPoint

CHUNK = 16  # bytes
LINE = 128  # bytes of a row of a stage
AT_ONCE = 4  # groups that a thread reads before it writes them
_LARGEST_SHIFT = 126


def scale_exponent(bits: Any) -> Any:
    """The exponent of the power of two by which a number of this magnitude's neighbours are scaled."""
    return cutlass.max(cutlass.min(exponent_of(bits), Int32(_LARGEST_SHIFT)), Int32(-_LARGEST_SHIFT))


class ImplicitConv:
    """A ConvShape at a ConvPoint for inputs of one type, ready to be traced. `walk`: the strides of x along (sample,
    group, channel, three spatial dimensions)."""

    def __init__(self, shape: ConvShape, point: ConvPoint, finish: ConvEpilogue, *, dtype: str, walk: Any) -> None:
        self.shape, self.point, self.finish, self.walk = shape, point, finish, tuple(walk)
        self.scaled = dtype == "f32"
        self.kind = BFloat16 if dtype == "bf16" else Float16
        self.item = 4 if self.scaled else 2
        self.tested = shape.tested()
        self.tiles = point.tiles * shape.groups  # of columns
        self.all_work = -(-shape.pixels // point.pixels) * self.tiles

    def launch(self, tensors: tuple[Any, ...], outs: list[Any], operands: list[Any], ctas: Any, stream: Any) -> None:
        """Emit the launch. `tensors`: x, packed weights, magnitudes of the samples, factors of the channels."""
        p, s = self.point, self.shape
        tile = (p.pixels, p.columns, DEPTH)
        slots_b = (s.steps if p.resident else p.stages) * p.planes
        layouts = [
            hopper_helpers.make_smem_layout_a(LayoutEnum.ROW_MAJOR, tile, self.kind, p.stages * p.planes),
            hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, tile, self.kind, slots_b),
        ]
        major = OperandMajorMode.K
        mma = hopper_helpers.make_trivial_tiled_mma(
            self.kind, self.kind, major, major, Float32, (2, 1, 1), tiler_mn=(64, p.columns)
        )
        kernel = self._kernel(list(tensors), outs, operands, mma, layouts)
        kernel.launch(grid=[ctas, 1, 1], block=[p.threads, 1, 1], min_blocks_per_mp=1, stream=stream)

    @cute.kernel
    def _kernel(self, given: list, outs: list, operands: list, mma: cute.TiledMma, layouts: list) -> None:
        p, s = self.point, self.shape
        x, packed, highest, factors = given
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        shared = SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 * p.stages + 1)
        s_a, s_b = (
            shared.allocate_tensor(self.kind, layout.outer, byte_alignment=1024, swizzle=layout.inner)
            for layout in layouts
        )
        when(thread == 0, partial(self._make_barriers, barriers))
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        first = cute.arch.block_idx()[0]
        stride = cute.arch.grid_dim()[0]
        if warp < p.producers // 32:
            cute.arch.setmaxregister_decrease(p.registers[0])
            when(thread == 0, partial(self._fetch_resident, barriers, packed, s_b))
            row, part = thread % p.pixels, thread // p.pixels
            work = first
            turn = Int32(0)
            while work < self.all_work:
                at = self._pixel(work // self.tiles * p.pixels + row)
                tile = work % self.tiles
                origin, bits = self._origin(x, at, tile // p.tiles), self._bits(at)
                scale = self._scale(highest, at[0])
                fill = partial(self._fill, barriers, s_a, (row, part), (origin, bits, scale))
                fetch = partial(self._fetch, barriers, packed, s_b, tile, thread)
                if cutlass.const_expr(s.natural):
                    for number in cutlass.range_constexpr(s.steps):
                        fetch(number, turn + number)
                        fill(number, turn + number)
                else:
                    for step in cutlass.range(s.steps - (s.tail > 0), unroll=1):
                        fetch(step, turn + step)
                        fill(step, turn + step)
                    if cutlass.const_expr(s.tail > 0):
                        fetch(s.steps - 1, turn + (s.steps - 1))
                        fill(s.steps - 1, turn + (s.steps - 1), last=True)
                turn += s.steps
                work += stride
        else:
            cute.arch.setmaxregister_increase(p.registers[1])
            group = warp // 4 - p.producers // 128
            by_group = mma.get_slice(cute.make_layout(2, stride=128)(group))
            r_a = mma.make_fragment_A(by_group.partition_A(s_a))
            r_b = mma.make_fragment_B(by_group.partition_B(s_b))
            fragment = cute.make_layout(((2, 2, p.columns // 8), 1, 1))
            sums = [cute.make_rmem_tensor(fragment, Float32) for _ in range(p.parts)]
            wave = cute.make_rmem_tensor(fragment, Float32)
            multiply = partial(self._multiply, mma, barriers, (r_a, r_b), sums, wave)
            if cutlass.const_expr(p.resident):
                cute.arch.mbarrier_wait(barriers + 2 * p.stages, 0)
            work = first
            turn = Int32(0)
            while work < self.all_work:
                for part in cutlass.range_constexpr(p.parts):
                    sums[part].fill(0.0)
                for step in cutlass.range(s.steps - (s.tail > 0), unroll=1):
                    multiply(step, turn + step, DEPTH // ATOM)
                if cutlass.const_expr(s.tail > 0):
                    multiply(s.steps - 1, turn + (s.steps - 1), s.tail)
                if cutlass.const_expr(p.planes == 1):
                    warpgroup.wait_group(0)
                    self._free(barriers, turn + (s.steps - 1))
                self._finish(sums, work, group, (highest, factors), outs, operands)
                turn += s.steps
                work += stride

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

    def _free(self, barriers: Any, turn: Any) -> None:
        """A warp that multiplies is through with a stage."""
        stage, _ = self._stage(turn)
        barrier = barriers + (self.point.stages + stage)
        when(cute.arch.lane_idx() == 0, lambda: cute.arch.mbarrier_arrive(barrier))

    # ---- weights

    def _fetch_resident(self, barriers: Any, packed: Any, s_b: Any) -> None:
        p, s = self.point, self.shape
        if not p.resident:
            return
        barrier = barriers + 2 * p.stages
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, p.weight_bytes * s.steps)
        for step in range(s.steps):
            self._copy(packed, s_b, (step, step), barrier)

    def _fetch(self, barriers: Any, packed: Any, s_b: Any, tile: Any, thread: Any, step: Any, turn: Any) -> None:
        """The weights of a step into their stage, once that is free."""
        p = self.point
        if p.resident:
            return
        stage, phase = self._stage(turn)

        def fetch() -> None:
            cute.arch.mbarrier_wait(barriers + (p.stages + stage), phase ^ 1)
            cute.arch.mbarrier_arrive_and_expect_tx(barriers + stage, p.weight_bytes)
            self._copy(packed, s_b, (tile * self.shape.steps + step, stage), barriers + stage)

        when(thread == 0, fetch)

    def _copy(self, packed: Any, s_b: Any, numbers: tuple[Any, Any], barrier: Any) -> None:
        size = self.point.weight_bytes
        source = packed.iterator.toint() + Int64(numbers[0]) * size
        target = Int32(s_b.iterator.toint()) + numbers[1] * size
        copy_bulk(target, source, size, Int32(barrier.toint()))

    # ---- pixels

    def _pixel(self, number: Any) -> tuple[Any, Any, Any, Any]:
        """(sample, place along each dimension) of a pixel; of one behind the last that one's."""
        _, o1, o2 = self.shape.out
        number = cutlass.min(number, Int32(self.shape.pixels - 1))
        line, last = number // o2, number % o2
        plane = line // o1
        return plane // self.shape.out[0], plane % self.shape.out[0], line % o1, last

    def _origin(self, x: Any, at: tuple[Any, ...], group: Any) -> Any:
        """The address that tap 0 of channel 0 of the group has, perhaps outside of x."""
        s, (of_n, of_g, _, *steps) = self.shape, self.walk
        place = Int64(at[0]) * of_n + Int64(group) * of_g
        for d in range(3):
            place = place + Int64(at[1 + d] * s.stride[d] + s.start[d]) * steps[d]
        return x.iterator.toint() + place * self.item

    def _bits(self, at: tuple[Any, ...]) -> dict[int, Any]:
        """By dimension, whether each tap lies inside of x, a bit each."""
        s, found = self.shape, {}
        for d in self.tested:
            first, bits = at[1 + d] * s.stride[d] + s.start[d], Int32(0)
            for t in range(s.taps[d]):
                place = first + t * s.step[d]
                inside = Int32(place >= 0) & Int32(place < s.image[d])
                bits = bits | (inside << Int32(t))
            found[d] = bits
        return found

    def _scale(self, highest: Any, sample: Any) -> Any:
        return power_of_two(scale_exponent(highest[sample])) if self.scaled else None

    def _fill(
        self, barriers: Any, s_a: Any, who: tuple[Any, Any], pixel: tuple[Any, Any, Any], step: Any, turn: Any, *,
        last: bool = False,
    ) -> None:  # fmt: skip
        """Gather a step of K for this thread's pixel; a step of a constant number, or the `last`, may be short."""
        p, s = self.point, self.shape
        stage, phase = self._stage(turn)
        cute.arch.mbarrier_wait(barriers + (p.stages + stage), phase ^ 1)
        short = last or (isinstance(step, int) and step == s.steps - 1)
        groups = (s.tail if short and s.tail else DEPTH // ATOM) * (ATOM // GROUP)
        row, part = who
        line = Int32(s_a.iterator.toint()) + stage * p.pixel_bytes + row * LINE
        parts = p.producers // p.pixels
        each = groups // parts
        write = partial(self._write, (line, row % 8), pixel[2])
        if s.natural:
            for number in range(parts):
                mine = range(number * each, (number + 1) * each)
                body = partial(self._gather, mine, lambda q: self._natural(step * (DEPTH // GROUP) + q, pixel), write)
                body() if parts == 1 else when(part == number, body)
        else:
            begin = part * each if parts > 1 else 0
            self._gather(
                range(each), lambda q: self._blocked(step * (DEPTH // GROUP) + begin + q, pixel),
                lambda q, values: write(begin + q, values),
            )  # fmt: skip
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
        barrier = barriers + stage
        when(cute.arch.lane_idx() == 0, lambda: cute.arch.mbarrier_arrive(barrier))

    @staticmethod
    def _gather(groups: range, read: Any, write: Any) -> None:
        for first in range(0, len(groups), AT_ONCE):
            some = groups[first : first + AT_ONCE]
            found = [read(q) for q in some]
            for q, values in zip(some, found, strict=True):
                write(q, values)

    def _offset(self, channel: Any, tap: tuple[Any, Any, Any]) -> Any:
        """In elements, from the origin."""
        return channel * self.walk[2] + sum(t * self.shape.step[d] * self.walk[3 + d] for d, t in enumerate(tap))

    def _test(self, bits: dict[int, Any], tap: tuple[Any, Any, Any]) -> Any:
        """Whether this tap lies inside of x, 1 or 0; None where all do."""
        found = None
        for d, of_dim in bits.items():
            bit = of_dim >> Int32(tap[d])
            found = bit if found is None else found & bit
        return None if found is None else found & Int32(1)

    def _natural(self, group: int, pixel: tuple[Any, Any, Any]) -> list[Any]:
        """A group whose offsets are constants."""
        s, (origin, bits, _) = self.shape, pixel
        offsets: list[int | None] = []
        tests: list[Any] = []
        known: dict[int, Any] = {}
        for k in range(group * GROUP, (group + 1) * GROUP):
            channel, number = s.place(k)
            inside = channel < s.channels
            tap = s.tap(number)
            if inside and number not in known:
                known[number] = self._test(bits, tap)
            offsets.append(self._offset(channel, tap) * self.item if inside else None)
            tests.append(known[number] if inside else None)
        return read_group(self.item, origin, offsets, tests)

    def _blocked(self, group: Any, pixel: tuple[Any, Any, Any]) -> list[Any]:
        """A group of neighbouring channels at one tap."""
        s, (origin, bits, _) = self.shape, pixel
        group = Int32(group)
        block, number = group // s.all_taps, group % s.all_taps
        tap = s.tap(number)
        test = self._test(bits, tap)
        address = origin + Int64(self._offset(block * GROUP, tap)) * self.item
        offsets = [j * self.walk[2] * self.item for j in range(GROUP)]
        odd = s.group_count * GROUP < s.depth
        if not odd and s.channels % GROUP == 0:
            return read_group(self.item, address, offsets, [test] * GROUP)
        left = s.channels - block * GROUP  # behind the last block below 1
        tests = []
        for j in range(GROUP):
            there = Int32(left > j)
            tests.append(there if test is None else there & test)
        return read_group(self.item, address, offsets, tests)

    def _write(self, line: tuple[Any, Any], scale: Any, q: Any, values: list[Any]) -> None:
        """A chunk of each plane."""
        start, turn = line
        address = start + (turn ^ Int32(q)) * CHUNK
        if not self.scaled:
            write_chunk(address, values)
            return
        scaled = [value * scale for value in values]
        pairs = list(zip(scaled[::2], scaled[1::2], strict=True))
        if self.point.planes == 1:
            write_chunk(address, [rounded_pair(*pair) for pair in pairs])
            return
        split = [split_pair(*pair) for pair in pairs]
        write_chunk(address, [hi for hi, _ in split])
        write_chunk(address + self.point.pixels * LINE, [lo for _, lo in split])

    # ---- products

    def _multiply(
        self, mma: Any, barriers: Any, operands: tuple[Any, Any], sums: list[Any], wave: Any, step: Any, turn: Any,
        atoms: int,
    ) -> None:  # fmt: skip
        """A step of so many ATOMs, for all parts."""
        p = self.point
        stage, phase = self._stage(turn)
        cute.arch.mbarrier_wait(barriers + stage, phase)
        slots = stage * p.planes, (step if p.resident else stage) * p.planes
        if p.planes == 1:
            warpgroup.fence()
            for part, total in enumerate(sums):
                self._chain(mma, operands, total, part, slots, range(atoms), onto=True)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            when(Int32(step) > 0, partial(self._free, barriers, turn - 1))
            return
        for part, total in enumerate(sums):
            warpgroup.fence()
            self._chain(mma, operands, wave, part, slots, range(atoms), onto=False)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            promote(total, wave)
        self._free(barriers, turn)

    def _chain(
        self, mma: Any, operands: tuple[Any, Any], total: Any, part: int, slots: tuple[Any, Any], blocks: range, *,
        onto: bool,
    ) -> None:  # fmt: skip
        """The small products first."""
        r_a, r_b = operands
        atom = cute.make_mma_atom(mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, onto)
        planes = ((0, 0),) if self.point.planes == 1 else ((1, 0), (0, 1), (0, 0))
        for plane_a, plane_b in planes:
            for block in blocks:
                cute.mma_atom_call(
                    atom, total[(None, 0, 0)], r_a[(None, part, block, slots[0] + plane_a)],
                    r_b[(None, 0, block, slots[1] + plane_b)], total[(None, 0, 0)],
                )  # fmt: skip
                atom.set(warpgroup.Field.ACCUMULATE, True)

    # ---- what comes out

    def _finish(
        self, sums: list[Any], work: Any, group: Any, scales: tuple[Any, Any], outs: list[Any], operands: list[Any]
    ) -> None:
        """Scale the sums back and write what the epilogue makes of them."""
        p, s = self.point, self.shape
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx() % 4
        tile = work % self.tiles
        of_group, first = tile // p.tiles, tile % p.tiles * p.columns
        column = first + lane % 4 * 2
        for part, total in enumerate(sums):
            for r in range(2):
                number = work // self.tiles * p.pixels + part * 128 + group * 64 + warp * 16 + lane // 4 + 8 * r
                at = self._pixel(number)
                inverse = self._inverse(scales[0], at[0])
                body = partial(
                    self.finish.row, total, r, (at, of_group, column), (inverse, scales[1]), outs, operands,
                    p.columns * p.tiles > s.columns,
                )  # fmt: skip
                when(number < s.pixels, body)

    def _inverse(self, highest: Any, sample: Any) -> Any:
        return power_of_two(-scale_exponent(highest[sample])) if self.scaled else None

    @property
    def element_count(self) -> int:
        """Of the output."""
        return self.shape.pixels * self.shape.columns * self.shape.groups

    @property
    def spatial(self) -> int:
        return prod(self.shape.out)
