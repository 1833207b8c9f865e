"""Index spaces: which modes of a Program remain after collapsing, and how each tensor walks through them. Pure Python.

A *view* is a tensor, or a position along some dimensions, as strides over modes. Neighbouring modes are collapsed
where every view can walk them as one. One mode is vectorised: the innermost stepped mode (`front` "row") or the
innermost kept mode ("column"). A *group* is what one set of threads reduces together: a row, or a vector of
neighbouring rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from .spec import Spec

ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1,
              "float8_e4m3fn": 1}  # fmt: skip
POSITION = "position"  # the view that numbers the elements of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Element offset = sum(group coordinate x stride) + sum(step coordinate x stride) + lane x lane_stride."""

    group_strides: tuple[int, ...]
    step_strides: tuple[int, ...]
    lane_stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpace:
    """Collapsed modes in units of vectors along the vectorised mode; `tail` elements follow the last whole vector."""

    front: str
    vector: int
    group_sizes: tuple[int, ...]
    step_sizes: tuple[int, ...]
    inner: int  # elements of a row
    tail: int
    views: dict[str, View]
    span: int  # the largest offset of any view, plus one

    @property
    def groups(self) -> int:
        return prod(self.group_sizes)

    @property
    def steps(self) -> int:
        return prod(self.step_sizes)

    @property
    def row_lanes(self) -> int:
        return self.vector if self.front == "column" else 1


def collapse(
    sizes: Sequence[int], strides: dict[str, tuple[int, ...]]
) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Drop modes of size 1 and join neighbours that every view walks as one; at least one mode remains."""
    kept: list[int] = []
    walks: dict[str, list[int]] = {name: [] for name in strides}
    for d, size in enumerate(sizes):
        if size == 1:
            continue
        if kept and all(walks[n] and walks[n][-1] == strides[n][d] * size for n in strides):
            kept[-1] *= size
            for name, walk in walks.items():
                walk[-1] = strides[name][d]
            continue
        kept.append(size)
        for name, walk in walks.items():
            walk.append(strides[name][d])
    if not kept:
        return (1,), dict.fromkeys(strides, (0,))
    return tuple(kept), {name: tuple(walk) for name, walk in walks.items()}


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _all_strides(spec: Spec, operand_strides: Sequence[Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Strides of every view over the dimensions of the domain, 0 where it is broadcast."""
    found = {}
    for tensor, strides in zip(spec.operands, operand_strides, strict=True):
        if tensor.indexed:
            continue
        found[tensor.name] = tuple(0 if s == 1 else t for s, t in zip(tensor.shape, strides, strict=True))
    for tensor in spec.outputs:
        if tensor.name in spec.sums:
            continue
        walk = contiguous(tensor.shape)
        # An operand may be an output too, under its own name: outputs have views of their own.
        found[f"out_{tensor.name}"] = tuple(0 if s == 1 else t for s, t in zip(tensor.shape, walk, strict=True))
    rank = len(spec.domain)
    for d in range(rank):
        found[f"index_{d}"] = tuple(int(i == d) for i in range(rank))
    inner = dict(zip(spec.stepped, contiguous([spec.domain[d] for d in spec.stepped]), strict=True))
    found[POSITION] = tuple(inner.get(d, 0) for d in range(rank))
    return found


def widest(alignment: int, strides: Sequence[int], lane: int, item_bytes: int) -> int:
    """Elements that an access of a unit-stride view may take at once: 16 bytes, less where alignment forbids."""
    limit = gcd(alignment, *(strides[i] * item_bytes for i in range(len(strides)) if i != lane), 16)
    return max(limit // item_bytes, 1)


def make_space(
    spec: Spec,
    operand_strides: Sequence[Sequence[int]],
    alignments: Sequence[int],
    used: frozenset[str],
    may_tail: bool,
) -> IndexSpace:
    """The space of `spec` for operands with these strides (elements) and base alignments (bytes).

    `used` names the `index_<d>` and `POSITION` views that something reads; `may_tail` permits vectors that do not
    divide a row (where the row is one mode)."""
    strides = _all_strides(spec, operand_strides)
    strides = {n: s for n, s in strides.items() if not n.startswith(("index_", POSITION)) or n in used}
    stepped = spec.stepped
    kept = [d for d in range(len(spec.domain)) if d not in stepped]
    group_sizes, group_walks = collapse([spec.domain[d] for d in kept], _pick(strides, kept))
    step_sizes, step_walks = collapse([spec.domain[d] for d in stepped], _pick(strides, stepped))
    items = {t.name: ITEM_BYTES[t.dtype] for t in spec.aligned_operands}
    items |= {f"out_{t.name}": ITEM_BYTES[t.dtype] for t in spec.aligned_outputs}
    sizes = {t.name: prod(t.shape) for t in spec.aligned_operands} | {
        f"out_{t.name}": prod(t.shape) for t in spec.aligned_outputs
    }
    aligned = dict(zip((t.name for t in spec.operands), alignments, strict=True))

    def weight(walks: dict[str, tuple[int, ...]]) -> int:
        return sum(items[n] * sizes[n] for n in items if walks[n][-1] == 1)

    across = bool(kept) and (spec.stretch is not None or weight(step_walks) < weight(group_walks))
    front = "column" if across and not spec.rank else "row"
    lane_walks, lane_size = (step_walks, step_sizes[-1]) if front == "row" else (group_walks, group_sizes[-1])
    vector = 16
    for name, item in items.items():
        walk = (*group_walks[name], *step_walks[name])
        lane = len(walk) - 1 if front == "row" else len(group_walks[name]) - 1
        if lane_walks[name][-1] == 1:
            vector = min(vector, widest(aligned.get(name, 16), walk, lane, item))
    vector = min(vector, 8)
    tail = 0
    if front == "row" and may_tail and len(step_sizes) == 1:
        while vector > lane_size:
            vector //= 2
        tail = lane_size % vector
    else:
        vector = gcd(vector, lane_size)
    if front == "row":
        step_sizes = (*step_sizes[:-1], -(-lane_size // vector))
    else:
        group_sizes = (*group_sizes[:-1], lane_size // vector)
    views = {}
    for name in strides:
        group, step = group_walks[name], step_walks[name]
        if front == "row":
            views[name] = View(
                group_strides=group, step_strides=(*step[:-1], step[-1] * vector), lane_stride=step[-1]
            )  # fmt: skip
        else:
            views[name] = View(
                group_strides=(*group[:-1], group[-1] * vector), step_strides=step, lane_stride=group[-1]
            )  # fmt: skip
    span = max(1 + sum(abs(s) * (n - 1) for s, n in zip(walk, spec.domain, strict=True)) for walk in strides.values())
    inner = spec.inner_size
    return IndexSpace(
        front=front, vector=vector, group_sizes=group_sizes, step_sizes=step_sizes, inner=inner, tail=tail,
        views=views, span=span,
    )  # fmt: skip


def fewer_lanes(space: IndexSpace, lanes: int) -> IndexSpace:
    """The same space of columns, of which so many are a group."""
    assert space.front == "column" and space.vector % lanes == 0
    views = {}
    for name, view in space.views.items():
        walk = (*view.group_strides[:-1], view.lane_stride * lanes)
        views[name] = replace(view, group_strides=walk)
    groups = space.group_sizes[-1] * space.vector // lanes
    return replace(space, vector=lanes, group_sizes=(*space.group_sizes[:-1], groups), views=views)


def _pick(strides: dict[str, tuple[int, ...]], dims: Sequence[int]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(walk[d] for d in dims) for name, walk in strides.items()}
