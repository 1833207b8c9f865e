"""What may be tuned about a matrix product, and what follows for one problem. Pure Python.

    C[M, N] = A[M, K] @ B[K, N]        a CTA makes tile_m x tile_n of C, in steps of DEPTH along K

    warpgroup 0          one warp loads A and B by TMA into `stages` buffers, multicast over the cluster
    warpgroups 1, 2      wgmma; each owns tile_m / groups rows of the tile; in turns (`pingpong`), every other tile

`scheme` says what a product is made of:

    plain         the operands as they are, fp16 or bf16
    fp8           the same of e4m3, both along K; of such a sum some 14 bits are kept: promoted every 128 of K
    fp16x3        fp32 as fp16 hi + lo, lo times 2^11: hi*lo + lo*hi in a chain of the tensor cores' accumulator, scaled
                  back on the way into the registers, and hi*hi in another
    bf16x6        fp32 as the sum of three of bf16, six products, at half the speed; holds 2^-117 of the largest
    tf32          fp32 as its fp16 hi alone, scaled like those: rounded to 11 bits, as TF32 is, at fp16's rate
    mixed_input   small_m; the large matrix has eight bits an element, made 16 in registers (see `mixed_input`)

Those of several products *promote*: every DEPTH of K, hi*hi every `interval`, the tensor cores' sum, which truncates,
is added to one in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

ARCH = "sm_90a"  # what these kernels are for, those of `ampere` apart
DEPTH = 64  # of K a stage: 128 bytes of fp16, the widest swizzle
SHARED_BYTES = 227 * 1024  # of a CTA of ARCH
LINE_BYTES = (128, 64, 32)  # of a row of C on its way out, that TMA swizzles together
RESERVED_BYTES = 2048  # barriers, alignment, and what the system takes of each CTA
RESIDUAL_SHIFT = 11  # of the scheme `fp16x3`
ATOM = 16  # of K: what a wgmma takes; of float8 twice as much
BAND = 8  # tiles along M that neighbours in time share B's tiles with
KNOBS: dict[str, tuple[Any, ...]] = {
    "tile_m": (64, 80, 96, 112, 128, 256),
    "tile_n": (16, 32, 64, 128, 144, 160, 176, 192, 208, 224, 240, 256),
    "cluster_m": (1, 2),
    "cluster_n": (1, 2),
    "stages": ("auto", 2, 3, 4, 5, 6, 7, 8),
    "split_k": (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128),
    "scheme": ("plain", "fp16x3", "bf16x6", "tf32", "fp8", "mixed_input"),
    "interval": ("auto", 64, 32, 16),
    "streamed": (False, True),
    "bulk": (False, True),
    "staged": (False, True),
    "small_m": (False, True),
    "pingpong": (False, True),
    "dual": (False, True),
    "stream_k": (False, True),
}
MOST_TOGETHER = 8  # CTAs of a cluster
# There cuBLAS's fp32 has few roundings in a row: K is short, or few results are summed in parts (docs/precision.md).
SHORT_K, FEW_RESULTS = 64, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One setting of every knob, and what its scheme says. `interval`: K of hi*hi that is promoted at once, by the size
    of the problem if "auto" (see `settled`); `streamed`: A is split by the warps that multiply it; `bulk`: C leaves by
    way of shared memory, where its rows start at multiples of 16 bytes; `staged`: so does C of 16 bits, a whole tile at
    a time, and a matrix that the epilogue reads comes there; `small_m`: few columns, splits of K summed in a cluster;
    `pingpong`: while one warpgroup ends its tile, the other multiplies the next; `dual`: half of a tile's columns are
    of a second B, small_m of its rows of a second A; `stream_k`: clusters take equal shares of the steps of all
    tiles."""

    tile_m: int = 128
    tile_n: int = 256
    cluster_m: int = 2
    cluster_n: int = 1
    stages: int | str = "auto"
    split_k: int = 1
    scheme: str = "plain"
    interval: int | str = "auto"
    streamed: bool = False
    bulk: bool = False
    staged: bool = False
    small_m: bool = False
    pingpong: bool = False
    dual: bool = False
    stream_k: bool = False

    def settled(self, *, k: int, results: int) -> Self:
        """The same with an interval for so many results, each a sum over K."""
        if self.interval != "auto":
            return self
        if results <= FEW_RESULTS:
            interval = 16 if k < SHORT_K else 32
        else:  # where 16 costs a tenth of the time at K = 32 (H200, 2026-11-22)
            interval = 32 if 32 < k < SHORT_K else DEPTH
        return replace(self, interval=interval if self.planes > 1 else DEPTH)

    @property
    def planes(self) -> int:
        """Matrices of 16 bits that stand for one operand."""
        return {"bf16x6": 3, "fp16x3": 2}.get(self.scheme, 1)

    @property
    def depth(self) -> int:
        """K of a stage: 128 bytes of it."""
        return 2 * DEPTH if self.scheme in ("fp8", "mixed_input") else DEPTH

    @property
    def halves(self) -> str:
        """The type of which planes are."""
        return "bf16" if self.scheme == "bf16x6" else "f16"

    @property
    def scales(self) -> bool:
        """Whether operands are scaled, row by row, by powers of two that are undone at the end."""
        return self.scheme not in ("plain", "fp8", "mixed_input")

    @property
    def two_levels(self) -> bool:
        return self.planes > 1 or self.scheme == "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling(Settings):
    """Who makes what of a tile: CTAs of a cluster, warpgroups of a CTA."""

    @property
    def is_odd(self) -> bool:
        """Whether a tile has columns that are no power of two."""
        return self.tile_n & (self.tile_n - 1) > 0

    @property
    def columns(self) -> int:
        """Of C, that a tile makes, as `rows`."""
        return self.tile_n // 2 if self.dual and not self.small_m else self.tile_n

    @property
    def rows(self) -> int:
        return self.tile_m // 2 if self.dual and self.small_m else self.tile_m

    @property
    def groups(self) -> int:
        """Warpgroups that multiply a tile."""
        return 1 if self.pingpong else max(self.rows // 64, 1) if self.tile_m < 256 else 2

    @property
    def turns(self) -> int:
        """Tiles that a CTA has under way."""
        return 2 if self.pingpong else 1

    @property
    def threads(self) -> int:
        return 128 * self.groups + 32 if self.small_m else 128 * (1 + self.groups * self.turns)

    @property
    def cluster(self) -> int:
        return self.split_k if self.small_m else self.cluster_m * self.cluster_n

    @property
    def share(self) -> int:
        """Columns of a small_m tile that one CTA of a cluster sums and writes; the first CTAs do."""
        return 16 * -(-(self.tile_n // 16) // self.cluster)

    @property
    def share_bytes(self) -> int:
        """What such a CTA is sent."""
        return self.cluster * self.share * 64 * self.groups * 4 * (2 if self.dual else 1)

    @property
    def atom_n(self) -> int:
        """Columns of one wgmma; half of what it may be where its sum needs registers beside the promoted ones."""
        return min(self.tile_n, 128) if self.two_levels else self.tile_n


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Tiling):
    """A setting that fits the GPU, and what it takes of shared memory and registers. Raises ValueError on any other."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value not in KNOBS[field.name]:
                raise ValueError(f"knob {field.name!r} can't be {value!r}; legal are {KNOBS[field.name]}")
        if self.is_odd and (self.two_levels or self.small_m):
            raise ValueError(f"tiles of {self.tile_n} columns are plain ones'")
        if self.tile_m * self.tile_n > 256 * 208:
            raise ValueError(f"a tile of {self.tile_m} x {self.tile_n} does not fit the registers of two warpgroups")
        if self.tile_m == 64 and self.tile_n == 256 and self.two_levels:
            raise ValueError("64 x 256 with promotion does not fit the registers of one warpgroup")
        if self.streamed and (self.planes != 2 or self.tile_m != 128 or self.tile_n > 128 or self.cluster_n > 1):
            raise ValueError(
                "what is streamed is fp32 as pairs, in tiles of 128 x 64 or 128 x 128, and clusters along M"
            )
        if not self.small_m and self.tile_n < 64:
            raise ValueError(f"tiles of {self.tile_n} columns are small_m ones'")
        if self.scheme == "tf32" and (self.small_m or self.staged or self.pingpong):
            raise ValueError("tf32 is multiplied by warpgroups together, in tiles of 64, 128 or 256 columns")
        if self.small_m and (self.two_levels or self.bulk or self.cluster_m * self.cluster_n > 1):
            raise ValueError("a small-M product is plain, and its clusters are its splits of K")
        if self.small_m and (self.split_k > MOST_TOGETHER or self.tile_m > 128 or self.tile_n > 64):
            raise ValueError(f"a small-M product has tiles of 64 or 128 x 16 to 64, and at most {MOST_TOGETHER} splits")
        if self.small_m and self.cluster > 1 and self.share_bytes > self.depth_stages * self.stage_bytes:
            raise ValueError(f"the sums of {self.split_k} splits do not fit where {self.depth_stages} stages were")
        if self.scheme == "mixed_input" and (not self.small_m or self.dual):
            raise ValueError("a mixed-input product is a small-M one, and one product alone")
        if self.staged and (self.two_levels or self.small_m or self.bulk or self.columns % 64):
            raise ValueError("what is staged is plain, not in bulk, and whole lines of 64 columns")
        if self.pingpong and (self.two_levels or self.small_m or self.tile_m * self.tile_n > 128 * 208):
            raise ValueError("what goes in turns is plain, and a tile fits the registers of one warpgroup")
        if self.dual and (self.scheme == "fp8" or (self.split_k > 1 and not self.small_m)):
            raise ValueError("what is dual has 16 bits or fp32, and whole sums")
        if self.dual and self.bulk and self.two_levels:
            raise ValueError("what is dual and of fp32 does not leave in bulk")
        if self.dual and (self.tile_m < 80 if self.small_m else self.tile_n not in (128, 192, 256)):
            raise ValueError("what is dual has 128, 192 or 256 columns, or 80 to 128 small_m rows")
        if self.tile_m in (80, 96, 112) and not (self.dual and self.small_m):
            raise ValueError(f"tiles of {self.tile_m} rows are dual and small_m")
        if self.stream_k and (self.streamed or self.bulk or self.staged or self.small_m or self.pingpong or self.dual):
            raise ValueError("stream-K is of warpgroups that share a tile, and write it themselves")
        if self.stream_k and self.split_k > 1:
            raise ValueError("stream-K cuts K itself: with split_k=1")
        if self.depth_stages < 2:
            raise ValueError(f"fewer than two stages of {self.stage_bytes} bytes fit")

    @property
    def stage_bytes(self) -> int:
        if self.scheme == "mixed_input":
            return (self.tile_m + 2 * self.tile_n) * self.depth
        return (self.tile_m + self.tile_n) * DEPTH * 2 * self.planes

    @property
    def smem_store_bytes(self) -> int:
        if self.staged:
            return self.turns * self.tile_m * self.columns * 2
        return self._smem_store_bytes(self.line_bytes) if self.bulk else 0

    def _smem_store_bytes(self, line_bytes: int) -> int:
        """Two buffers of 64 rows for each warpgroup."""
        return self.groups * self.turns * 2 * 64 * line_bytes

    @property
    def line_bytes(self) -> int:
        """Of a row of C, where it leaves in bulk, that go together: the longest that a tile is made of, or 64 of 128 if
        that leaves room for another stage."""
        longest = next(size for size in LINE_BYTES if self.columns * 2 % size == 0)
        shorter = min(longest, 64)
        gains = self._fitting(self._smem_store_bytes(shorter)) > self._fitting(self._smem_store_bytes(longest))
        return shorter if gains else longest

    @property
    def resident(self) -> int:
        """CTAs to a multiprocessor: one multiplies while another promotes, or ends."""
        if self.small_m:
            if self.stages == "auto":
                return 3 if self.groups == 1 else 2
            most = SHARED_BYTES // (int(self.stages) * self.stage_bytes + RESERVED_BYTES)
            return max(min(most, 4 if self.groups == 1 else 2), 1)
        return 2 if self.groups == 1 and self.tile_n <= 128 and not self.pingpong else 1

    @property
    def depth_stages(self) -> int:
        most = self._fitting(self.smem_store_bytes)
        return most if self.stages == "auto" else min(int(self.stages), most)

    def _fitting(self, smem_store_bytes: int) -> int:
        """Stages beside so many bytes."""
        return min((SHARED_BYTES // self.resident - RESERVED_BYTES - smem_store_bytes) // self.stage_bytes, 8)

    @property
    def block(self) -> int:
        """Pairs of results that a thread computes before it writes them: so many reads of an epilogue's operands are on
        their way at a time."""
        sums = self.tile_m * self.tile_n // (128 * self.groups)
        return 16 if sums <= 128 and not self.two_levels and not self.small_m else 4

    @property
    def registers(self) -> tuple[int, int]:
        """Registers a thread of the loading, and of the multiplying warpgroups."""
        if self.resident == 2:
            return 40, 208
        # What ptxas spills least with (4.8.1): 256 rows hold column exponents beside 192 sums.
        return (24, 240) if self.tile_m == 256 or (self.pingpong and self.tile_n > 192) else (40, 232)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What a launch needs to know of a problem; `chunk` is K of a split, `splits` those that another kernel sums."""

    clusters: int
    splits: int
    chunk: int


def make_grid(point: Point, m: int, n: int, k: int, *, batch: int = 1, processors: int) -> Grid:
    """Persistent clusters, no more than are resident at once; splits of whole stages, none of them empty."""
    steps = -(-k // point.depth)
    if point.small_m:
        tiles = -(-m // point.rows) * -(-n // point.columns) * batch
        return Grid(clusters=tiles, splits=1, chunk=-(-steps // point.split_k) * point.depth)
    each = -(-steps // min(point.split_k, steps))
    splits = -(-steps // each)
    tiles = -(-m // (point.tile_m * point.cluster_m)) * -(-n // (point.columns * point.cluster_n)) * splits * batch
    memory = processors * point.resident // point.cluster
    if point.stream_k:  # at least as many steps each as are on their way at once
        tiles = max(tiles * steps // point.depth_stages, 1)
    return Grid(clusters=max(min(tiles, memory), 1), splits=splits, chunk=each * point.depth)


@dataclass(frozen=True, slots=True)
class Chain:
    """wgmma of one sum: (plane of A, plane of B) of each product, and the blocks of a stage, ATOM of K each. `shift`:
    it is not promoted, but scaled back by that power of two, and the next chain goes on from there."""

    products: tuple[tuple[int, int], ...]
    shift: int
    blocks: range


def chains_of(point: Point) -> tuple[Chain, ...]:
    """The chains of one stage, in order."""
    hi, lo, least = 0, 1, 2
    cross: tuple[tuple[int, int], ...] = ((hi, lo), (lo, hi))
    main = ((hi, hi),)
    if point.scheme == "bf16x6":
        cross = ((hi, least), (lo, lo), (least, hi), *cross)
    first = [Chain(cross, RESIDUAL_SHIFT, range(DEPTH // ATOM))] if point.scheme == "fp16x3" else []
    last = (*cross, *main) if point.scheme == "bf16x6" else main
    each = (DEPTH if point.interval == "auto" else int(point.interval)) // ATOM
    return (*first, *(Chain(last, 0, range(at, at + each)) for at in range(0, DEPTH // ATOM, each)))
