"""Epilogues of the skeleton `conv` on warps of numpy's: the sums that a thread has of true outputs, and what is written
of them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from fakes.convolutions import contiguous
from fakes.lanes import Memory, Warp
from tilewright.kernels.cuda.conv import kernel
from tilewright.kernels.cuda.conv.fused import ConvSpec, _Launched
from tilewright.kernels.cuda.conv.implicit import row_of
from tilewright.kernels.cuda.conv.reduction import WARPS
from tilewright.kernels.cuda.conv.tiles import channel_of


class Sums:
    """A part's sums as wgmma leaves them in the lanes of a warp: those of a true output, NaN where there is none."""

    def __init__(self, warp: Warp, values: np.ndarray[Any, Any], columns: int, first: int) -> None:
        self.warp, self.values, self.columns, self.first = warp, values, columns, first

    def __getitem__(self, at: Any) -> Any:
        ((e, r, eight), _, _) = at
        lane = np.arange(32)
        row = self.first + lane // 4 + 8 * r
        return self.values[row, eight // (self.columns // 8), eight % (self.columns // 8) * 8 + lane % 4 * 2 + e]


def tile_of(own: Any, y: np.ndarray[Any, Any], work: int, spec: ConvSpec) -> np.ndarray[Any, Any]:
    """(rows, phases, columns) of a tile as the product has them: true outputs `y` (N, Co, three dimensions)."""
    p, finish = own.point, own.finish
    firsts = [part.first for part in finish.parts] or [next(iter(finish.vectors))]
    found = np.full((p.pixels, len(firsts), p.columns), np.nan)
    tile, block = kernel.place_of(own, work)
    group = tile // p.tiles * spec.shape.columns
    for pixel in range(p.pixels):
        number = block * p.pixels + pixel
        at, inside = own._output(number)
        if not inside:
            continue
        row = row_of(pixel) if finish.pairs else pixel
        for k, first in enumerate(firsts):
            place = [int(o) * s + f for o, s, f in zip(at[1:], spec.shape.spread, first, strict=True)]
            if all(0 <= o < n for o, n in zip(place, y.shape[2:], strict=True)):
                channels = tile % p.tiles * p.columns + channel_of(np.arange(p.columns), finish.run)
                there = channels < spec.shape.columns
                found[row, k, there] = y[(int(at[0]), group + channels[there], *place)]
    return found


def run_on_lanes(
    warp: Warp, spec: ConvSpec, points: Any, y: np.ndarray[Any, Any], operands: list[np.ndarray[Any, Any]]
) -> list[Any]:
    """The outputs that all CTAs of all kernels write, of a grid of 3."""
    outs = [np.full(prod(o.shape), np.nan) for o in spec.outputs]
    launched = _Launched(spec, points, [contiguous(o.shape) for o in spec.read])
    for _, own in launched.phases:
        own.all_work = kernel.blocks_of(own) * own.tiles
        chunk = own.finish.together
        for cta in range(min(3, -(-own.all_work // chunk))):
            carried = [own.finish.carried() for _ in range(WARPS)]
            work = cta * chunk
            while work < own.all_work:
                values = tile_of(own, y, work, spec)
                for number in range(WARPS):
                    warp.number = number % 4
                    sums = []
                    for part in range(own.point.parts):
                        first = part * 128 + number // 4 * 64 + number % 4 * 16
                        blocks = own.sums.blocks
                        sums.append([Sums(warp, values[:, list(own_)], own.point.columns, first) for own_ in blocks])
                    turn = (work, number // 4, carried[number])
                    memories = [[Memory(warp, t.reshape(-1)) for t in some] for some in (outs, operands)]
                    own._finish(sums, turn, (None, None), *memories)
                work = kernel.following(work, 3, chunk)
    return [out.reshape(o.shape) for out, o in zip(outs, spec.outputs, strict=True)]
