"""Depthwise convolutions: which part of a Spec is what, and the tile of results that a CTA makes. Pure Python.

tile     planes x rows x columns results; planes are images' channels, and several only where tiles are whole planes
lines    what the tile reads of its planes, in fp32 in shared memory, zeros around: `pitch` cells each
thread   down x along results of one plane, and as many for each further result of a channel (its multiplier)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from ..common.spec import ArraySpec, Function, Spec
from ..common.views import ITEM_BYTES, contiguous
from ..rows.plan import Knobs, Plan
from ..rows.sliding import SlidingAxis, axes

KNOBS: dict[str, tuple[int | str | bool, ...]] = {
    "threads": (64, 128, 256, 512), "down": (1, 2, 4, 8), "along": (1, 2, 4, 8),
    "through": ("shared", "cache"),
}  # fmt: skip
DEFAULTS: dict[str, int | str | bool] = {"threads": 256, "down": 4, "along": 4, "through": "shared"}

CELL_BYTES = 4
BANKS = 32  # of shared memory, a cell each
MOST_CHANNELS = 4  # of a thread: of each result, tap and pixel it has so many values in registers
LINE_BYTES = 128  # that a warp reads and writes side by side
SHARED_BYTES = 54 * 1024  # of a CTA, so that four fit
ASKED_WORDS = 32  # registers of a thread for what it has asked for
LEAST_CTAS = 2  # of a multiprocessor, before several planes make a tile
MOST_MULTIPLIER = 4
_ONE = SlidingAxis(start=0, apart=1, step=1, steps=1, count=1, length=1, kept=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseSpec:
    """Of a Spec's only sweep: `prologue` makes the values of what is read of the operand `source`, one by one,
    `factor` the factors of what is read of the operand `weights`; the sums of their products are reduced."""

    source: str
    weights: str
    prologue: Function
    factor: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelWindows:
    """Where a Spec's windows lie. `multiplier`: the dimension of the domain along which the results of one channel
    lie, None where there is one; `each`: how many."""

    image: SlidingAxis
    channel: SlidingAxis
    down: SlidingAxis
    along: SlidingAxis
    multiplier: int | None
    each: int
    last: bool  # the channels of a pixel lie side by side

    @property
    def planes(self) -> int:
        return self.image.count * self.channel.count

    @property
    def taps(self) -> int:
        return self.down.steps * self.along.steps


def windows_of(spec: Spec, operand: ArraySpec) -> ChannelWindows | None:
    """None where the operand's dimensions are not image, channel, row (of two-dimensional windows) and column, or the
    results don't lie in that order."""
    found = axes(spec, operand) if operand.at else None
    if found is None or len(found) not in (3, 4):
        return None
    image, channel, *down, along = found
    windows = [*down, along]
    plain = all(a.steps == 1 and a.start == 0 and (a.apart == 1 or a.count == 1) for a in (image, channel))
    whole = plain and image.count == image.length and channel.count == channel.length
    kept = [d for d, size in enumerate(spec.domain) if size > 1 and d not in spec.reduced]
    read = [a.kept for a in found if a.kept is not None]
    others = [d for d in kept if d not in read]
    if not whole or along.kept is None or channel.kept is None or len(others) > 1:
        return None
    order = [image.kept, channel.kept, *others, *(a.kept for a in windows)]
    last = [image.kept, *(a.kept for a in windows), channel.kept]
    each = prod(spec.domain[d] for d in others)
    first = [d for d in order if d is not None] == kept
    if (not first and [d for d in last if d is not None] != kept) or each > MOST_MULTIPLIER:
        return None
    return ChannelWindows(image=image, channel=channel, down=down[0] if down else _ONE, along=along,
                   multiplier=others[0] if others else None, each=each, last=not first)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTile:
    """`first`: where its first cell of a line lies in the tensor, relative to its first result's column times the
    windows' distance; `span`: the cells of a line that are read, of `pitch`, of which there are `apart` a plane.
    `flat`: lines are no whole vectors; `planes` whole planes are read as one stretch."""

    planes: int
    rows: int
    columns: int
    down: int
    along: int
    threads: int
    vector: int
    first: int
    lines: int
    span: int
    pitch: int
    apart: int
    row_tiles: int
    column_tiles: int
    flat: bool
    cached: bool = False  # nothing of it lies in shared memory: threads read what they need, through the L1
    channels: int = 0  # vectors of channels, where those of a pixel lie side by side: `planes` are then whole images
    channel_tiles: int = 1

    @property
    def groups(self) -> tuple[int, int, int]:
        """Threads' parts of it: planes, down, along."""
        return self.planes, -(-self.rows // self.down), -(-self.columns // self.along)

    @property
    def cells(self) -> int:
        return 0 if self.cached else self.planes * self.apart


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwisePlan(Plan):
    """A Plan whose CTAs make tiles of results."""

    windows_at: ChannelWindows
    part: WindowTile

    @property
    def ctas_per_chunk(self) -> int:
        tile, windows = self.part, self.windows_at
        outer = windows.image.count if windows.last else windows.planes
        return -(-outer // tile.planes) * tile.row_tiles * tile.column_tiles * tile.channel_tiles


def make_tile(
    operand: ArraySpec,
    windows: ChannelWindows,
    strides: Sequence[int],
    alignment: int,
    *,
    knobs: Knobs,
    lanes: int,
    processors: int,
) -> WindowTile | None:
    """For operands with these strides (elements) at an address of this alignment (bytes), where `lanes` neighbouring
    results are written at once; None: none fits."""
    if windows.last:
        return _last_tile(operand, windows, strides, alignment, knobs=knobs, lanes=lanes)
    if strides[-1] != 1:
        return None
    item, down, along = ITEM_BYTES[operand.dtype], windows.down, windows.along
    threads, deep, wide = (int(knobs[name]) for name in ("threads", "down", "along"))
    vector = gcd(16, alignment, *(s * item for s in strides[:-1]), along.length * item) // item
    if knobs["through"] == "cache":
        shape = _Shape(windows, gcd(vector, wide * along.apart), flat=False)
        sizes = shape.sizes(threads, min(deep, down.count), wide)
        tiles = [shape.tile(threads, (min(deep, down.count), wide), size) for size in sizes]
        return next((replace(t, cached=True) for t in tiles if not _few(t, windows, processors)), None)
    whole = max(gcd(16 // item, prod(operand.shape)), 1)
    dense = tuple(strides) == contiguous(operand.shape) and alignment % (whole * item) == 0
    for flat in (True, False) if whole > vector and dense else (False,):
        made = _Shape(windows, whole if flat else vector, flat=flat)
        for planes, rows, columns in made.sizes(threads, min(deep, down.count), wide):
            tile = made.tile(threads, (min(deep, down.count), wide), (planes, rows, columns))
            if tile.cells * CELL_BYTES <= SHARED_BYTES and not _few(tile, windows, processors):
                return tile
    return None


def _last_tile(
    operand: ArraySpec, windows: ChannelWindows, strides: Sequence[int], alignment: int, *, knobs: Knobs, lanes: int
) -> WindowTile | None:
    """The same where channels lie side by side: as many vectors of them as make a line of memory."""
    if strides[1] != 1:
        return None
    item, down, along = ITEM_BYTES[operand.dtype], windows.down, windows.along
    others = [s * item for d, s in enumerate(strides) if d != 1 and operand.shape[d] > 1]
    vector = gcd(gcd(16, alignment, *others, windows.channel.count * item) // item, lanes, MOST_CHANNELS)
    threads, deep, wide = (int(knobs[name]) for name in ("threads", "down", "along"))
    deep, vectors = min(deep, down.count), windows.channel.count // vector
    channels = min(vectors, LINE_BYTES // (vector * item))
    rest = max(threads // channels, 1)
    shapes = [(min(-(-down.count // deep), rest // a), a) for a in range(1, min(-(-along.count // wide), rest) + 1)]
    down_groups, along_groups = min(shapes, key=lambda shape: _pixels_read(windows, (deep, wide), shape, rest))
    rows, columns = min(down_groups * deep, down.count), min(along_groups * wide, along.count)
    whole = rows == down.count and columns == along.count
    images = min(max(rest // (along_groups * down_groups), 1), windows.image.count) if whole else 1
    count = images * down_groups * along_groups * channels
    return WindowTile(
        planes=images, rows=rows, columns=columns, down=deep, along=wide, vector=vector, first=0,
        threads=_up(count, 32), lines=0, span=0, pitch=0, apart=0, row_tiles=-(-down.count // rows),
        column_tiles=-(-along.count // columns), flat=False, cached=True, channels=channels,
        channel_tiles=-(-vectors // channels),
    )  # fmt: skip


def _pixels_read(windows: ChannelWindows, of_thread: tuple[int, int], shape: tuple[int, int], threads: int) -> float:
    """By a tile of `shape` threads down and along, for each result; threads that would have nothing to do count."""
    read = windows.down.reach(shape[0] * of_thread[0]) * windows.along.reach(shape[1] * of_thread[1])
    busy = prod(shape) * (threads // prod(shape)) if prod(shape) * 2 <= threads else prod(shape)
    return read / prod(shape) / prod(of_thread) * threads / busy


def _few(tile: WindowTile, windows: ChannelWindows, processors: int) -> bool:
    """Whether tiles of fewer planes would leave fewer multiprocessors without work."""
    return tile.planes > 1 and windows.planes < tile.planes * processors * LEAST_CTAS


@dataclass(frozen=True, slots=True)
class _Shape:
    """Tiles of a layout: lines in vectors, or planes as one stretch."""

    windows: ChannelWindows
    vector: int
    flat: bool

    def sizes(self, threads: int, deep: int, wide: int) -> list[tuple[int, int, int]]:
        """Planes, rows and columns of tiles, the largest first."""
        down, along = self.windows.down, self.windows.along
        quantum = wide if self.flat else _multiple(wide, max(self.vector, 4), along.apart)
        tiles = -(-along.count // (threads * wide))
        columns = along.count if tiles == 1 else _up(-(-along.count // tiles), quantum)
        most = max(threads // -(-columns // wide), 1)
        found = []
        down_groups = -(-down.count // deep)
        if columns == along.count and down_groups <= most:
            planes = max(min(most // down_groups, self.windows.planes), 1)
            while planes > 1:
                found.append((planes, down.count, columns))
                planes //= 2
        found.append((1, down.count, columns) if down_groups <= most else (1, most * deep, columns))
        if self.flat:
            return [size for size in found if size[1:] == (down.count, along.count)]
        rows = min(found[-1][1], down.count)
        while rows > deep:
            rows = _up(-(-rows // 2), deep)
            found.append((1, rows, columns))
        while columns > quantum:
            columns = _up(-(-columns // 2), quantum)
            found.append((1, rows, columns))
        return found

    def tile(self, threads: int, of_thread: tuple[int, int], size: tuple[int, int, int]) -> WindowTile:
        (deep, wide), (planes, rows, columns) = of_thread, size
        down, along = self.windows.down, self.windows.along
        row_tiles = -(-down.count // rows)
        if row_tiles > 1:
            rows = min(rows, _up(-(-down.count // row_tiles), deep))
        align = max(self.vector, 4)
        first = along.start if self.flat else along.start // align * align
        span = _up(along.start - first + along.reach(_up(columns, wide)), align)
        lines = down.reach(_up(rows, deep))
        groups = (planes, -(-rows // deep), -(-columns // wide))
        steps = (deep * down.apart, wide * along.apart)
        pitch, apart = _unconflicted(groups, steps, span, lines)
        return WindowTile(
            planes=planes, rows=rows, columns=columns, down=deep, along=wide, vector=self.vector, first=first,
            threads=min(threads, _up(prod(groups), 32)), lines=lines, span=span, pitch=pitch, apart=apart,
            row_tiles=-(-down.count // rows), column_tiles=-(-along.count // columns), flat=self.flat,
        )  # fmt: skip


def _unconflicted(groups: tuple[int, int, int], steps: tuple[int, int], span: int, lines: int) -> tuple[int, int]:
    """The pitch of lines, and that of planes, at which the lanes of a warp are least in each other's way when they
    read; of equal ones the smallest."""
    pitches = range(span, span + BANKS, 4)
    found = [(pitch, pitch * lines + more) for pitch in pitches for more in range(0, BANKS, 4)]
    found = [(pitch, apart) for pitch, apart in found if groups[0] > 1 or apart == pitch * lines]
    cells = [cell for cell in found if cell[1] * 4 <= 5 * lines * span] or found[:1]
    return min(cells, key=lambda cell: (_conflicts(groups, steps, cell), cell[1]))


def _conflicts(groups: tuple[int, int, int], steps: tuple[int, int], pitches: tuple[int, int]) -> int:
    """Trips through the banks that a warp's reads of one vector each take."""
    (_, down, along), (pitch, apart) = groups, pitches
    wide = gcd(4, steps[1])
    lanes, trips = BANKS // wide, 0
    for first in range(0, 32, lanes):
        cells = set[int]()
        for lane in range(first, min(first + lanes, prod(groups))):
            plane, row, column = lane // (down * along), lane // along % down, lane % along
            cells.add((plane * apart + row * steps[0] * pitch + column * steps[1]) // wide)
        banks = [cell % lanes for cell in cells]
        trips += max((banks.count(bank) for bank in banks), default=0)
    return trips


def _up(number: int, step: int) -> int:
    """To the next multiple."""
    return -(-number // step) * step


def _multiple(wide: int, vector: int, apart: int) -> int:
    """The fewest columns, of whole threads' parts, whose windows begin at whole vectors."""
    columns = wide
    while columns * apart % vector:
        columns += wide
    return columns
