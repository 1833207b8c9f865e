"""ColumnGroups of a product's columns, reduced while its sums are in registers: a group norm, each head's norm or
softmax, pooling; or whole rows as one group. A group lies within a tile; either what becomes of each element leaves,
or one number a group.

    a part of a sum, 64 rows x 64 columns of it      a thread: 2 rows x 16 columns; four lanes share a row
    groups of 16: for each row, the state of 4 values (a tree) -> two exchanges between lanes -> all four know it ->
    what is done with each value, and the next 16 columns

Sizes are powers of two, so that groups are whole wherever C has a part of one. Whole rows have any size that a part
holds: what lies behind their end counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, cute

from ...common import math as m
from ...common.control import when
from ...common.spec import Function, Sweep, reads
from ...rows.combine import Held, butterfly
from ...rows.reducers import Reducer, State, tree
from .epilogue import EpilogueStore
from .expression import TileAt
from .register_store import write_pairs

LANES = 4  # of a warp, that share a row of a part
MOST_READ = 128  # columns of all operands together that are read at once for both rows of a thread
LEAST = 16  # columns that are taken at once: two pairs of each thread, which lanes exchange to write four


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnGroups:
    """What is done with each group of `size` columns side by side: `sweeps` as a Spec's, `head` what needs none of
    them. `final` gives the element that is written; without it, the group's value `row` is written. Operands have C's
    columns, but for those `within` a group, which are the same for all of them, and `of_groups`, one value each.
    `whole`: C's rows are one group each."""

    size: int
    sweeps: tuple[Sweep, ...]
    whole: bool = False
    head: Function | None = None
    final: Function | None = None
    row: str = ""
    within: tuple[str, ...] = ()
    of_groups: tuple[str, ...] = ()

    @property
    def functions(self) -> tuple[Function, ...]:
        all_of = (self.head, self.final, *(f for s in self.sweeps for f in (s.elements, s.rows)))
        return tuple(f for f in all_of if f is not None)

    @property
    def together(self) -> int:
        """Columns that are taken at once."""
        return -(-self.size // LEAST) * LEAST

    def lies_in(self, columns: int) -> bool:
        """Whether groups are whole in so many columns; a whole row begins with the first."""
        return columns >= self.together if self.whole else columns % self.together == 0


class ColumnGroupEpilogue(EpilogueStore):
    """A EpilogueStore of ColumnGroups; `names` are the operands'."""

    def __init__(self, groups: ColumnGroups, dtype: str, *, names: Sequence[str], vector: int, **more: Any) -> None:
        super().__init__(dtype, names=names, vector=vector if groups.final else 1, **more)
        if self.swap_ab:
            raise ValueError("groups of columns are reduced as they lie")
        self.groups = groups
        self.own_columns = groups.final is None
        self.apart = frozenset((*groups.within, *groups.of_groups))
        self.reducers = [
            [Reducer(op=r.op, source=r.source, dtype=r.dtype) for r in sweep.reductions] for sweep in groups.sweeps
        ]
        self.read = {name for function in groups.functions for name in reads(function)}

    def _wanted(self, operands: Sequence[Any]) -> list[tuple[str, Any]]:
        return [pair for pair in zip(self.names, operands, strict=True) if pair[0] in self.read]

    def store(
        self, total: Any, places: Any, c: Any, operands: Sequence[Any], exponents: Sequence[Any], *,
        at: TileAt, through: Any = None, block: int = 0,
    ) -> None:  # fmt: skip
        """Write one part of a tile."""
        corner, sizes = at
        layer, pairs = corner[2], cute.size(total) // 4
        rows = [corner[0] + places[((0, r, 0),)][0] for r in range(2)]
        columns = [corner[1] + places[((0, 0, q),)][1] for q in range(pairs)]
        if exponents:
            last = (sizes[0] - 1, sizes[1] - 1)
            self._scale(total, exponents, rows, columns, layer=layer, last=last)
        wide = self.groups.together // 8
        pairs = wide if self.groups.whole else pairs
        # What is read for one row serves the other, where registers hold it.
        at_once = 2 if self.groups.together * len(self.names) <= MOST_READ else 1
        for first in range(0, pairs, wide):
            for lead in range(0, 2, at_once):
                numbers = [[(r, q) for q in range(first, first + wide)] for r in range(lead, lead + at_once)]
                firsts = [[(rows[r], columns[q], layer) for r, q in of_row] for of_row in numbers]
                seen = [self._seen(operands, self._places(of_row, sizes)) for of_row in firsts]
                known = [[self._known(total, number, found) for number, found in zip(of_row, loaded, strict=True)]
                         for of_row, loaded in zip(numbers, seen, strict=True)]  # fmt: skip
                for of_row, places_of_row in zip(known, firsts, strict=True):
                    self._write_groups(c, of_row, places_of_row, sizes)

    def _seen(
        self, operands: Sequence[Any], places: list[list[tuple[Any, Any, Any]]]
    ) -> list[dict[str, Any]]:  # fmt: skip
        """What is read of each pair."""
        size = Int32(self.groups.size)
        found: list[dict[str, Any]] = [{} for _ in places]
        for name, tensor in self._wanted(operands):
            for pair, made in zip(places, found, strict=True):
                if name in self.groups.of_groups:
                    row, column, layer = pair[0]
                    made[name] = [tensor[(row, column // size, layer)]] * 2
                    continue
                inner = [(row, column % size, layer) for row, column, layer in pair]
                made[name] = self._neighbours(tensor, inner if name in self.groups.within else pair)
        return found

    @staticmethod
    def _known(total: Any, number: tuple[int, int], loaded: dict[str, Any]) -> list[dict[str, Any]]:
        """Of both elements of a pair, what functions may read."""
        r, q = number
        read = {name: [x.to(Float32) if type(x).is_float else x for x in both] for name, both in loaded.items()}
        return [
            {"product": total[((e, r, q), 0, 0)], **{name: both[e] for name, both in read.items()}} for e in range(2)
        ]

    def _write_groups(
        self, c: Any, known: list[list[dict[str, Any]]], firsts: list[tuple[Any, Any, Any]], sizes: tuple[Any, Any]
    ) -> None:
        """The neighbouring groups of one row that lie in these pairs."""
        each = len(known) if self.groups.whole else max(self.groups.size // 8, 1)
        made: list[list[Any]] = []
        for at in range(0, len(known), each):
            pairs = known[at : at + each]
            inside = [ok for i, (_, column, _) in enumerate(firsts[at : at + each]) for ok in self._inside(i, column)]
            values = self._reduced([element for pair in pairs for element in pair], inside)
            if self.groups.final is None:
                self._write_one(c, values[self.groups.row], firsts[at], sizes)
                continue
            made += [[m.stored(_call(self.groups.final, element, values), self.dtype) for element in pair]
                     for pair in pairs]  # fmt: skip
        write_pairs(c, made, firsts[: len(made)], sizes, vector=self.vector)

    def _inside(self, pair: int, column: Any) -> list[Any]:
        """Whether both elements of a group's pair of this number are C's: None where that is known."""
        if not self.groups.whole or 8 * (pair + 1) <= self.groups.size:
            return [None, None]
        return [column + e < self.groups.size for e in range(2)]

    def _reduced(self, elements: list[dict[str, Any]], inside: list[Any]) -> dict[str, Any]:
        """What is known of a group, of which this lane has these elements, as far as they are `inside`."""
        lanes = LANES if self.groups.whole else min(LANES, max(self.groups.size // 2, 1))
        values: dict[str, Any] = {}
        if self.groups.head is not None:
            values |= _call(self.groups.head, elements[0], values)
        for sweep, reducers in zip(self.groups.sweeps, self.reducers, strict=True):
            given = [_call(sweep.elements, element, values) for element in elements]
            for i, (reduction, reducer) in enumerate(zip(sweep.reductions, reducers, strict=True)):
                state = self._state(reducer, [reducer.prepare(g[i]) for g in given], lanes, inside)
                values |= zip(reduction.results, reducer.results(state), strict=True)
            if sweep.rows is not None:
                values |= _call(sweep.rows, elements[0], values)
        return values

    def _state(self, reducer: Reducer, values: list[Any], lanes: int, inside: list[Any]) -> State:
        """Of a group, of which this lane has these values."""
        if reducer.op != "moments":
            held = Held(reducer, 1)
            held[0] = reducer.block(_masked(values, inside, reducer.identity()[0]), None, [])
            butterfly(held, lanes)
            return held[0]
        # The number of values is known: nothing is divided.
        count, nought = Float32(float(self.groups.size)), Float32(0.0)
        mean = _total(_masked(values, inside, nought), lanes) * Float32(1.0 / self.groups.size)
        squares = _masked([(v - mean) * (v - mean) for v in values], inside, nought)
        return (count, mean, _total(squares, lanes))

    def _write_one(self, c: Any, value: Any, at: tuple[Any, Any, Any], sizes: tuple[Any, Any]) -> None:
        """A group's number, by the first of the lanes that know it. `at`: of its first element in this lane."""
        row, column, layer = at
        size = self.groups.size
        leads = column % size == 0 if size < 8 else cute.arch.lane_idx() % LANES == 0
        inside = m.both(leads, m.both(row < sizes[0], column < sizes[1]))
        stored = m.stored(value, self.dtype)
        when(inside, lambda: c.__setitem__((row, column // size, layer), stored))


def _masked(values: list[Any], inside: list[Any], otherwise: Any) -> list[Any]:
    """`otherwise` in the place of what is outside."""
    return [v if ok is None else m.select(ok, v, otherwise) for v, ok in zip(values, inside, strict=True)]


def _total(values: list[Any], lanes: int) -> Any:
    """The sum over these and those of the lanes beside it."""
    total = tree(values, lambda a, b: a + b)
    for offset in (1, 2)[: lanes.bit_length() - 1]:
        total = total + cute.arch.shuffle_sync_bfly(total, offset=offset)
    return total


def _call(function: Function, element: dict[str, Any], values: dict[str, Any]) -> Any:
    """`function` of what it names: an element's, or its group's."""
    return function(**{name: values[name] if name in values else element[name] for name in reads(function)})
