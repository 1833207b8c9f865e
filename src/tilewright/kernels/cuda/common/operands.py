"""What a Spec's operands are to a kernel: which stay on chip, which pass, which all rows share, which overlap."""

from __future__ import annotations

from .spec import ArraySpec, Spec, reads
from .views import ITEM_BYTES, POSITION, IndexSpace


def used_views(spec: Spec) -> frozenset[str]:
    """The positions that some function or reduction asks for."""
    functions = [spec.head, spec.final, *(f for s in spec.sweeps for f in (s.elements, s.rows))]
    functions += [spec.scan.elements] if spec.scan else []
    functions += [spec.rank.elements] if spec.rank else []
    names = {n for f in functions for n in reads(f) if n.startswith("index_")}
    if spec.rank or spec.sums or any(r.op in ("argmax", "argmin") for s in spec.sweeps for r in s.reductions):
        names.add(POSITION)
    return frozenset(names)


def resident_operands(spec: Spec, space: IndexSpace) -> tuple[str, ...]:
    """Element-level operands that two sweeps read, and that are no broadcast along the vector."""
    counts: dict[str, int] = {}
    ranked = spec.rank.elements if spec.rank else None
    for function in (*(s.elements for s in spec.sweeps), ranked, spec.final):
        for name in set(reads(function)):
            counts[name] = counts.get(name, 0) + 1
    full = [o.name for o in spec.element_operands if space.views[o.name].lane_stride != 0]
    return tuple(n for n in full if counts.get(n, 0) > 1)


def shared_operands(spec: Spec, space: IndexSpace) -> tuple[str, ...]:
    """Element-level operands that every row reads anew."""
    names = [o.name for o in spec.element_operands]
    return tuple(n for n in names if space.groups > 1 and not any(space.views[n].group_strides))


def passing_operands(spec: Spec, space: IndexSpace) -> tuple[str, ...]:
    """Element-level operands of which every row has its own."""
    names = [o.name for o in spec.element_operands if not o.indexed]
    return tuple(n for n in names if any(space.views[n].group_strides) and space.views[n].lane_stride)


def overlap(spec: Spec) -> ArraySpec | None:
    """The operand of which overlapping windows along the innermost dimension that stays are read, and of one line."""
    found = [o for o in spec.operands if o.at]
    if len(found) != 1 or sum(o.indexed for o in spec.operands) > 1 or len(spec.sweeps) != 1 or spec.final is not None:
        return None
    (operand,) = found
    lane = max(d for d in range(len(spec.domain)) if d not in spec.reduced)
    *others, (_, steps) = operand.at
    for size, (start, walk) in zip(operand.shape[:-1], others, strict=True):
        far = start + sum(step * (spec.domain[d] - 1) for d, step in walk)
        if start < 0 or far >= size or any(d == lane or d in spec.reduced or step < 0 for d, step in walk):
            return None
    along = dict(steps)
    within = all(step > 0 and (d == lane or d in spec.reduced) for d, step in steps)
    if operand.dtype == "bool" or not within or len(along) != len(steps) or not 1 <= along.get(lane, 0) <= 2:
        return None
    return operand if spec.inner_size > along[lane] else None


def stretch(spec: Spec, operand: ArraySpec, windows: int, vector: int) -> tuple[int, int, int]:
    """What so many neighbouring windows of `overlap` read of a line: how far they lie apart, where the first begins,
    cut to whole vectors, and how many vectors that makes."""
    begin, walk = operand.at[-1]
    steps = dict(walk)
    apart = steps.pop(max(d for d in range(len(spec.domain)) if d not in spec.reduced))
    span = apart * (windows - 1) + sum(step * (spec.domain[d] - 1) for d, step in steps.items()) + 1
    before = begin % vector
    return apart, begin - before, -(-(span + before) // vector)


def copied(spec: Spec, space: IndexSpace, name: str) -> bool:
    """Whether cp.async, which moves 4, 8 or 16 bytes, brings this operand into shared memory."""
    (dtype,) = {o.dtype for o in spec.operands if o.name == name}
    whole = space.vector == 1 or space.views[name].lane_stride == 1
    return dtype != "bool" and whole and space.vector * ITEM_BYTES[dtype] in (4, 8, 16)
