"""A convolution of stride 1 whose windows overlap in shared memory: wgmma reads each where it begins, nothing is
gathered twice (see `windows` for the grid and its segments).

    stage       a block of channels, 8 or 16, of all places that a tile's windows have: (plane, group of 8 channels,
                place, 8) of 16 bits, so 8 neighbouring places of a group are a core matrix of wgmma's, wherever they
                begin; the two groups of an ATOM are as far apart as the stage says, or two taps' windows are
    weights     (ATOM, half, column, 8), core matrices too
    thread      every so many places: reads a group of channels at its place of x, 0 where that is padding; scales,
                rounds or splits them; writes 16 bytes

Rows of a tile are neighbours in the grid; those that are no output's are computed and not written.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import warpgroup

from ..common.control import loop, when
from ..common.math import both
from ..gemm.epilogue.epilogue import power_of_two
from .gather import in_one_piece, read_channels
from .kernel import ConvKernel, arrive, product_of, scale_exponent
from .ptx import planes_of, write_chunk
from .shape import ATOM, GROUP
from .sums import Sums
from .windows import Windows

CHUNK = 16  # bytes
AT_ONCE = 2  # places that a thread reads before it writes them


class WindowConv(ConvKernel):
    """See the module's docstring."""

    abreast = 1

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.windows = Windows(shape=self.shape, pixels=self.point.pixels, parts=self.finish.parts)
        self.sums = Sums(columns=self.point.columns, blocks=self.windows.plan.blocks)
        self.rows, self.steps = self.windows.places, self.windows.steps
        self.wide = in_one_piece(self.shape, self.walk, self.item)

    def _layouts(self) -> list[Any]:
        """Of all stages of places, and of all weights that are held, in elements."""
        p, w = self.point, self.windows
        held = self.steps if p.resident else p.stages
        sizes = (p.stages * p.planes * w.groups * w.held, held * p.planes * w.atoms * 2 * p.columns)
        return [cute.make_layout((size * GROUP,)) for size in sizes]

    def _memory(self, shared: Any, layouts: list[Any]) -> tuple[Any, Any]:
        s_a, s_b = (shared.allocate_tensor(self.kind, layout, byte_alignment=1024) for layout in layouts)
        return s_a, s_b

    def _fragments(self, mma: Any, s_a: Any, s_b: Any, _group: Any) -> tuple[Any, Any]:
        """By the distance of an ATOM's halves, 64 rows from any place on; and by the number of phases their wgmma and
        the weights, (atom, 1, 1, block)."""
        p, w = self.point, self.windows
        by_group = mma.get_slice(0)
        of_a, of_b = {}, {}
        for distance in sorted({own.second - own.first for own in w.plan.products}):
            places = cute.size(s_a) // GROUP
            layout = cute.make_layout(
                ((8, 8), (GROUP, 2), places), stride=((GROUP, 8 * GROUP), (1, distance * GROUP), GROUP)
            )
            view = cute.make_tensor(s_a.iterator, layout)
            of_a[distance] = mma.make_fragment_A(by_group.partition_A(view))
        blocks = cute.size(s_b) // (ATOM * p.columns)
        for count in sorted({own.count for own in w.plan.products}):
            columns = p.columns * count
            own = product_of(self.kind, self.abreast, columns)
            layout = cute.make_layout(
                ((8, columns // 8), (GROUP, 2), blocks - count + 1),
                stride=((GROUP, 8 * GROUP), (1, columns * GROUP), ATOM * p.columns),
            )
            view = cute.make_tensor(s_b.iterator, layout)
            of_b[count] = own, own.make_fragment_B(own.get_slice(0).partition_B(view))
        return of_a, of_b

    def _coordinates(self, place: Any) -> tuple[Any, Any, Any, Any]:
        """(sample, place along each dimension) in the grid."""
        one, two, three = self.windows.grid
        line = place // three
        plane = line // two
        return plane // one, plane % one, line % two, place % three

    def _output(self, number: Any) -> tuple[Any, Any]:
        """The pixel of a row, and whether it is an output's."""
        at = self._coordinates(cutlass.min(number, Int32(self.windows.places - 1)))
        inside = number < self.windows.places
        for d, (size, out) in enumerate(zip(self.windows.grid, self.shape.out, strict=True)):
            if size > out:
                inside = both(inside, at[1 + d] < out)
        return at, inside

    def _state(self, x: Any, highest: Any, tile: tuple[Any, Any], thread: Any) -> list[tuple[Any, ...]]:
        """Of each place that this thread reads in a tile, which begins at a row and has a group: (its number in the
        stage, address of the first channel, test, scale)."""
        p, w, found = self.point, self.windows, []
        of_n, of_g, _, *steps = self.walk
        for first in range(0, w.held, p.producers):
            number = first + thread
            segment = number // w.size
            place = tile[0] + w.begin(segment) + number % w.size
            at = self._coordinates(cutlass.min(place, Int32(w.places - 1)))
            address, test = Int64(at[0]) * of_n + Int64(tile[1]) * of_g, None
            for d in range(3):
                there = at[1 + d] + w.start[d]
                if d in self.shape.tested() or (d == 2 and w.spare):
                    inside = Int32(there >= 0) & Int32(there < self.shape.image[d])
                    test = inside if test is None else test & inside
                address = address + Int64(there) * steps[d]
            scale = power_of_two(scale_exponent(highest[at[0]])) if self.scaled else None
            found.append((number, x.iterator.toint() + address * self.item, test, scale))
        return found

    def _fill_all(self, barriers: Any, s_a: Any, state: list[tuple[Any, ...]], fetch: Any, turn: Any) -> None:
        def one(step: Any) -> None:
            fetch(step, turn + step)
            self._fill(barriers, s_a, state, step, turn + step)

        loop(Int32(0), Int32(self.steps), one)

    def _fill(self, barriers: Any, s_a: Any, state: list[tuple[Any, ...]], step: Any, turn: Any) -> None:
        """A block of channels at this thread's places."""
        p, w = self.point, self.windows
        stage, _ = self._stage(turn)
        base = Int32(s_a.iterator.toint()) + stage * p.pixel_bytes
        for first in range(0, len(state), AT_ONCE):
            some = state[first : first + AT_ONCE]
            found = [self._read(one, step) for one in some]
            if first == 0:
                self._await_free(barriers, turn)
            for number, (one, read) in enumerate(zip(some, found, strict=True), first + 1):
                body = partial(self._write, base, one, read)
                body() if number * p.producers <= w.held else when(one[0] < w.held, body)
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
        arrive(barriers + stage)

    def _read(self, one: tuple[Any, ...], step: Any) -> list[list[Any]]:
        """All groups of a stage at one place."""
        w, (_, address, test, _) = self.windows, one
        odd = self.shape.channels % (w.groups * GROUP) > 0
        read = []
        for group in range(w.groups):
            channel = step * (w.groups * GROUP) + group * GROUP
            there = address + Int64(channel) * (self.walk[2] * self.item)
            left = self.shape.channels - channel if odd else None
            read.append(read_channels(self.item, there, self.walk[2], left, test, wide=self.wide))
        return read

    def _write(self, base: Any, one: tuple[Any, ...], read: list[list[Any]]) -> None:
        p, w, (number, _, _, scale) = self.point, self.windows, one
        for group, values in enumerate(read):
            for plane, words in enumerate(planes_of(values, scale, p.planes)):
                write_chunk(base + ((plane * w.groups + group) * w.held + number) * CHUNK, words)

    def _chain(
        self, given: tuple[Any, Any, Any], totals: dict[int, Any], at: tuple[int, Any, Any], *, onto: bool, last: bool
    ) -> None:  # fmt: skip
        """The wgmma `at` (part of the rows, stage, step), the small products first."""
        p, w, (_, (of_a, of_b), group), (part, stage, step) = self.point, self.windows, given, at
        row = group * 64 + part * 128
        begun = dict.fromkeys(totals, onto)
        for plane_a, plane_b in ((0, 0),) if p.planes == 1 else ((1, 0), (0, 1), (0, 0)):
            place = (stage * p.planes + plane_a) * (w.groups * w.held) + row
            weight = ((step if p.resident else stage) * p.planes + plane_b) * w.atoms
            for own in w.plan.products:
                if own.block in totals:
                    mma, r_b = of_b[own.count]
                    atom = cute.make_mma_atom(mma.op)
                    atom.set(warpgroup.Field.ACCUMULATE, begun[own.block])
                    total = totals[own.block]
                    cute.mma_atom_call(
                        atom, total[(None, 0, 0)], of_a[own.second - own.first][(None, 0, 0, place + own.first)],
                        r_b[(None, 0, 0, weight + own.weight)], total[(None, 0, 0)],
                    )  # fmt: skip
                    begun[own.block] = True
