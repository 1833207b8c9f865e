"""What a warning tells of a call that no case takes: its arguments and those that were judged, a few of each."""

from __future__ import annotations

import pytest
import torch

from tilewright.kernels.guards import NO_CASE, compared, count


def test_the_arguments_that_came_stand_beside_those_that_were_judged() -> None:
    told = compared(("x: float32 [4, 8] on cpu",), False, (torch.zeros(3, 8), [torch.zeros(2).int(), None]), {"k": 2.5})
    assert told == (
        "this call: float32 [3, 8] on cpu, list(int32 [2] on cpu, None), k=2.5 in eval mode; "
        "judged: x: float32 [4, 8] on cpu"
    )


def test_only_the_first_few_are_told_and_nobody_is_asked_for_his_repr() -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("asked")

    told = compared([f"x: {n}" for n in range(9)], True, [Loud()] * 9, {})
    assert told.count("a Loud") == 4 and "x: 3; and 5 more" in told and "x: 4" not in told
    assert compared((), True, (), {}) == "this call: no arguments in training mode; judged: none that could be traced"


def test_arguments_are_told_once_and_of_no_other_reason() -> None:
    counts: dict[str, int] = {}
    asked: list[str] = []

    def told() -> str:
        asked.append("")
        return "this and that"

    with pytest.warns(
        RuntimeWarning, match=rf"{NO_CASE} \(this and that\), so .*optimize\(module, \[inputs, others\]\)"
    ):
        count(counts, NO_CASE, told)
    count(counts, NO_CASE, told)
    with pytest.warns(RuntimeWarning, match="something has changed, so"):
        count(counts, "something has changed", told)
    assert counts == {NO_CASE: 2, "something has changed": 1} and len(asked) == 1
