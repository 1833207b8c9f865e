"""A setting of the kernels' knobs, and what it takes of shared memory and registers: plain numbers, no CUDA."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .im2col import KERNELS as OF_IM2COL
from .phases import MERGED, ConvPart, phases
from .shape import ATOM, DEPTH, GROUP, ConvShape
from .windows import Windows

GATHERED = ("gather", "window")  # kernels whose threads read x
KNOBS: dict[str, tuple[Any, ...]] = {
    "kernel": (*GATHERED, *OF_IM2COL), "pixels": (64, 128, 256, 512),
    "columns": (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256),
    "producers": (128, 256), "stages": ("auto", 2, 3, 4, 5, 6), "precision": ("plain", "fp16x3", "tf32"),
    "weights": ("auto", "streamed"), "phases": tuple(MERGED),
    "cluster": ("1x1", "2x1"), "schedule": ("cooperative", "pingpong"), "store": ("direct", "bulk", "staged"),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {"kernel": "gather", "pixels": 128, "columns": 0, "producers": 256, "stages": "auto",
                            "precision": "plain", "weights": "auto", "phases": "apart", "cluster": "1x1",
                            "schedule": "cooperative", "store": "direct"}  # fmt: skip
SHARED_BYTES = 227 * 1024
RESERVED_BYTES = 2048
MOST_STAGES = 6
LEAST_STAGES = 2
LEAST_PIXELS = 128
CONSUMERS = 256  # threads that multiply: two warpgroups
_MOST_COLUMNS = 256
_MOST_BESIDE_MANY = 192  # columns where 256 threads gather: ptxas gives a wgmma no more registers
_MOST_SUMS = 128  # fp32 sums of a thread
_FEW_COLUMNS = 128  # of 128 pixels and one plane: whoever multiplies does with fewer registers, and gathering has more
_MOST_OF_PHASES = 144  # with those of a wgmma that is added to them, beside 128 threads that gather
_MOST_PLACES = (1 << 31) - (1 << 16)  # of 32 bits, behind the last tile, too
_MOST_APART = 1 << 14  # CHUNKs between the halves of an ATOM, in a descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPoint:
    """`pixels` x `columns` of the output a tile; `producers` threads gather; `planes`: fp16 hi, and lo of fp16x3;
    `resident`: weights stay in shared memory. `pixel_bytes` and `weight_bytes` are a stage's, `steps` a tile's, `tiles`
    those of a group's columns; `merged`: how many `phases` have such columns in one tile, of pixels that they share,
    and `together`: in one wgmma."""

    kernel: str
    pixels: int
    columns: int
    producers: int
    precision: str
    tiles: int
    steps: int
    pixel_bytes: int
    weight_bytes: int
    stages: int = 0
    resident: bool = False
    phases: str = "apart"
    merged: int = 1
    together: int = 1

    @property
    def width(self) -> int:
        """Sums of a row of a tile."""
        return self.columns * self.merged

    @property
    def planes(self) -> int:
        return 2 if self.precision == "fp16x3" else 1

    @property
    def parts(self) -> int:
        """Blocks of 64 pixels of a warpgroup that multiplies."""
        return self.pixels // 128

    @property
    def sums(self) -> int:
        """Registers of a thread that hold sums."""
        return self.parts * self.width // 2 + (self.columns * self.together // 2 if self.planes == 2 else 0)

    @property
    def threads(self) -> int:
        return self.producers + CONSUMERS

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that gathers, and of one that multiplies. Together they are what the CTA has when it starts, 128
        a thread or, of 384, 168: a warpgroup that asks for more than others have given back waits for ever."""
        few = self.kernel == "gather" and self.parts * self.columns * self.planes <= _FEW_COLUMNS
        return ((104, 152) if few else (88, 168)) if self.producers == 256 else (104, 200)

    @property
    def staged_bytes(self) -> int:
        return self.stages * self.pixel_bytes + (self.steps if self.resident else self.stages) * self.weight_bytes


def run_of(columns: int, *, channels_last: bool) -> int:
    """How many neighbouring channels a thread has of a tile of so many columns: the two of a wgmma, or, where they lie
    side by side in memory, up to 8 (see `channel_of`)."""
    return 2 if not channels_last else 8 if columns % 32 == 0 else 4 if columns % 16 == 0 else 2


def channel_of(column: Any, run: int) -> Any:
    """The channel, counted from the tile's first, of a column of it. Of every 8 columns a thread has the sums of two;
    channels are dealt so that those of `run` / 2 such eights are `run` neighbours."""
    block, inside = column // (4 * run), column % (4 * run)
    return block * (4 * run) + inside % 8 // 2 * run + inside // 8 * 2 + inside % 2


def make_points(shape: ConvShape, knobs: dict[str, Any]) -> tuple[ConvPoint, ...]:
    """Of every kernel the setting of these knobs. Raises ValueError as `make_point`."""
    _check(knobs)
    found = phases(shape, knobs.get("phases", "apart"))
    return tuple(make_point(phase.shape, knobs, phase.parts) for phase in found)


def _check(knobs: dict[str, Any]) -> None:
    for name, value in knobs.items():
        if name not in KNOBS or value not in KNOBS[name]:
            raise ValueError(f"knob {name!r} can't be {value!r}; legal are {KNOBS.get(name, 'no values')}")


def make_point(shape: ConvShape, knobs: dict[str, Any], parts: tuple[ConvPart, ...] = ()) -> ConvPoint:
    """The setting of these knobs. Raises ValueError on an unknown knob or value, and on what does not fit."""
    _check(knobs)
    if knobs["kernel"] in OF_IM2COL or knobs["pixels"] < LEAST_PIXELS:
        raise ValueError(f"what gathers and multiplies has {LEAST_PIXELS} pixels and more, and no im2col")
    made = _sizes(shape, knobs, parts)
    if made.width > _MOST_BESIDE_MANY and made.producers > 128:
        raise ValueError(f"{made.width} columns need the registers of 128 threads less")
    if made.sums > (_MOST_OF_PHASES if made.merged > 1 and made.producers == 128 else _MOST_SUMS):
        raise ValueError(f"{made.pixels} x {made.width} does not fit the registers of two warpgroups")
    room = SHARED_BYTES - RESERVED_BYTES
    left = room - made.weight_bytes * made.steps
    alone = knobs["weights"] == "auto" and made.tiles * shape.groups == 1
    resident = alone and left // made.pixel_bytes >= min(made.steps + 1, 3)
    fitting = left // made.pixel_bytes if resident else room // (made.pixel_bytes + made.weight_bytes)
    stages = min(fitting, MOST_STAGES) if knobs["stages"] == "auto" else knobs["stages"]
    if not LEAST_STAGES <= stages <= fitting:
        raise ValueError(f"{stages} stages of {made.pixel_bytes + made.weight_bytes} bytes don't fit")
    return replace(made, stages=stages, resident=resident)


def _sizes(shape: ConvShape, knobs: dict[str, Any], parts: tuple[ConvPart, ...]) -> ConvPoint:
    """The setting without its stages."""
    kernel, pixels, producers = knobs["kernel"], knobs["pixels"], knobs["producers"]
    planes = 2 if knobs["precision"] == "fp16x3" else 1
    whole = -(-shape.columns // 8) * 8
    windows = Windows(shape=shape, pixels=pixels, parts=parts)
    blocks = [len(own) for own in windows.plan.blocks] if parts else [1]
    merged = sum(blocks)
    columns = knobs["columns"] or min(whole, max(_MOST_COLUMNS * 128 // pixels // merged // 8 * 8, 8))
    named = {name: knobs[name] for name in ("kernel", "pixels", "producers", "precision", "phases") if name in knobs}
    tiles = -(-shape.columns // columns)
    if kernel == "gather":
        if parts:
            raise ValueError("phases are merged where windows are in shared memory")
        if pixels > producers:
            raise ValueError("a thread gathers for one pixel at most")
        return ConvPoint(
            **named, columns=columns, tiles=tiles, steps=shape.steps, pixel_bytes=pixels * DEPTH * 2 * planes,
            weight_bytes=columns * DEPTH * 2 * planes,
        )  # fmt: skip
    if shape.stride != (1, 1, 1):
        raise ValueError("windows overlap where the stride is 1")
    if windows.held >= _MOST_APART:
        raise ValueError("windows too far apart")
    if windows.places >= _MOST_PLACES:
        raise ValueError("a grid of 2^31 places and more")
    return ConvPoint(
        **named, columns=columns, tiles=tiles, steps=windows.steps, merged=merged, together=max(blocks),
        pixel_bytes=windows.groups * windows.held * GROUP * 2 * planes,
        weight_bytes=windows.atoms * ATOM * columns * 2 * planes,
    )  # fmt: skip
