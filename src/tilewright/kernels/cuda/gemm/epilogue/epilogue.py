"""From sums in registers to C: exponents undone, an expression applied, columns written.

A thread's part of a sum is ((2, 2, atom_n / 8),): pairs of neighbouring columns, two rows, pairs every 8 columns.
Loads of a block come before its stores (see `writes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, Int64, cute

from ...common import math as m
from ...common.control import when
from .expression import Expression, TileAt
from .register_store import exchanged, words_of, write_pairs
from .smem_tile import PAIRS, SmemTile
from .tma_store import ROWS, TmaStore

BLOCK = 4  # pairs that are computed before they are written: so many reads of operands are on their way at a time
MOST_SENT = 2  # the same, where they leave through an smem_store, and registers are short
LEAST_SHIFT = 252  # beyond, everything is zero, or infinite, and both halves stay exponents of normal numbers
ONE_FACTOR = 126  # 2^-126 to 2^126 are normal numbers


class Through(NamedTuple):
    """The buffers by which a part of a tile leaves; its number, and that along N."""

    smem_store: TmaStore
    part: tuple[int, int]


class Gate:
    """Both sums of a dual product: an element is that of the first and that of the second at the same place, whose
    columns lie behind all of the first's."""

    def __init__(self, sums: Any, second: Any = None) -> None:
        """`second`: the sum of the second product, where that is one of its own."""
        self.pairs = cute.size(sums) // (8 if second is None else 4)
        behind = self.pairs if second is None else 0
        self.halves = (Half(sums, 0), Half(sums if second is None else second, behind))

    def __getitem__(self, at: Any) -> tuple[Any, Any]:
        return self.halves[0][at], self.halves[1][at]


class Half:
    """A part of a thread's sum, from this pair of columns on."""

    def __init__(self, sums: Any, first: int) -> None:
        self.sums, self.first = sums, first

    def _place(self, at: Any) -> Any:
        (e, r, q), *rest = at
        return ((e, r, q + self.first), *rest)

    def __getitem__(self, at: Any) -> Any:
        return self.sums[self._place(at)]

    def __setitem__(self, at: Any, value: Any) -> None:
        self.sums[self._place(at)] = value


def pairs_of(total: Any) -> int:
    """Pairs of neighbouring columns in a thread's part of a sum."""
    return total.pairs if isinstance(total, Gate) else cute.size(total) // 4


def _following(numbers: list[tuple[int, int]]) -> int:
    """Pairs of each row that are neighbours, of these (row, pair)."""
    return len({q for _, q in numbers})


def power_of_two(exponent: Any) -> Float32:
    """2^exponent, for -126 to 127."""
    return ((exponent + Int32(127)) << Int32(23)).bitcast(Float32)


def shifted(x: Any, exponent: Any) -> Float32:
    """x times 2^exponent, in two halves: neither overflows nor vanishes midway where the result does not."""
    exponent = cutlass.max(cutlass.min(exponent, Int32(LEAST_SHIFT)), Int32(-LEAST_SHIFT))
    half = exponent >> Int32(1)
    return x * power_of_two(half) * power_of_two(exponent - half)


class EpilogueStore(Expression):
    """An Expression whose values are written: by the threads that have them, or through shared memory."""

    def store(
        self, total: Any, places: Any, c: Any, operands: Sequence[Any], exponents: Sequence[Any], *,
        at: TileAt, through: Through | None = None, block: int = BLOCK,
    ) -> None:  # fmt: skip
        """Write one part of a tile, so many pairs at a time; by the threads that have them, or `through` buffers."""
        corner, sizes = at
        layer = corner[2]
        block = block if self.names else BLOCK
        pairs = pairs_of(total)
        last_row, last_column = sizes[0] - 1, sizes[1] - 1
        rows = [corner[0] + places[((0, r, 0),)][0] for r in range(2)]
        columns = [corner[1] + places[((0, 0, q),)][1] for q in range(pairs)]
        if exponents:
            of_rows, *of_columns = exponents
            for half, own in zip(total.halves if isinstance(total, Gate) else (total,), of_columns, strict=True):
                self._scale(half, (of_rows, own), rows, columns, layer=layer, last=(last_row, last_column))
        if through is not None:
            sent = MOST_SENT if block == BLOCK else block
            self._send(total, places, operands, rows, columns, at=at, through=through, sent=sent)
            return
        for numbers in self._blocks(range(pairs), block):
            firsts = [(rows[r], columns[q], layer) for r, q in numbers]
            made = self._pairs(total, operands, firsts, sizes, numbers)
            write_pairs(c, made, firsts, sizes, vector=self.vector, following=_following(numbers))

    @staticmethod
    def _blocks(pairs: range, block: int) -> list[list[tuple[int, int]]]:
        """(row, pair) of what is computed at once: of large blocks both rows, which read the same of a row vector."""
        if block <= BLOCK:
            return [[(r, q) for q in pairs[at : at + block]] for r in range(2) for at in range(0, len(pairs), block)]
        wide = block // 2
        return [[(r, q) for r in range(2) for q in pairs[at : at + wide]] for at in range(0, len(pairs), wide)]

    @staticmethod
    def _fours(pairs: range, block: int) -> list[list[tuple[int, int]]]:
        """The same in the order of stmatrix: both rows of two pairs of columns and more."""
        wide = max(block // 2, 2)
        return [[(r, q) for q in pairs[at : at + wide] for r in range(2)] for at in range(0, len(pairs), wide)]

    def _pairs(
        self, total: Any, operands: Sequence[Any], firsts: list[tuple[Any, Any, Any]], sizes: tuple[Any, Any],
        numbers: list[tuple[int, int]],
    ) -> list[list[Any]]:  # fmt: skip
        """Two neighbours each, the first of them at (row, column, layer). All that is read is asked for first."""
        places = self._places(firsts, sizes)
        made = self._made(total, self._loaded(self._wanted(operands), places), places, numbers)
        return self._first(made, operands, firsts, sizes, numbers)

    def _first(
        self, made: list[list[Any]], operands: Sequence[Any], firsts: list[tuple[Any, Any, Any]],
        sizes: tuple[Any, Any], numbers: list[tuple[int, int]],
    ) -> list[list[Any]]:  # fmt: skip
        """Of several results the first; the further ones are written."""
        if not self.further:
            return made
        order = sorted(range(len(numbers)), key=numbers.__getitem__)  # pairs of a row in a row
        places = [firsts[i] for i in order]
        for which, (own, target) in enumerate(zip(self.further, operands[len(self.names) :], strict=True)):
            pairs = [[element[which + 1] for element in made[i]] for i in order]
            write_pairs(target, pairs, places, sizes, vector=own.vector, following=_following(numbers))
        return [[element[0] for element in pair] for pair in made]

    def beside(
        self, staged: SmemTile, operands: Sequence[Any], places: Any, *, line: int, corner: tuple[Any, Any, Any],
        sizes: tuple[Any, Any],
    ) -> list[dict[str, Any]]:  # fmt: skip
        """What the pairs of a line read that does not come staged. `places`: of one part."""
        wanted = [pair for pair in self._wanted(operands) if pair[0] != staged.name]
        return self._loaded(wanted, self._places(self._firsts(places, line, corner), sizes)) if wanted else []

    @staticmethod
    def _firsts(places: Any, line: int, corner: tuple[Any, Any, Any]) -> list[tuple[Any, Any, Any]]:
        """Of a line's pairs, both rows of each, the first element's place."""
        return [
            (corner[0] + places[((0, r, 0),)][0], corner[1] + places[((0, 0, q),)][1], corner[2])
            for q in range(line * PAIRS, (line + 1) * PAIRS)
            for r in range(2)
        ]

    def exchange(
        self, sums: Sequence[Any], places: Sequence[Any], staged: SmemTile, operands: Sequence[Any], *,
        at: TileAt, ahead: list[dict[str, Any]], phase: Any,
    ) -> None:  # fmt: skip
        """Write a tile by way of shared memory, line by line; what the next line reads is asked for before. `ahead`:
        what the first one has `beside`."""
        corner, sizes = at
        steps = [(number, line) for number in range(staged.parts) for line in range(staged.lines)]
        staged.ready(phase)
        words = staged.take(0, 0) if staged.coming is not None else []
        for done, (number, line) in enumerate(steps, 1):
            now, taken = ahead, words
            if done < len(steps):
                next_number, next_line = steps[done]
                ahead = self.beside(
                    staged, operands, places[next_number], line=next_line, corner=corner, sizes=sizes
                )  # fmt: skip
                words = staged.take(next_number, next_line) if staged.coming is not None else []
            loaded: list[dict[str, Any]] = [dict(found) for found in now] or [{} for _ in range(2 * PAIRS)]
            for found, word in zip(loaded, taken, strict=False):
                found[staged.name] = self._halves(word, staged.element)
            numbers = [(r, line * PAIRS + q) for q in range(PAIRS) for r in range(2)]
            firsts = self._firsts(places[number], line, corner)
            made = self._made(sums[number], loaded, self._places(firsts, sizes), numbers)
            made = self._first(made, operands, firsts, sizes, numbers)
            staged.put(number, line, [word for pair in made for word in words_of(pair)])
            staged.send(number, line)

    @staticmethod
    def _halves(word: Any, element: Any) -> list[Any]:
        """Both elements of a word."""
        held = cute.make_rmem_tensor((2,), element)
        cute.recast_tensor(held, Int32)[0] = word
        return [held[0], held[1]]

    def _send(
        self, total: Any, places: Any, operands: Sequence[Any], rows: list[Any], columns: list[Any], *,
        at: TileAt, through: Through, sent: int,
    ) -> None:  # fmt: skip
        """A part of a tile, line by line of columns, so many pairs at a time."""
        corner, sizes = at
        smem_store, (number, part_n) = through
        pairs, each = pairs_of(total), smem_store.columns // 8
        lines = pairs // each
        tile_row = (corner[0] + places[((0, 0, 0),)][0]) // ROWS
        for line in range(lines):
            turn = number * lines + line
            smem_store.wait(turn)
            of_line = range(line * each, (line + 1) * each)
            for numbers in self._fours(of_line, sent) if smem_store.halves else self._blocks(of_line, sent):
                firsts = [(rows[r], columns[q], corner[2]) for r, q in numbers]
                made = self._pairs(total, operands, firsts, sizes, numbers)
                if smem_store.halves:
                    words = [word for pair in made for word in words_of(pair)]
                    smem_store.put_matrices(turn, (numbers[0][1] - of_line[0]) * 8, words)
                    continue
                for (row, column, _), pair, following in zip(firsts[::2], made[::2], made[1::2], strict=True):
                    words, shift = exchanged([words_of(p) for p in (pair, following)])
                    smem_store.put(turn, row % ROWS, (column + shift) % smem_store.columns, words)
            first = corner[1] + part_n * pairs * 8 + line * smem_store.columns
            smem_store.send(turn, (tile_row, first // smem_store.columns, corner[2]))

    def _scale(
        self, total: Any, exponents: Sequence[Any], rows: list[Any], columns: list[Any], *, layer: Any,
        last: tuple[Any, Any],
    ) -> None:  # fmt: skip
        """Undo the exponents, added up: by one factor an element, where all of this thread's are normal numbers. Those
        of its two rows may be at hand, in a list."""
        of_rows, of_columns = exponents
        row_shifts = of_rows
        if not isinstance(of_rows, list):
            of_row = self.exponents_of(0, layer, of_rows)
            row_shifts = [of_rows[(cutlass.min(row, last[0]), of_row)] for row in rows]
        of_column = self.exponents_of(1, layer, of_columns)
        column_shifts = [
            [of_columns[(self._clamped(column, e, last[1]), of_column)] for e in range(2)] for column in columns
        ]
        flat = [shift for pair in column_shifts for shift in pair]
        highest, lowest = flat[0], flat[0]
        for shift in flat[1:]:
            highest, lowest = cutlass.max(highest, shift), cutlass.min(lowest, shift)
        highest = highest + cutlass.max(*row_shifts)
        lowest = lowest + cutlass.min(*row_shifts)
        plain = m.both(highest <= Int32(ONE_FACTOR), lowest >= Int32(-ONE_FACTOR))

        def once() -> None:
            ups = [(Int32(127) - shift) << Int32(23) for shift in row_shifts]
            for q, pair in enumerate(column_shifts):
                for e, shift in enumerate(pair):
                    down = shift << Int32(23)
                    for r, up in enumerate(ups):
                        total[((e, r, q), 0, 0)] = total[((e, r, q), 0, 0)] * (up - down).bitcast(Float32)

        def twice() -> None:
            for q, pair in enumerate(column_shifts):
                for e, shift in enumerate(pair):
                    for r, of_row in enumerate(row_shifts):
                        total[((e, r, q), 0, 0)] = shifted(total[((e, r, q), 0, 0)], -(of_row + shift))

        when(plain, once)
        when(m.negated(plain), twice)


class Combine:
    """C from the partial sums of splits, in order, so that results repeat to the last bit: a thread per element."""

    THREADS = 256

    def __init__(self, finish: EpilogueStore) -> None:
        self.finish = finish

    def __call__(self, tensors: tuple[Any, ...], stream: Any) -> None:
        """Emit the launch. `tensors`: the partial sums, (M, N, batch x splits) of fp32; C; the epilogue's operands."""
        partial, c, *operands = tensors
        ctas = self.ctas(cute.size(c, mode=[0]), cute.size(c, mode=[1])) * cute.size(c, mode=[2])
        self._kernel(partial, c, operands).launch(grid=[ctas, 1, 1], block=[self.THREADS, 1, 1], stream=stream)

    def ctas(self, rows: Any, columns: Any) -> Int32:
        """Of a matrix, which may have more than 2^31 elements. Matrices follow one another along x, which alone goes
        beyond 65535."""
        return Int32((Int64(rows) * columns + (self.THREADS - 1)) // self.THREADS)

    def place(self, number: Any, thread: Any, rows: Any, columns: Any) -> tuple[Any, Any, Any]:
        """(row, column, matrix) of a thread of CTA `number`; rows behind the last are nobody's."""
        ctas = self.ctas(rows, columns)
        batch = number // ctas
        first = Int64(number - batch * ctas) * self.THREADS
        row = Int32(first // columns)
        column = Int32(first - Int64(row) * columns) + thread
        return row + column // columns, column % columns, batch

    @cute.kernel
    def _kernel(self, partial: cute.Tensor, c: cute.Tensor, operands: list) -> None:
        rows, columns = cute.size(c, mode=[0]), cute.size(c, mode=[1])
        splits = cute.size(partial, mode=[2]) // cute.size(c, mode=[2])
        thread = cute.arch.thread_idx()[0]
        row, column, batch = self.place(cute.arch.block_idx()[0], thread, rows, columns)
        if row < rows:
            total = Float32(0.0)
            for split in cutlass.range(splits, unroll=4):
                total = total + partial[(row, column, batch * splits + split)]
            self.finish.put(c, total, operands, (row, column, batch))
