"""From sums in registers to C: exponents undone, an expression applied, pairs of columns written.

A thread's part of a sum is ((2, 2, atom_n / 8),): pairs of neighbouring columns, two rows, pairs every 8 columns. A
warp's store writes 8 rows x 32 bytes of fp32: whole sectors. Loads of a block come before its stores.

The expression is a function over CuTe scalars (see `math`). Its parameters name what it reads: `product`, an operand,
or `index_0` and `index_1`, the row and the column. Without one, C is the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from .. import math as m
from ..control import when
from ..spec import Function, reads

BLOCK = 4  # pairs that are computed before they are written
LEAST_SHIFT = 252  # beyond, everything is zero, or infinite, and both halves stay exponents of normal numbers


def power_of_two(exponent: Any) -> Float32:
    """2^exponent, for -126 to 127."""
    return ((exponent + Int32(127)) << Int32(23)).bitcast(Float32)


def shifted(x: Any, exponent: Any) -> Float32:
    """x times 2^exponent, in two halves: neither overflows nor vanishes midway where the result does not."""
    exponent = cutlass.max(cutlass.min(exponent, Int32(LEAST_SHIFT)), Int32(-LEAST_SHIFT))
    half = exponent >> Int32(1)
    return x * power_of_two(half) * power_of_two(exponent - half)


class Finish:
    """What is done with a product, or with the sum of its splits: `function` over `names`, stored as `dtype`."""

    def __init__(
        self, dtype: str, *, function: Function | None = None, names: Sequence[str] = (), paired: bool
    ) -> None:
        self.dtype = dtype
        self.function = function
        self.names = tuple(names)
        self.paired = paired  # rows of C start at whole pairs
        unknown = set(reads(function)) - {*self.names, "product", "index_0", "index_1"}
        if unknown:
            raise ValueError(f"an epilogue reads {', '.join(sorted(unknown))}, which is no operand of it")

    def value(self, product: Any, operands: Sequence[Any], at: tuple[Any, Any, Any]) -> Any:
        """The expression at (row, column, batch), as the element type of C; operands are read there."""
        if self.function is None:
            return m.stored(product, self.dtype)
        known: dict[str, Any] = {"product": product, "index_0": at[0], "index_1": at[1]}
        wanted = reads(self.function)
        for name, tensor in zip(self.names, operands, strict=True):
            if name in wanted:
                loaded = tensor[at]
                known[name] = loaded.to(Float32) if tensor.element_type.is_float else loaded
        return m.stored(self.function(**{name: known[name] for name in wanted}), self.dtype)

    def store(
        self, total: Any, places: Any, c: Any, operands: Sequence[Any], exponents: Sequence[Any], *,
        corner: tuple[Any, Any, Any], sizes: tuple[Any, Any],
    ) -> None:  # fmt: skip
        """Write one part of a tile whose corner is (row, column, layer) of C."""
        layer = corner[2]
        pairs = cute.size(total) // 4
        last_row, last_column = sizes[0] - 1, sizes[1] - 1
        rows = [corner[0] + places[((0, r, 0),)][0] for r in range(2)]
        columns = [corner[1] + places[((0, 0, q),)][1] for q in range(pairs)]
        row_shifts: list[Any] = []
        column_shifts: list[list[Any]] = []
        if exponents:
            of_rows, of_columns = exponents
            row_shifts = [of_rows[(cutlass.min(row, last_row), layer)] for row in rows]
            column_shifts = [
                [of_columns[(self._clamped(column, e, last_column), layer)] for e in range(2)] for column in columns
            ]
        for r, row in enumerate(rows):
            for first in range(0, pairs, BLOCK):
                made: list[tuple[int, list[Any]]] = []
                for q in range(first, min(first + BLOCK, pairs)):
                    pair = []
                    for e in range(2):
                        x = total[((e, r, q), 0, 0)]
                        if exponents:
                            x = shifted(x, -(row_shifts[r] + column_shifts[q][e]))
                        at = (cutlass.min(row, last_row), self._clamped(columns[q], e, last_column), layer)
                        pair.append(self.value(x, operands, at))
                    made.append((q, pair))
                for q, pair in made:
                    self._write(c, pair, (row, columns[q], layer), sizes)

    def _clamped(self, column: Any, e: int, last: Any) -> Any:
        """The column of a pair's element, or one of C's own where it lies outside. Of whole pairs both elements do."""
        return cutlass.min(column, last - 1) + e if self.paired else cutlass.min(column + e, last)

    def _write(self, c: Any, pair: list[Any], at: tuple[Any, Any, Any], sizes: tuple[Any, Any]) -> None:
        row, column, layer = at
        inside = m.both(row < sizes[0], column < sizes[1])
        start = c.iterator + cute.crd2idx((row, column, layer), c.layout)
        if self.paired:
            held = cute.make_rmem_tensor((2,), c.element_type)
            for e, value in enumerate(pair):
                held[e] = value
            target = cute.make_tensor(start.align(c.element_type.width // 4), cute.make_layout((2,)))
            when(inside, lambda: cute.autovec_copy(held, target))
            return
        for e, value in enumerate(pair):
            there = cute.make_tensor(start + e, cute.make_layout((1,)))
            within = m.both(inside, column + e < sizes[1])
            when(within, lambda there=there, value=value: there.__setitem__(0, value))


class Combine:
    """C from the partial sums of splits, in order, so that results repeat to the last bit: a thread per element."""

    THREADS = 256

    def __init__(self, finish: Finish) -> None:
        self.finish = finish

    def __call__(self, tensors: tuple[Any, ...], stream: Any) -> None:
        """Emit the launch. `tensors`: the partial sums, (M, N, batch x splits) of fp32; C; the epilogue's operands."""
        partial, c, *operands = tensors
        count = cute.size(c, mode=[0]) * cute.size(c, mode=[1])
        self._kernel(partial, c, operands).launch(
            grid=[cute.ceil_div(count, self.THREADS), cute.size(c, mode=[2]), 1],
            block=[self.THREADS, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def _kernel(self, partial: cute.Tensor, c: cute.Tensor, operands: list) -> None:
        rows, columns = cute.size(c, mode=[0]), cute.size(c, mode=[1])
        batch = cute.arch.block_idx()[1]
        splits = cute.size(partial, mode=[2]) // cute.size(c, mode=[2])
        at = cute.arch.block_idx()[0] * self.THREADS + cute.arch.thread_idx()[0]
        if at < rows * columns:
            row = at // columns
            column = at - row * columns
            total = Float32(0.0)
            for split in cutlass.range(splits, unroll=4):
                total = total + partial[(row, column, batch * splits + split)]
            c[(row, column, batch)] = self.finish.value(total, operands, (row, column, batch))
