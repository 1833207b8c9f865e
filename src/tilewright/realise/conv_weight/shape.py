"""Which contractions are the gradient of a convolution's weight."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.access import Position
from ...ir.program import Contraction, Operand, Program
from ...kernels.cuda.conv.shape import Triple
from ...kernels.cuda.conv_weight.shape import Patches, WeightShape


def weight_shape_of(program: Program) -> WeightShape | None:
    """What the program's contraction is as one (see fusion.weight_gradients); None where it is another."""
    item = program.product
    if item is None or len(program.body) > 1 or not 2 <= len(item.over) <= 4:
        return None
    spatial, rank = len(item.over) - 1, len(program.domain)
    at = rank - spatial - 2
    dense, windowed = operands_of(program)
    if at not in (0, 1) or len(dense.shape) != at + 2 + spatial or len(windowed.shape) != len(dense.shape):
        return None
    ahead = (Position(steps=((rank, 1),)), *(Position(steps=((d, 1),)) for d in range(at)))
    channels = [Position(steps=((at + i, 1),)) for i in range(2)]
    out = tuple(Position(steps=((rank + 1 + d, 1),)) for d in range(spatial))
    places = item.right.at[2 + at :]
    steps = [dict(p.steps) for p in places]
    known = all(type(p) is Position and {rank + 1 + d, at + 2 + d} == set(s)
                for d, (p, s) in enumerate(zip(places, steps, strict=True)))  # fmt: skip
    if item.left.at != (*ahead, channels[0], *out) or item.right.at[: 2 + at] != (*ahead, channels[1]) or not known:
        return None
    if item.left.within or item.right.within or item.within or item.prologues:
        return None
    columns, channels_of_one, *taps = program.domain[at:]
    return WeightShape(windowed=Patches(
        batch=item.over[0], groups=program.domain[0] if at else 1, channels=channels_of_one, columns=columns,
        image=three(windowed.shape[2 + at :], 1), out=three(item.over[1:], 1), taps=three(taps, 1),
        stride=three([s[rank + 1 + d] for d, s in enumerate(steps)], 1), start=three([p.start for p in places], 0),
        step=three([s[at + 2 + d] for d, s in enumerate(steps)], 1),
    ))  # fmt: skip


def operands_of(program: Program) -> tuple[Operand, Operand]:
    """What each pixel is multiplied by, and what is read by windows."""
    item = program.product
    assert isinstance(item, Contraction)
    named = {o.name: o for o in program.operands}
    return named[item.left.operand], named[item.right.operand]


def three(values: Sequence[int], fill: int) -> Triple:
    one, two, three = (*(fill for _ in range(3 - len(values))), *values)
    return one, two, three
