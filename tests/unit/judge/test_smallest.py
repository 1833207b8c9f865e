"""At which other cases a refused candidate fails, the smallest first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.jobs import job
from tilewright.facts.problem import Work
from tilewright.judge.check.check import RefusedByCheck
from tilewright.judge.client import CellFault
from tilewright.judge.memories import Case
from tilewright.judge.memory.mapped import contiguous
from tilewright.judge.smallest import narrowed

WRONG = RefusedByCheck("wrong_values", "case 0: output 0 is off", "all rows")


def case(number: int, rows: int, folder: Path) -> Case:
    place = folder / str(number)
    place.mkdir()
    work = Work(bytes_read=rows, bytes_written=rows, matmul_flops=0, conv_flops=0, dtype="f32")
    return Case(number, replace(job(place).described, inputs=(contiguous((rows, 3), "f32"),), work=work), 1)


def test_the_smallest_that_fails_is_named_and_larger_ones_are_not_run(tmp_path: Path) -> None:
    first, *others = [case(n, rows, tmp_path) for n, rows in enumerate((900, 80, 7, 500))]
    run: list[int] = []

    def tried(one: Case) -> None:
        run.append(one.number)
        if one.number == 1:
            raise RefusedByCheck("wrong_values", "case 1: output 0 is off, too")

    found = narrowed(WRONG, first, others, tried=tried, ours=lambda fault: False).failure
    assert run == [2, 1] and (found.reason, found.summary) == ("wrong_values", "case 0: output 0 is off")
    assert found.excerpt.splitlines() == [
        "all rows", "case 2 (inputs of 7x3): right",
        "case 1 (inputs of 80x3): wrong values: case 1: output 0 is off, too",
        "the smallest that fails is case 1 (inputs of 80x3)",
    ]  # fmt: skip


def test_where_others_are_right_the_first_is_the_smallest_that_fails(tmp_path: Path) -> None:
    first, other = case(0, 900, tmp_path), case(1, 80, tmp_path)
    found = narrowed(WRONG, first, [other], tried=lambda one: None, ours=lambda fault: False).failure
    assert found.excerpt.endswith("right\nthe smallest that fails is case 0 (inputs of 900x3)")
    assert narrowed(WRONG, first, [], tried=lambda one: None, ours=lambda fault: False) is WRONG


def test_a_fault_of_ours_is_no_finding(tmp_path: Path) -> None:
    first, other = case(0, 900, tmp_path), case(1, 80, tmp_path)

    def dies(one: Case) -> None:
        raise CellFault(source="reference", by_code=False, reason="crashed", summary="gone", excerpt="")

    with pytest.raises(CellFault):
        narrowed(WRONG, first, [other], tried=dies, ours=lambda fault: fault.source == "reference")
    found = narrowed(WRONG, first, [other], tried=dies, ours=lambda fault: False).failure
    assert "case 1 (inputs of 80x3): crashed: gone" in found.excerpt
