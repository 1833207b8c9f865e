"""A Program that sums over its rows beside what it does along them, as two: partial sums in the one pass over the rows,
and what adds them up."""

from __future__ import annotations

from dataclasses import replace

from .program import Operand, Output, Program, Reduction

# Rows are added plainly within a part, so a part has few; with compensation between parts.
MOST_ROWS = 64
# Parts that keep all threads of a CPU busy.
LEAST_PARTS = 64


def usual_parts(rows: int, *, least: int = LEAST_PARTS) -> int:
    """In how many parts to sum so many rows: at least `least` where there are as many rows."""
    return min(rows, max(least, -(-rows // MOST_ROWS)))


def in_parts(program: Program, parts: int) -> Program:
    """The same with its sums in so many parts, unrounded."""
    shape = program.shape_in_parts(parts)
    outputs = tuple(
        replace(o, parts=parts, shape=shape, dtype="f64" if o.dtype == "f64" else "f32") if o.parts else o
        for o in program.outputs
    )
    return replace(program, outputs=outputs)


def adding_up(program: Program, parts: int) -> Program:
    """What makes the sums of `in_parts` whole: it takes those outputs in their order."""
    partial = in_parts(program, parts).sums
    kept = next(d for d in range(len(program.domain)) if d not in program.reduced)
    return Program(
        domain=program.shape_in_parts(parts),
        reduced=(kept,),
        operands=tuple(Operand(name=f"p{i}", dtype=o.dtype, shape=o.shape) for i, o in enumerate(partial)),
        body=tuple(Reduction(results=(f"s{i}",), op="sum", arg=f"p{i}", dtype=o.dtype) for i, o in enumerate(partial)),
        outputs=tuple(
            Output(name=f"s{i}", dtype=o.dtype, shape=program.shape_in_parts(1)) for i, o in enumerate(program.sums)
        ),
    )
