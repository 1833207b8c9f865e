"""A setting of the knobs of weight gradients, and what it takes: plain numbers, no CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..conv.shape import GROUP
from .shape import DEPTH, WeightShape

KNOBS: dict[str, tuple[Any, ...]] = {
    "rows": (128, 256), "columns": (64, 128, 192, 256), "producers": (128, 256),
    "precision": ("plain", "fp16x3", "tf32"), "splits": ("auto", 1, 2, 4, 8, 16, 32, 64),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {"rows": 128, "columns": 128, "producers": 256, "precision": "plain", "splits": "auto"}
CONSUMERS = 256  # threads that multiply: two warpgroups
SHARED_BYTES = 227 * 1024
RESERVED_BYTES = 8192  # barriers, scales and their inverses
MOST_STAGES, LEAST_STAGES = 6, 2
MOST_STEPS = 256  # that tensor cores add up without rounding to nearest
LEAST_STEPS = 8  # of a split: else it is all epilogue
MOST_SPLITS = 64
_MOST_SUMS = 128  # fp32 registers of a thread that multiplies
_MOST_BESIDE_MANY = 192  # columns where 256 threads gather: ptxas gives a wgmma no more registers


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPoint:
    """`rows` x `columns` of the product a tile; `producers` threads gather; `planes`: fp16 hi, and lo of fp16x3.
    `tiles`: along the rows, and along the columns of a group."""

    rows: int
    columns: int
    producers: int
    precision: str
    splits: int | str
    stages: int
    tiles: tuple[int, int]

    @property
    def planes(self) -> int:
        return 2 if self.precision == "fp16x3" else 1

    @property
    def parts(self) -> int:
        """Blocks of 64 rows of a warpgroup."""
        return self.rows // 128

    @property
    def threads(self) -> int:
        return self.producers + CONSUMERS

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that gathers, and of one that multiplies: together what the CTA has when it starts."""
        return (88, 168) if self.producers == 256 else (104, 200)

    @property
    def stage_bytes(self) -> int:
        return (self.rows + self.columns) * DEPTH * 2 * self.planes

    def stage(self, step: Any) -> tuple[Any, Any]:
        """The stage of a step, and how often it has gone round, modulo 2."""
        return step % self.stages, step // self.stages % 2

    def cut(self, shape: WeightShape, processors: int) -> tuple[int, int]:
        """(splits, steps of one): so many that each processor has a tile, none longer than MOST_STEPS or, where it can
        be, shorter than LEAST_STEPS."""
        tiles = self.tiles[0] * self.tiles[1] * shape.windowed.groups
        wanted = self.splits
        if isinstance(wanted, str):
            wanted = min(max(processors // tiles, 1), MOST_SPLITS, max(shape.steps // LEAST_STEPS, 1))
        each = min(-(-shape.steps // wanted), MOST_STEPS)
        return -(-shape.steps // each), each


def make_point(shape: WeightShape, knobs: dict[str, Any]) -> WeightPoint:
    """The setting of these knobs. Raises ValueError on an unknown knob or value, and on what does not fit."""
    for name, value in knobs.items():
        if name not in KNOBS or value not in KNOBS[name]:
            raise ValueError(f"knob {name!r} can't be {value!r}; legal are {KNOBS.get(name, 'no values')}")
    rows, columns, planes = knobs["rows"], knobs["columns"], 2 if knobs["precision"] == "fp16x3" else 1
    sums = rows // 128 * columns // 2 + (columns // 2 if planes == 2 else 0)
    if sums > _MOST_SUMS or (columns > _MOST_BESIDE_MANY and knobs["producers"] > 128):
        raise ValueError(f"{rows} x {columns} does not fit the registers of two warpgroups")
    stage = (rows + columns) * DEPTH * 2 * planes
    stages = min((SHARED_BYTES - RESERVED_BYTES) // stage, MOST_STAGES)
    if stages < LEAST_STAGES:
        raise ValueError(f"two stages of {stage} bytes don't fit")
    tiles = -(-shape.row_groups * GROUP // rows), -(-shape.windowed.columns // columns)
    return WeightPoint(**knobs, stages=stages, tiles=tiles)
