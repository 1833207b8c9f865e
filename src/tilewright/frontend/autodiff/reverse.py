"""Reverse mode: the nodes of a graph from last to first, each giving its gradient on to what it was made of."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod

from tilewright.ir.contraction import Contracted, contracted
from tilewright.ir.convolution import convolved
from tilewright.ir.graph import VIEWS, Call, Graph, Node, Ref, Struct
from tilewright.ir.program import POINTWISE, REDUCTIONS, SCANS

from ..lowering.lower import FLOATS, Expr, wide
from .again import Again
from .attended import AttentionNodes, Softmax, softmax_of, views_between
from .convolutions import convolution_shares
from .rules import RULES, Operand, Use
from .tape import Tape, padded, summed_to

_MOST_PARTS = 4  # all are computed at every position: more are padded and added up
_REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "any", "all", "moments", "softmax_stats")


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


def derived(forward: Graph, wanted: Collection[str], *, prefix: str, whole: AttentionNodes | None = None) -> Derived:
    """The backward graph of `forward`, whose nodes in `wanted` lead to gradients that are asked for. `whole`: the
    attention that it is, whose scores are computed again; a softmax of them has its `logsum_nodes` in the graph."""
    return _Reverse(forward, frozenset(wanted), prefix, whole).finish()


@dataclass(slots=True)
class _Collected:
    """What a value gets from its readers; slices of it apart, by dimension: (start, length, gradient)."""

    whole: list[Expr] = field(default_factory=list)
    parts: dict[int, list[tuple[int, int, Expr]]] = field(default_factory=dict)


class _Reverse:
    def __init__(self, forward: Graph, wanted: frozenset[str], prefix: str, whole: AttentionNodes | None) -> None:
        self.forward, self.wanted = forward, wanted
        self.prefix = prefix
        self.calls = {c.name: c for c in forward.calls}
        self.tape = Tape(prefix)
        given = {n.name: n for n in forward.nodes}
        self.whole, self.softmax = whole, None if whole is None else softmax_of(whole, given, self.calls)
        self.again = Again(forward, self.tape, product=whole.product if whole else "", softmax=self.softmax)
        if self.softmax is not None:
            self.again.keep(given[self.softmax.logsum])
        self.nodes = self.again.nodes
        self.collected: dict[str, _Collected] = {}
        self.results: dict[str, Expr] = {}

    def finish(self) -> Derived:
        graded = [o for o in self.forward.outputs if o in self.wanted]
        self.tape.origin = self.nodes[graded[-1]].origin
        upstream = [f"{self.prefix}g{i}" for i in range(len(graded))]
        for i, node in enumerate(map(self.nodes.__getitem__, graded)):
            given = replace(
                node, name=upstream[i], op="input", args=(), dims=(), at=(), item=0, path=f"upstream_{i}", origin=""
            )
            self._give(node.name, self.tape.add(given), among=node.shape)
        for node in reversed(self.forward.nodes):
            self.tape.origin = node.origin or self.tape.origin
            if node.name in self.wanted and (g := self._gradient(node)) is not None:
                if node.op == "input":
                    self.results[node.name] = g.to(node.dtype).expand(node.shape)
                else:
                    self._lead(node, g)
        return self._derived(graded, upstream)

    def _derived(self, graded: list[str], upstream: list[str]) -> Derived:
        inputs = [n for n in self.forward.nodes if n.op == "input"]
        live = _live(self.tape, [r.node.name for r in self.results.values()])
        kept = tuple(n.name for n in inputs if n.name in live)
        saved = tuple(name for name in self.again.saved if name in live)
        given = (*kept, *saved, *upstream)
        paths = {name: f"saved_{i}" for i, name in enumerate(saved)}
        nodes = [replace(n, path=paths.get(n.name, n.path)) for n in map(self.tape.nodes.__getitem__, given)]
        nodes += [n for name, n in self.tape.nodes.items() if name in live and name not in given]
        laid = {self.results[n.name].node.name: n.order for n in inputs if n.name in self.results}
        nodes = [
            replace(n, order=laid[n.name]) if n.name in laid and n.op not in ("input", *VIEWS) else n for n in nodes
        ]
        results = tuple(Ref(name=self.results[n.name].node.name) if n.name in self.results else None for n in inputs)
        backward = Graph(
            nodes=tuple(nodes), outputs=tuple(r.name for r in results if r is not None),
            calls=tuple(
                self.tape.calls.get(origin) or _stand_in(self.calls[origin])
                for origin in dict.fromkeys(n.origin for n in nodes if n.origin)
            ),
            arguments=tuple(Ref(name=name) for name in given), result=Struct(kind="tuple", items=results),
        )  # fmt: skip
        return Derived(
            backward=backward, kept=kept, saved=saved, graded=tuple(graded),
            made=tuple(n for name, n in self.again.made.items() if name in saved),
        )  # fmt: skip

    def _give(self, name: str, g: Expr | None, *, among: tuple[int, ...]) -> None:
        """Add to a value's gradient what comes from a reader of the shape `among`. A gradient has size 1 along what
        it is the same along."""
        node = self.nodes[name]
        if g is not None and name in self.wanted and node.dtype in FLOATS:
            mine = summed_to(node.shape, g, among).to(wide(node.dtype))
            self.collected.setdefault(name, _Collected()).whole.append(mine)

    def _gradient(self, node: Node) -> Expr | None:
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

    def _lead(self, node: Node, g: Expr) -> None:
        """Give the arguments of a node their share of its gradient."""
        if node.op in REDUCTIONS:
            self._through_reduction(node, g)
        elif node.op in SCANS:
            _, reverse, exclusive = node.args
            back = self.tape.scan("cumsum", g.expand(node.shape), dim=node.dims[0], reverse=not reverse,
                                  exclusive=bool(exclusive))  # fmt: skip
            self._give(node.sources[0], back, among=node.shape)
        elif self.softmax is not None and node.name == self.softmax.weights:
            self._give(self.softmax.score, _through_softmax(self, self.softmax, g), among=node.shape)
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

    def _through_view(self, node: Node, g: Expr) -> None:
        shape = self.nodes[node.sources[0]].shape
        if node.op == "expand":
            self._give(node.sources[0], g, among=node.shape)
            return
        if node.op == "permute":
            g = g.permute([node.dims.index(d) for d in range(len(node.dims))])
        else:
            g = _reshaped(g, node.shape, shape)
        self._give(node.sources[0], g, among=shape)

    def _through_product(self, node: Node, g: Expr) -> None:
        """With the upstream rounded to the product's type, as torch has it."""
        call = self.calls[node.origin]
        g = g.to(node.dtype).to(g.dtype)
        convolution = convolved(call, self.nodes, types=FLOATS)
        if convolution is not None:
            for name, share in convolution_shares(self.again, convolution, g, self.wanted):
                self._give(name, share, among=share.shape)
            return
        found = contracted(call, self.nodes)
        assert found is not None
        if found.added:
            self._give(found.added, g if found.beta == 1 else g * found.beta, among=node.shape)
        whole = (g if found.alpha == 1 else g * found.alpha).expand(node.shape).to(node.dtype)
        words = found.letters
        for own, other, mine, theirs in (
            (found.left, found.right, words.left, words.right), (found.right, found.left, words.right, words.left),
        ):  # fmt: skip
            if own.name in self.wanted:
                equation = f"{words.result},{theirs}->{mine}"
                share = self.tape.contract(equation, whole, self.again.value(other.name), shape=own.shape)
                self._give(own.name, share, among=own.shape)

    def _through_point(self, node: Node, g: Expr) -> None:
        label = self.calls[node.origin].label if node.origin in self.calls else ""
        if node.op == "div" and self._through_sigmoid(node, g):
            return
        if node.op == "log1p" and (inner := self.again.made_by(node.args[0], "exp")):
            into = inner.sources[0]  # and never inf / inf:
            self._give(into, g * self.again.wide(into).do("sigmoid"), among=node.shape)
            return
        use = Use(
            [self.again.wide(a) if isinstance(a, str) else a for a in node.args], self.again.wide(node.name), label
        )
        for arg, share in zip(node.args, RULES[node.op](use, g), strict=True):
            if isinstance(arg, str):
                self._give(arg, share, among=node.shape)

    def _through_sigmoid(self, node: Node, g: Expr) -> bool:
        """x / (1 + exp(t)), whose parts may be infinite where its gradient is not."""
        above, below = node.args
        plus = self.again.made_by(below, "add")
        inner = self.again.made_by(plus.args[0], "exp") if plus and plus.args[1] == 1 else None
        if inner is None:
            return False
        share = g / self.again.wide(str(below))
        if isinstance(above, str):
            self._give(above, share, among=node.shape)
        into = inner.sources[0]
        below_share = -(g * self.again.wide(node.name) * self.again.wide(into).do("sigmoid"))
        self._give(into, below_share, among=node.shape)
        return True

    def _through_reduction(self, node: Node, g: Expr) -> None:
        source = self.nodes[node.sources[0]]
        kept = tuple(1 if d in node.dims else n for d, n in enumerate(source.shape))
        g = _reshaped(g, node.shape, kept)
        share: Expr | None = None
        match node.op:
            case "sum":
                share = g
            case "moments" if node.item == 0:
                share = g * (1.0 / prod(source.shape[d] for d in node.dims))
            case "moments":
                mean = self.again.other_result(node, 0).reshape(kept)
                share = (self.again.wide(source.name) - mean) * (g * 2.0)
            case "softmax_stats" if node.item == 1:
                # All that reads the maximum reads the sum, too, and is the same for any other shift.
                top = self.again.other_result(node, 0).reshape(kept)
                share = (self.again.wide(source.name) - top).do("exp") * g
            case "max" | "min":
                share = _to_extremum(self, node, g, kept)
        self._give(source.name, share, among=source.shape)


def _to_extremum(reverse: _Reverse, node: Node, g: Expr, kept: tuple[int, ...]) -> Expr:
    """torch gives all to the place that `max` along a dimension names, and shares among ties elsewhere."""
    source = reverse.nodes[node.sources[0]]
    if reverse.calls[node.origin].target.endswith((".max.dim", ".min.dim")):
        (dim,) = node.dims
        index = reverse.tape.place(source.shape[dim], dim, len(source.shape))
        return index.do("eq", reverse.again.place(node).reshape(kept)).where(g, 0.0)
    if not reverse.again.is_exact(source):
        reverse.again.keep(source)  # a value that is computed again may differ in its last bit, and equal nothing
    best = reverse.again.wide(source.name).do("eq", reverse.again.wide(node.name).reshape(kept))
    count = best.where(1.0, 0.0).to(g.dtype).reduce("sum", node.dims).reshape(kept)
    return best.where(g / count, 0.0)


def _through_softmax(reverse: _Reverse, softmax: Softmax, g: Expr) -> Expr:
    """The gradient of an attention's scores. What the weights' gradient sums up to, weighed, is the result's with the
    result."""
    assert reverse.whole is not None
    nodes, result = reverse.nodes, reverse.nodes[reverse.whole.result]
    upstream, found = reverse._gradient(result), contracted(reverse.calls[result.origin], nodes)
    assert upstream is not None and found is not None
    letters = found.letters
    weights = letters.left if found.left.name == softmax.factor else letters.right
    rows = [c for c in letters.result if c in weights]
    upstream = upstream.to(result.dtype).to(upstream.dtype).expand(result.shape)
    columns = [d for d, c in enumerate(letters.result) if c not in weights]
    total = (upstream * reverse.again.wide(result.name)).reduce("sum", columns)
    total = total.permute([rows.index(c) for c in weights if c in rows])
    sizes = zip(weights, nodes[softmax.factor].shape, strict=True)
    total = total.reshape([n if c in rows else 1 for c, n in sizes])
    for view in reversed(views_between(softmax, nodes)):
        if view.op == "permute":
            total = total.permute([view.dims.index(d) for d in range(len(view.dims))])
        else:
            total = total.reshape((*nodes[view.sources[0]].shape[:-1], 1))
    return reverse.again.wide(softmax.weights) * (g - total)


def _live(tape: Tape, names: list[str]) -> set[str]:
    """All that these nodes are made of, with themselves."""
    found: set[str] = set()
    while names:
        name = names.pop()
        if name not in found:
            found.add(name)
            names += tape.sources(name)
    return found


def _stand_in(call: Call) -> Call:
    """For titles: what is done in the place of this call has no operator of torch."""
    target = call.target.split(".")
    place = -2 if len(target) > 2 else -1
    target[place] = f"{target[place]}_backward"
    return Call(name=call.name, target=".".join(target), args=(), results=())


def _reshaped(g: Expr, shape: tuple[int, ...], into: tuple[int, ...]) -> Expr:
    """The gradient of a reshaped value as that of the value; it stays of size 1 where only such dimensions came or
    went."""
    if [n for n in shape if n > 1] != [n for n in into if n > 1]:
        return g.expand(shape).reshape(into)
    own = iter([mine for mine, n in zip(g.shape, shape, strict=True) if n > 1])
    return g.reshape([next(own) if n > 1 else 1 for n in into])


def _joined(node: Node, dim: int, parts: list[tuple[int, int, Expr]]) -> list[Expr]:
    """The gradient of a value from those of slices of it: one choice by position where they are of one length and lie
    side by side, else each with zeros around it."""
    parts = sorted(parts, key=lambda p: p[:2])
    size, length = node.shape[dim], parts[0][1]
    even = all(n == length and start % length == 0 for start, n, _ in parts) and size % length == 0
    apart = all(a[0] != b[0] for a, b in pairwise(parts))
    count = size // length
    if not (even and apart and count <= _MOST_PARTS):
        whole = [(start, g.expand((*node.shape[:dim], n, *node.shape[dim + 1 :]))) for start, n, g in parts]
        return [padded(g, dim, start, size) for start, g in whole]
    shape = (*node.shape[:dim], count, length, *node.shape[dim + 1 :])
    found = {start // length: g.reshape((*g.shape[:dim], 1, *g.shape[dim:])) for start, _, g in parts}
    place = parts[0][2].builder.place(count, dim, len(shape))
    order = sorted(found)
    result: Operand = found[order[-1]] if len(order) == count else 0.0
    for number in reversed(order[:-1] if len(order) == count else order):
        result = place.do("eq", number).where(found[number], result)
    assert isinstance(result, Expr)
    return [result.expand(shape).reshape(node.shape)]
