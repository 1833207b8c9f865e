"""A Program of recurrent layers in the numbers of the skeletons."""

from __future__ import annotations

from ...ir.alone import recurrence_in
from ...ir.program import Program
from ...kernels.recurrent.shape import RecurrentShape

SHAPE_FILES = ("recurrent/__init__.py", "recurrent/shape.py", "recurrent/layers.py")


def shape_of(program: Program) -> RecurrentShape:
    """Of a Program that has recurrent layers."""
    item = recurrence_in(program)
    assert item is not None
    written = {o.name for o in program.outputs}
    steps, batch, _ = program.domain
    return RecurrentShape(
        cell=item.cell, steps=steps, batch=batch, hidden=item.hidden, layers=item.layers, directions=item.directions,
        bias=item.bias, dtype=item.dtype, batch_first=program.operands[0].order == (1, 0, 2),
        wanted=tuple(name in written for name in item.results),
    )  # fmt: skip
