"""Windows that overlap along several axes, and how threads slide over them. Pure Python.

    line    rows x outs results: a walk of `rows` down the walked axis, `outs` side by side along the lanes
    thread  a vector of neighbouring columns of the lines that are read; `vectors` threads a line, `lines` lines a CTA

Max, min and sum of a window are those of its columns, and of what comes of these along the lanes. A thread keeps what
it has read of its columns while it walks down, so every element is read once a walk, and once for each window along the
axes ahead that it lies in (see `slides`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from ..common.spec import ArraySpec, Spec
from ..common.views import ITEM_BYTES, IndexSpace

OPS = ("sum", "max", "min")
FLOATS = ("f32", "f16", "bf16")
MOST_STEPS = 128  # elements of a window; what a step of the walk does is written out
MOST_APART = 4  # positions between neighbouring windows along the lanes: beyond, banks are asked too often
COLUMN_WORDS = 64  # registers of a thread for what it keeps of its columns
SHARED_BYTES = 40 * 1024  # of a CTA, so that five fit
ASKED_WORDS = 24  # registers of a thread for what it has asked for
MOST_AHEAD = 4  # steps of a walk between asking for rows and using them
LEAST_TWICE = 0.05  # of what is read, by two walks: to turn costs two instructions a vector
CROWD = 1024  # threads of a multiprocessor that there shall be work for


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingAxis:
    """Of an operand's dimension: windows of `steps` positions `step` apart; the first begins at `start`, `count` of
    them `apart`. `kept`: the dimension of the domain along which they lie; None: there is one."""

    start: int
    apart: int
    step: int
    steps: int
    count: int
    length: int
    kept: int | None

    @property
    def span(self) -> int:
        """Positions of one window, from its first to its last."""
        return (self.steps - 1) * self.step + 1

    def reach(self, count: int) -> int:
        """Positions that so many neighbouring windows lie in."""
        return (count - 1) * self.apart + self.span

    @property
    def inside(self) -> bool:
        """Whether no position lies outside."""
        return self.start >= 0 and self.start + self.reach(self.count) <= self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Slide:
    """`first` of a tile: where along the lanes its first cell lies, relative to that of its first result's window begin
    in the tensor at 0. `whole`: a line reads whole lines of the tensor, around which `cells` hold the neutral element;
    else a line is one of `tiles`, and what vectors lie outside is checked. `turns`: every other walk goes up, so that
    neighbours come to the rows that both read at the same time, and find them in the caches. `near`: lines along the
    axis ahead of the walked one, where windows overlap along it: they lie side by side, and read the same planes at
    the same time."""

    rows: int
    walks: int
    outs: int
    tiles: int
    vector: int
    vectors: int
    lines: int
    cells: int
    first: int
    whole: bool
    outer: int  # all kept dimensions but the last two, and but `near`
    near: int
    loads: int  # vectors that a thread reads in a step
    ahead: int  # steps before it uses them
    turns: bool

    @property
    def count(self) -> int:
        """Lines in all."""
        return self.outer * self.walks * self.tiles * self.near

    @property
    def ctas(self) -> int:
        return -(-self.count // self.lines)

    @property
    def threads(self) -> int:
        return -(-self.lines * self.vectors // 32) * 32

    @property
    def shared_bytes(self) -> int:
        return 2 * self.lines * self.cells * 4


def axes(spec: Spec, operand: ArraySpec) -> tuple[SlidingAxis, ...] | None:
    """Of each dimension; None where one is walked in another way than windows are."""
    found = []
    seen: list[int] = []
    for length, (start, walk) in zip(operand.shape, operand.at, strict=True):
        walk = tuple((d, step) for d, step in walk if spec.domain[d] > 1)
        kept = [(d, step) for d, step in walk if d not in spec.reduced]
        within = [(d, step) for d, step in walk if d in spec.reduced]
        if len(kept) > 1 or len(within) > 1 or any(step < 1 for _, step in walk):
            return None
        seen += [d for d, _ in walk]
        found.append(SlidingAxis(
            start=start, apart=kept[0][1] if kept else 1, step=within[0][1] if within else 1,
            steps=spec.domain[within[0][0]] if within else 1, count=spec.domain[kept[0][0]] if kept else 1,
            length=length, kept=kept[0][0] if kept else None,
        ))  # fmt: skip
    reduced = {d for d in spec.reduced if spec.domain[d] > 1}
    return tuple(found) if len(set(seen)) == len(seen) and reduced <= set(seen) else None


def slid(spec: Spec) -> tuple[ArraySpec, tuple[SlidingAxis, ...]] | None:
    """The operand over which windows slide, and its axes, where they overlap along the last but one."""
    operands = [o for o in spec.operands if o.indexed]
    if not spec.slides or len(operands) != 1 or len(spec.sweeps) != 1 or spec.final is not None:
        return None
    (operand,), reductions = operands, spec.sweeps[0].reductions
    if len(reductions) != 1 or reductions[0].op not in OPS or operand.dtype not in FLOATS or len(operand.shape) < 2:
        return None
    found = axes(spec, operand) if operand.at else None
    if found is None or spec.inner_size > MOST_STEPS:
        return None
    *_, down, along = found
    overlapping = down.span > down.apart and down.steps > 1
    kept = [d for d in range(len(spec.domain)) if d not in spec.reduced and spec.domain[d] > 1]
    lies = len(kept) > 1 and kept[-2:] == [down.kept, along.kept] and along.apart <= MOST_APART
    return (operand, found) if overlapping and lies else None


def make_slide(
    spec: Spec,
    space: IndexSpace,
    strides: Sequence[int],
    alignment: int,
    *,
    threads: int,
    rows: int,
    processors: int,
) -> Slide | None:
    """For CTAs of about so many threads and walks of about so many rows. `space` has one lane a group; `strides` and
    `alignment` (bytes) are those of the operand that is read."""
    found = slid(spec)
    if found is None or strides[-1] != 1 or space.front != "column" or space.groups >= 2**31:
        return None
    operand, (*_, down, along) = found
    if space.group_sizes[-2:] != (down.count, along.count):
        return None
    item = ITEM_BYTES[operand.dtype]
    vector = gcd(16, alignment, *(s * item for s in strides[:-1]), along.length * item) // item
    while vector > 1 and vector * down.span > COLUMN_WORDS:
        vector //= 2
    line = _line(along, vector, threads)
    if down.span * vector > COLUMN_WORDS or line is None:
        return None
    outs, cells, first, vectors = line
    outer = prod(space.group_sizes[:-2])
    tiles = -(-along.count // outs)
    lines = max(1, min(threads // vectors, SHARED_BYTES // (8 * cells)))
    rows = min(rows, down.count)
    while rows > 4 and outer * -(-down.count // rows) * tiles * vectors < processors * CROWD:
        rows = -(-rows // 2)
    walks = -(-down.count // rows)
    if rows < 2 or outer * walks * tiles * vectors < processors * CROWD // 4 or cells * 8 > SHARED_BYTES:
        return None
    near = 1
    if len(space.group_sizes) > 2 and len(found[1]) > 2 and found[1][-3].span > found[1][-3].apart:
        near = found[1][-3].count if space.group_sizes[-3] == found[1][-3].count else 1
    words = -(-vector * item // 4)
    loads = prod(axis.steps for axis in found[1][:-2]) * min(down.apart, down.steps)
    rows = -(-down.count // walks)
    exact = spec.sweeps[0].reductions[0].op != "sum" or down.count % rows == 0  # rows that two walks write are the same
    twice = (down.span - down.apart) / (rows * down.apart)
    return Slide(
        rows=rows, walks=walks, outs=outs, tiles=tiles, vector=vector, vectors=vectors, lines=lines, cells=cells,
        first=first, whole=tiles == 1 and vectors * vector == along.length, outer=outer // near, near=near,
        loads=loads, ahead=max(1, min(MOST_AHEAD, ASKED_WORDS // (loads * words))),
        turns=exact and walks > 1 and twice > LEAST_TWICE,
    )  # fmt: skip


def _line(along: SlidingAxis, vector: int, threads: int) -> tuple[int, int, int, int] | None:
    """Results of a line, its cells, where these begin, and the vectors that are read of it."""
    cell = max(vector, 4)  # cells are written 16 bytes at once
    if along.length <= threads * vector:
        first = min(along.start, 0) // cell * cell
        end = max(along.start + along.reach(along.count), along.length)
        return along.count, -(-(end - first) // cell) * cell, first, along.length // vector
    first = along.start // cell * cell
    memory = threads * vector - (along.start - first)
    outs = ((memory - along.span) // along.apart + 1) // cell * cell
    if outs < 1:
        return None
    cells = -(-(along.start - first + along.reach(outs)) // cell) * cell
    return outs, cells, first, cells // vector
