"""A setting of the kernel's knobs, and what it takes of shared memory and registers: plain numbers, no CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .shape import DEPTH, ConvShape

KNOBS: dict[str, tuple[Any, ...]] = {
    "pixels": (128, 256), "columns": (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256),
    "producers": (128, 256), "stages": ("auto", 2, 3, 4, 5, 6), "precision": ("plain", "fp16x3", "tf32"),
    "weights": ("auto", "streamed"),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {"pixels": 128, "columns": 0, "producers": 256, "stages": "auto", "precision": "plain",
                            "weights": "auto"}  # fmt: skip
SHARED_BYTES = 227 * 1024
RESERVED_BYTES = 2048
MOST_STAGES = 6
LEAST_STAGES = 2
RESIDENT_STAGES = 3  # with fewer beside resident weights they are streamed
CONSUMERS = 256  # threads that multiply: two warpgroups
_MOST_COLUMNS = 256
_MOST_BESIDE_MANY = 192  # columns where 256 threads gather: ptxas gives a wgmma no more registers
_MOST_SUMS = 128  # fp32 sums of a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPoint:
    """`pixels` x `columns` of the output a tile; `producers` threads gather; `planes`: fp16 hi, and lo of fp16x3;
    `resident`: weights stay in shared memory. Raises ValueError where it does not fit."""

    pixels: int
    columns: int
    producers: int
    stages: int
    precision: str
    resident: bool
    tiles: int  # of columns, in a group

    @property
    def planes(self) -> int:
        return 2 if self.precision == "fp16x3" else 1

    @property
    def parts(self) -> int:
        """Blocks of 64 pixels of a warpgroup that multiplies."""
        return self.pixels // 128

    @property
    def threads(self) -> int:
        return self.producers + CONSUMERS

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that gathers, and of one that multiplies: 65,536 in all."""
        return (88, 168) if self.producers == 256 else (96, 208)

    @property
    def pixel_bytes(self) -> int:
        """Of a stage."""
        return self.pixels * DEPTH * 2 * self.planes

    @property
    def weight_bytes(self) -> int:
        """The same."""
        return self.columns * DEPTH * 2 * self.planes


def make_point(shape: ConvShape, knobs: dict[str, Any]) -> ConvPoint:
    """The setting of these knobs. Raises ValueError on an unknown knob or value, and on what does not fit."""
    for name, value in knobs.items():
        if name not in KNOBS or value not in KNOBS[name]:
            raise ValueError(f"knob {name!r} can't be {value!r}; legal are {KNOBS.get(name, 'no values')}")
    columns = knobs["columns"] or min(-(-shape.columns // 8) * 8, _MOST_COLUMNS if knobs["pixels"] == 128 else 128)
    precision, pixels, producers = knobs["precision"], knobs["pixels"], knobs["producers"]
    if pixels > producers:
        raise ValueError("a thread gathers for one pixel at most")
    sums = pixels // 128 * columns // 2 + (columns // 2 if precision == "fp16x3" else 0)
    if columns > _MOST_BESIDE_MANY and producers > 128:
        raise ValueError(f"{columns} columns in one wgmma need the registers of 128 threads less")
    if sums > _MOST_SUMS:
        raise ValueError(f"{pixels} x {columns} does not fit the registers of two warpgroups")
    tiles = -(-shape.columns // columns)
    made = ConvPoint(pixels=pixels, columns=columns, producers=producers, stages=MOST_STAGES, precision=precision,
                     resident=False, tiles=tiles)  # fmt: skip
    room = SHARED_BYTES - RESERVED_BYTES
    whole = made.weight_bytes * shape.steps
    resident = knobs["weights"] == "auto" and tiles * shape.groups == 1
    resident = resident and (room - whole) // made.pixel_bytes >= RESIDENT_STAGES
    fitting = (room - whole) // made.pixel_bytes if resident else room // (made.pixel_bytes + made.weight_bytes)
    stages = min(fitting, MOST_STAGES) if knobs["stages"] == "auto" else knobs["stages"]
    if not LEAST_STAGES <= stages <= fitting:
        raise ValueError(f"{stages} stages of {made.pixel_bytes + made.weight_bytes} bytes don't fit")
    return ConvPoint(pixels=pixels, columns=columns, producers=producers, stages=stages, precision=precision,
                     resident=resident, tiles=tiles)  # fmt: skip
