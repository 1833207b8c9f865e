"""Tiles of bare products in 16 bits: which there are, and a model that ranks them.

A CTA makes tiles one after the other. Each takes steps of 64 of K at the rate of the tensor cores, or at that at which
what a CTA reads comes to it; and an end, in which its sums leave. Warpgroups together do nothing else meanwhile; in
turns one ends its tile while the other multiplies the next, and only the last end is seen. What a size leaves idle in
its last wave counts most, so there are tiles of many widths.
"""

from __future__ import annotations

from math import ceil

from ...facts.program import Program
from ...facts.space import Point, point
from .diagonals import NO_ZEROS, kept_diagonals
from .product_sides import is_plain, is_routed, lies_along_k, sizes
from .product_time import DEPTH, PROCESSORS

KERNEL: dict[str, str | int] = {
    "stages": "auto", "store": "direct", "sum": "kernel", "schedule": "cooperative", "split": "fp16x3"
}  # fmt: skip
LINE = 64  # columns of 16 bits that lie together in shared memory, where they are neighbours there
# Tile, cluster, store, schedule. Whole tiles in shared memory where three stages fit beside them.
TILES = (
    *((f"256x{n}", "1x2", "bulk", "cooperative") for n in (128, 144, 160, 192, 208)),
    ("128x256", "2x1", "staged", "cooperative"),
    *((f"128x{n}", "2x1", "bulk", "cooperative") for n in (128, 224)),
    *((f"128x{n}", "2x1", "bulk", "pingpong") for n in (128, 144, 160, 176, 192, 208)),
)
# Clocks of a multiprocessor, fitted to 23 settings each at twelve sizes from 512 x 4096 x 4096 to 1024 x 128256 x 4096,
# which they meet within 2% (H200, 2026-11-23; benchmarks/results/h200/transformer-tiles.json).
_FMA = 2048.0  # a clock
_READ = 47.0  # bytes a clock
_STEP = 45.0  # beside what it multiplies
_END, _LAST = 0.108, 0.084  # an element, of warpgroups together, and of the last tile in turns
_PASSED = 1450.0  # on to the other warpgroup, a tile
_BEGIN = 21000.0
_RATE = 2.0  # clocks a ns
_MEMORY = 4000.0  # bytes a ns


def turn(tile: str, cluster: str, store: str, schedule: str = "pingpong") -> Point:
    """The setting of one kernel for all of K."""
    settings = {**KERNEL, "split_k": 1, "streamed": "none", "schedule": schedule}
    return point(**{**settings, "tile": tile, "cluster": cluster, "store": store})


def is_bare(program: Program) -> bool:
    """Whether it is a whole product in 16 bits of which no more than its elements is made."""
    assert program.product is not None
    if not is_plain(program) or program.reduced or is_routed(program) or len(program.operands) > 2:
        return False
    return kept_diagonals(program) == (None, None) and program.product.zeros == NO_ZEROS


def bare_points(program: Program) -> tuple[Point, ...]:
    """The settings, the fastest in the model first."""
    lines = program.outputs[0].dtype in ("f16", "bf16") and sizes(program)[2] % 8 == 0
    of_b = lies_along_k(program)[1]
    fitting = [t for t in TILES if of_b or int(t[0].split("x")[1]) % LINE == 0]
    ranked = sorted(fitting, key=lambda t: bare_ns(*sizes(program), tile=t[0], cluster=t[1], schedule=t[3]))
    return tuple(turn(tile, cluster, store if lines else "direct", how) for tile, cluster, store, how in ranked)


def bare_ns(batch: int, m: int, n: int, k: int, *, tile: str, cluster: str, schedule: str) -> float:
    """The model's time of such a setting."""
    tall, wide = map(int, tile.split("x"))
    cluster_m, cluster_n = map(int, cluster.split("x"))
    tiles = batch * ceil(m / (tall * cluster_m)) * ceil(n / (wide * cluster_n))
    each = ceil(tiles / (PROCESSORS // (cluster_m * cluster_n)))  # of the busiest CTA
    elements = tall * wide
    read = 2.0 * DEPTH * (tall / cluster_n + wide / cluster_m)
    length = ceil(k / DEPTH) * (max(elements * DEPTH / _FMA, read / _READ) + _STEP)
    if schedule == "pingpong":
        clocks = each * (length + _PASSED) + _LAST * elements
    else:
        clocks = each * (length + _END * elements)
    moved = 2.0 * batch * (m * k + k * n + m * n)
    return max((clocks + _BEGIN) / _RATE, moved / _MEMORY)
