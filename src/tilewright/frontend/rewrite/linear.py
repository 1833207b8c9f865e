"""What is linear behind a product, as a Form of the same factors: scales, biases, casts, views, windows and sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.ir.graph import Node

from ..lowering.form import Form, Stuck, aligned, spread
from ..lowering.lower import FLOATS, Expr


def through(form: Form, node: Node, at: str) -> Form:
    """The value of a node that reads a Form's, which is known as `at`. Stuck where it is not linear."""
    if node.op not in _STEPS:
        raise Stuck
    return _STEPS[node.op](form, node, at)


def _mine(form: Form, node: Node, at: str) -> int:
    """Which argument of two is this value; the result must have its shape."""
    if node.shape != form.shape or len(node.args) != 2:
        raise Stuck
    return node.args.index(at)


def _scaled(form: Form, node: Node, at: str) -> Form:
    mine = _mine(form, node, at)
    other = node.args[1 - mine]
    if node.op == "div" and mine:
        raise Stuck
    if not isinstance(other, str):
        by = float(other) if node.op == "mul" else 1.0 / float(other) if other else 0.0
        if by == 0.0 or by - by != 0.0:
            raise Stuck
        return replace(form, scale=form.scale * by, addends=tuple(a * by for a in form.addends))
    builder = form.left.builder
    value = aligned(builder, builder.nodes[other], form.shape)
    varying = [c for c, size in zip(form.letters, value.shape, strict=True) if size > 1]
    side = form.only("".join(varying))
    if value.dtype not in FLOATS or "" in varying or not side:
        raise Stuck
    factor, letters = form.factor(side)
    of_factor = spread(value, form.letters, letters)
    factor = factor.wide() * of_factor.wide() if node.op == "mul" else factor.wide() / of_factor.wide()
    addends = tuple(_times(a, value, node.op) for a in form.addends)
    return replace(form.having(side, factor, letters), addends=addends)


def _times(addend: Expr | float, value: Expr, op: str) -> Expr:
    if isinstance(addend, Expr):
        return addend * value if op == "mul" else addend / value
    return value * addend if op == "mul" else value.builder.point("div", addend, value)


def _added(form: Form, node: Node, at: str) -> Form:
    mine = _mine(form, node, at)
    other, builder = node.args[1 - mine], form.left.builder
    given = aligned(builder, builder.nodes[other], form.shape) if isinstance(other, str) else float(other)
    if isinstance(given, Expr) and given.dtype not in FLOATS:
        raise Stuck
    if node.op == "sub" and mine:
        form = _negated(form, node, at)
    given = given * -1.0 if node.op == "sub" and not mine else given
    last = form.addends[-1] if form.addends else None
    if isinstance(last, Expr) and isinstance(given, Expr) and last.shape == given.shape:  # one sum for both
        return replace(form, addends=(*form.addends[:-1], last.wide() + given.wide()))
    return replace(form, addends=(*form.addends, given))


def _negated(form: Form, node: Node, at: str) -> Form:
    return replace(form, scale=-form.scale, addends=tuple(a * -1.0 for a in form.addends))


def _cast(form: Form, node: Node, at: str) -> Form:
    if node.dtype not in FLOATS:
        raise Stuck
    return form


_STEPS: Mapping[str, Callable[[Form, Node, str], Form]] = {
    "mul": _scaled, "div": _scaled, "add": _added, "sub": _added, "neg": _negated, "to": _cast,
    "reshape": lambda form, node, at: form.reshaped(node), "permute": lambda form, node, at: form.permuted(node),
    "load": lambda form, node, at: form.loaded(node),
}  # fmt: skip


def summed(form: Form, node: Node) -> Form:
    """The sum over dimensions of the value, its factors summed over what they alone have."""
    for side in ("left", "right"):
        factor, letters = form.factor(side)
        gone = [letters.index(c) for c in (form.letters[d] for d in node.dims) if c and form.only(c) == side]
        if gone:
            rest = "".join(c for i, c in enumerate(letters) if i not in gone)
            form = form.having(side, factor.wide().reduce("sum", gone), rest)
    addends = tuple(_summed_addend(a, form.shape, node.dims) for a in form.addends)
    left = tuple(c for d, c in enumerate(form.letters) if d not in node.dims)
    return replace(form, letters=left, shape=node.shape, addends=addends)


def _summed_addend(addend: Expr | float, shape: Sequence[int], dims: Sequence[int]) -> Expr | float:
    if not isinstance(addend, Expr):
        return addend * prod(shape[d] for d in dims)
    times = prod(shape[d] for d in dims if addend.shape[d] == 1)
    varying = [d for d in dims if addend.shape[d] > 1]
    whole = addend.wide().reduce("sum", varying, keepdim=True) if varying else addend.wide()
    whole = whole.reshape(tuple(s for d, s in enumerate(whole.shape) if d not in dims))
    return whole * float(times) if times > 1 else whole


def finished(form: Form, value: Expr, dtype: str) -> Expr:
    """The form's value, of its product's."""
    if form.scale != 1.0 or form.addends:
        value = value.wide()
    value = value * form.scale if form.scale != 1.0 else value
    for addend in form.addends:
        value = value + addend
    return value.to(dtype)
