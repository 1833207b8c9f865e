"""A convolution of x in channels-last as a product of matrices: whether it can be one, and its settings.

    A     pixels of the output x (tap, channel), K = tap * channels + channel; B: the weights, (columns, tap, channel)
    stage 64 of K, 128 bytes a pixel: 8 chunks of 16 bytes, 8 channels each, of one tap or of several

Plain numbers, no CUDA; `im2col_addresses` says where a chunk of A is read, and where it lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ..gemm.host.plan import DEPTH, Point
from .shape import GROUP, ConvShape

KERNELS = ("im2col", "im2col_tma")
CHUNK = 16  # bytes
CHUNKS = DEPTH // GROUP  # of a row of a stage
LINE = CHUNK * CHUNKS
LOADERS = 128  # threads that copy
ROWS_APART = LOADERS // CHUNKS  # rows of one thread
_MOST = 1 << 31  # results, and chunks of x: their numbers have 32 bits
_BITS = 31  # of a word, for the tests of a row
_TILES_N = (64, 128, 160, 192, 224, 256)  # columns of a tile
_MOST_SUMS = 128  # of a thread, where another warpgroup has registers for addresses
# Of threads that copy and that multiply, by the threads of a CTA and the rows of a thread that copies.
_REGISTERS = {(256, 4): (72, 184), (384, 4): (56, 224), (384, 8): (56, 224), (384, 16): (72, 216)}
# What TMA takes (CUDA driver API, cuTensorMapEncodeIm2col): corners and offsets by the number of spatial dimensions.
_CORNER_BITS = {1: 16, 2: 8, 3: 5}
_MOST_STRIDE = 8


class AsyncPoint(Point):
    """Of a product whose A is copied by a warpgroup."""

    __slots__ = ()

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that copies, and of one that multiplies: what the CTA starts with, dealt anew."""
        return _REGISTERS[self.threads, self.tile_m // ROWS_APART]


def no_im2col(shape: ConvShape, dtype: str, *, channels_last: bool) -> str | None:
    """Why no kernel here computes it; None if one does."""
    if dtype not in ("f16", "bf16"):
        return "an im2col of 16 bits alone comes into shared memory as it lies"
    if not (channels_last and shape.channels_inside) or shape.channels % GROUP:
        return f"an im2col is copied from images in channels-last, of whole groups of {GROUP} channels"
    if prod(shape.spread) > 1:
        return "an im2col has no phases"
    chunks = shape.batch * prod(shape.image) * shape.groups * shape.channels // GROUP
    if max(chunks, shape.pixels * shape.groups * shape.columns) >= _MOST:
        return "an im2col of 2^31 results, or of 2^34 elements of x, and more"
    if sum(shape.taps[d] for d in shape.tested()) > _BITS:
        return f"more than {_BITS} taps to test along the dimensions together"
    return None


def no_tma(shape: ConvShape) -> str | None:
    """Why TMA can not bring its windows; None if it can."""
    if shape.channels % DEPTH or shape.groups > 1:
        return f"TMA brings {DEPTH} channels of one tap, and of one group, a stage"
    bits = _CORNER_BITS[len(spatial(shape))]
    low, high = -(1 << bits - 1), 1 << bits - 1
    for d in spatial(shape):
        corners = (shape.start[d], upper_corner(shape, d))
        if not all(low <= corner < high for corner in corners) or shape.step[d] < 1:
            return "TMA has not so many bits for a corner"
        if (shape.taps[d] - 1) * shape.step[d] >= 1 << bits or shape.stride[d] > _MOST_STRIDE:
            return "TMA has not so many bits for a tap's offset or a stride"
    return None


def spatial(shape: ConvShape) -> tuple[int, ...]:
    """The dimensions that TMA knows, the last first: those behind a first that is one place."""
    first = next((d for d in range(2) if (shape.image[d], shape.out[d], shape.taps[d]) != (1, 1, 1)), 2)
    return tuple(range(2, first - 1, -1))


def upper_corner(shape: ConvShape, d: int) -> int:
    """How far behind x's last place the last window's first tap lies."""
    return shape.start[d] + (shape.out[d] - 1) * shape.stride[d] + 1 - shape.image[d]


def im2col_point(shape: ConvShape, knobs: dict[str, Any]) -> Point:
    """The product's Point of these knobs. Raises ValueError where it does not fit."""
    pingpong = knobs["schedule"] == "pingpong"
    asked = knobs["columns"] or min(shape.columns, 128 if pingpong or knobs["pixels"] > 128 else 256)
    tile_n = next((n for n in _TILES_N if n >= asked), 0)
    if knobs["columns"] not in (0, tile_n) or knobs["precision"] != "plain" or knobs["phases"] != "apart":
        raise ValueError(f"an im2col has tiles of {_TILES_N} columns, plain operands and no phases")
    cluster_m, cluster_n = map(int, knobs["cluster"].split("x"))
    made = (AsyncPoint if knobs["kernel"] == "im2col" else Point)(
        tile_m=knobs["pixels"], tile_n=tile_n, cluster_m=cluster_m, cluster_n=cluster_n, stages=knobs["stages"],
        bulk=knobs["store"] == "bulk", staged=knobs["store"] == "staged", pingpong=pingpong,
    )  # fmt: skip
    # At most half is enough for speed; and stores through shared memory, whose first line of 64 columns (or rows) alone
    # would lie in the result, write all of their lines there.
    for size, tiles in ((shape.columns, tile_n * cluster_n), (shape.pixels, made.tile_m * cluster_m)):
        if tiles > 64 and 2 * size <= tiles:
            raise ValueError(f"tiles of a cluster cover {tiles} rows or columns, twice the {size} that there are")
    if made.tile_m < 128 and made.tile_n > 128:
        raise ValueError("tiles of 64 pixels have at most 128 columns, so that two are on a multiprocessor")
    if knobs["kernel"] == "im2col":
        if made.tile_m * made.tile_n > 128 * made.groups * _MOST_SUMS:
            raise ValueError(f"a tile of {made.tile_m} x {made.tile_n} leaves no registers for threads that copy")
        return made
    why = no_tma(shape)
    if why is not None:
        raise ValueError(why)
    return made


Part = tuple[int, int]  # as a BatchMap has it


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelRows:
    """An operand's dimensions of pixels as rows of a matrix: `size` of them, `stride` apart, and which of them a pixel
    reads (see BatchMap); a `size` of 0: one for all."""

    size: int
    stride: int
    part: Part | None


def pixel_rows(shape: ConvShape, walk: tuple[int, ...]) -> PixelRows | None:
    """Of an operand with these strides along (n, g, c, three spatial dimensions), 0 where it is broadcast; None where
    it is no such matrix."""
    sizes = (shape.batch, *shape.out)
    steps = (walk[0], *walk[3:])
    dims = [(size, step) for size, step in zip(sizes, steps, strict=True) if size > 1]
    own = [i for i, (_, step) in enumerate(dims) if step]
    if not own:
        return PixelRows(size=0, stride=0, part=None)
    run = dims[own[0] : own[-1] + 1]
    if any(step != dims[own[0] + i + 1][0] * dims[own[0] + i + 1][1] for i, (_, step) in enumerate(run[:-1])):
        return None
    count, each = prod(size for size, _ in run), prod(size for size, _ in dims[own[-1] + 1 :])
    whole = len(run) == len(dims)
    return PixelRows(
        size=count, stride=run[-1][1], part=None if whole else (each, 0 if own[0] == 0 else count)
    )  # fmt: skip
