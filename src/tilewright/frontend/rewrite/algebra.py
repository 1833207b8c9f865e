"""Declared algebra: a product of matrices of which only sums are wanted, with its weights summed first; convolutions,
norms, pools and loops of cells as `convolutions`, `before_norms`, `pools` and `cells` have them.

    sum over n of (x @ w)[m, n]      = x @ (sum over n of w[:, n])       a matrix and a vector
    sums over windows of n           = x @ (sums over windows of w)      fewer columns (average pooling)
    (x @ v + b) @ w                  = x @ (v @ w) + b @ w               where that is less work; b a vector
    diag(v) @ w                      = rows of w times v                 no product
    x @ x.T                          = half of it, and its mirror image  half of the work
    tril(x) @ w                      = the same, zeros left out          half of the work (see `zeros`)
    (x * v) @ w                      = x @ (w * v)                       x is read as it lies (see `folded`)

Between the product and the sum may stand what is linear: scales, vectors along rows or columns, biases, views, windows.
In exact numbers nothing changes; rounding does (16-bit values between are left out), and so does what becomes of
infinities: a row that holds one may give it where the module gives NaN. So a graph that was rewritten stands beside the
module's own, never in its place, and the judge has the last word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from string import ascii_letters

from tilewright.ir.bands import Bands
from tilewright.ir.contraction import contracted
from tilewright.ir.graph import Graph, Node

from ..lowering.form import Form, Stuck, aligned, spread
from ..lowering.lower import FLOATS, Expr, NotLowered
from .before_norms import without_bias
from .cells import looped_cells
from .convolutions import less_convolved
from .draft import Draft
from .folded import folded
from .linear import finished, summed, through
from .pools import joined_pools
from .readers import Readers
from .zeros import sparing

LEAST_FLOPS = 1 << 25  # of a product: below, it is all launch
LEAST_GAIN = 2  # times less work
LEAST_DEPTH = 1024  # of K: below, to mirror half of a product takes as long as to multiply it
_HALF = "_half"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A graph with less work. `steps` say what was done, in the author's operators; `spared_flops`: of matrix products
    and convolutions, that are no longer needed."""

    graph: Graph
    steps: tuple[str, ...]
    spared_flops: int


def rewritten(graph: Graph, *, in_part: bool = True) -> Rewritten | None:
    """The graph after all such steps, or None where there is none to make. What keeps its name keeps its value.
    `in_part`: whether kernels can make a part of a product, or of its sums."""
    steps: list[str] = []
    spared = 0
    for of_convolutions in (without_bias, less_convolved, joined_pools, looped_cells):
        while (made := of_convolutions(graph, LEAST_FLOPS)) is not None:
            graph, step, flops = made
            steps.append(step)
            spared += flops
    for way in (_Rewrite.made, _Rewrite.folded) if in_part else (_Rewrite.made,):
        while (made := _next(graph, way, in_part)) is not None:
            graph, step, flops = made
            steps.append(step)
            spared += flops
    without = sparing(graph, LEAST_FLOPS) if in_part else None
    if without is not None:
        graph = without[0]
        steps += without[1]
        spared += without[2]
    return Rewritten(graph=graph, steps=tuple(steps), spared_flops=spared) if steps else None


_Made = tuple[Graph, str, int]  # the graph after one step, what that was, and flops spared


def _next(graph: Graph, way: Callable[[_Rewrite], _Made | None], in_part: bool) -> _Made | None:
    index = Readers(graph)
    made = (way(_Rewrite(index, n.name, in_part)) for n in graph.nodes if n.op == "call")
    return next((m for m in made if m is not None), None)


class _Rewrite:
    """One product of a graph, and the chain of what alone reads it."""

    def __init__(self, index: Readers, name: str, in_part: bool) -> None:
        self.index = index
        self.in_part = in_part
        self.nodes = index.nodes
        self.calls = index.calls
        self.start = self.nodes[name]
        self.builder = Draft(index)

    def made(self) -> _Made | None:
        """The graph with the first sum behind this product made of summed weights, what that was, and flops spared."""
        self.builder.origin = f"{self.start.origin}_less"
        try:
            form = self._product(self.start)
            made = self._by_diagonal(form) or (self._of_itself(form) if self.in_part else None)
            if made is not None:
                return made
            for before, node in self.index.chain(self.start):
                self.builder.origin = f"{node.origin}_less"
                if node.op == "sum":
                    form = summed(form, node)
                    return self._ended(form, node, f"{self._label(node)} of {self._label(self.start)}: weights summed")
                if node.op == "call":
                    form = self._multiplied(form, node, before)
                    said = f"{self._label(self.start)} and {self._label(node)}: the second product first"
                    return self._ended(form, node, said)
                form = through(form, node, before)
        except (Stuck, NotLowered):
            pass
        return None

    def folded(self) -> _Made | None:
        """The graph with what scales or shifts a factor of this product folded into the other."""
        self.builder.origin = f"{self.start.origin}_folded"
        try:
            form = folded(self._product(self.start), self.index) if self.start.dtype in ("f16", "bf16") else None
        except (Stuck, NotLowered):
            return None
        if form is None:
            return None
        value = self.builder.einsum(form.factor("left"), form.factor("right"), "".join(form.letters), self.start.dtype)
        said = f"{self._label(self.start)}: what scales and shifts a factor folded into the other"
        return self.builder.replaced(self.start, finished(form, value, self.start.dtype)), said, 0

    def _label(self, node: Node) -> str:
        return self.calls[node.origin].label

    def _product(self, node: Node) -> Form:
        """A call that is a product of matrices."""
        call = self.calls[node.origin]
        found = contracted(call, self.nodes) if call.results == (node.name,) else None
        if found is None or not found.left.dtype == found.right.dtype == node.dtype or node.dtype not in FLOATS:
            raise Stuck
        words = (found.letters.left, found.letters.right, found.letters.result)
        if any(len(set(word)) != len(word) for word in words):
            raise Stuck
        form = Form(
            left=Expr(self.builder, found.left), right=Expr(self.builder, found.right), left_letters=words[0],
            right_letters=words[1], letters=tuple(words[2]), shape=node.shape, scale=found.alpha, addends=(), flops=0,
        )  # fmt: skip
        sizes = form.sizes
        if tuple(sizes[c] for c in words[2]) != node.shape or 1 in sizes.values():
            raise Stuck
        if any(sizes[c] != s for word, x in zip(words, (found.left, found.right), strict=False)
               for c, s in zip(word, x.shape, strict=True)):  # fmt: skip
            raise Stuck
        form = replace(form, flops=form.product_flops)
        if form.flops < LEAST_FLOPS:
            raise Stuck
        if found.added and found.beta:
            added = aligned(self.builder, self.nodes[found.added], node.shape)
            form = replace(form, addends=(added if found.beta == 1 else added * found.beta,))
        return form

    def _by_diagonal(self, form: Form) -> _Made | None:
        """The product as rows of one factor, each times an element of a vector, where the other is its diagonal."""
        summed = "".join(c for c in form.left_letters if c not in form.letters)
        if len(summed) != 1 or form.addends:
            return None
        result = "".join(form.letters)
        for side, opposite in (("left", "right"), ("right", "left")):
            (factor, letters), (other, of_other) = form.factor(side), form.factor(opposite)
            for own in (c for c in letters if c not in of_other):
                vector = diagonal(factor, letters.index(own), letters.index(summed))
                if vector is not None:
                    value = spread(other, tuple(of_other.replace(summed, own)), result).wide()
                    value = value * spread(vector, tuple(letters.replace(summed, "")), result).wide()
                    value = value * form.scale if form.scale != 1.0 else value
                    said = f"{self._label(self.start)}: a diagonal factor scales the other, no product"
                    return self.builder.replaced(self.start, value.to(self.start.dtype)), said, form.flops
        return None

    def _of_itself(self, form: Form) -> _Made | None:
        """The product of a matrix with its own transpose: half of it, and the other half is its mirror image."""
        left, right = _read(*form.factor("left")), _read(*form.factor("right"))
        summed = "".join(c for c in form.left_letters if c not in form.letters)
        apart = [(a, b) for a, b in zip(left[1], right[1], strict=False) if a != b]
        if left[0] != right[0] or len(left[1]) != len(right[1]) or len(apart) != 1 or form.addends:
            return None
        rows, columns = (form.letters.index(c) for c in apart[0])
        if prod(form.sizes[c] for c in summed) < LEAST_DEPTH or _HALF in self.start.origin:
            return None
        self.builder.origin = f"{self.start.origin}{_HALF}"
        rank = len(form.shape)
        whole = self.builder.einsum(form.factor("left"), form.factor("right"), "".join(form.letters), self.start.dtype)
        at = [self.builder.place(form.shape[d], d, rank) for d in (rows, columns)]
        half = at[1].do("le", at[0])
        kept = self.builder.point("where", half, whole, 0, dtype=self.start.dtype)
        mirrored = list(range(rank))
        mirrored[rows], mirrored[columns] = columns, rows
        value = half.where(kept, kept.permute(mirrored))
        value = value * form.scale if form.scale != 1.0 else value
        said = f"{self._label(self.start)} with itself: half, and mirrored"
        return self.builder.replaced(self.start, value), said, form.flops // 2

    def _multiplied(self, form: Form, node: Node, at: str) -> Form:
        """The product of this one and a third matrix, with the two that share what the first lacks multiplied first."""
        call = self.calls[node.origin]
        found = contracted(call, self.nodes) if call.results == (node.name,) else None
        names = (found.left.name, found.right.name) if found else ()
        if found is None or at not in names or "" in form.letters:
            raise Stuck
        mine = names.index(at)
        other, words = (found.right, found.left)[mine], (found.letters.left, found.letters.right)
        # The second product's letters, in those of the first.
        known = dict(zip(words[mine], form.letters, strict=True))
        fresh = iter(c for c in ascii_letters if c not in form.left_letters + form.right_letters)
        spelt = {c: known[c] if c in known else next(fresh) for c in dict.fromkeys(words[0] + words[1])}
        of_other = "".join(spelt[c] for c in words[1 - mine])
        result = "".join(spelt[c] for c in found.letters.result)
        summed = "".join(c for c in form.letters if c not in result)
        side = form.only(summed) if summed else ""
        if not side or other.dtype != node.dtype or 1 in other.shape:
            raise Stuck
        factor, letters = form.factor(side)
        far = form.factor("left" if side == "right" else "right")[1]
        kept = "".join(c for c in dict.fromkeys(letters + of_other) if c in far or c in result)
        sizes = form.sizes | dict(zip(of_other, other.shape, strict=True))
        if len(set(of_other)) != len(of_other) or not all(c in summed or c in kept for c in letters):
            raise Stuck
        before = form.flops + 2 * prod(sizes[c] for c in {*form.letters, *of_other})
        made = self.builder.einsum((factor, letters), (Expr(self.builder, other), of_other), kept, node.dtype)
        addends = [_addend_times(a, form, Expr(self.builder, other), of_other, result) for a in form.addends]
        addends = [a if found.alpha == 1 else a * found.alpha for a in addends]
        if found.added and found.beta:
            given = aligned(self.builder, self.nodes[found.added], node.shape)
            addends.append(given if found.beta == 1 else given * found.beta)
        first = 2 * prod(sizes[c] for c in {*letters, *of_other})
        return replace(form.having(side, made, kept), letters=tuple(result), shape=node.shape, addends=tuple(addends),
                       scale=form.scale * found.alpha, flops=before - first)  # fmt: skip

    def _ended(self, form: Form, node: Node, said: str) -> _Made | None:
        """The graph in which `node` is this value; None where that is not much less work."""
        if form.product_flops * LEAST_GAIN > form.flops:
            return None
        letters = "".join(form.letters)
        value = finished(form, self._value(form, letters).reshape(form.shape), node.dtype)
        return self.builder.replaced(node, value), said, form.flops - form.product_flops

    def _value(self, form: Form, letters: str) -> Expr:
        left, right = form.factor("left"), form.factor("right")
        if all(c in left[1] for c in right[1]):
            return _vector(left, right, letters)
        if all(c in right[1] for c in left[1]):
            return _vector(right, left, letters)
        return self.builder.einsum(left, right, letters, self.start.dtype)


def _vector(matrix: tuple[Expr, str], vector: tuple[Expr, str], result: str) -> Expr:
    """The sums of rows of a matrix, each element times that of a vector."""
    (x, letters), (v, of_vector) = matrix, vector
    sizes = dict(zip(letters, x.shape, strict=True))
    order = sorted(range(len(of_vector)), key=lambda i: letters.index(of_vector[i]))
    row = v.permute(order).reshape(tuple(sizes[c] if c in of_vector else 1 for c in letters))
    over = [i for i, c in enumerate(letters) if c not in result]
    total = (x.wide() * row.wide()).reduce("sum", over) if over else x.wide() * row.wide()
    rest = [c for c in letters if c in result]
    return total.permute([rest.index(c) for c in result])


def _addend_times(addend: Expr | float, form: Form, other: Expr, of_other: str, result: str) -> Expr:
    """What was added to the first product times the third matrix, read once more: rows of it each times an element
    of a vector, and summed. Of what varies along the first product's rows, too, that is another product."""
    if isinstance(addend, Expr):
        if any(size > 1 and c not in of_other for c, size in zip(form.letters, addend.shape, strict=True)):
            raise Stuck
        other = other.wide() * spread(addend, form.letters, of_other).wide()
    else:
        other = other.wide() * addend
    summed = [i for i, c in enumerate(of_other) if c not in result]
    rest = [c for c in of_other if c in result]
    return spread(other.reduce("sum", summed), rest, result)


def _read(x: Expr, letters: str) -> tuple[str, str]:
    """What a permuted value is one of, and the letters of its dimensions."""
    node = x.node
    while node.op == "permute":
        known = dict(zip(node.dims, letters, strict=True))
        node, letters = x.builder.nodes[node.sources[0]], "".join(known[d] for d in range(len(letters)))
    return node.name, letters


# ---- The diagonal of a matrix that the graph shows to be zero elsewhere (`diag`, `diag_embed`, a mask of one
# diagonal).


def diagonal(matrix: Expr, own: int, summed: int) -> Expr | None:
    """A vector along dimension `own`, where the matrix along it and `summed` is zero but for its diagonal; with its
    other dimensions, `summed` left out."""
    builder, node = matrix.builder, matrix.node
    nodes = builder.nodes
    bands = Bands(nodes)
    order, casts = list(range(len(node.shape))), []
    while node.op in ("permute", "to"):
        if node.op == "to":
            casts.append(node.dtype)
        else:
            order = [node.dims[d] for d in order]
        node = nodes[node.sources[0]]
    first, second = order[own], order[summed]
    if node.op != "where" or node.args[2] != 0 or not all(isinstance(a, str) for a in node.args[:2]):
        return None
    condition, value = (nodes[str(a)] for a in node.args[:2])
    off = len(node.shape) - len(condition.shape)
    if condition.op != "eq" or bands.where(condition.name, first - off, second - off) != (0, 0):
        return None
    given = aligned(builder, value, node.shape)
    if given.shape[first] != 1 and given.shape[second] != 1:
        return None
    along, gone = (first, second) if given.shape[second] == 1 else (second, first)
    kept = [along if d == own else order[d] for d in range(len(order)) if d != summed]
    vector = given.permute((*kept, gone)).reshape(tuple(given.shape[d] for d in kept))
    for dtype in reversed(casts):
        vector = vector.to(dtype)
    return vector
