"""One region against the reference: what holds the precision contract passes, what does not is told and replaced."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from tilewright.run.region_check import _Check

x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))


def check(fused: Any, plain: Any = torch.softmax, *, given: Tensor = x) -> tuple[str, Tensor]:
    made = _Check(
        fused=fused, plain=lambda _, x: plain(x, -1), wide=lambda _, x: plain(x, -1), terms=given.shape[-1]
    )  # fmt: skip
    (result,) = made.run(given)
    assert made.called
    return made.why, result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_last_bits_may_differ(dtype: torch.dtype) -> None:
    given = x.to(dtype)
    why, result = check(lambda x: torch.softmax(x.double(), -1).to(dtype), given=given)
    assert why == "" and torch.equal(result, torch.softmax(given, -1))


@pytest.mark.parametrize(("fused", "why"), [
    (lambda x: torch.softmax(x, -1) * (1 + 1e-4), "its error is 0.0001"),
    (lambda x: torch.softmax(x.bfloat16(), -1).float(), "its error is"),
    (lambda x: torch.softmax(x, 0), "its error is"),
    (lambda x: torch.where(x > 3, torch.nan, torch.softmax(x, -1)), "its error is"),
    (lambda x: torch.softmax(x, -1).half(), "it gives torch.float16"),
    (lambda x: torch.softmax(x, -1)[:3], r"it gives torch.float32 \[3, 256\], not"),
    (lambda x: (x, x), "it gives 2 tensors, not 1"),
    (lambda x: [][0], "can't be run here .IndexError: list index out of range"),
])  # fmt: skip
def test_what_is_wrong_is_told_and_the_reference_goes_on(fused: Any, why: str) -> None:
    told, result = check(fused)
    assert re.search(why, told)
    assert torch.equal(result, torch.softmax(x, -1))


def test_whole_numbers_must_be_equal_and_specials_stay() -> None:
    assert check(lambda x: x.argmax(-1), torch.argmax)[0] == ""
    assert check(lambda x: x.argmin(-1), torch.argmax)[0] != ""
    odd = torch.where(x > 2, torch.inf, x)
    assert check(lambda x: torch.softmax(x, -1), given=odd)[0] == ""  # NaN where the reference has NaN
    assert check(lambda x: torch.softmax(x, -1).nan_to_num(), given=odd)[0] != ""


def test_without_a_float64_the_references_own_result_is_the_truth() -> None:
    def wide(_: Any, x: Tensor) -> Tensor:
        raise NotImplementedError

    made = _Check(fused=lambda x: x.exp() * (1 + 1e-4), plain=lambda _, x: x.exp(), wide=wide, terms=1)
    made.run(x)
    assert "its error is 0.0001" in made.why
