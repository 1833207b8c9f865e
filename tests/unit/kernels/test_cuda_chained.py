"""Two kernels as one: which operands and results go where, and whose settings are whose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tilewright.kernels.cuda.common.chained import Chained

X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(3)


class Kernel:
    """Answers with `function`, and notes what it got."""

    def __init__(self, function: Any, shape: tuple[int, ...] = ()) -> None:
        self.function, self.got = function, list[tuple[Tensor, ...]]()
        self.spec = SimpleNamespace(operands=(SimpleNamespace(shape=shape),))
        self.knobs, self.objects = {"threads": 1}, {f"{id(self)}"}

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        self.got.append(operands)
        return tuple(self.function(*operands))


def test_parts_go_on_to_the_second_kernel_and_what_is_kept_does_not() -> None:
    lead = Kernel(lambda x, y: (x + 1, x * y, y))
    both = Chained(lead, Kernel(lambda p, q: (p.sum(0) + q,)), keeps=1, aligned=True)
    turned = X.t().contiguous().t()
    first, second = both(turned, Y)
    assert torch.equal(first, X + 1) and torch.equal(second, X.sum(0) + 1)
    assert lead.got[0][0].is_contiguous() and lead.got[0][1] is Y, "copied where it lies otherwise"


def test_a_stack_is_split_and_each_takes_the_operands_that_are_its_own() -> None:
    rest = Kernel(lambda a, b, y: (a * b + y,), shape=(1, 3))
    (found,) = Chained(Kernel(lambda x: (x,)), rest, first=(1,), second=(0,), stacked=True)(Y, X)
    assert torch.equal(found, X[:1] * X[1:] + Y) and len(rest.got[0]) == 3


def test_settings_are_the_leads_and_a_call_is_not() -> None:
    lead, rest = Kernel(tuple), Kernel(tuple)
    both = Chained(lead, rest)
    assert both.knobs is lead.knobs and both.spec is lead.spec and both.objects == lead.objects | rest.objects
    with pytest.raises(AttributeError, match="call"):
        both.call  # noqa: B018
    assert getattr(both, "demand", None) is None, "where the lead has none"
