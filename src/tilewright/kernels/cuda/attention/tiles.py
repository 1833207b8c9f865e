"""A setting of the kernel's knobs, and what it takes of shared memory and registers: plain numbers, no CUDA.

tile_m = 64 `groups` queries, 64 for each warpgroup that multiplies; tile_n keys
shared memory    queries | `stages` tiles of keys | as many of values | barriers
registers        scores tile_n / 2, weights tile_n / 4, results columns / 2 of a thread; of fp16x3 the weights have
                 two planes, and a product of one tile stands beside the results
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .order import TileOrder
from .shape import AttentionShape

PLAIN, VARIANTS = "attention", "attention variants"  # what GPUs have run, and what is more (see `table.UNPROVEN`)
KNOBS: dict[str, tuple[Any, ...]] = {
    "groups": (1, 2, 3), "tile_n": (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256), "stages": (1, 2, 3, 4),
    "precision": ("plain", "fp16x3"), "splits": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), "skips": (False, True),
    "kernel": (PLAIN, VARIANTS),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "groups": 2, "tile_n": 128, "stages": 2, "precision": "plain", "splits": 1, "skips": False
}  # fmt: skip
SHARED_BYTES = 227 * 1024
RESERVED_BYTES = 1024
MOST_COLUMNS = 256
# Registers of a thread of the warpgroup that loads, and of those that multiply, by how many of these there are. The sum
# over the warpgroups is at most what the CTA starts with (255, 168 or 128 a thread), else the last one waits for ever.
REGISTERS = {1: (56, 240), 2: (24, 240), 3: (32, 160)}
# Of a thread that multiplies, for all but the three tiles. With less, where a warpgroup multiplies alone, ptxas spills,
# and has each wgmma wait for the one before.
_BESIDE = {1: 80, 2: 48, 3: 40}
_LISTED = 8  # more, where lists say which tiles are visited


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPoint:
    """`depth` and `columns` are those of a tile in shared memory, in steps that swizzles like. `splits`: CTAs that
    share the keys of a tile of queries. `skips`: lists say which tiles are visited (see `visits`)."""

    groups: int
    tile_n: int
    stages: int
    precision: str
    depth: int
    columns: int
    splits: int = 1
    skips: bool = False

    @property
    def planes(self) -> int:
        return 2 if self.precision == "fp16x3" else 1

    @property
    def tile_m(self) -> int:
        return 64 * self.groups

    @property
    def threads(self) -> int:
        return 128 * (self.groups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        return REGISTERS[self.groups]

    @property
    def query_bytes(self) -> int:
        return self.tile_m * self.depth * 2 * self.planes

    @property
    def key_bytes(self) -> int:
        return self.tile_n * self.depth * 2 * self.planes

    @property
    def value_bytes(self) -> int:
        return self.tile_n * self.columns * 2 * self.planes

    @property
    def staged_bytes(self) -> int:
        return self.query_bytes + self.stages * (self.key_bytes + self.value_bytes)

    @property
    def held(self) -> int:
        """Registers of a thread for scores, weights and results."""
        return self.tile_n // 2 + self.planes * (self.tile_n // 4 + self.columns // 2)


def padded(width: int) -> int:
    """The width of a tile for so many columns."""
    if width <= 32:
        return 16 if width <= 16 else 32
    step = 32 if width <= 128 else 64
    return -(-width // step) * step


def make_point(shape: AttentionShape, knobs: dict[str, Any]) -> AttentionPoint:
    """The setting of these knobs. Raises ValueError on an unknown knob or value, and on what does not fit."""
    for name, value in knobs.items():
        if name not in KNOBS or value not in KNOBS[name]:
            raise ValueError(f"knob {name!r} can't be {value!r}; legal are {KNOBS.get(name, 'no values')}")
    own = {name: value for name, value in (DEFAULTS | knobs).items() if name != "kernel"}
    made = AttentionPoint(**own, depth=padded(shape.depth), columns=padded(shape.columns))
    if max(made.depth, made.columns) > MOST_COLUMNS:
        raise ValueError(f"heads of {shape.depth} and {shape.columns} are wider than {MOST_COLUMNS}")
    if made.held > made.registers[1] - _BESIDE[made.groups] - _LISTED * made.skips:
        raise ValueError(f"{made.held} registers of tiles don't fit beside {made.groups} warpgroups")
    if made.staged_bytes > SHARED_BYTES - RESERVED_BYTES:
        raise ValueError(f"{made.staged_bytes} bytes don't fit shared memory")
    hides = shape.sparse is not None or (not shape.spares and shape.visible != (None, None))
    if made.skips and (made.splits > 1 or not hides):
        raise ValueError("tiles are skipped where a mask tells, and where no CTAs share them")
    if made.splits > fewest_tiles(shape, made):
        raise ValueError(f"{made.splits} CTAs have fewer tiles of keys")
    return made


def fewest_tiles(shape: AttentionShape, point: AttentionPoint) -> int:
    """Of keys, that a tile of queries visits."""
    order = TileOrder(shape=shape, tile_m=point.tile_m, tile_n=point.tile_n)
    if shape.visible == (None, None):
        return order.key_tiles
    return min(last - first for first, last in map(order.visited, range(order.row_tiles)))
