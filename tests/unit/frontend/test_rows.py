"""Which modules compute the same for any number of rows: said of those alone where it is so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fakes.modules import Applies
from tilewright.frontend.rows import traced

ROWS, WIDTH = 12, 6


class Scales(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.gain


def free(module: nn.Module, *args: Tensor) -> tuple[str, ...]:
    return traced(module, args, {}).free


def of(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> tuple[str, ...]:
    return free(Applies(function), *(torch.randn(shape) for shape in shapes or ((ROWS, WIDTH),)))


@pytest.mark.slow  # each is exported three times
def test_rows_that_nothing_depends_on_are_free() -> None:
    graph = traced(Applies(lambda x, y: torch.softmax(x, -1) + y), (torch.randn(ROWS, WIDTH), torch.randn(WIDTH)), {})
    names = {n.name: n for n in graph.nodes}
    assert {n for n in names if names[n].shape[:1] == (ROWS,)} == set(graph.free) and len(graph.free) > 3
    assert [n.name for n in graph.nodes if n.op == "input"][1] not in graph.free, "a row that all share"
    assert free(Scales(WIDTH), torch.randn(ROWS, WIDTH))
    assert of(lambda x, y: x * y, (ROWS, WIDTH), (ROWS, 1)) and of(torch.relu, (ROWS, ROWS)), "a square's columns stay"
    assert of(lambda x: x.mean(-1)) and of(lambda x: x.unsqueeze(1).expand(-1, 3, -1) * 2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / x.shape[0],
        lambda x: x - x.mean(0),
        lambda x: x * 2 if x.shape[0] > 10 else x * 3,
        lambda x: x * 2 if x.shape[0] % 2 else x * 3,
        lambda x: x.reshape(-1) * 2.0,
        lambda x: x[:10] * 2.0,
    ],
    ids=["divides", "mean", "large", "odd", "flat", "cut"],
)
def test_rows_that_something_depends_on_are_not(function: Callable[[Tensor], Tensor]) -> None:
    found = of(function)
    assert not found or not set(found) & set(traced(Applies(function), (torch.randn(ROWS, WIDTH),), {}).outputs)


def test_nor_are_those_of_a_parameter_a_single_one_or_other_arguments() -> None:
    assert free(Scales(ROWS, WIDTH), torch.randn(ROWS, WIDTH)) == ()
    assert of(torch.relu, (1, WIDTH)) == ()
    assert traced(Applies(lambda x, k: x * k), (torch.randn(ROWS, WIDTH), 3), {}).free == ()
    assert traced(Scales(WIDTH), (), {"x": torch.randn(ROWS, WIDTH)}).free == ()
