"""Tiles of a pointwise space, for operands that lie densely along another mode than the outputs do. Pure Python.

    tile = rows (along `mode`) x width (along the lanes)      micro block = `dense` (along `mode`) x vector (lanes)

A *transposed* operand is read in micro blocks, `dense` neighbours along `mode` at a time, and goes through shared
memory, where all other tensors' vectors lie side by side. Everything else is read and written as without tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from ..common.spec import Spec
from ..common.views import ITEM_BYTES, IndexSpace

LEAST_SHARE = 16  # transposed operands with less than this part of all bytes stay in the caches anyway
SHARED_BYTES = 96 * 1024  # two CTAs to a multiprocessor at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Transposed:
    """An operand that goes through shared memory, as rows of chunks of `vector` lanes."""

    name: str
    item_bytes: int
    dense: int  # elements along the mode that are read at once
    pitch: int  # chunks from one row of the tile to the next
    mask: int  # chunk c of row b lies at c ^ (b / dense & mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """`mode` is one of IndexSpace.step_sizes, and not the last, which is the lanes'."""

    mode: int
    rows: int
    width: int
    chunks: int  # vectors of a row of the tile
    grid: tuple[int, ...]  # the other modes' sizes, then tiles along `mode`, then along the lanes
    transposed: tuple[Transposed, ...]

    @property
    def count(self) -> int:
        """Tiles in all."""
        return prod(self.grid)

    def shared_bytes(self, vector: int) -> int:
        return sum(t.item_bytes * t.pitch * vector * self.rows for t in self.transposed)


def make_tile(
    spec: Spec, space: IndexSpace, alignments: Sequence[int], *, threads: int, unroll: int, side: int | str
) -> Tile | None:
    """The tile for about threads x unroll vectors, `side` ("auto": chosen) elements wide; None where no operand that
    counts lies across the lanes. `alignments`: the operands' base alignments in bytes."""
    if side == "none" or space.tail or len(space.step_sizes) < 2:
        return None
    crossing = _crossing(spec, space)
    if not crossing:
        return None
    weights: dict[int, int] = {}
    for name, mode in crossing.items():
        weights[mode] = weights.get(mode, 0) + _bytes(spec)[name]
    mode = max(weights, key=weights.__getitem__)
    if weights[mode] * LEAST_SHARE < sum(_bytes(spec).values()):
        return None
    names = [n for n, m in crossing.items() if m == mode]
    rows, width = _shape(space, mode, threads * unroll * space.vector, side)
    dense = _dense(spec, space, alignments, names, mode)
    rows = max(rows, *dense.values())
    chunks = width // space.vector
    transposed = tuple(_turned(spec, space, name, dense[name], chunks) for name in names)
    sizes = _sizes(space)
    others = [n for m, n in enumerate(sizes[:-1]) if m != mode]
    tile = Tile(
        mode=mode, rows=rows, width=width, chunks=chunks, transposed=transposed,
        grid=(*others, -(-sizes[mode] // rows), -(-sizes[-1] // width)),
    )  # fmt: skip
    return tile if tile.shared_bytes(space.vector) <= SHARED_BYTES and tile.count < 2**31 else None


def _sizes(space: IndexSpace) -> tuple[int, ...]:
    """Elements along each mode."""
    return (*space.step_sizes[:-1], space.step_sizes[-1] * space.vector)


def _bytes(spec: Spec) -> dict[str, int]:
    tensors = [(o.name, o) for o in spec.aligned_operands] + [(f"out_{o.name}", o) for o in spec.outputs]
    return {name: ITEM_BYTES[t.dtype] * prod(t.shape) for name, t in tensors}


def _crossing(spec: Spec, space: IndexSpace) -> dict[str, int]:
    """Operands whose neighbours along the lanes lie apart, each with the mode along which they lie closest."""
    found = {}
    for operand in spec.aligned_operands:
        view = space.views[operand.name]
        steps = [abs(s) for s in view.step_strides[:-1]]
        closest = min((m for m, s in enumerate(steps) if s), key=steps.__getitem__, default=None)
        if view.lane_stride and closest is not None and steps[closest] < abs(view.lane_stride):
            found[operand.name] = closest
    return found


def _shape(space: IndexSpace, mode: int, elements: int, side: int | str) -> tuple[int, int]:
    """Rows and width: `side` wide, as square as it gets by default; what a short mode leaves over goes to the other."""
    sizes, vector = _sizes(space), space.vector
    wish = int(side) if side != "auto" else 1 << (elements.bit_length() // 2)
    width = min(sizes[-1], max(wish, vector))
    rows = min(sizes[mode], max(_below(elements // width), 1))
    if rows * width * 2 <= elements:
        width = min(sizes[-1], max(_below(elements // rows), vector))
    return rows, width // vector * vector


def _below(n: int) -> int:
    """The greatest power of two that is at most n, for n > 0."""
    return 1 << (n.bit_length() - 1)


def _dense(spec: Spec, space: IndexSpace, alignments: Sequence[int], names: Sequence[str], mode: int) -> dict[str, int]:
    """For each transposed operand the elements along the mode that one access takes: 16 bytes, 8 elements at most."""
    aligned = dict(zip((o.name for o in spec.operands), alignments, strict=True))
    found = {}
    for operand in spec.aligned_operands:
        if operand.name not in names:
            continue
        view, item = space.views[operand.name], ITEM_BYTES[operand.dtype]
        if view.step_strides[mode] != 1:
            found[operand.name] = 1
            continue
        others = [s for m, s in enumerate(view.step_strides[:-1]) if m != mode]
        limit = gcd(aligned[operand.name], 16, *(s * item for s in (*others, view.lane_stride)))
        found[operand.name] = gcd(min(max(limit // item, 1), 8), space.step_sizes[mode])
    return found


def _turned(spec: Spec, space: IndexSpace, name: str, dense: int, chunks: int) -> Transposed:
    """Where chunks lie: neighbouring threads then write, and read, different banks. Single elements are padded apart,
    vectors exchanged within their row."""
    item = next(ITEM_BYTES[o.dtype] for o in spec.operands if o.name == name)
    if space.vector == 1:
        pad = max(1, 4 // item)
        return Transposed(name=name, item_bytes=item, dense=dense, pitch=chunks + pad - chunks % 2, mask=0)
    pitch = 1 << (chunks - 1).bit_length()
    mask = min(pitch, max(128 // (space.vector * item), 1)) - 1
    return Transposed(name=name, item_bytes=item, dense=dense, pitch=pitch, mask=mask)
