"""Tiles of bare products in 16 bits: which there are, and a model that ranks them.

A CTA makes tiles one after the other. Each takes steps of 64 of K at the rate of the tensor cores, or at that at which
what a CTA reads comes to it; and an end, in which its sums leave. Warpgroups together do nothing else meanwhile; in
turns one ends its tile while the other multiplies the next, and only the last end is seen. What a size leaves idle in
its last wave counts most, so there are tiles of many widths.
"""

from __future__ import annotations

from math import ceil

from ...facts.device import Device
from ...facts.space import Point, point
from ...ir.program import Program
from .kept_diagonals import NO_ZEROS, kept_diagonals
from .shape import is_grouped_gemm, is_k_major, is_plain, matrices, sizes
from .time import DEPTH

KERNEL: dict[str, str | int] = {
    "stages": "auto", "store": "direct", "sum": "kernel", "schedule": "cooperative", "split": "fp16x3"
}  # fmt: skip
LINE = 64  # columns of 16 bits that lie together in shared memory, where they are neighbours there
# Tile, cluster, store, schedule.
TILES = (
    ("128x256", "2x1", "bulk", "cooperative"),
    *((f"256x{n}", "1x2", "bulk", "cooperative") for n in (128, 144, 160, 192, 208)),
    *((f"128x{n}", "2x1", "bulk", "cooperative") for n in (128, 224)),
    *((f"128x{n}", "2x1", "bulk", "pingpong") for n in (128, 144, 160, 176, 192, 208)),
)
# Clocks of a multiprocessor, fitted to fourteen sizes from 512 x 4096 x 4096 to 1024 x 128256 x 4096: of the settings
# that take up to 1.3 times the best's time they foresee the ratios within 2.3%, and the first takes 1.002 of the best's
# time, at most 1.015 (H200, 2026-11-23; transformer-tiles.json and transformer-tiles-short.json of the results).
_FMA = 2048.0  # a clock
_READ = 47.5  # bytes a clock
_STEP = 47.0  # beside what it multiplies
_TOGETHER, _END = 0.988, 0.123  # of warpgroups together: the rate, and an element of each tile's end
_PASSED, _LAST = 1000.0, 0.087  # of those in turns: on to the other one, a tile; an element of the last tile


def turn(tile: str, cluster: str, store: str, schedule: str = "pingpong") -> Point:
    """The setting of one kernel for all of K."""
    settings = {**KERNEL, "split_k": 1, "streamed": "none", "schedule": schedule}
    return point(**{**settings, "tile": tile, "cluster": cluster, "store": store})


def is_bare(program: Program) -> bool:
    """Whether it is a whole product in 16 bits, with nothing beside it that its epilogue reads."""
    if not is_plain(program) or program.reduced or is_grouped_gemm(program) or len(program.operands) > 2:
        return False
    return kept_diagonals(program) == (None, None) and matrices(program).zeros == NO_ZEROS


def bare_points(program: Program, device: Device) -> tuple[Point, ...]:
    """The settings, the fastest in the model first."""
    lines = program.outputs[0].dtype in ("f16", "bf16") and sizes(program)[2] % 8 == 0
    of_b = is_k_major(program)[1]
    fitting = [t for t in TILES if of_b or int(t[0].split("x")[1]) % LINE == 0]
    ranked = sorted(
        fitting,
        key=lambda t: bare_clocks(*sizes(program), tile=t[0], cluster=t[1], schedule=t[3], device=device),
    )
    return tuple(turn(tile, cluster, store if lines else "direct", how) for tile, cluster, store, how in ranked)


def bare_clocks(batch: int, m: int, n: int, k: int, *, tile: str, cluster: str, schedule: str, device: Device) -> float:
    """Of the busiest multiprocessor at such a setting, without what is the same at all."""
    tall, wide = map(int, tile.split("x"))
    cluster_m, cluster_n = map(int, cluster.split("x"))
    tiles = batch * ceil(m / (tall * cluster_m)) * ceil(n / (wide * cluster_n))
    each = ceil(tiles / (device.processors // (cluster_m * cluster_n)))
    elements = tall * wide
    read = 2.0 * DEPTH * (tall / cluster_n + wide / cluster_m)
    length = ceil(k / DEPTH) * (max(elements * DEPTH / _FMA, read / _READ) + _STEP)
    if schedule == "pingpong":
        return each * (length + _PASSED) + _LAST * elements
    return each * (_TOGETHER * length + _END * elements)
