"""Reverse mode: the nodes of a graph from last to first, each giving its gradient on to what it was made of.

Values of the forward pass are computed again from its inputs; results of reductions and scans are kept instead, since
they are small, or dear. Which of them, the derivative itself says by asking for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod

from tilewright.ir.contraction import Contracted, contracted
from tilewright.ir.graph import VIEWS, Call, Graph, Node, Ref, Struct
from tilewright.ir.program import POINTWISE, REDUCTIONS, SCANS

from .rules import RULES, Operand, Use
from .tape import FLOATS, Tape, Value, wide

_MOST_PARTS = 4  # all are computed at every position: more are padded and added up
_REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "any", "all", "moments", "softmax_stats")


# What gives the same bits wherever it is computed again, if its arguments have them.
_EXACT = frozenset(
    {*VIEWS, "slice", "to", "neg", "abs", "maximum", "minimum", "where", "gt", "ge", "lt", "le", "eq", "ne"}
)


def has_rule(node: Node) -> bool:
    """Whether gradients can be led through this node."""
    if node.op == "load":
        return False
    if node.op in SCANS:
        return node.op == "cumsum"
    return node.op in RULES or node.op in _REDUCTIONS or node.op in ("reshape", "permute", "expand", "slice")


def leads_through(product: Contracted) -> bool:
    """Whether gradients can be led through this contraction: each operand's is one of the upstream with the other."""
    words = (product.letters.left, product.letters.right, product.letters.result)
    known = [set(a) | set(b) for a, b in ((words[1], words[2]), (words[0], words[2]), (words[0], words[1]))]
    return all(len(set(w)) == len(w) and set(w) <= others for w, others in zip(words, known, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """`backward` takes `kept` (inputs of the forward graph), `saved` (values in it) and an upstream gradient for each
    of its `graded` outputs. `made`: nodes that the forward graph must have besides, to save them."""

    backward: Graph
    kept: tuple[str, ...]
    saved: tuple[str, ...]
    graded: tuple[str, ...]
    made: tuple[Node, ...]


def derived(forward: Graph, wanted: Collection[str], *, prefix: str) -> Derived:
    """The backward graph of `forward`, whose nodes in `wanted` lead to gradients that are asked for."""
    return _Reverse(forward, frozenset(wanted), prefix).finish()


@dataclass(slots=True)
class _Collected:
    """What a value gets from its readers; slices of it apart, by dimension: (start, length, gradient)."""

    whole: list[Value] = field(default_factory=list)
    parts: dict[int, list[tuple[int, int, Value]]] = field(default_factory=dict)


class _Reverse:
    def __init__(self, forward: Graph, wanted: frozenset[str], prefix: str) -> None:
        self.forward, self.wanted = forward, wanted
        self.nodes = {n.name: n for n in forward.nodes}
        self.calls = {c.name: c for c in forward.calls}
        self.tape = Tape(prefix)
        self.prefix = prefix
        self.kept_results = self._kept_results()
        self.again: dict[str, Value] = {}  # forward values, as the backward pass has them
        self.saved: dict[str, None] = {}
        self.made: dict[str, Node] = {}
        self.collected: dict[str, _Collected] = {}
        self.results: dict[str, Value] = {}

    def finish(self) -> Derived:
        graded = [o for o in self.forward.outputs if o in self.wanted]
        self.tape.origin = self.nodes[graded[-1]].origin
        upstream = [self._upstream(name, i) for i, name in enumerate(graded)]
        for node in reversed(self.forward.nodes):
            self.tape.origin = node.origin or self.tape.origin
            if node.name in self.wanted and (g := self._gradient(node)) is not None:
                if node.op == "input":
                    self.results[node.name] = g.to(node.dtype).expand(node.shape)
                else:
                    self._lead(node, g)
        return self._derived(graded, upstream)

    def _upstream(self, name: str, number: int) -> str:
        node = self.nodes[name]
        ours = self.tape.given(
            Node(
                name=f"{self.prefix}g{number}",
                op="input",
                shape=node.shape,
                dtype=node.dtype,
                order=node.order,
                path=f"upstream_{number}",
            )
        )
        self._give(name, ours, among=node.shape)
        return ours.name

    def _derived(self, graded: list[str], upstream: list[str]) -> Derived:
        inputs = [n for n in self.forward.nodes if n.op == "input"]
        live = self._live(r.name for r in self.results.values())
        kept = tuple(n.name for n in inputs if n.name in live)
        saved = tuple(name for name in self.saved if name in live)
        given = (*kept, *saved, *upstream)
        paths = {name: f"saved_{i}" for i, name in enumerate(saved)}
        nodes = [replace(n, path=paths.get(n.name, n.path)) for n in map(self.tape.nodes.__getitem__, given)]
        nodes += [n for name, n in self.tape.nodes.items() if name in live and name not in given]
        laid = {self.results[n.name].name: n.order for n in inputs if n.name in self.results}
        nodes = [
            replace(n, order=laid[n.name]) if n.name in laid and n.op not in ("input", *VIEWS) else n for n in nodes
        ]
        results = tuple(Ref(name=self.results[n.name].name) if n.name in self.results else None for n in inputs)
        backward = Graph(
            nodes=tuple(nodes), outputs=tuple(r.name for r in results if r is not None),
            calls=tuple(
                self.tape.calls.get(origin) or self._call(origin)
                for origin in dict.fromkeys(n.origin for n in nodes if n.origin)
            ),
            arguments=tuple(Ref(name=name) for name in given), result=Struct(kind="tuple", items=results),
        )  # fmt: skip
        return Derived(
            backward=backward, kept=kept, saved=saved, graded=tuple(graded),
            made=tuple(n for name, n in self.made.items() if name in saved),
        )  # fmt: skip

    def _live(self, names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self.tape.sources(name)
        return found

    def _call(self, origin: str) -> Call:
        """A stand-in for titles: what is done here has no operator of torch."""
        target = self.calls[origin].target.split(".")
        place = -2 if len(target) > 2 else -1
        target[place] = f"{target[place]}_backward"
        return Call(name=origin, target=".".join(target), args=(), results=())

    def _kept_results(self) -> set[str]:
        """What is not computed again: products, reductions and scans, and outputs in whose place more would have to be
        read."""
        roots: dict[str, frozenset[str]] = {}
        kept = {n.name for n in self.forward.nodes if n.op == "call" or n.op in REDUCTIONS or n.op in SCANS}
        for node in self.forward.nodes:
            again = not node.sources or node.name in kept
            found = frozenset([node.name]) if again else frozenset().union(*(roots[s] for s in node.sources))
            size = sum(self.nodes[name].bytes for name in found)
            if node.op not in ("input", *VIEWS) and node.name in self.forward.outputs and size > node.bytes * 3 // 2:
                kept.add(node.name)
                found = frozenset([node.name])
            roots[node.name] = found
        return kept

    # --- forward values ------------------------------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """A forward value, in its own dtype."""
        todo = [name]
        while todo:
            node = self.nodes[todo[-1]]
            missing = [s for s in self._needed(node) if s not in self.again]
            todo += missing
            if not missing:
                self.again.setdefault(node.name, self._again(node))
                todo.pop()
        return self.again[name]

    def _needed(self, node: Node) -> tuple[str, ...]:
        return () if node.name in self.kept_results or node.op == "input" else node.sources

    def _again(self, node: Node) -> Value:
        if node.name in self.kept_results:
            self.saved[node.name] = None
            return self.tape.given(
                Node(name=node.name, op="input", shape=node.shape, dtype=node.dtype, order=node.order)
            )
        if node.op == "input":
            return self.tape.given(node)
        return self.tape.copied(node, {s: self.again[s].name for s in node.sources})

    def wide_value(self, name: str) -> Value:
        found = self.value(name)
        return found.to(wide(found.dtype))

    def _twin(self, node: Node, item: int) -> Value:
        """The other result of a reduction."""
        alike = (
            n for n in self.forward.nodes if (n.op, n.args, n.dims, n.item) == (node.op, node.args, node.dims, item)
        )
        name = f"{node.name}_twin"
        twin = next(alike, None) or self.made.setdefault(name, replace(node, name=name, item=item))
        self._keep(twin)
        return self.value(twin.name)

    def _keep(self, node: Node) -> None:
        self.nodes.setdefault(node.name, node)
        self.kept_results.add(node.name)
        self.again.pop(node.name, None)

    # --- gradients -----------------------------------------------------------------------------------------------

    def _give(self, name: str, g: Value | None, *, among: tuple[int, ...]) -> None:
        """Add to a value's gradient what comes from a reader of the shape `among`. A gradient has size 1 along what
        it is the same along."""
        node = self.nodes[name]
        if g is not None and name in self.wanted and node.dtype in FLOATS:
            mine = g.sum_to(node.shape, among).to(wide(node.dtype))
            self.collected.setdefault(name, _Collected()).whole.append(mine)

    def _gradient(self, node: Node) -> Value | None:
        """The sum of all that a value got."""
        found = self.collected.get(node.name)
        if found is None:
            return None
        terms = list(found.whole)
        for dim, parts in found.parts.items():
            terms += _joined(node, dim, parts)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def _lead(self, node: Node, g: Value) -> None:
        """Give the arguments of a node their share of its gradient."""
        if node.op in REDUCTIONS:
            self._through_reduction(node, g)
        elif node.op in SCANS:
            _, reverse, exclusive = node.args
            back = g.expand(node.shape).scan(node.dims[0], reverse=not reverse, exclusive=bool(exclusive))
            self._give(node.sources[0], back, among=node.shape)
        elif node.op in POINTWISE:
            self._through_point(node, g)
        elif node.op == "call":
            self._through_product(node, g)
        elif node.op == "slice":
            dim, start, length = node.dims
            if node.sources[0] in self.wanted:
                parts = self.collected.setdefault(node.sources[0], _Collected()).parts
                parts.setdefault(dim, []).append((start, length, g))
        else:
            self._through_view(node, g)

    def _through_view(self, node: Node, g: Value) -> None:
        shape = self.nodes[node.sources[0]].shape
        if node.op == "expand":
            self._give(node.sources[0], g, among=node.shape)
            return
        if node.op == "permute":
            g = g.permute([node.dims.index(d) for d in range(len(node.dims))])
        else:
            g = _reshaped(g, node.shape, shape)
        self._give(node.sources[0], g, among=shape)

    def _through_product(self, node: Node, g: Value) -> None:
        """With the upstream rounded to the product's type, as torch has it."""
        found = contracted(self.calls[node.origin], self.nodes)
        assert found is not None
        g = g.to(node.dtype).to(g.dtype)
        if found.added:
            self._give(found.added, g if found.beta == 1 else g * found.beta, among=node.shape)
        whole = (g if found.alpha == 1 else g * found.alpha).expand(node.shape).to(node.dtype)
        words = found.letters
        for own, other, mine, theirs in (
            (found.left, found.right, words.left, words.right), (found.right, found.left, words.right, words.left),
        ):  # fmt: skip
            if own.name in self.wanted:
                equation = f"{words.result},{theirs}->{mine}"
                share = self.tape.contract(equation, whole, self.value(other.name), shape=own.shape)
                self._give(own.name, share, among=own.shape)

    def _through_point(self, node: Node, g: Value) -> None:
        label = self.calls[node.origin].label if node.origin in self.calls else ""
        if node.op == "div" and self._through_sigmoid(node, g):
            return
        if node.op == "log1p" and (inner := self._made_by(node.args[0], "exp")):
            into = inner.sources[0]  # and never inf / inf:
            self._give(into, g * self.wide_value(into).do("sigmoid"), among=node.shape)
            return
        use = Use(
            [self.wide_value(a) if isinstance(a, str) else a for a in node.args], self.wide_value(node.name), label
        )
        for arg, share in zip(node.args, RULES[node.op](use, g), strict=True):
            if isinstance(arg, str):
                self._give(arg, share, among=node.shape)

    def _through_sigmoid(self, node: Node, g: Value) -> bool:
        """x / (1 + exp(t)), whose parts may be infinite where its gradient is not."""
        above, below = node.args
        plus = self._made_by(below, "add")
        inner = self._made_by(plus.args[0], "exp") if plus and plus.args[1] == 1 else None
        if inner is None:
            return False
        share = g / self.wide_value(str(below))
        if isinstance(above, str):
            self._give(above, share, among=node.shape)
        into = inner.sources[0]
        below_share = -(g * self.wide_value(node.name) * self.wide_value(into).do("sigmoid"))
        self._give(into, below_share, among=node.shape)
        return True

    def _made_by(self, name: object, op: str) -> Node | None:
        node = self.nodes.get(name) if isinstance(name, str) else None
        return node if node is not None and node.op == op else None

    def _through_reduction(self, node: Node, g: Value) -> None:
        source = self.nodes[node.sources[0]]
        kept = tuple(1 if d in node.dims else n for d, n in enumerate(source.shape))
        g = _reshaped(g, node.shape, kept)
        share: Value | None = None
        match node.op:
            case "sum":
                share = g
            case "moments" if node.item == 0:
                share = g * (1.0 / prod(source.shape[d] for d in node.dims))
            case "moments":
                mean = self._twin(node, 0).reshape(kept)
                share = (self.wide_value(source.name) - mean) * (g * 2.0)
            case "softmax_stats" if node.item == 1:
                # All that reads the maximum reads the sum, too, and is the same for any other shift.
                top = self._twin(node, 0).reshape(kept)
                share = (self.wide_value(source.name) - top).do("exp") * g
            case "max" | "min":
                share = self._to_extremum(node, g, kept)
        self._give(source.name, share, among=source.shape)

    def _to_extremum(self, node: Node, g: Value, kept: tuple[int, ...]) -> Value:
        """torch gives all to the place that `max` along a dimension names, and shares among ties elsewhere."""
        source = self.nodes[node.sources[0]]
        if self.calls[node.origin].target.endswith((".max.dim", ".min.dim")):
            (dim,) = node.dims
            index = self.tape.index(source.shape[dim]).reshape(kept_only(source.shape, dim))
            return index.do("eq", self._named(node).reshape(kept)).where(g, 0.0)
        if not self._is_exact(source):
            self._keep(source)  # a value that is computed again may differ in its last bit, and equal nothing
        best = self.wide_value(source.name).do("eq", self.wide_value(node.name).reshape(kept))
        count = best.where(1.0, 0.0).to(g.dtype).sum(node.dims).reshape(kept)
        return best.where(g / count, 0.0)

    def _is_exact(self, node: Node) -> bool:
        known = node.op == "input" or node.name in self.kept_results
        return known or (node.op in _EXACT and all(self._is_exact(self.nodes[s]) for s in node.sources))

    def _named(self, node: Node) -> Value:
        """The position of the extremum along its dimension."""
        op = f"arg{node.op}"
        alike = (n for n in self.forward.nodes if (n.op, n.args, n.dims) == (op, node.args, node.dims))
        name = f"{node.name}_place"
        place = next(alike, None) or self.made.setdefault(name, replace(node, name=name, op=op, dtype="i64"))
        self._keep(place)
        return self.value(place.name)


def kept_only(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """The shape of a vector along `dim` that broadcasts against this shape."""
    return (shape[dim],) + (1,) * (len(shape) - dim - 1)


def _reshaped(g: Value, shape: tuple[int, ...], into: tuple[int, ...]) -> Value:
    """The gradient of a reshaped value as that of the value; it stays of size 1 where only such dimensions came or
    went."""
    if [n for n in shape if n > 1] != [n for n in into if n > 1]:
        return g.expand(shape).reshape(into)
    own = iter([mine for mine, n in zip(g.shape, shape, strict=True) if n > 1])
    return g.reshape([next(own) if n > 1 else 1 for n in into])


def _joined(node: Node, dim: int, parts: list[tuple[int, int, Value]]) -> list[Value]:
    """The gradient of a value from those of slices of it: one choice by position where they are of one length and lie
    side by side, else each with zeros around it."""
    parts = sorted(parts, key=lambda p: p[:2])
    size, length = node.shape[dim], parts[0][1]
    even = all(n == length and start % length == 0 for start, n, _ in parts) and size % length == 0
    apart = all(a[0] != b[0] for a, b in pairwise(parts))
    count = size // length
    if not (even and apart and count <= _MOST_PARTS):
        whole = [(start, g.expand((*node.shape[:dim], n, *node.shape[dim + 1 :]))) for start, n, g in parts]
        return [g.padded(dim, start, size) for start, g in whole]
    shape = (*node.shape[:dim], count, length, *node.shape[dim + 1 :])
    found = {start // length: g.reshape((*g.shape[:dim], 1, *g.shape[dim:])) for start, _, g in parts}
    tape = parts[0][2].tape
    place = tape.index(count).reshape(kept_only(shape, dim))
    order = sorted(found)
    result: Operand = found[order[-1]] if len(order) == count else 0.0
    for number in reversed(order[:-1] if len(order) == count else order):
        result = place.do("eq", number).where(found[number], result)
    assert isinstance(result, Value)
    return [result.expand(shape).reshape(node.shape)]
