"""What scales and shifts a factor of a product, folded into the other: ((x + a) s + t) @ w = (x + a) @ (s w) + t @ w.

Worth it in 16 bits on a GPU, where tensor cores take factors as they lie in memory, so that x would be written and read
once more. (fp32 is split by a pass over it, which does such things on its way.) What is added before the scale meets
the weights as they were rounded, so that x - a does not lose what it takes off; what is added behind it, as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, prod

from tilewright.ir.graph import SOURCES, VIEWS, Node

from ..lowering.form import Form, Stuck, aligned, spread
from ..lowering.lower import FLOATS, Expr
from .readers import Readers

LEAST_GAIN = 2  # times fewer elements that are read or written
_BINARY = ("mul", "div", "add", "sub")
_IN_MEMORY = SOURCES | {"call"}  # whoever reads it
_Value = Expr | float
_Step = tuple[str, _Value, int]  # an operator, its other argument, and which of the two the factor is


def folded(form: Form, readers: Readers) -> Form | None:
    """The same product, with a factor as it lies in memory; None where nothing is done to one on its way, or where that
    costs as much at the other one."""
    for side in sorted(("left", "right"), key=lambda s: -prod(form.factor(s)[0].shape)):
        found = _folded(form, side, readers)
        if found is not None:
            return found
    return None


def _folded(form: Form, side: str, readers: Readers) -> Form | None:
    opposite = "left" if side == "right" else "right"
    (factor, letters), (other, of_other) = form.factor(side), form.factor(opposite)
    base, letters, steps = _way(factor, letters, of_other, readers)
    if not steps or base.dtype != factor.dtype or not _in_memory(base, readers):
        return None
    scale, by, inside, outside = _affine(steps)
    weights = other if by is None else (other.wide() * by).to(other.dtype)
    shifts = [w.wide() * v for w, v in ((weights, _times(inside, scale)), (other, outside)) if v is not None]
    passes = 2 * (by is not None) + bool(shifts)
    if LEAST_GAIN * passes * prod(other.shape) > 2 * prod(factor.shape):
        return None
    addends = form.addends
    if shifts:
        rest = "".join(c for c in of_other if c in form.letters)
        total = shifts[0] if len(shifts) == 1 else shifts[0] + shifts[1]
        total = total.reduce("sum", [i for i, c in enumerate(of_other) if c not in rest])
        total = total * form.scale if form.scale != 1.0 else total
        addends = (*addends, spread(total, rest, "".join(form.letters)))
    form = form.having(side, Expr(factor.builder, base), letters).having(opposite, weights, of_other)
    return replace(form, scale=form.scale * scale, addends=addends)


def _in_memory(node: Node, readers: Readers) -> bool:
    """Whether it is there whether or not the product reads it."""
    while (node.op in VIEWS or node.op == "slice") and readers.alone(node.name):
        node = readers.nodes[node.sources[0]]
    return node.op in _IN_MEMORY or not readers.alone(node.name)


def _way(factor: Expr, letters: str, of_other: str, readers: Readers) -> tuple[Node, str, list[_Step]]:
    """From a factor back to what it is made of by numbers and vectors along the other's dimensions; last step first."""
    node = factor.node
    steps: list[_Step] = []
    while readers.alone(node.name):
        if node.op == "permute":
            known = dict(zip(node.dims, letters, strict=True))
            letters = "".join(known[d] for d in range(len(letters)))
        elif node.op == "neg":
            steps.append(("mul", -1.0, 0))
        elif node.op in _BINARY:
            found = _step(Expr(factor.builder, node), letters, of_other)
            if found is None:
                break
            steps.append(found)
            node = readers.nodes[str(node.args[found[2]])]
            continue
        elif node.op != "to" or node.dtype not in FLOATS:
            break
        node = readers.nodes[node.sources[0]]
    return node, letters, steps


def _step(made: Expr, letters: str, of_other: str) -> _Step | None:
    node, nodes = made.node, made.builder.nodes
    for mine in (0, 1):
        inner, given = node.args[mine], node.args[1 - mine]
        if not isinstance(inner, str) or nodes[inner].shape != node.shape or (node.op == "div" and mine):
            continue
        if not isinstance(given, str):
            number = float(given)
            return (node.op, number, mine) if isfinite(number) and (number or node.op in ("add", "sub")) else None
        value = aligned(made.builder, nodes[given], node.shape)
        along = [c for c, size in zip(letters, value.shape, strict=True) if size > 1]
        if value.dtype in FLOATS and all(c in of_other for c in along):
            return node.op, spread(value.wide(), letters, of_other), mine
    return None


def _affine(steps: Sequence[_Step]) -> tuple[float, Expr | None, _Value | None, _Value | None]:
    """scale, by, inside and outside of (base + inside) * by * scale + outside."""
    scale, by = 1.0, None
    inside: _Value | None = None
    outside: _Value | None = None
    for op, value, mine in reversed(steps):
        if op in ("mul", "div"):
            by_value = value if op == "mul" else _inverse(value)
            outside = _times(outside, by_value)
            if isinstance(by_value, Expr):
                by = by_value if by is None else by * by_value
            else:
                scale *= by_value
            continue
        if op == "sub" and mine:  # value - factor
            scale, outside = -scale, _times(outside, -1.0)
        added = -value if op == "sub" and not mine else value
        if (by, scale, outside) == (None, 1.0, None):
            inside = added if inside is None else inside + added
        else:
            outside = added if outside is None else outside + added
    if not isfinite(scale) or scale == 0.0:
        raise Stuck
    return scale, by, inside, outside


def _inverse(value: _Value) -> _Value:
    return value.do("reciprocal") if isinstance(value, Expr) else 1.0 / value


def _times(value: _Value | None, by: _Value) -> _Value | None:
    return value if value is None or by == 1.0 else value * by
