"""Products that memory bounds, whatever multiplies them: as sums of rows or columns, or as what is pointwise alone.

a large matrix and a vector, in batches too      one sum of each row, or column
and a few vectors (not in 16 bits)               so many sums of each in one pass, laid side by side by another
fewer than 8 terms                               written out for each element
none (outer products, i,j->ij)                   a product of two tensors, broadcast
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as tuples
from math import prod

from tilewright.ir.access import Position
from tilewright.ir.contraction import Letters, letters_of, letters_over, spelt_out

from .form import spread
from .lower import FLOATS, Builder, Expr, Lowering, NotLowered, Number, memory_order
from .views import copied

LARGE = 1 << 20  # elements of the large matrix; below, torch's operator is as good
LARGEST = 1 << 24  # the same of it, or of a result, where several views are taken: each costs the host a microsecond
SHORT = 8  # of K: fewer terms are written out
FEW_ALONG, FEW_ACROSS = 4, 8  # vectors in one pass over a matrix along K, each read again for every row; across K
_FEW_DEPTH = 64  # of K for each of few vectors: sums are written, and read again to be laid side by side
_NARROW = ("f16", "bf16")
_SKINNY = 1 << 19  # elements of a matrix in 16 bits, from which on tensor cores multiply it by few vectors


@dataclass(frozen=True, slots=True)
class _Factor:
    """A value with a letter for each of its dimensions, none of which has size 1."""

    value: Expr
    letters: str

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.letters, self.value.shape, strict=True))

    @property
    def elements(self) -> int:
        return prod(self.value.shape)

    @property
    def lies(self) -> str:
        """The letters, outermost first in memory."""
        node, letters = self.value.node, self.letters
        while node.op == "permute":
            known = dict(zip(node.dims, letters, strict=True))
            node, letters = self.value.builder.nodes[node.sources[0]], "".join(known[d] for d in range(len(letters)))
        return "".join(letters[d] for d in node.order) if len(node.order) == len(letters) else letters

    def onto(self, letters: str) -> Expr:
        """To broadcast along these, in the dtype in which torch computes."""
        return spread(self.value, tuple(self.letters), letters).wide()

    def at(self, places: Mapping[str, int]) -> _Factor:
        """What lies at these positions."""
        value, letters = self.value, self.letters
        for c, place in places.items():
            d = letters.index(c)
            value = value.slice(d, place, 1)
            value, letters = value.reshape((*value.shape[:d], *value.shape[d + 1 :])), letters.replace(c, "")
        return _Factor(value, letters)


def _factor(value: Expr, word: str, result: str, others: Container[str]) -> _Factor:
    """Dimensions of 1 gone, of equal letters the diagonal, and what neither the result nor others have summed."""
    if value.dtype not in FLOATS or 0 in value.shape:
        raise NotLowered
    wide = [d for d, size in enumerate(value.shape) if size > 1]
    value, word = value.reshape(tuple(value.shape[d] for d in wide)), "".join(word[d] for d in wide)
    kept = "".join(dict.fromkeys(word))
    if len(kept) < len(word):
        shape = tuple(value.shape[word.index(c)] for c in kept)
        if any(size != shape[kept.index(c)] for c, size in zip(word, value.shape, strict=True)):
            raise NotLowered
        value = value.builder.load(value, shape, [Position(steps=((kept.index(c), 1),)) for c in word])
    alone = [d for d, c in enumerate(kept) if c not in result and c not in others]
    value = value.wide().reduce("sum", alone) if alone else value
    return _Factor(value, "".join(c for d, c in enumerate(kept) if d not in alone))


@dataclass(frozen=True, slots=True)
class _Contraction:
    """Two factors and the letters of their product, in which those of size 1 are left out; the rest is summed.
    `sides`: the operator has rows and columns, if only one of either."""

    builder: Builder
    left: _Factor
    right: _Factor
    result: str
    sides: bool

    @property
    def summed(self) -> str:
        return "".join(c for c in self.left.letters if c not in self.result)

    @property
    def depth(self) -> int:
        return prod(self.left.sizes[c] for c in self.summed)

    def made(self) -> Expr:
        """Over the result's letters, in the dtype in which torch computes."""
        if not self.summed:
            return self.left.onto(self.result) * self.right.onto(self.result)
        ways = ((self.left, self.right), (self.right, self.left))
        for matrix, vector in ways:
            if set(vector.letters) <= set(matrix.letters) and matrix.elements >= LARGE:
                if self._for_tensor_cores(matrix, vector):
                    raise NotLowered
                return self._as_torch_lays(self._sums(matrix, vector))
        sizes = self.left.sizes | self.right.sizes
        if prod(sizes[c] for c in self.result) >= LARGEST and self.depth < SHORT:
            return self._written_out()
        for matrix, vectors in ways:
            few = "".join(c for c in self.result if c in vectors.letters and c not in matrix.letters)
            if few in self.result and self._pays(matrix, prod(sizes[c] for c in few)):
                return self._side_by_side(matrix, vectors, few)
        raise NotLowered

    def _for_tensor_cores(self, matrix: _Factor, vector: _Factor) -> bool:
        """Whether a product in 16 bits is one that a small-M kernel takes: of one row, or of a batch."""
        batch = [size for c, size in vector.sizes.items() if c in self.result]
        narrow = matrix.value.dtype in _NARROW and self.sides and (vector is self.left or bool(batch))
        return narrow and matrix.elements // prod(batch) >= _SKINNY

    def _pays(self, matrix: _Factor, count: int) -> bool:
        """Whether so many sums of one pass take as long as the pass."""
        most = FEW_ALONG if matrix.lies[-1] in self.summed else FEW_ACROSS
        large = matrix.elements >= LARGEST and self.depth >= _FEW_DEPTH * count
        return large and count <= most and {self.left.value.dtype, self.right.value.dtype}.isdisjoint(_NARROW)

    def _sums(self, matrix: _Factor, vector: _Factor) -> Expr:
        """Of the matrix, as it lies, each element times the vector's, in the order of the result's letters."""
        over = [d for d, c in enumerate(matrix.letters) if c in self.summed]
        total = (matrix.onto(matrix.letters) * vector.onto(matrix.letters)).reduce("sum", over)
        letters = "".join(c for c in matrix.letters if c in self.result)
        return total.permute([letters.index(c) for c in self.result if c in letters])

    def _as_torch_lays(self, value: Expr) -> Expr:
        """The value, copied where it lies in another order than torch's result does."""
        out = self.builder.outs[0]
        wide = [d for d, size in enumerate(out.shape) if size > 1]
        theirs = [self.result[wide.index(d)] for d in memory_order(out) or wide if d in wide]
        alike = _Factor(value, self.result).lies == "".join(theirs)
        return value if alike or value.node.op != "permute" else copied(self.builder, value)

    def _side_by_side(self, matrix: _Factor, vectors: _Factor, few: str) -> Expr:
        """A sum for each of few vectors, one beside the other where the result has them."""
        sizes, at = [vectors.sizes[c] for c in few], self.result.index(few)
        parts = [self._sums(matrix, vectors.at(dict(zip(few, places, strict=True)))) for places in _every(sizes)]
        parts = [part.reshape((*part.shape[:at], 1, *part.shape[at:])) for part in parts]
        place = self.builder.place(len(parts), at, len(parts[0].shape))
        whole = parts[-1]
        for number, part in reversed(list(enumerate(parts[:-1]))):
            whole = place.do("eq", number).where(part, whole)
        return whole.reshape((*whole.shape[:at], *sizes, *whole.shape[at + 1 :]))

    def _written_out(self) -> Expr:
        """Its terms one after the other."""
        total: Expr | None = None
        for places in _every([self.left.sizes[c] for c in self.summed]):
            at = dict(zip(self.summed, places, strict=True))
            term = self.left.at(at).onto(self.result) * self.right.at(at).onto(self.result)
            total = term if total is None else total + term
        assert total is not None
        return total


def _every(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return tuples(*map(range, sizes))


def _product(b: Builder, left: Expr, right: Expr, said: Letters) -> Expr:
    """Of two tensors with these letters, in the dtype in which torch computes, and the shape of the call's result."""
    thick = [{c for c, size in zip(word, x.shape, strict=True) if size > 1}
             for word, x in ((said.left, left), (said.right, right))]  # fmt: skip
    result = "".join(c for c in said.result if c in thick[0] | thick[1])
    factors = (_factor(left, said.left, result, thick[1]), _factor(right, said.right, result, thick[0]))
    sides = [set(said.result) & set(a) - set(b) for a, b in ((said.left, said.right), (said.right, said.left))]
    made = _Contraction(b, *factors, result, all(sides)).made()
    return made.reshape(tuple(b.outs[0].shape))


def _matrices(label: str) -> Lowering:
    """An operator of two tensors, whatever their names, and nothing else: no dtype of its own."""

    def lower(b: Builder, x: Expr, **others: Expr) -> Expr:
        if len(others) != 1:
            raise NotLowered
        (right,) = others.values()
        return _product(b, x, right, letters_of(label, len(x.shape), len(right.shape))).to(b.out_dtype)

    return lower


def _linear(b: Builder, x: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    made = _product(b, x, weight, letters_of("linear", len(x.shape), len(weight.shape)))
    return (made if bias is None else made + bias.wide()).to(b.out_dtype)


def _added(label: str) -> Lowering:
    """beta * x + alpha * the product of two tensors, whatever their names; what x holds does not count where beta is
    0."""

    def lower(b: Builder, x: Expr, beta: Number = 1, alpha: Number = 1, **others: Expr) -> Expr:
        if len(others) != 2:
            raise NotLowered
        left, right = others.values()
        made = _product(b, left, right, letters_of(label, len(left.shape), len(right.shape)))
        made = made if alpha == 1 else made * alpha
        added = x.wide() if beta == 1 else x.wide() * beta
        return (made + added if beta else made).to(b.out_dtype)

    return lower


def _tensordot(b: Builder, x: Expr, other: Expr, dims_self: Sequence[int], dims_other: Sequence[int]) -> Expr:
    said = letters_over((dims_self, dims_other), (len(x.shape), len(other.shape)))
    if said is None:
        raise NotLowered
    return _product(b, x, other, said).to(b.out_dtype)


def _inner(b: Builder, x: Expr, other: Expr) -> Expr:
    return _tensordot(b, x, other, (-1,), (-1,)) if x.shape and other.shape else (x * other).to(b.out_dtype)


def _einsum(b: Builder, equation: str, tensors: Sequence[Expr], path: object = None) -> Expr:
    said = spelt_out(equation, [len(x.shape) for x in tensors])
    if said is None or len(tensors) > 2:
        raise NotLowered
    words, result = said
    if len(tensors) == 2:
        left, right = tensors
        return _product(b, left, right, Letters(left=words[0], right=words[1], result=result)).to(b.out_dtype)
    if set(words[0]) == set(result):  # a view
        raise NotLowered
    wide = "".join(c for c in result if tensors[0].shape[words[0].index(c)] > 1)
    total = _factor(tensors[0], words[0], wide, "")
    return total.onto(wide).reshape(tuple(b.outs[0].shape)).to(b.out_dtype)


PRODUCT_LOWERINGS: Mapping[str, Lowering] = {
    **{label: _matrices(label) for label in ("matmul", "mm", "bmm", "mv", "dot", "vdot", "outer", "ger")},
    **{label: _added(label) for label in ("addmm", "baddbmm", "addbmm", "addmv", "addr")},
    "linear": _linear, "tensordot": _tensordot, "inner": _inner, "einsum": _einsum,
}  # fmt: skip
