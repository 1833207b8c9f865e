"""A convolution as an implicit product: rows are pixels of the output, K is (c, tap), and every window is gathered.

    stage       64 of K: pixels x 64 of 16 bits, rows of 128 bytes whose chunks of 16 are swizzled (chunk q of row r
                lies at q ^ (r % 8)), weights the same way; hi and lo of fp16x3 behind one another
    thread      one pixel (two threads a pixel, half of K each, where there are twice as many): reads x at the pixel's
                origin + the tap's offset, GROUP of K at a time, neighbours in a warp being neighbours along the
                output's last dimension; scales, rounds or splits them; writes a chunk

For any stride, and for few channels, of which K is short.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ..common.control import loop, when
from ..gemm.epilogue.epilogue import power_of_two
from .gather import Gather
from .kernel import ConvKernel, arrive, scale_exponent
from .ptx import planes_of, write_chunk
from .shape import ATOM, DEPTH, GROUP

CHUNK = 16  # bytes
LINE = 128  # bytes of a row of a stage
AT_ONCE = 4  # groups that a thread asks for together
FEW_REGISTERS = 90  # of a thread that gathers; with more it asks for what comes next before it waits for what it asked


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
        self.ahead = self.point.registers[0] > FEW_REGISTERS
        self.at_once = AT_ONCE // self.point.planes if self.ahead else AT_ONCE
        self.gather = Gather(s, self.walk, self.item)

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
        """All steps of a tile; `ahead`: what comes next is asked for before what was asked for is waited for."""
        begin, put = partial(self._begin, barriers, fetch, turn), partial(self._put, s_a, state, turn)
        end, parts = partial(self._end, barriers, turn), self.point.producers // self.point.pixels
        if not self.shape.natural:
            self._in_turn(state, begin, put, end)
            return
        for number in range(parts):
            body = partial(self._written_out, number, state[2], begin, put, end)
            body() if parts == 1 else when(state[1] == number, body)

    def _begin(self, barriers: Any, fetch: Any, turn: Any, step: Any) -> None:
        fetch(step, turn + step)
        self._await_free(barriers, turn + step)

    def _end(self, barriers: Any, turn: Any, step: Any) -> None:
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
        arrive(barriers + self._stage(turn + step)[0])

    def _put(self, s_a: Any, state: tuple[Any, ...], turn: Any, step: Any, q: Any, values: list[Any]) -> None:
        """A group of a step's."""
        row, _, _, scale = state
        line = Int32(s_a.iterator.toint()) + self._stage(turn + step)[0] * self.point.pixel_bytes + row * LINE
        self._write((line, row % 8), scale, q, values)

    def _batches(self, step: int) -> list[range]:
        """The groups of a step that a thread of the first part reads, as many together as are asked for at once."""
        short = self.tail and step == self.steps - 1
        each = (self.tail if short else DEPTH // ATOM) * (ATOM // GROUP) // (self.point.producers // self.point.pixels)
        return [range(i, min(i + self.at_once, each)) for i in range(0, each, self.at_once)]

    def _written_out(self, part: int, pixel: Any, begin: Any, put: Any, end: Any) -> None:
        """Steps whose numbers are constants of the code, by the threads of a part."""
        todo = []
        for step in range(self.steps):
            batches = self._batches(step)
            first = part * batches[-1].stop
            todo += [(step, [first + q for q in some], some is batches[-1]) for some in batches]
        asked: list[list[Any]] = []
        for number, (step, some, last) in enumerate(todo):
            for of_step, own, _ in todo[len(asked) : number + 1 + self.ahead]:
                asked.append([self.gather.natural(of_step * (DEPTH // GROUP) + q, pixel) for q in own])
            if number == 0 or todo[number - 1][2]:
                begin(step)
            for q, values in zip(some, asked[number], strict=True):
                put(step, q, values)
            if last:
                end(step)

    def _in_turn(self, state: tuple[Any, ...], begin: Any, put: Any, end: Any) -> None:
        """Steps of groups of neighbouring channels, by all threads alike."""
        whole, words = self.steps - (self.tail > 0), GROUP * self.item // 4
        held = cute.make_rmem_tensor((self.at_once * words,), Float32 if self.item == 4 else Int32)
        part, pixel = state[1], state[2]

        def group(kind: int, q: int) -> Any:
            """Of the thread's part; all steps but the last are of one kind."""
            return q if self.point.producers == self.point.pixels else part * self._batches(kind)[-1].stop + q

        def ask(step: Any, kind: int, some: range) -> None:
            for i, q in enumerate(some):
                for j, value in enumerate(self.gather.blocked(step * (DEPTH // GROUP) + group(kind, q), pixel)):
                    held[i * words + j] = value

        def one(step: Any, *, kind: int = 0, after: int | None = 0) -> None:
            batches = self._batches(kind)
            for number, some in enumerate(batches):
                if not self.ahead:
                    ask(step, kind, some)
                found = [[held[i * words + j] for j in range(words)] for i in range(len(some))]
                if self.ahead and number + 1 < len(batches):
                    ask(step, kind, batches[number + 1])
                elif self.ahead and after is not None:
                    ask(step + 1, after, self._batches(after)[0])
                if number == 0:
                    begin(step)
                for q, values in zip(some, found, strict=True):
                    put(step, group(kind, q), values)
            end(step)

        if self.ahead:
            ask(Int32(0), 0, self._batches(0)[0])
        if whole:
            loop(Int32(0), Int32(whole - 1), one)
            one(Int32(whole - 1), after=self.steps - 1 if self.tail else None)
        if self.tail:
            one(Int32(whole), kind=whole, after=None)

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
