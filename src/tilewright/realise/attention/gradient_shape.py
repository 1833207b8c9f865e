"""The Program of an attention's gradients in the numbers of the skeletons."""

from __future__ import annotations

from dataclasses import replace

from ...ir.access import ALL_DIAGONALS, Access, Diagonals
from ...ir.alone import attention_backward_in
from ...ir.program import AttentionBackwardOp, Program, Statement
from ...kernels.cuda.attention.shape import Layers
from ...kernels.cuda.attention_backward.shape import GradientShape
from .shape import layers, renamed, short
from .visible import settled, visible


def gradients_of(program: Program) -> AttentionBackwardOp:
    found = attention_backward_in(program)
    assert found is not None
    return found


def gradient_shape(program: Program) -> GradientShape | None:
    """None where a factor is read in another way than row by row of layers that the batch tells."""
    item = gradients_of(program)
    named = {o.name: o for o in program.operands}
    row, keys = len(program.domain) - 2, len(program.domain)

    def of(access: Access, rows: int) -> Layers | None:
        return layers(named[access.operand], access, rows)

    found = [of(item.query, row), of(item.key, keys), of(item.value, keys), of(item.upstream, row)]
    known = [x for x in found if x is not None and x.at is not None]
    if len(known) < len(found) or any(step.dim == row for x in known for step in x.batch):
        return None
    domain = (*program.domain[:-1], item.keys)
    gradient = program.outputs[1].shape
    shared = tuple(d for d in range(len(domain) - 2) if gradient[d] < domain[d])
    query, key, value, upstream = known
    return GradientShape(
        domain=domain, depth=item.depth, columns=program.domain[-1], query=query, key=key, value=value,
        upstream=upstream, shared=shared, visible=_visible(item) if item.spares else ALL_DIAGONALS,
    )  # fmt: skip


def _visible(item: AttentionBackwardOp) -> Diagonals:
    """The diagonals (key - query) outside of which all weights are 0."""
    made = {i.result: i for i in item.map.body if isinstance(i, Statement)}
    weights = made.get(item.map.outputs[0].name)
    while weights is not None and weights.op == "to":
        weights = made.get(str(weights.args[0]))
    apart = made.get(str(weights.args[0])) if weights is not None and weights.op == "exp" else None
    if apart is None or apart.op != "sub" or not isinstance(apart.args[0], str):
        return ALL_DIAGONALS
    score = replace(item.map.outputs[0], name=apart.args[0])
    return visible(replace(item.map, outputs=(score,)), len(item.map.domain) - 2).diagonals


def maps_of(program: Program) -> tuple[Program, Program]:
    """The map of score and weight gradient, and the same where all of a tile is visible. Its first operands are called
    `score` and `gradient`, the others as in the Program."""
    item = gradients_of(program)
    names = dict(zip((o.name for o in item.map.operands), ("score", "gradient", *item.operands), strict=True))
    whole = short(renamed(item.map, names))
    return whole, settled(whole, len(whole.domain) - 2, _visible(item))
