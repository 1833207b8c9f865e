"""The model of a matrix product's time at a setting of its knobs: it ranks points before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from .diagonals import NO_ZEROS, Kept, Zeros, share, steps_of

PROCESSORS = 132  # of an H100 or H200
DEPTH = 64  # of K, a step
_FLOPS, _BYTES = 7e5, 4000.0  # a ns: of tensor cores in 16 bits, of memory
_HELD, _HELD_ALONG = (
    8192,
    32768,
)  # of K that stays in registers while it is split, across it or along it (gemm/split.py)
_PART_RATE = 32.0  # bytes/ns of a CTA that collects parts of tiles (H200, 2026-11-23: 3 us of 128 x 256, 17 of four)
_COPY_RATE = 1700.0  # bytes/ns, read and written, of torch's copy of lines that start anywhere (H200, 2026-11-24)
_COPY_NS = 2000.0  # that a kernel of its own takes beside
# cuBLAS in 16 bits where rows start anywhere, flops and bytes a ns: 1024 x 50257 x 768 in 839 us, x 1600 in 1537; 8 x
# 50257 x 1600 in 107 (H200, 2026-11-24; transformer-shapes.json of the results).
_ANYWHERE_FLOPS, _ANYWHERE_RATE = 1e5, 1500.0
_STREAMED_RATE = 0.65  # of wgmma whose warps split what they multiply: 155 of 230 TFLOP/s (H200, 2026-11-22)


def work_ns(
    batch: int, m: int, n: int, k: int, *, tile: str, cluster: str, parts: int, fp32: bool, streamed: str = "none",
    kept: Kept = (None, None), rounded: bool = False, zeros: Zeros = NO_ZEROS, along: tuple[bool, bool] = (True, True),
    stream_k: bool = False,
) -> float:  # fmt: skip
    """The model: the splits; whole waves of tiles at the rate at which wgmma of that size runs, or the traffic if that
    takes longer; the traffic of partial sums. `kept`: the diagonals that are needed; `zeros`: where factors have
    elements; `along`: whether they lie along K; `stream_k`: clusters share all steps, for a part of a tile each, which
    comes and goes mostly beside others' products. An order of magnitude of the time; it ranks, it doesn't claim."""
    tile_m, tile_n = map(int, tile.split("x"))
    cluster_m, cluster_n = map(int, cluster.split("x"))
    resident = 2 if tile_m == 64 and tile_n <= 128 and streamed == "none" else 1
    each = ceil(ceil(k / DEPTH) / parts) * DEPTH
    tiles = ceil(m / (tile_m * cluster_m)) * ceil(n / (tile_n * cluster_n)) * cluster_m * cluster_n * batch
    if kept != (None, None):
        tiles = ceil(tiles * share(kept, m, n, tall=tile_m * cluster_m, wide=tile_n * cluster_n))
    waves = ceil(tiles * ceil(k / each) / (PROCESSORS * resident))
    length = waves * each  # of K, that the busiest goes through
    if zeros != NO_ZEROS:
        mean, most = steps_of(
            zeros, m, k, n, tall=tile_m * cluster_m, wide=tile_n * cluster_n, depth=DEPTH
        )  # fmt: skip
        length = ceil(max(tiles * mean / (PROCESSORS * resident), most)) * DEPTH
    if stream_k:
        length = ceil(tiles * ceil(k / DEPTH) / (PROCESSORS * resident)) * DEPTH
    # Small tiles read more of shared memory for each product: wgmma of 64 x 64 runs at about half its rate.
    rate = {64 * 64: 0.5, 64 * 128: 0.7, 128 * 128: 0.9}.get(tile_m * tile_n, 1.0)
    rate *= 1.0 if cluster_m * cluster_n > 1 else 0.95
    if streamed != "none":
        rate *= _STREAMED_RATE
    flops = 2 * tile_m * tile_n * resident * ((3 if fp32 and not rounded else 1) * length / rate + 256 * waves)
    partial_bytes = 8.0 * batch * m * n * parts if parts > 1 else 0.0
    launch_ns = 3000.0 if parts > 1 else 0.0
    if stream_k:  # whoever ends a tile reads the parts of all others
        launch_ns = 1000.0 + 4.0 * tile_m * tile_n / _PART_RATE * max(PROCESSORS * resident / tiles, 1.0)
    item = 4.0 if fp32 else 2.0
    sides = {"left": batch * m * k * item, "right": batch * k * n * item}
    split_bytes = 0.0
    for (name, size), lies_along in zip(sides.items(), along, strict=True):
        if fp32 and name != streamed:
            again = each > (_HELD_ALONG if lies_along else _HELD)  # read a second time
            split_bytes += ((1.5 if rounded else 2.0) + again) * size
    moved_bytes = sum(sides.values()) + item * batch * m * n
    product_ns = max(flops / (_FLOPS / PROCESSORS), moved_bytes / _BYTES)
    return product_ns + split_bytes / 3300.0 + partial_bytes / 3500.0 + launch_ns


def copies_ns(sides: Sequence[float]) -> float:
    """Of factors of so many bytes each, before the product: to lines that start at multiples of 16 bytes."""
    return sum(2.0 * size / _COPY_RATE + _COPY_NS for size in sides)


def least_ns(flops: float, moved_bytes: float, *, anywhere: bool) -> float:
    """What a product in 16 bits takes at least; `anywhere`: of cuBLAS, whose rows may start so."""
    rates = (_ANYWHERE_FLOPS, _ANYWHERE_RATE) if anywhere else (_FLOPS, _BYTES)
    return max(flops / rates[0], moved_bytes / rates[1])
