"""What a convolution reduces while its sums are in registers, and which settings can: plain numbers, no CUDA.

    channels    the channels of each pixel, which one tile holds whole: four lanes of a warp share them; then what
                becomes of each element leaves, or one number a pixel
    window      pools without overlap: of a plain convolution pixels are numbered window by window, so that a window's
                are neighbouring rows of a tile; of phases in one kernel a thread has a window's pixels
    places      the pixels of each sample, of each channel: a thread adds up its rows over a chunk of neighbouring tiles
                of one CTA; lanes and chunks are joined in a fixed order, so that results repeat to the last bit
    moments     of these pixels the count, the mean and the sum of squared deviations, beside what is written of each
                (see `moments`)

States of `places` and `moments` are (reduction, sample, channel, slot, warp) of fp32, which another kernel joins. The
rows of a sample meet a few chunks; its slots are these chunks in order, and what is left of them is neutral.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..common.spec import Function, Sweep
from .phases import phases
from .shape import ConvShape, Triple
from .tiles import CONSUMERS, ConvPoint

WARPS = CONSUMERS // 32
POOLED = (2, 4, 8, 16)  # pixels of a window that neighbouring rows of a warp hold
_LEAST_ROWS = 128  # of a chunk: of the smallest tile
_MOST_TILES = 16  # of them
_CHUNKS = 1024  # at least, where there is so much work: CTAs come out even
MOMENTS = 3  # components of their state: count, mean, squares
_KEPT = 40  # registers of a thread for all but sums
_MEASURED = 112  # sums and moments of a thread, of pixels that are gathered: at 128 ptxas spills 48 bytes
_ELSE = 16  # for all but sums, and a pixel's elements and operands
_SPARE = 8  # places behind a line of a grid, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvReduction:
    """`over`: see the module's docstring. `sweeps` as a Spec's, `head` what needs none of them. `final` gives the
    element that is written; without it, the value `row` is. Of a `window` and of `places` there is one sweep of sums,
    maxima or minima; of `places` its `elements` alone matter. Of `moments` there are none: the Spec's epilogue gives
    what is written, and last what is measured."""

    over: str
    sweeps: tuple[Sweep, ...] = ()
    window: Triple = (1, 1, 1)
    head: Function | None = None
    final: Function | None = None
    row: str = ""


def unreduced(
    shape: ConvShape, points: Sequence[ConvPoint], over: str, window: Triple = (1, 1, 1), *, operands: int
) -> str | None:
    """Why these settings of all kernels can't reduce, beside so many operands; None if they can."""
    if over in ("places", "moments"):
        if len(points) > 1:
            return "sums over all places are those of one kernel"
        (own,), measured = points, over == "moments"
        kept, most = own.columns // 4 * (1 + measured), own.registers[1] - _KEPT
        full = own.sums + kept > (min(most, _MEASURED) if measured and own.kernel == "gather" else most)
        return "sums of places don't fit the registers beside those of the tile" if full else None
    if shape.groups > 1 or (over == "channels" and any(p.tiles > 1 for p in points)):
        return "channels that one tile does not hold are reduced by a kernel of their own"
    if over == "channels":
        full = any(
            p.parts * p.width // 2 + p.columns // 4 * (1 + operands) > p.registers[1] - _ELSE for p in points
        )  # fmt: skip
        return "channels of a pixel don't fit the registers beside the sums of the tile" if full else None
    if any(out % w for out, w in zip(shape.out, window, strict=True)):
        return "windows that end outside"
    if shape.spread == (1, 1, 1):
        plain = points[0].kernel == "gather" and prod(window) in POOLED
        return None if plain else "windows of 2, 4, 8 or 16 pixels are pooled where each pixel is gathered"
    parts = [part.first for phase in phases(shape, points[0].phases) for part in phase.parts]
    whole = len(points) == 1 and window == shape.spread and len(parts) == prod(window)
    if not whole or any(low < 0 for first in parts for low in first):
        return "of a transposed convolution windows are pooled that are its phases, in one kernel"
    return None


def chunk_rows(shape: ConvShape) -> int:
    """Rows of the product of a chunk, a power of two; of larger tiles one tile."""
    rows = shape.batch * _most_places(shape)
    tiles = min(max(rows // (_LEAST_ROWS * _CHUNKS), 1), _MOST_TILES)
    return int(_LEAST_ROWS * 2 ** (tiles.bit_length() - 1))


def chunk_tiles(shape: ConvShape, pixels: int) -> int:
    """Tiles of so many pixels that a chunk has."""
    return max(chunk_rows(shape) // pixels, 1)


def slots(shape: ConvShape) -> int:
    """Chunks that the rows of a sample meet at most, whichever kernel numbers them."""
    return (_most_places(shape) - 1) // chunk_rows(shape) + 2


def _most_places(shape: ConvShape) -> int:
    """Of a sample: pixels, or places of a grid with its padding."""
    sizes = []
    for out, spread, taps, step in zip(shape.out, shape.spread, shape.taps, shape.step, strict=True):
        own = out if spread == 1 else -(-out // spread) + 1
        sizes.append(own + (taps - 1) * abs(step))
    return prod((*sizes[:2], sizes[2] + _SPARE))
