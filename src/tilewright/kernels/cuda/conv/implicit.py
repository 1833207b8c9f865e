"""A convolution as an implicit product: rows are pixels of the output, K is (c, tap), and every window is gathered.

    stage       64 of K: pixels x 64 of 16 bits, rows of 128 bytes whose chunks of 16 are swizzled (chunk q of row r
                lies at q ^ (r % 8)), weights the same way; hi and lo of fp16x3 behind one another
    thread      one pixel (two threads a pixel, half of K each, where there are twice as many): reads x at the pixel's
                origin + the tap's offset, GROUP of K at a time, neighbours in a warp being neighbours along the
                output's last dimension; scales, rounds or splits them; writes a chunk

For any stride, and for few channels, of which K is short.
"""

from __future__ import annotations

from typing import Any

from cutlass import Int32, cute
from cutlass.cute.nvgpu import warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ..gemm.epilogue.epilogue import power_of_two
from .filling import TileFilling
from .kernel import ConvKernel, arrive, scale_exponent
from .ptx import planes_of, write_chunk
from .shape import ATOM, DEPTH

CHUNK = 16  # bytes
LINE = 128  # bytes of a row of a stage


def row_of(pixel: Any) -> Any:
    """Where a pixel lies in a tile of pairs: wgmma gives a thread the rows i and i + 8 of every 16, its pixels 2i and
    2i + 1."""
    return pixel // 16 * 16 + pixel % 2 * 8 + pixel % 16 // 2


class ImplicitConv(ConvKernel):
    """See the module's docstring."""

    abreast = 2

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        s = self.shape
        self.rows, self.steps, self.tail = s.pixels, s.steps, s.tail
        self.gather = self.finish.gather(s, self.walk, self.item)

    def _layouts(self) -> list[Any]:
        """Of the stages of pixels and of weights."""
        p = self.point
        tile = (p.pixels, p.columns, DEPTH)
        slots_b = (self.steps if p.resident else p.stages) * p.planes
        return [
            hopper_helpers.make_smem_layout_a(LayoutEnum.ROW_MAJOR, tile, self.kind, p.stages * p.planes),
            hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, tile, self.kind, slots_b),
        ]

    def _memory(self, shared: Any, layouts: list[Any]) -> tuple[Any, Any]:
        s_a, s_b = (
            shared.allocate_tensor(self.kind, layout.outer, byte_alignment=1024, swizzle=layout.inner)
            for layout in layouts
        )
        return s_a, s_b

    def _fragments(self, mma: Any, s_a: Any, s_b: Any, group: Any) -> tuple[Any, Any]:
        """(atom, parts of M or N, ATOMs, slots) of both."""
        by_group = mma.get_slice(cute.make_layout(2, stride=128)(group))
        return mma.make_fragment_A(by_group.partition_A(s_a)), mma.make_fragment_B(by_group.partition_B(s_b))

    def _state(self, x: Any, highest: Any, tile: tuple[Any, Any], thread: Any) -> tuple[Any, ...]:
        """Of this thread in a tile, which begins at a pixel and has a group."""
        pixel, part = thread % self.point.pixels, thread // self.point.pixels
        row = row_of(pixel) if self.finish.pairs else pixel
        at = self.gather.pixel(tile[0] + pixel)
        scale = power_of_two(scale_exponent(highest[at[0]])) if self.scaled else None
        return row, part, (self.gather.origin(x, at, tile[1]), self.gather.bits(at)), scale

    def _output(self, number: Any) -> tuple[Any, Any]:
        """The pixel of a row, and whether there is one."""
        return self.gather.pixel(number), number < self.shape.pixels

    def _fill_all(self, barriers: Any, s_a: Any, state: tuple[Any, ...], fetch: Any, turn: Any) -> None:
        """All steps of a tile."""
        row, part, pixel, scale = state

        def begin(step: Any) -> None:
            fetch(step, turn + step)
            self._await_free(barriers, turn + step)

        def put(step: Any, q: Any, values: list[Any]) -> None:
            line = Int32(s_a.iterator.toint()) + self._stage(turn + step)[0] * self.point.pixel_bytes + row * LINE
            self._write((line, row % 8), scale, q, values)

        def end(step: Any) -> None:
            cute.arch.fence_view_async_shared()
            cute.arch.sync_warp()
            arrive(barriers + self._stage(turn + step)[0])

        TileFilling(self.shape, self.point, self.gather, begin=begin, put=put, end=end).run(part, pixel)

    def _write(self, line: tuple[Any, Any], scale: Any, q: Any, values: list[Any]) -> None:
        """A chunk of each plane."""
        start, turn = line
        address = start + (turn ^ Int32(q)) * CHUNK
        for plane, words in enumerate(planes_of(values, scale, self.point.planes)):
            write_chunk(address + plane * self.point.pixels * LINE, words)

    def _chain(
        self, given: tuple[Any, Any, Any], totals: dict[int, Any], at: tuple[int, Any, Any], *, onto: bool, last: bool
    ) -> None:  # fmt: skip
        """The wgmma `at` (part of the rows, stage, step), the small products first."""
        (total,) = totals.values()
        p, (mma, (r_a, r_b), _), (part, stage, step) = self.point, given, at
        slots = stage * p.planes, (step if p.resident else stage) * p.planes
        atom = cute.make_mma_atom(mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, onto)
        for plane_a, plane_b in ((0, 0),) if p.planes == 1 else ((1, 0), (0, 1), (0, 0)):
            for block in range(self.tail if last else DEPTH // ATOM):
                cute.mma_atom_call(
                    atom, total[(None, 0, 0)], r_a[(None, part, block, slots[0] + plane_a)],
                    r_b[(None, 0, block, slots[1] + plane_b)], total[(None, 0, 0)],
                )  # fmt: skip
                atom.set(warpgroup.Field.ACCUMULATE, True)
