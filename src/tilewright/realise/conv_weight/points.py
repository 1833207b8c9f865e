"""The knobs of a weight's gradient, and the points that are tried, in the order of a model of their times."""

from __future__ import annotations

from math import ceil
from typing import Any

from ...facts.device import Device
from ...facts.space import Knob, Point, Space, point
from ...kernels.cuda.conv_weight.shape import DEPTH, WeightShape
from ...kernels.cuda.conv_weight.tiles import DEFAULTS, WeightPoint, make_point
from ...kernels.cuda.conv_weight.tiles import KNOBS as LEGAL
from ..conv.points import TF32_CHANNELS

_ABOUT = {
    "rows": "pairs of an input channel and a tap, a CTA's tile", "columns": "output channels, the same",
    "producers": "threads that gather", "precision": "what stands for fp32, as of a convolution",
    "splits": "parts of the pixels, added up by a second kernel; auto: a tile for each multiprocessor",
}  # fmt: skip
KNOBS = tuple(Knob(name=name, values=values, about=_ABOUT[name]) for name, values in LEGAL.items())
_LIKELY, _OTHER = 4, 2  # points of the likelier precision, and of the other
# MODEL: as of the convolution's kernels, nothing was fitted to these. Clocks of a multiprocessor.
_CLOCK = 1.7  # a ns
_FMA = 1600.0  # of fp16, a clock
_GATHER = 13.0  # elements that are read, converted and written, a clock; of half the threads _FEW of it
_FEW = 0.6
_END = 0.5  # of a sum that is written, and read again
_FIRST = 2000.0  # of a tile, until its first stage is full
_LAUNCH_NS = 4000.0  # of each of the kernels


def space(shape: WeightShape, dtype: str, device: Device) -> Space:
    """Some of each precision, the likeliest first."""
    if dtype != "f32":
        return Space(knobs=KNOBS, points=_ranked(shape, "plain", device)[: _LIKELY + _OTHER])
    both = ("tf32", "fp16x3") if shape.windowed.channels >= TF32_CHANNELS else ("fp16x3", "tf32")
    likely, others = (_ranked(shape, precision, device) for precision in both)
    return Space(knobs=KNOBS, points=(*likely[:_LIKELY], *others[:_OTHER]))


def _ranked(shape: WeightShape, precision: str, device: Device) -> tuple[Point, ...]:
    found: dict[WeightPoint, tuple[float, dict[str, Any]]] = {}
    for rows in (128, 256):
        for columns in (64, 128, 192, 256):
            for producers in (256, 128):
                knobs = DEFAULTS | {"rows": rows, "columns": columns, "producers": producers, "precision": precision}
                try:
                    made = make_point(shape, knobs)
                except ValueError:
                    continue
                found.setdefault(made, (work_ns(shape, made, device), knobs))
    return tuple(point(**knobs) for _, knobs in sorted(found.values(), key=lambda own: own[0]))


def work_ns(shape: WeightShape, made: WeightPoint, device: Device) -> float:
    """The model: a step takes as long as gathering or multiplying, and a tile its steps, what it writes and what is
    added up of it."""
    splits, steps = made.cut(shape, device.processors)
    tiles = made.tiles[0] * made.tiles[1] * shape.windowed.groups * splits
    gather = (made.rows + made.columns) * DEPTH / (_GATHER * (1.0 if made.producers == 256 else _FEW))
    multiply = made.rows * made.columns * DEPTH * (3 if made.planes == 2 else 1) / _FMA
    tile = steps * max(gather, multiply) + _END * made.rows * made.columns + _FIRST
    return ceil(tiles / device.processors) * tile / _CLOCK + 3 * _LAUNCH_NS
