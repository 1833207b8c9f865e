"""Recurrences that were written as loops over time: `h = a[:, t] * h + b[:, t]`, then a stack of all h, or the last.

What is traced has a copy of the loop's body for each step. Here the copies are held against each other: where all do
the same with the previous state and with slices that move on by one, they are one scan over whole tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.access import Position
from tilewright.ir.graph import Node
from tilewright.ir.program import POINTWISE

from .lower import Builder, Expr, NotLowered, Number

Part = Expr | Number


@dataclass(frozen=True, slots=True)
class _Linear:
    """`factor` * (state before) + `rest`; tensors have the steps as their first dimension, or 1 where all are alike."""

    factor: Part
    rest: Part


def loop(b: Builder, tensors: Sequence[Expr], dim: int) -> Expr:
    """The stack of these, three or more, along a new dimension, as one scan; who reads one of them from now on reads a
    part of it. Raises NotLowered where they are no recurrence."""
    if len({(t.shape, t.dtype) for t in tensors}) > 1:
        raise NotLowered
    states = [_bare(b, t.node).name for t in tensors]
    reverse = not _reads(b, states[1], states[0])
    if reverse and not _reads(b, states[0], states[1]):
        raise NotLowered
    steps = _Loop(b, states[::-1] if reverse else states, reverse=reverse)
    found = steps.scan()
    length = len(tensors)
    result = found.reshape((length, *tensors[0].shape))
    result = result.permute((*range(1, dim + 1), 0, *range(dim + 1, len(result.shape))))
    for place, (tensor, state) in enumerate(zip(tensors, states, strict=True)):
        if state in steps.given:
            continue
        part = result.slice(dim, place, 1).reshape(tensor.shape)
        part = b.point("to", part, dtype=part.dtype)  # in memory of its own, as it was
        b.instead[tensor.node.name] = part
        b.instead[state] = part.reshape(b.nodes[state].shape)
    return result


_LEAST_NORMAL = 2.0**-126  # of fp32


def last_of_loop(b: Builder, states: list[str], *, reverse: bool) -> Expr:
    """The last of these states, which stand in the order of the steps; `reverse`: the steps go through what they read
    from its end. Where what is kept of a state is the same number at each step, it is a sum with weights, and a
    reduction; else the end of a scan. Raises NotLowered where they are no recurrence, or where every step reads the
    same."""
    steps = _Loop(b, [_bare(b, b.nodes[s]).name for s in states], reverse=reverse)
    factor, rest = steps.terms()
    if not steps.moves:
        raise NotLowered
    length, shape = steps.length, steps.shape
    if not isinstance(factor, Expr) and _LEAST_NORMAL <= abs(factor) ** (length - 1) <= 1:  # 0 * inf is not inf
        rest = rest.wide()
        if factor != 1:
            past = b.place(length, 0, len(rest.shape)).to(rest.dtype)
            rest = rest * b.point("pow", float(factor), past if reverse else b.point("sub", float(length - 1), past))
        return rest.reduce("sum", (0,)).reshape(shape)
    last = steps.scan().slice(0, 0 if reverse else length - 1, 1).reshape(shape)
    return b.point("to", last, dtype=last.dtype)  # in memory of its own


def _bare(b: Builder, node: Node) -> Node:
    while node.op == "reshape":
        node = b.nodes[node.sources[0]]
    return node


_DEEPEST = 32  # statements between one state and the next


def _reads(b: Builder, name: str, wanted: str) -> bool:
    """Whether a value is made of another by pointwise operations and views, not many of them."""
    seen: set[str] = set()
    ahead = [name]
    for _ in range(_DEEPEST):
        ahead = [s for n in ahead if b.nodes[n].op in POINTWISE or b.nodes[n].op in ("reshape", "expand", "permute")
                 for s in b.nodes[n].sources if s not in seen]  # fmt: skip
        if wanted in ahead:
            return True
        seen.update(ahead)
    return False


class _Loop:
    """`states` in the order in which they were computed."""

    def __init__(self, b: Builder, states: list[str], *, reverse: bool) -> None:
        self.b, self.states, self.reverse = b, states, reverse
        self.length = len(states)
        self.shape = b.nodes[states[1]].shape
        self.given: set[str] = set()  # states that the loop did not make
        self.moves = False  # whether a step reads another slice than the step before
        self._known: dict[tuple[str, ...], _Linear] = {}

    def scan(self) -> Expr:
        """All states, the steps along the first dimension, as they were stacked."""
        factor, rest = self.terms()
        if isinstance(factor, Expr):
            return self.b.scan("recurrence", factor, rest, dim=0, reverse=self.reverse)
        if factor == 1:
            return self.b.scan("cumsum", rest, dim=0, reverse=self.reverse)
        return self.b.scan("recurrence", float(factor), rest, dim=0, reverse=self.reverse)

    def terms(self) -> tuple[Part, Expr]:
        """What the state before is multiplied with, and what is added, by step; the first state is its `rest` alone."""
        b, whole = self.b, (self.length, *self.shape)
        linear = self._lifted(tuple(self.states[1:]))
        factor, rest = linear.factor, linear.rest
        if _is(factor, 0):
            raise NotLowered
        start = _Start(self).of(self.states[1], self.states[0])
        first = b.place(self.length, 0, len(whole)).do("eq", self.length - 1 if self.reverse else 0)
        if start is None:
            self.given.add(self.states[0])
            state = Expr(b, b.nodes[self.states[0]]).reshape((1, *self.shape))
            rest = first.where(state, rest)
            factor = first.where(0, factor) if isinstance(factor, Expr) else factor
        elif start != 0:
            given = self._given(start) if isinstance(start, Expr) else start
            rest = first.where(_sum(b, _product(b, factor, given), rest), rest)
        if not isinstance(rest, Expr):
            raise NotLowered
        return factor, rest.expand(whole)

    def _given(self, start: Expr) -> Expr:
        """What the loop started from, without steps; smaller than a state it broadcasts to one."""
        if prod(start.shape) == prod(self.shape):
            return start.reshape((1, *self.shape))
        return start.reshape((1,) * (len(self.shape) + 1 - len(start.shape)) + start.shape)

    def at(self, step: int) -> int:
        """Where a step stands in the stack."""
        return self.length - 1 - step if self.reverse else step

    def _lifted(self, names: tuple[str, ...]) -> _Linear:
        """What these nodes, one a step from the second on, do with the state before."""
        if names not in self._known:
            self._known[names] = self._made(names)
        return self._known[names]

    def _made(self, names: tuple[str, ...]) -> _Linear:
        b = self.b
        nodes = [b.nodes[n] for n in names]
        if [_bare(b, n).name for n in nodes] == self.states[:-1]:
            return _Linear(1, 0)
        first = nodes[0]
        if all(n == names[0] for n in names):
            return _Linear(0, Expr(b, first).reshape((1, *first.shape)))
        if len({(n.op, n.shape, n.dtype) for n in nodes}) > 1:
            raise NotLowered
        if first.op == "slice":
            return _Linear(0, self._slices(nodes))
        if first.op in ("reshape", "expand", "permute"):
            if len({n.dims for n in nodes}) > 1:
                raise NotLowered
            inner = self._lifted(tuple(n.sources[0] for n in nodes))
            return _Linear(self._viewed(first, inner.factor), self._viewed(first, inner.rest))
        if first.op not in POINTWISE or first.op in ("index", "inside"):
            raise NotLowered
        return self._pointwise(first, [self._argument(arg) for arg in zip(*(n.args for n in nodes), strict=True)])

    def _argument(self, given: tuple[str | Number, ...]) -> _Linear:
        if all(isinstance(g, str) for g in given):
            return self._lifted(tuple(str(g) for g in given))
        if any(isinstance(g, str) for g in given) or len(set(given)) > 1:
            raise NotLowered
        (value, *_) = given
        assert not isinstance(value, str)
        return _Linear(0, value)

    def _slices(self, nodes: Sequence[Node]) -> Expr:
        """Slices of one tensor that move on by one, put together; what lies outside belongs to no step."""
        source, (along, _, length) = nodes[0].sources[0], nodes[0].dims
        places = [n.dims[1] - self.at(step) for step, n in enumerate(nodes, 1)]
        if length != 1 or any(n.sources[0] != source or n.dims[0] != along for n in nodes) or len(set(places)) > 1:
            raise NotLowered
        self.moves = True
        whole = Expr(self.b, self.b.nodes[source])
        order = (along, *(d for d in range(len(whole.shape)) if d != along))
        moved = whole.permute(order)
        first, size = places[0], whole.shape[along]
        if first >= 0 and first + self.length <= size:
            moved = moved if self.length == size else moved.slice(0, first, self.length)
        else:
            at = [Position(start=0 if d else first, steps=((d, 1),)) for d in range(len(order))]
            moved = self.b.load(moved, (self.length, *moved.shape[1:]), at, 0)
        return moved.reshape((self.length, *nodes[0].shape))

    def _viewed(self, view: Node, part: Part) -> Part:
        if not isinstance(part, Expr):
            return part
        steps = part.shape[0]
        if view.op == "permute":
            return part.permute((0, *(d + 1 for d in view.dims)))
        return part.expand((steps, *view.shape)) if view.op == "expand" else part.reshape((steps, *view.shape))

    def _pointwise(self, node: Node, args: Sequence[_Linear]) -> _Linear:
        b, op = self.b, node.op
        flat = [_Linear(self._aligned(a.factor, node), self._aligned(a.rest, node)) for a in args]
        if all(_is(a.factor, 0) for a in flat):
            return _Linear(0, b.point(op, *(a.rest for a in flat), dtype=node.dtype))
        if op in ("add", "sub"):
            join = _sum if op == "add" else _difference
            return _Linear(join(b, flat[0].factor, flat[1].factor), join(b, flat[0].rest, flat[1].rest))
        if op == "neg":
            return _Linear(_product(b, -1, flat[0].factor), _product(b, -1, flat[0].rest))
        if op == "mul":
            scale, other = flat if _is(flat[0].factor, 0) else flat[::-1]
            if not _is(scale.factor, 0):
                raise NotLowered
            return _Linear(_product(b, scale.rest, other.factor), _product(b, scale.rest, other.rest))
        if op == "div" and _is(flat[1].factor, 0):
            return _Linear(_ratio(b, flat[0].factor, flat[1].rest), _ratio(b, flat[0].rest, flat[1].rest))
        if op == "where" and _is(flat[0].factor, 0):
            condition, yes, no = flat
            return _Linear(b.point("where", condition.rest, yes.factor, no.factor, dtype=node.dtype),
                           b.point("where", condition.rest, yes.rest, no.rest, dtype=node.dtype))  # fmt: skip
        raise NotLowered

    def _aligned(self, part: Part, node: Node) -> Part:
        """With as many dimensions behind the first as the node has."""
        if not isinstance(part, Expr):
            return part
        missing = len(node.shape) + 1 - len(part.shape)
        return part.reshape((part.shape[0], *(1,) * missing, *part.shape[1:]))


class _Start:
    """What stands in the first state where the second has the first."""

    def __init__(self, loop: _Loop) -> None:
        self.loop, self.b = loop, loop.b
        self.found: list[str | Number] = []

    def of(self, second: str, first: str) -> Part | None:
        """None where the first state is not made as the second is."""
        if not self._alike(second, first) or len(set(self.found)) != 1:
            return None
        value = self.found[0]
        start = Expr(self.b, self.b.nodes[value]) if isinstance(value, str) else value
        return start if not isinstance(start, Expr) or start.literal is None else start.literal

    def _alike(self, second: str | Number, first: str | Number) -> bool:
        if isinstance(second, str) and _bare(self.b, self.b.nodes[second]).name == self.loop.states[0]:
            self.found.append(first)
            small = isinstance(first, str) and prod(self.b.nodes[first].shape) != prod(self.loop.shape)
            return not small or second == self.loop.states[0]
        if not isinstance(second, str) or not isinstance(first, str):
            return second == first and type(second) is type(first)
        one, other = self.b.nodes[second], self.b.nodes[first]
        if one.op == "slice" and other.op == "slice":
            step = self.loop.at(1) - self.loop.at(0)
            moved = (one.dims[0], one.dims[1] - step, one.dims[2])
            return (one.sources == other.sources and moved == other.dims) or one == other
        if second == first:
            return True
        if (one.op, one.shape, one.dtype, one.dims) != (other.op, other.shape, other.dtype, other.dims):
            return False
        same = one.op in POINTWISE or one.op in ("reshape", "expand", "permute")
        return same and all(self._alike(s, f) for s, f in zip(one.args, other.args, strict=True))


def _is(part: Part, number: Number) -> bool:
    return not isinstance(part, Expr) and part == number


def _sum(b: Builder, x: Part, y: Part) -> Part:
    if _is(x, 0) or _is(y, 0):
        return y if _is(x, 0) else x
    return b.point("add", x, y) if isinstance(x, Expr) or isinstance(y, Expr) else x + y


def _difference(b: Builder, x: Part, y: Part) -> Part:
    if _is(y, 0):
        return x
    return b.point("sub", x, y) if isinstance(x, Expr) or isinstance(y, Expr) else x - y


def _product(b: Builder, x: Part, y: Part) -> Part:
    if _is(x, 0) or _is(y, 0):
        return 0
    if _is(x, 1) or _is(y, 1):
        return y if _is(x, 1) else x
    return b.point("mul", x, y) if isinstance(x, Expr) or isinstance(y, Expr) else x * y


def _ratio(b: Builder, x: Part, y: Part) -> Part:
    if _is(x, 0):
        return 0
    return b.point("div", x, y) if isinstance(x, Expr) or isinstance(y, Expr) else x / y
