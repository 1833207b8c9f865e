"""Sums over windows of a convolution (average pooling) as a convolution.

Zeros that pooling pads with are no results of the convolution, so padded windows are taken only along sides where a
convolution would give zeros there, too: where single taps meet an input without padding. What is added behind the
convolution is summed over the same windows by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from tilewright.ir.access import Position
from tilewright.ir.graph import Node

from ..lowering.form import Stuck
from ..lowering.lower import Expr
from .convolution_form import ConvolutionForm, Value
from .sides import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Windows along one dimension: how many elements, how far apart, zeros before the first; how many windows."""

    taps: int = 1
    stride: int = 1
    padding: int = 0
    count: int = 1

    @property
    def idle(self) -> bool:
        return (self.taps, self.stride, self.padding) == (1, 1, 0)

    def position(self, along: int, within: int, *, step: int = 1) -> Position:
        """Of an element of the dimension `within` in a window along the other, where one is `step` from the next."""
        return Position(start=-self.padding * step, steps=((along, self.stride * step), (within, step)))


def pooled(form: ConvolutionForm, total: Node) -> ConvolutionForm:
    """The sum over windows of a value that is read by windows. Raises Stuck where that is no convolution."""
    load = form.window
    assert load is not None
    pools = _pools(form, load, total)
    if any(not p.idle and form.varies(2 + i) for i, p in enumerate(pools)) or load.args[1:] not in ((), (0,)):
        raise Stuck
    first = [s.single and (not form.transposed or s.stride == 1) for s in form.sides]
    given = list(zip(pools, first, form.sides, strict=True))
    ahead = [p if early else Pool(count=s.size) for p, early, s in given]
    behind = [Pool(count=s.out) if early else p for p, early, s in given]
    if any(p.padding or (p.count - 1) * p.stride + p.taps > s.out for p, early, s in given if not early):
        raise Stuck
    shifts = tuple(_pooled_shift(form, s, pools) for s in form.shifts)
    if not all(p.idle for p in ahead):
        form = _pooled_first(form, ahead, first)
    if not all(p.idle for p in behind):
        form = _merged(form, behind)
    return replace(form, shape=total.shape, shifts=shifts, window=None)


def _pools(form: ConvolutionForm, load: Node, total: Node) -> list[Pool]:
    """The windows along each side."""
    rank = len(form.base)
    kept = [d for d in range(len(load.shape)) if d not in total.dims]
    if len(load.at) != rank or len(kept) < rank:
        raise Stuck
    made = [_pool(load, position, kept[d], total.dims) for d, position in enumerate(load.at)]
    used = [d for position in load.at for d, _ in position.steps]
    ones = tuple(1 for _ in kept[rank:])
    if total.shape != (*(p.count for p in made), *ones) or not {*total.dims} <= {*used} or len(used) != len({*used}):
        raise Stuck
    if not all(p.idle and p.count == size for p, size in zip(made[:2], form.base, strict=False)):
        raise Stuck
    return [replace(p, stride=1) if p.count == 1 else p for p in made[2:]]


def _pool(load: Node, position: Position, along: int, over: Sequence[int]) -> Pool:
    steps = dict(position.steps)
    within = [d for d in steps if d in over]
    if type(position) is not Position or position.value or len(within) > 1 or {*steps} - {along, *within}:
        raise Stuck
    if within and steps[within[0]] != 1:
        raise Stuck
    return Pool(
        taps=load.shape[within[0]] if within else 1, stride=steps.get(along, 1), padding=-position.start,
        count=load.shape[along] if along in steps else 1,
    )  # fmt: skip


def _pooled_shift(form: ConvolutionForm, shift: Value, pools: Sequence[Pool]) -> Value:
    """The same windows of what is added: read where it varies, else counted."""
    rank = len(pools)
    varying = [isinstance(shift, Expr) and shift.shape[2 + i] > 1 for i in range(rank)]
    if isinstance(shift, Expr) and any(varying):
        inner = [i for i in range(rank) if varying[i]]
        shape = (*shift.shape[:2], *(p.count if v else 1 for p, v in zip(pools, varying, strict=True)),
                 *(pools[i].taps for i in inner))  # fmt: skip
        at = [Position(steps=((d, 1),)) for d in (0, 1)]
        at += [pools[i].position(2 + i, 2 + rank + inner.index(i)) if i in inner else Position() for i in range(rank)]
        shift = form.draft.load(shift.wide(), shape, at, 0.0).reduce("sum", range(2 + rank, len(shape)))
    for i, pool in enumerate(pools):
        covered = 1.0 if varying[i] else _covered(form, pool, i)
        shift = shift * covered if isinstance(shift, Expr) or not isinstance(covered, Expr) else covered * shift
    return shift


def _covered(form: ConvolutionForm, pool: Pool, side: int) -> Value:
    """How many results each window holds."""
    size = form.base[2 + side]
    if not pool.padding and (pool.count - 1) * pool.stride + pool.taps <= size:
        return float(pool.taps)
    if pool.count == 1:
        return float(min(pool.taps - pool.padding, size) - max(-pool.padding, 0))
    first = form.draft.place(pool.count, 2 + side, len(form.base)).to("i32") * pool.stride - pool.padding
    last = (first + pool.taps).do("minimum", size)
    return (last - first.do("maximum", 0)).to(form.x.dtype).wide()


def _pooled_first(form: ConvolutionForm, pools: Sequence[Pool], first: Sequence[bool]) -> ConvolutionForm:
    """The input summed over the windows of those sides on which single taps meet it."""
    rank, x = len(pools), form.x
    given = list(zip(pools, first, form.sides, strict=True))
    shape = (*x.shape[:2], *(p.count for p in pools), *(p.taps for p in pools))
    at = [Position(steps=((d, 1),)) for d in (0, 1)]
    at += [p.position(2 + i, 2 + rank + i, step=s.stride if early else 1) for i, (p, early, s) in enumerate(given)]
    total = form.draft.load(x, shape, at, 0.0).wide().reduce("sum", range(2 + rank, 2 + 2 * rank))
    sides = tuple(
        Side(size=p.count, taps=1, stride=1, padding=0, dilation=1, out=p.count) if early else s
        for p, early, s in given
    )
    scale, area = form.scale, prod(p.taps for p in pools)
    if x.dtype != total.dtype:  # means, which 16 bits can hold
        total, scale = (total * (1.0 / area)).to(x.dtype), scale * area
    return replace(form, x=total, sides=sides, scale=scale, steps=(*form.steps, "its input pooled first"))


def _merged(form: ConvolutionForm, pools: Sequence[Pool]) -> ConvolutionForm:
    """One convolution whose weights are summed over the windows."""
    made = [_merged_side(s, p, transposed=form.transposed) for s, p in zip(form.sides, pools, strict=True)]
    sides, rank = tuple(m.side for m in made), len(made)
    weight = _forward_weight(form)
    for i, m in enumerate(made):
        weight = weight if m.apart == 1 else _stuffed(weight, 2 + i, m.apart)
    shape = (*weight.shape[:2], *(s.taps for s in sides), *(p.taps for p in pools))
    at = [Position(steps=((d, 1),)) for d in (0, 1)]
    at += [Position(start=m.start, steps=((2 + i, m.step), (2 + rank + i, m.within))) for i, m in enumerate(made)]
    merged = form.draft.load(weight.wide(), shape, at, 0.0).reduce("sum", range(2 + rank, 2 + 2 * rank))
    said = f"one convolution of {_by(s.taps for s in sides)}, stride {_by(s.stride for s in sides)}"
    weight = merged.to(form.weight.dtype)
    return replace(form, weight=weight, sides=sides, transposed=False, steps=(*form.steps, said))


def _by(numbers: Iterable[int]) -> str:
    return "x".join(str(n) for n in numbers)


def _forward_weight(form: ConvolutionForm) -> Expr:
    """(channels, a group's input channels, taps)."""
    if not form.transposed:
        return form.weight
    inputs, each, *taps = form.weight.shape
    apart = form.weight.reshape((form.groups, inputs // form.groups, each, *taps))
    moved = apart.permute((0, 2, 1, *range(3, 3 + len(taps))))
    return moved.reshape((form.groups * each, inputs // form.groups, *taps))


def _stuffed(weight: Expr, dim: int, apart: int) -> Expr:
    """The weight with `apart` - 1 zeros behind each element along a dimension."""
    before, taps, behind = weight.shape[:dim], weight.shape[dim], weight.shape[dim + 1 :]
    single = weight.reshape((*before, taps, 1, *behind))
    at = [Position(steps=((d, 1),)) for d in range(len(single.shape))]
    spread = weight.builder.load(single, (*before, taps, apart, *behind), at, 0.0)
    return spread.reshape((*before, taps * apart, *behind))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """A side after its windows went into the taps. The weight is read at `start` + `step` x tap + `within` x place in
    the window, after `apart` - 1 zeros have been put behind each of its elements."""

    side: Side
    apart: int = 1
    start: int = 0
    step: int = 1
    within: int = 0


def _merged_side(side: Side, pool: Pool, *, transposed: bool) -> _Merged:
    if side.summed or (pool.idle and not transposed):
        return _Merged(side=side)
    if transposed:
        return _from_transposed(side, pool)
    # Result o meets element o stride + tap dilation - padding; window q takes the results from q pool.stride on.
    width, several = side.stride * pool.stride, pool.taps > 1
    if not several:
        return _Merged(side=replace(side, stride=width, out=pool.count))
    apart = gcd(side.stride, side.dilation) if side.taps > 1 else side.stride
    spread, each = side.dilation // apart if side.taps > 1 else 1, side.stride // apart
    taps = (pool.taps - 1) * each + (side.taps - 1) * spread + 1
    made = replace(side, taps=taps, stride=width, dilation=apart, out=pool.count)
    return _Merged(side=made, apart=spread, within=-each)


def _from_transposed(side: Side, pool: Pool) -> _Merged:
    """Element i with tap t makes result i stride + t dilation - padding. So window q takes element q m + j, with m the
    window's stride by the convolution's, times all weights from padding - j stride on, as many as the window has."""
    reach = (side.taps - 1) * side.dilation - side.padding
    if pool.idle and side.stride == 1:  # read backwards
        if reach < 0:
            raise Stuck
        return _Merged(side=replace(side, padding=reach), start=side.taps - 1, step=-1)
    if pool.stride % side.stride and pool.count > 1:
        raise Stuck
    low = min(-(reach // side.stride), 0)
    high = max((side.padding + pool.taps - 1) // side.stride, low)
    made = Side(
        size=side.size, taps=high - low + 1, stride=max(pool.stride // side.stride, 1), padding=-low, dilation=1,
        out=pool.count,
    )  # fmt: skip
    start = side.padding - low * side.stride
    return _Merged(side=made, apart=side.dilation, start=start, step=-side.stride, within=1)
