"""From sums in registers to elements of C: an expression over the product, and what it reads beside it.

The expression is a function over CuTe scalars (see `math`). Its parameters name what it reads: `product`, an operand,
or the positions `index_0` and `index_1`, the row and the column; of a batch `index_0`, the matrix, `index_1` and
`index_2`. Without one, C is the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Float32, Uint8, cute

from ...common import math as m
from ...common.spec import Function, reads
from .batch_map import BatchMap

WIDE = 16  # bytes at multiples of which rows of an operand start whose pairs of neighbours are read at once
PRODUCTS = ("product", "product_1")  # as an expression names them; the second is there of a dual one
# Elements that are written at once, and in a row; of what is not here (16 bits and 8) up to eight.
MOST_TOGETHER = {"f32": 4, "i32": 4, "i64": 1}
Diagonals = tuple[int | None, int | None]
ALL: Diagonals = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Further:
    """A result beside C, of its shape. `vector` as an EpilogueStore's."""

    dtype: str
    vector: int


class TileAt(NamedTuple):
    """Where a tile lies: the (row, column, layer) of C at which it begins, and the rows and columns that C has."""

    corner: tuple[Any, Any, Any]
    sizes: tuple[Any, Any]


class Expression(BatchMap):
    """What is done with a product, or with the sum of its splits: `function` over `names`, stored as `dtype`. `vector`:
    rows of all results start at multiples of 1, 2, 4 or 8 elements; `batched`: positions have a batch in front;
    `swap_ab`: rows are the expression's columns; `diagonals`: the first and the last diagonal (column - row) on which
    the expression depends on the product, or None. With `further` results, of these dtypes, the expression gives a
    tuple: C first; the others are written by the threads that have them, to tensors behind the operands. `parts`: of
    each operand along rows, columns and layers; `layers`: along those of C of the matrices that make it, A's and
    B's."""

    reductions: tuple[str, ...] = ()  # that are made of rows, instead of C (see `row_blocks`)
    own_columns = False  # whether what is written has other columns than the product
    apart: frozenset[str] = frozenset()  # operands that have, too

    def __init__(
        self, dtype: str, *, function: Function | None = None, names: Sequence[str] = (), vector: int,
        batched: bool = False, swap_ab: bool = False, diagonals: Diagonals = ALL, further: Sequence[str] = (),
        **maps: Any,
    ) -> None:  # fmt: skip
        self.dtype = dtype
        super().__init__(names, swap_ab=swap_ab, **maps)
        self.further = tuple(Further(dtype=d, vector=min(vector, MOST_TOGETHER.get(d, 8))) for d in further)
        self.function = function
        self.names = tuple(names)
        self.vector = min(vector, MOST_TOGETHER.get(dtype, 8))
        self.swap_ab = swap_ab
        self.diagonals = diagonals
        sides = ("index_1", "index_2") if batched else ("index_0", "index_1")
        self.positions = (*(sides[::-1] if swap_ab else sides), "index_0")[: 3 if batched else 2]
        unknown = set(reads(function)) - {*self.names, *self.positions, *PRODUCTS}
        if unknown:
            raise ValueError(f"an epilogue reads {', '.join(sorted(unknown))}, which is no operand of it")

    def put(self, c: Any, product: Any, operands: Sequence[Any], at: tuple[Any, Any, Any]) -> None:
        """Write the expression at (row, column, batch); operands are read there."""
        read = {name: tensor[self.placed(name, at)] for name, tensor in self._wanted(operands)}
        made = self._value(product, read, at)
        targets = (c, *operands[len(self.names) :])
        for target, value in zip(targets, made if self.further else (made,), strict=True):
            target[at] = value

    def _wanted(self, operands: Sequence[Any]) -> list[tuple[str, Any]]:
        """The operands that the expression reads."""
        wanted = reads(self.function) if self.function is not None else ()
        return [pair for pair in zip(self.names, operands, strict=False) if pair[0] in wanted] if wanted else []

    def _value(self, product: Any, loaded: dict[str, Any], at: tuple[Any, Any, Any]) -> Any:
        """What is written, or a tuple of it where that is several."""
        if self.function is None:
            return m.stored(product, self.dtype)
        made = self._called(product, loaded, at)
        if not self.further:
            return m.stored(made, self.dtype)
        dtypes = (self.dtype, *(own.dtype for own in self.further))
        return tuple(m.stored(value, dtype) for value, dtype in zip(made, dtypes, strict=True))

    def _called(self, product: Any, loaded: dict[str, Any], at: tuple[Any, Any, Any]) -> Any:
        """What the function gives."""
        products = dict(zip(PRODUCTS, product if isinstance(product, tuple) else (product,), strict=False))
        known: dict[str, Any] = {**products, **dict(zip(self.positions, at, strict=False))}
        known |= {name: x.to(Float32) if type(x).is_float else x for name, x in loaded.items()}
        assert self.function is not None
        return self.function(**{name: known[name] for name in reads(self.function)})

    def _places(self, firsts: list[tuple[Any, Any, Any]], sizes: tuple[Any, Any]) -> list[list[tuple[Any, Any, Any]]]:
        """Where operands of each pair are read."""
        return [
            [(cutlass.min(at[0], sizes[0] - 1), self._clamped(at[1], e, sizes[1] - 1), at[2]) for e in range(2)]
            for at in firsts
        ]

    def _loaded(self, wanted: list[tuple[str, Any]], places: list[list[tuple[Any, Any, Any]]]) -> list[dict[str, Any]]:
        return [
            {name: self._neighbours(tensor, [self.placed(name, at) for at in pair], name) for name, tensor in wanted}
            for pair in places
        ]

    def _made(
        self, total: Any, loaded: list[dict[str, Any]], places: list[list[tuple[Any, Any, Any]]],
        numbers: list[tuple[int, int]],
    ) -> list[list[Any]]:  # fmt: skip
        return [
            [self._value(total[((e, r, q), 0, 0)], {name: x[e] for name, x in seen.items()}, pair[e]) for e in range(2)]
            for (r, q), pair, seen in zip(numbers, places, loaded, strict=True)
        ]

    def comes_staged(self, operands: Sequence[Any], dtype: Any) -> int | None:
        """The number of the operand that a tile of C can take the place of: a matrix of its type, read in pairs."""
        for name, tensor in self._wanted(operands):
            of_rows = not (isinstance(tensor.stride[0], int) and tensor.stride[0] == 0)
            whole = name not in self.parts and tensor.element_type is dtype
            if of_rows and whole and self._in_pairs(tensor):
                return self.names.index(name)
        return None

    def _in_pairs(self, tensor: Any, name: str = "") -> bool:
        return self.vector > 1 and not (self.swap_ab or self.separates(name)) and tensor.iterator.alignment >= WIDE

    def _neighbours(self, tensor: Any, places: list[tuple[Any, ...]], name: str = "") -> list[Any]:
        """What an operand holds at both places of a pair: in one access, where it is known to be `wide`."""
        if not self._in_pairs(tensor, name):
            return [tensor[place] for place in places]
        kind = Uint8 if tensor.element_type is Boolean else tensor.element_type  # which has no bits in memory
        held = cute.make_rmem_tensor((2,), kind)
        start = cute.recast_ptr(tensor.iterator, dtype=kind) + cute.crd2idx(places[0], tensor.layout)
        there = cute.make_tensor(start.align(kind.width // 4), cute.make_layout((2,)))
        cute.autovec_copy(there, held)
        return [m.cast(held[e], "bool") if kind is not tensor.element_type else held[e] for e in range(2)]

    def _clamped(self, column: Any, e: int, last: Any) -> Any:
        """The column of a pair's element, or one of C's own where it lies outside. Of whole pairs both elements do."""
        return cutlass.min(column, last - 1) + e if self.vector > 1 else cutlass.min(column + e, last)
