"""Between which diagonals a value can have elements other than zero, as its graph shows it: tril, triu, diag, masks,
and what a softmax makes of minus infinity.

Of two dimensions d < e of a value, an element lies on diagonal (index along e) - (index along d). Conditions that
compare positions say where they hold; a choice between a value and zero, and what keeps zeros, narrow the range.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import ceil, floor, inf

from .graph import VIEWS, Node
from .program import POINTWISE

Range = tuple[float, float]  # of diagonals, both ends included
_ALL: Range = (-inf, inf)
# Of minus infinity they give zero.
_VANISHING = ("exp", "exp2", "sigmoid")
# A sum of exponentials is not zero, but of rows that are masked whole.
_POSITIVE = ("softmax_stats", "sum")
# Of zero they give zero.
_KEEPING = frozenset(("neg", "abs", "sign", "floor", "ceil", "round", "trunc", "square", "sqrt", "sin", "tan", "asin",
                      "atan", "sinh", "tanh", "asinh", "atanh", "expm1", "log1p", "erf", "to"))  # fmt: skip
_INVERTED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


class _Where:
    """Where a value, or a condition, may be other than zero: on these diagonals, of pairs of dimensions; on all of the
    pairs that are not named. `nowhere`: it is zero."""

    def __init__(self, pairs: Mapping[tuple[int, int], Range], nowhere: bool = False) -> None:
        self.pairs = pairs
        self.nowhere = nowhere

    def meets(self, other: _Where) -> _Where:
        found = {p: _both(self.pairs.get(p, _ALL), other.pairs.get(p, _ALL)) for p in {*self.pairs, *other.pairs}}
        return _Where(found, self.nowhere or other.nowhere or any(low > high for low, high in found.values()))

    def joins(self, other: _Where) -> _Where:
        if self.nowhere or other.nowhere:
            return other if self.nowhere else self
        both = self.pairs.keys() & other.pairs.keys()
        ranges = {p: (min(self.pairs[p][0], other.pairs[p][0]), max(self.pairs[p][1], other.pairs[p][1])) for p in both}
        return _Where({p: r for p, r in ranges.items() if r != _ALL})

    def moved(self, to: Mapping[int, int]) -> _Where:
        """The same where dimension d is to[d]; what concerns others is forgotten."""
        found = {}
        for (d, e), (low, high) in self.pairs.items():
            if d in to and e in to:
                a, b = to[d], to[e]
                found[min(a, b), max(a, b)] = (low, high) if a < b else (-high, -low)
        return _Where(found, self.nowhere)


_ANYWHERE, _NOWHERE = _Where({}), _Where({}, nowhere=True)


def _both(one: Range, other: Range) -> Range:
    return max(one[0], other[0]), min(one[1], other[1])


class Bands:
    """Of a graph's nodes, by their names."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes = nodes
        self._known: dict[str, _Where] = {}
        self._lows: dict[str, _Where] = {}

    def between(self, name: str, first: int, second: int) -> tuple[int | None, int | None]:
        """The least and the greatest index along `second` - index along `first` of elements other than zero; None: no
        bound. Of a value that is zero throughout there is no band."""
        return _bounds(self._value(name), first, second)

    def where(self, name: str, first: int, second: int) -> tuple[int | None, int | None]:
        """The same of where a condition may hold."""
        return _bounds(self._truth(self.nodes[name])[0], first, second)

    def _value(self, name: str) -> _Where:
        if name not in self._known:
            self._known[name] = _ANYWHERE  # should a graph ever go in circles
            self._known[name] = self._found(self.nodes[name])
        return self._known[name]

    def _found(self, node: Node) -> _Where:
        if node.op in VIEWS:
            return self._value(node.sources[0]).moved(_viewed(self.nodes, node))
        if node.op == "where":
            condition, yes, no = node.args
            holds, fails = self.condition(condition, node)
            return holds.meets(self._argument(yes, node)).joins(fails.meets(self._argument(no, node)))
        if node.dtype == "bool":
            return self._truth(node)[0]
        if node.op == "mul":
            return self._argument(node.args[0], node).meets(self._argument(node.args[1], node))
        if node.op == "div" and isinstance(node.args[1], str):
            return self._argument(node.args[0], node) if _root(self.nodes, node.args[1]).op in _POSITIVE else _ANYWHERE
        if node.op == "div":
            return self._argument(node.args[0], node) if node.args[1] else _ANYWHERE
        if node.op in _VANISHING:
            return self._low_argument(node.args[0], node)
        if node.op in ("add", "sub", "maximum", "minimum"):
            return self._argument(node.args[0], node).joins(self._argument(node.args[1], node))
        return self._argument(node.args[0], node) if node.op in _KEEPING else _ANYWHERE

    def _argument(self, arg: str | float, node: Node) -> _Where:
        """Of what a pointwise node reads, in its dimensions."""
        if not isinstance(arg, str):
            return _NOWHERE if arg == 0 else _ANYWHERE
        return self._value(arg).moved(_spread(self.nodes[arg].shape, node.shape))

    def _low(self, node: Node) -> _Where:
        """Where a value may be other than minus infinity."""
        if node.name not in self._lows:
            self._lows[node.name] = _ANYWHERE
            self._lows[node.name] = self._low_found(node)
        return self._lows[node.name]

    def _low_found(self, node: Node) -> _Where:
        if node.op in VIEWS:
            return self._low(self.nodes[node.sources[0]]).moved(_viewed(self.nodes, node))
        if node.op == "where":
            holds, fails = self.condition(node.args[0], node)
            yes, no = (self._low_argument(a, node) for a in node.args[1:])
            return holds.meets(yes).joins(fails.meets(no))
        if node.op in ("add", "minimum"):
            return self._low_argument(node.args[0], node).meets(self._low_argument(node.args[1], node))
        if node.op in ("sub", "to"):
            return self._low_argument(node.args[0], node)
        scaled = node.op in ("mul", "div") and not isinstance(node.args[1], str) and node.args[1] > 0
        return self._low_argument(node.args[0], node) if scaled else _ANYWHERE

    def _low_argument(self, arg: str | float, node: Node) -> _Where:
        if not isinstance(arg, str):
            return _NOWHERE if arg == -inf else _ANYWHERE
        return self._low(self.nodes[arg]).moved(_spread(self.nodes[arg].shape, node.shape))

    def condition(self, arg: str | float, node: Node) -> tuple[_Where, _Where]:
        """Where a condition may hold, and where it may fail, in the dimensions of the node that reads it."""
        if not isinstance(arg, str):
            return (_ANYWHERE, _NOWHERE) if arg else (_NOWHERE, _ANYWHERE)
        made = self.nodes[arg]
        holds, fails = self._truth(made)
        to = _spread(made.shape, node.shape)
        return holds.moved(to), fails.moved(to)

    def _truth(self, node: Node) -> tuple[_Where, _Where]:
        """Where a value is true, or other than zero, and where it may be false, or zero."""
        if node.op in _INVERTED:
            return self._compared(node)
        if node.op == "to" and node.sources:
            return self._truth(self.nodes[node.sources[0]])
        if node.op in VIEWS:
            to = _viewed(self.nodes, node)
            holds, fails = self._truth(self.nodes[node.sources[0]])
            return holds.moved(to), fails.moved(to)
        if node.op in ("logical_not", "bitwise_not") and node.dtype == "bool":
            return self.condition(node.args[0], node)[::-1]
        if node.op in ("logical_and", "logical_or", "bitwise_and", "bitwise_or") and node.dtype == "bool":
            (yes, no), (also, nor) = (self.condition(a, node) for a in node.args)
            return (yes.meets(also), no.joins(nor)) if "and" in node.op else (yes.joins(also), no.meets(nor))
        if node.op == "where" and not any(isinstance(a, str) for a in node.args[1:]):
            holds, fails = self.condition(node.args[0], node)
            chosen, other = map(bool, node.args[1:])
            if chosen != other:
                return (holds, fails) if chosen else (fails, holds)
        return (_ANYWHERE if node.dtype == "bool" else self._value(node.name)), _ANYWHERE

    def _compared(self, node: Node) -> tuple[_Where, _Where]:
        """Of a comparison of positions, or with zero of what is one."""
        left, right = (_positions(self.nodes, a, node) for a in node.args)
        if left is None or right is None:
            if node.op in ("eq", "ne") and node.args[1] in (0, False) and isinstance(node.args[0], str):
                truth = self.condition(node.args[0], node)
                return truth[::-1] if node.op == "eq" else truth
            return _ANYWHERE, _ANYWHERE
        steps = {d: left[0].get(d, 0) - right[0].get(d, 0) for d in {*left[0], *right[0]}}
        moving = sorted(d for d, step in steps.items() if step)
        if len(moving) != 2 or sorted(steps[d] for d in moving) != [-1, 1]:
            return _ANYWHERE, _ANYWHERE
        pair, sign = (moving[0], moving[1]), steps[moving[1]]
        bound = (right[1] - left[1]) * sign  # sign x diagonal `op` sign x bound
        return _beside(node.op, bound, sign, pair), _beside(_INVERTED[node.op], bound, sign, pair)


def _root(nodes: Mapping[str, Node], name: str) -> Node:
    node = nodes[name]
    while node.op in VIEWS:
        node = nodes[node.sources[0]]
    return node


def _viewed(nodes: Mapping[str, Node], node: Node) -> dict[int, int]:
    """Which dimension of a view each of its source is; those that are cut or joined are none."""
    source = nodes[node.sources[0]].shape
    if node.op == "permute":
        return {d: i for i, d in enumerate(node.dims)}
    if node.op == "expand":
        return _spread(source, node.shape)
    ends = {(_elements(node.shape[i:]), size): i for i, size in enumerate(node.shape) if size > 1}
    found = {d: ends.get((_elements(source[d:]), size)) for d, size in enumerate(source) if size > 1}
    return {d: i for d, i in found.items() if i is not None}


def _positions(nodes: Mapping[str, Node], arg: str | float, node: Node) -> tuple[dict[int, int], float] | None:
    """A sum of positions along the node's dimensions, each times a step, and a number; None of anything else."""
    if not isinstance(arg, str):
        return {}, arg
    made = nodes[arg]
    if made.op == "index":
        found: tuple[dict[int, int], float] | None = ({0: 1}, 0)
    elif made.op in ("add", "sub"):
        parts = [_positions(nodes, a, made) for a in made.args]
        if parts[0] is None or parts[1] is None:
            return None
        sign = 1 if made.op == "add" else -1
        steps = {d: parts[0][0].get(d, 0) + sign * parts[1][0].get(d, 0) for d in {*parts[0][0], *parts[1][0]}}
        found = steps, parts[0][1] + sign * parts[1][1]
    elif made.op in VIEWS:
        inner = _positions(nodes, made.sources[0], nodes[made.sources[0]])
        to = _viewed(nodes, made)
        if inner is None or any(d not in to for d in inner[0]):
            return None
        found = {to[d]: step for d, step in inner[0].items()}, inner[1]
    elif made.op == "to" and made.dtype in ("i32", "i64"):
        found = _positions(nodes, made.sources[0], made)
    else:
        found = None
    to = _spread(made.shape, node.shape)
    if found is None:
        return None
    return ({to[d]: s for d, s in found[0].items()}, found[1]) if all(d in to for d in found[0]) else None


class Needed:
    """Of a graph's nodes the diagonals that anybody reads: a choice reads no more than where it is made."""

    def __init__(self, nodes: Mapping[str, Node], whole: Collection[str]) -> None:
        """`whole`: the values that are results, or that operators read."""
        self.nodes = nodes
        self._whole = whole
        self._bands = Bands(nodes)
        self._readers: dict[str, list[Node]] = {name: [] for name in nodes}
        for node in nodes.values():
            for source in dict.fromkeys(node.sources):
                self._readers[source].append(node)
        self._known: dict[str, _Where] = {}

    def between(self, name: str, first: int, second: int) -> tuple[int | None, int | None]:
        """As Bands has it."""
        return _bounds(self._value(name), first, second)

    def _value(self, name: str) -> _Where:
        if name in self._whole or not self._readers[name]:
            return _ANYWHERE
        if name not in self._known:
            found = _NOWHERE
            for reader in self._readers[name]:
                found = found.joins(self._by(reader, name))
            self._known[name] = found
        return self._known[name]

    def _by(self, reader: Node, name: str) -> _Where:
        """What one reader reads of it, in its own dimensions."""
        shape = self.nodes[name].shape
        if reader.op == "permute":
            back = dict(enumerate(reader.dims))
            return self._value(reader.name).moved(back)
        if reader.op not in POINTWISE or reader.shape != shape:
            return _ANYWHERE
        needed = self._value(reader.name)
        if reader.op != "where" or reader.args[0] == name:
            return needed
        holds, fails = self._bands.condition(reader.args[0], reader)
        found = _NOWHERE
        for arg, where in zip(reader.args[1:], (holds, fails), strict=True):
            found = found.joins(needed.meets(where)) if arg == name else found
        return found


def _beside(op: str, bound: float, sign: int, pair: tuple[int, int]) -> _Where:
    """The diagonals of which sign x diagonal `op` sign x bound may hold."""
    if sign < 0:
        op = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(op, op)
    ranges = {"gt": (floor(bound) + 1, inf), "ge": (ceil(bound), inf), "lt": (-inf, ceil(bound) - 1),
              "le": (-inf, floor(bound)), "eq": (bound, bound), "ne": _ALL}  # fmt: skip
    return _Where({pair: ranges[op]} if op != "ne" else {})


def _bounds(found: _Where, first: int, second: int) -> tuple[int | None, int | None]:
    low, high = found.pairs.get((min(first, second), max(first, second)), _ALL)
    if found.nowhere or first == second:
        return None, None
    if second < first:
        low, high = -high, -low
    return (None if low == -inf else int(low)), (None if high == inf else int(high))


def _spread(shape: tuple[int, ...], to: tuple[int, ...]) -> dict[int, int]:
    """The dimensions of a value that is broadcast, but those that are."""
    off = len(to) - len(shape)
    return {d: d + off for d, size in enumerate(shape) if d + off >= 0 and size == to[d + off]}


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
