"""What may be tuned about a matrix product, and what follows for one problem. Pure Python.

    C[M, N] = A[M, K] @ B[K, N]        a CTA makes tile_m x tile_n of C, in steps of DEPTH along K

    warpgroup 0          one warp loads A and B by TMA into `stages` buffers, multicast over the cluster
    warpgroups 1, 2      wgmma; each owns tile_m / groups rows of the tile

`scheme` says what a product is made of:

    plain      the operands as they are, fp16 or bf16
    shared     fp32 as fp16 hi + lo: hi*lo + lo*hi + hi*hi in one chain of the tensor cores' accumulator
    scaled     the same, lo times 2^11: hi*lo + lo*hi in a chain of its own, scaled back on the way into the registers

Both fp32 schemes *promote*: every DEPTH of K the tensor cores' sum, which truncates, is added to one in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

DEPTH = 64  # of K a stage: 128 bytes of fp16, the widest swizzle
SHARED_BYTES = 227 * 1024
RESERVED_BYTES = 2048  # barriers, alignment, and what the system takes of each CTA
SPLIT_SCHEMES = ("shared", "scaled")
KNOBS: dict[str, tuple[Any, ...]] = {
    "tile_m": (64, 128, 256),
    "tile_n": (64, 128, 256),
    "cluster_m": (1, 2),
    "cluster_n": (1, 2),
    "stages": ("auto", 2, 3, 4, 5, 6, 7, 8),
    "split_k": (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128),
    "scheme": ("plain", *SPLIT_SCHEMES),
    "promote": (False, True),
    "band": (1, 4, 8, 16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting of every knob. `band`: tiles along M that neighbours in time share B's tiles with; `promote`: whether
    a plain product is summed in two levels, as fp32 ones always are."""

    tile_m: int = 128
    tile_n: int = 256
    cluster_m: int = 2
    cluster_n: int = 1
    stages: int | str = "auto"
    split_k: int = 1
    scheme: str = "plain"
    promote: bool = False
    band: int = 8

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value not in KNOBS[field.name]:
                raise ValueError(f"knob {field.name!r} can't be {value!r}; legal are {KNOBS[field.name]}")
        if self.tile_m * self.tile_n > 128 * 256:
            raise ValueError(f"a tile of {self.tile_m} x {self.tile_n} does not fit the registers of two warpgroups")
        if self.tile_m == 64 and self.tile_n == 256 and self.two_levels:
            raise ValueError("64 x 256 with promotion does not fit the registers of one warpgroup")
        if self.depth_stages < 2:
            raise ValueError(f"fewer than two stages of {self.stage_bytes} bytes fit")

    @property
    def planes(self) -> int:
        """fp16 matrices that stand for one operand."""
        return 2 if self.scheme in SPLIT_SCHEMES else 1

    @property
    def two_levels(self) -> bool:
        return self.promote or self.planes > 1

    @property
    def groups(self) -> int:
        """Warpgroups that multiply."""
        return max(self.tile_m // 64, 1) if self.tile_m < 256 else 2

    @property
    def threads(self) -> int:
        return 128 * (1 + self.groups)

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def atom_n(self) -> int:
        """Columns of one wgmma; half of what it may be where its sum needs registers beside the promoted ones."""
        return min(self.tile_n, 128) if self.two_levels else self.tile_n

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * DEPTH * 2 * self.planes

    @property
    def resident(self) -> int:
        """CTAs to a multiprocessor: small tiles share it, so that one multiplies while the other promotes."""
        return 2 if self.groups == 1 and self.tile_n <= 128 else 1

    @property
    def depth_stages(self) -> int:
        most = min((SHARED_BYTES // self.resident - RESERVED_BYTES) // self.stage_bytes, 8)
        return most if self.stages == "auto" else min(int(self.stages), most)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers a thread of the loading, and of the multiplying warpgroups."""
        if self.resident == 2:
            return 40, 208
        # What ptxas spills least with (4.8.1): 256 rows hold column exponents beside 192 sums.
        return (24, 240) if self.tile_m == 256 else (40, 232)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What a launch needs to know of a problem; `chunk` is K of a split."""

    clusters: int
    splits: int
    chunk: int


def make_grid(point: Point, m: int, n: int, k: int, *, batch: int = 1, processors: int) -> Grid:
    """Persistent clusters, as many as are resident at once, or fewer; splits of whole stages, none of them empty."""
    steps = -(-k // DEPTH)
    each = -(-steps // min(point.split_k, steps))
    splits = -(-steps // each)
    tiles = -(-m // (point.tile_m * point.cluster_m)) * -(-n // (point.tile_n * point.cluster_n)) * splits * batch
    room = processors * point.resident // point.cluster
    return Grid(clusters=max(min(tiles, room), 1), splits=splits, chunk=each * DEPTH)


def fp32_points(m: int, n: int, k: int, *, processors: int = 132, count: int = 8) -> tuple[Point, ...]:
    """Points worth trying for an fp32 product, the likeliest winner first: large tiles, and where those leave
    multiprocessors idle, smaller ones and splits of K; of the first two, the scheme `scaled` too."""
    shapes = ((256, 128, 1, 2), (128, 256, 2, 1), (128, 128, 2, 1), (128, 128, 1, 1), (128, 64, 1, 1), (64, 128, 1, 1),
              (64, 64, 1, 1))  # fmt: skip
    ranked: list[tuple[float, int, Point]] = []
    for rank, (tile_m, tile_n, cluster_m, cluster_n) in enumerate(shapes):
        for split in KNOBS["split_k"]:
            point = Point(tile_m=tile_m, tile_n=tile_n, cluster_m=cluster_m, cluster_n=cluster_n, split_k=split,
                          scheme="shared")  # fmt: skip
            cost = _cost(point, m, n, k, processors)
            if cost is not None:
                ranked.append((cost, rank, point))
    ranked.sort(key=lambda item: item[:2])
    best = [point for _, _, point in ranked[: count - 2]]
    return tuple(best) + tuple(replace(point, scheme="scaled") for point in best[:2])


def _cost(point: Point, m: int, n: int, k: int, processors: int) -> float | None:
    """Waves of tiles in units of wgmma work, what partial sums cost added; None where a split would be too short."""
    grid = make_grid(point, m, n, k, processors=processors)
    if point.split_k > 1 and (grid.splits != point.split_k or grid.chunk < 4 * DEPTH):
        return None
    tiles = -(-m // (point.tile_m * point.cluster_m)) * -(-n // (point.tile_n * point.cluster_n)) * point.cluster
    waves = -(-tiles * grid.splits // (processors * point.resident))
    # Small tiles read more of shared memory for each product: wgmma of 64 x 64 runs at about half its rate.
    rate = {64 * 64: 0.5, 64 * 128: 0.7, 128 * 64: 0.7, 128 * 128: 0.9}.get(point.tile_m * point.tile_n, 1.0)
    each = point.tile_m * point.tile_n * point.resident * (grid.chunk / rate + 256)
    partial = 2.0 * m * n * grid.splits * 40 / processors if grid.splits > 1 else 0.0
    return waves * each + partial
