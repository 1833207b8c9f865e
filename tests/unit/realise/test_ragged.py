"""Of which programs a stretch of each row is looked at alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes import kernel_programs as kp
from tilewright.ir.program import Program, Statement
from tilewright.realise.rows.ragged import RaggedRow, stretch_of


def ragged(**changes: object) -> Program:
    """`kp.ragged`, with the statements that have these operations changed."""
    program = kp.ragged(37, 300, 64)
    body = [replace(item, **changes[item.op]) if isinstance(item, Statement) and item.op in changes else item
            for item in program.body]  # fmt: skip
    return replace(program, body=tuple(body))


def test_what_counts_between_two_values_of_a_row() -> None:
    assert stretch_of(kp.ragged(37, 300, 64)) == RaggedRow(begin="v0", end="v1", usual=8)
    assert stretch_of(kp.ragged(2, 500, 24, op="max")) == RaggedRow(begin="v0", end="v1", usual=250)
    assert stretch_of(kp.ragged(1, 500, 24)) is None, "one row has nothing to share"


@pytest.mark.parametrize("changes", [
    {"where": {"args": ("v7", "v8", 1.0)}}, {"logical_and": {"op": "logical_or"}}, {"lt": {"op": "le"}},
    {"ge": {"args": ("v4", 3)}}, {"index": {"args": (2,)}},
], ids=["something counts outside", "either", "the end counts", "a number", "another dimension"])  # fmt: skip
def test_anything_else_is_looked_at_whole(changes: dict[str, object]) -> None:
    assert stretch_of(ragged(**changes)) is None


def test_fractions_are_no_places() -> None:
    program = kp.ragged(37, 300, 64)
    offsets = replace(program.operands[0], dtype="f32")
    body = [replace(item, dtype="f32") if getattr(item, "source", "") == "o" else item for item in program.body]
    assert stretch_of(replace(program, operands=(offsets, *program.operands[1:]), body=tuple(body))) is None
