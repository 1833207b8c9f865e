"""The knobs of attention, and the points that are tried, in the order of a model of their times."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil
from typing import Any

from ...facts.device import Device
from ...facts.space import Knob, Space, point
from ...ir.program import Program
from ...kernels.cuda.attention.order import TileOrder
from ...kernels.cuda.attention.shape import AttentionShape
from ...kernels.cuda.attention.tiles import KNOBS as LEGAL
from ...kernels.cuda.attention.tiles import PLAIN, VARIANTS, AttentionPoint, make_point
from .shape import attention_of

_OF_EACH = 3  # points of each number of warpgroups, with and without skipping: no time has been measured yet
_ABOUT = {
    "groups": "warpgroups that multiply, of 64 queries each", "tile_n": "keys of a tile",
    "stages": "buffers of tiles of keys, and as many of values",
    "precision": "what stands for fp32: three products of fp16 pairs each",
    "splits": "CTAs that share the keys of a tile of queries; a second pass combines what they give",
    "skips": "whether a pass before finds the tiles that a mask leaves, and no others are visited",
    "kernel": "its name in `table.UNPROVEN`",
}  # fmt: skip
KNOBS = tuple(Knob(name=name, values=values, about=_ABOUT[name]) for name, values in LEGAL.items())
# Estimates, of an H100's vendor's numbers: clocks of a multiprocessor.
_FMA = 2048.0  # products of 16 bits, a clock
_SHARE = 0.85  # of that, which a chain of wgmma reaches
_EXPONENTS = 16.0  # a clock
_LANES = 128.0  # other instructions, a clock
_EACH = 4.0  # of a score, beside what the module makes of it
_MASKED = 3.0  # the same in tiles that are masked
_BESIDE = 0.35  # of the shorter of both, which does not run beside the longer
_BEGIN = 2500.0  # of a CTA, from its launch to its first product, and from its last to its end
_TILE = 120.0  # of a tile, for barriers
_PASS = 4000.0  # of a launch before or after
_LEFT, _CLEAR = 0.6, 0.8  # shares: of tiles that a mask leaves, and of those without a hidden score


def space(program: Program, shape: AttentionShape, device: Device) -> Space:
    """Of the settings that fit, the likeliest first."""
    operations = len(attention_of(program).scores.body)
    precision = "fp16x3" if program.operands[0].dtype == "f32" else "plain"
    found: dict[AttentionPoint, tuple[float, dict[str, Any]]] = {}
    for groups in LEGAL["groups"]:
        for tile_n in LEGAL["tile_n"]:
            for stages, (splits, skips) in product((2, 3, 1), _shared(shape, 64 * groups, device)):
                knobs = {"groups": groups, "tile_n": tile_n, "stages": stages, "precision": precision,
                         "splits": splits, "skips": skips,
                         "kernel": VARIANTS if skips or splits > 1 else PLAIN}  # fmt: skip
                try:
                    made = make_point(shape, knobs)
                except ValueError:
                    continue
                clocks = work_clocks(shape, made, operations, device)
                found.setdefault(made, (clocks, knobs))
    ranked = [knobs for _, knobs in sorted(found.values(), key=lambda own: own[0])]
    kinds = [(g, s) for g in LEGAL["groups"] for s in LEGAL["skips"]]
    kept = [k for kind in kinds for k in [r for r in ranked if (r["groups"], r["skips"]) == kind][:_OF_EACH]]
    return Space(knobs=KNOBS, points=tuple(point(**knobs) for knobs in ranked if knobs in kept))


def _shared(shape: AttentionShape, tile_m: int, device: Device) -> list[tuple[int, bool]]:
    """In how many parts keys may be worth working on, with every tile or with those alone that a mask leaves: CTAs
    share keys where there are fewer tiles of queries than multiprocessors."""
    ctas = ceil(shape.rows / tile_m) * shape.batches
    wanted = [n for n in LEGAL["splits"] if n == 1 or (n - 1) * ctas < device.processors]
    return [(n, False) for n in dict.fromkeys((1, *wanted[-2:]))] + [(1, True)]


def work_clocks(shape: AttentionShape, made: AttentionPoint, operations: int, device: Device) -> float:
    """The model: CTAs one after the other on each multiprocessor, none shorter than the longest; a tile takes as
    long as its products or its scores, whichever is longer, and a part of the other."""
    order = TileOrder(shape=replace(shape, spares=shape.spares or made.skips), tile_m=made.tile_m, tile_n=made.tile_n)
    passes = 3 if made.planes == 2 else 1
    products = passes * made.tile_m * made.tile_n * (made.depth + made.columns) / (_FMA * _SHARE)
    scores = made.tile_m * made.tile_n
    plain = scores / _EXPONENTS / 4 * 4 + scores * (_EACH + operations) / _LANES
    masked = plain + scores * _MASKED / _LANES
    is_flagged = not shape.spares and made.skips
    waits = 0.3 * products if made.stages == 1 else 0.0
    own: list[float] = []
    for tile in range(order.row_tiles):
        first, last = order.visited(tile)
        inner = order.unmasked(tile)
        count = (last - first) / made.splits
        open_tiles = min(max(min(inner[1], last) - max(inner[0], first), 0), count)
        if made.skips and shape.sparse is not None:
            count, open_tiles = count * _LEFT, count * _LEFT * _CLEAR
        both = [(open_tiles, plain), (count - open_tiles, masked)]
        own.append(_BEGIN + sum(
            n * (max(products, s) + _BESIDE * min(products, s) + _TILE + waits) for n, s in both
        ))  # fmt: skip
    whole = sum(own) * shape.batches * made.splits
    waves = ceil(order.work * made.splits / max(device.processors, 1))
    clocks = max(whole / max(device.processors, 1), max(own)) if waves > 4 else max(own) * waves
    return clocks + _PASS * ((made.splits > 1) + 2 * made.skips + is_flagged)
