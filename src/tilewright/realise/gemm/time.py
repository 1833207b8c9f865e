"""The model of a matrix product's time at a setting of its knobs: it ranks points before anything is measured.

Its rates in bytes/ns and flop/ns were fitted on one GPU, FITTED; on another they are taken in proportion to what its
description says of memory and of tensor cores (MODEL: nothing was fitted there).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from ...facts.device import Device
from ...facts.devices import DEVICES
from .kept_diagonals import NO_ZEROS, Kept, Zeros, share, steps_of

FITTED = DEVICES["h200"]
DEPTH = 64  # of K, a step
_FLOPS_SHARE = 700 / 776  # of the rate that cuBLAS reaches in 16 bits (TFLOP/s, H200)
_BYTES_SHARE = 4000 / 4240  # of a copy's rate (bytes/ns, H200)
_HELD, _HELD_ALONG = 8192, 32768  # of K that stays in registers while it is split, across it or along it
_PART_RATE = 32.0  # bytes/ns of a CTA that collects parts of tiles (H200, 2026-11-23: 3 us of 128 x 256, 17 of four)
_COPY_RATE = 1700.0  # bytes/ns, read and written, of torch's copy of lines that start anywhere (H200, 2026-11-24)
_COPY_NS = 2000.0  # that a kernel of its own takes beside
# cuBLAS in 16 bits where rows start anywhere, flops and bytes a ns: 1024 x 50257 x 768 in 839 us, x 1600 in 1537; 8 x
# 50257 x 1600 in 107 (H200, 2026-11-24; transformer-shapes.json of the results).
_ANYWHERE_FLOPS, _ANYWHERE_RATE = 1e5, 1500.0
_STREAMED_RATE = 0.65  # of wgmma whose warps split what they multiply: 155 of 230 TFLOP/s (H200, 2026-11-22)
_SPLIT_RATE, _PARTIAL_RATE = 3300.0, 3500.0  # bytes/ns, of the split of fp32 and of sums of parts


@dataclass(frozen=True, slots=True)
class Rates:
    """The model's rates on a device."""

    device: Device

    @property
    def memory(self) -> float:
        """The device's copy rate as a share of FITTED's."""
        return self.device.copy_bytes_per_ns / FITTED.copy_bytes_per_ns

    @property
    def cores(self) -> float:
        """The same of tensor cores in 16 bits."""
        return self.device.flops("f16") / FITTED.flops("f16")

    @property
    def flops(self) -> float:
        """Of our products in 16 bits, flop/ns."""
        return _FLOPS_SHARE * self.device.flops("f16")

    @property
    def bytes(self) -> float:
        """That our products move, bytes/ns."""
        return _BYTES_SHARE * self.device.copy_bytes_per_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmWork:
    """What a product has to do, whatever computes it. `fp32`: factors in 32 bits, `tf32`: rounded to TF32; `kept`: the
    diagonals that are needed; `zeros`: where factors have elements; `k_major`: which of them lie along K."""

    batch: int = 1
    m: int
    n: int
    k: int
    fp32: bool
    tf32: bool = False
    kept: Kept = (None, None)
    zeros: Zeros = NO_ZEROS
    k_major: tuple[bool, bool] = (True, True)


def work_ns(
    work: GemmWork, *, tile: str, cluster: str, parts: int, streamed: str = "none", stream_k: bool = False,
    device: Device,
) -> float:  # fmt: skip
    """The model: the splits; whole waves of tiles at the rate at which wgmma of that size runs, or the traffic if that
    takes longer; the traffic of partial sums. `stream_k`: clusters share all steps, for a part of a tile each, which
    comes and goes mostly beside others' products. An order of magnitude of the time; it ranks, it doesn't claim."""
    batch, m, n, k, fp32, kept, zeros = work.batch, work.m, work.n, work.k, work.fp32, work.kept, work.zeros
    tile_m, tile_n = map(int, tile.split("x"))
    cluster_m, cluster_n = map(int, cluster.split("x"))
    resident = 2 if tile_m == 64 and tile_n <= 128 and streamed == "none" else 1
    each = ceil(ceil(k / DEPTH) / parts) * DEPTH
    tiles = ceil(m / (tile_m * cluster_m)) * ceil(n / (tile_n * cluster_n)) * cluster_m * cluster_n * batch
    if kept != (None, None):
        tiles = ceil(tiles * share(kept, m, n, tall=tile_m * cluster_m, wide=tile_n * cluster_n))
    waves = ceil(tiles * ceil(k / each) / (device.processors * resident))
    length = waves * each  # of K, that the busiest goes through
    if zeros != NO_ZEROS:
        mean, most = steps_of(zeros, m, k, n, tall=tile_m * cluster_m, wide=tile_n * cluster_n, depth=DEPTH)
        length = ceil(max(tiles * mean / (device.processors * resident), most)) * DEPTH
    if stream_k:
        length = ceil(tiles * ceil(k / DEPTH) / (device.processors * resident)) * DEPTH
    # Small tiles read more of shared memory for each product: wgmma of 64 x 64 runs at about half its rate.
    rate = {64 * 64: 0.5, 64 * 128: 0.7, 128 * 128: 0.9}.get(tile_m * tile_n, 1.0)
    rate *= 1.0 if cluster_m * cluster_n > 1 else 0.95
    if streamed != "none":
        rate *= _STREAMED_RATE
    flops = 2 * tile_m * tile_n * resident * ((3 if fp32 and not work.tf32 else 1) * length / rate + 256 * waves)
    partial_bytes = 8.0 * batch * m * n * parts if parts > 1 else 0.0
    launch_ns = 3000.0 if parts > 1 else 0.0
    if stream_k:  # whoever ends a tile reads the parts of all others
        launch_ns = 1000.0 + 4.0 * tile_m * tile_n / _PART_RATE * max(device.processors * resident / tiles, 1.0)
    item = 4.0 if fp32 else 2.0
    sides = {"left": batch * m * k * item, "right": batch * k * n * item}
    split_bytes = 0.0
    for (name, size), lies_along in zip(sides.items(), work.k_major, strict=True):
        if fp32 and name != streamed:
            again = each > (_HELD_ALONG if lies_along else _HELD)  # read a second time
            split_bytes += ((1.5 if work.tf32 else 2.0) + again) * size
    moved_bytes = sum(sides.values()) + item * batch * m * n
    rates = Rates(device)
    product_ns = max(flops / (rates.flops / device.processors), moved_bytes / rates.bytes)
    around_ns = split_bytes / _SPLIT_RATE + partial_bytes / _PARTIAL_RATE
    return product_ns + around_ns / rates.memory + launch_ns


def copies_ns(sides: Sequence[float], device: Device) -> float:
    """Of factors of so many bytes each, before the product: to lines that start at multiples of 16 bytes."""
    return sum(2.0 * size / (_COPY_RATE * Rates(device).memory) + _COPY_NS for size in sides)


def least_ns(flops: float, moved_bytes: float, *, anywhere: bool, device: Device) -> float:
    """What a product in 16 bits takes at least; `anywhere`: of cuBLAS, whose rows may start so."""
    rates = Rates(device)
    if anywhere:
        return max(flops / (_ANYWHERE_FLOPS * rates.cores), moved_bytes / (_ANYWHERE_RATE * rates.memory))
    return max(flops / rates.flops, moved_bytes / rates.bytes)
