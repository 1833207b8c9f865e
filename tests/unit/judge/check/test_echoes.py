"""Numbers that were drawn once and used again show, wherever they come again; honest generators pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from tilewright.judge.check import echoes
from tilewright.judge.memory.sameness import one_thread

P, EPS = 0.2, 2.0**-23
Drawn = Callable[[torch.Generator], Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def _echo(
    drawn: Drawn, honest: Drawn, known: tuple[echoes.Ranks, ...] = (), calls: int = 2, seed: int = 1
) -> tuple[echoes.Echo, echoes.Ranks]:
    """What is found in calls that draw so, beside calls that draw honestly, on inputs of both signs."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(honest(source).shape, generator=source)
    wanted = [(x * honest(source)).double() for _ in range(12)]
    got = [(x * drawn(source)).double() for _ in range(calls)]
    return echoes.strongest(got, wanted, eps=EPS, rng=random.Random(2), known=known)


def _honest(source: torch.Generator) -> Tensor:
    return torch.rand(64, 300, generator=source) >= P


def _backwards(source: torch.Generator) -> Tensor:
    half = torch.rand(9600, generator=source)
    return torch.cat([half, half.flip(0)]).view(64, 300) >= P


def _inverted(source: torch.Generator) -> Tensor:
    half = torch.rand(9600, generator=source)
    return torch.cat([half, 1 - half.flip(0)]).view(64, 300) >= P


def _rows_turned(source: torch.Generator) -> Tensor:
    half = torch.rand(32, 300, generator=source)
    return torch.cat([half, half.flip(1)[torch.randperm(32, generator=source)]]) >= P


def _rows_shifted(source: torch.Generator) -> Tensor:
    row = torch.rand(300, generator=source)
    return torch.stack([row.roll(int(torch.randint(300, (1,), generator=source))) for _ in range(64)]) >= P


def _band(source: torch.Generator) -> Tensor:
    band = torch.rand(2113, generator=source)
    starts = torch.randint(0, 1813, (64, 1), generator=source)
    return band[starts + torch.arange(300)] >= P


def _columns_turned(source: torch.Generator) -> Tensor:
    half = torch.rand(300, 40, generator=source)
    return torch.cat([half, half.flip(0)[:, torch.randperm(40, generator=source)]], 1) >= P


def _next_shifted() -> Drawn:
    drawn = torch.rand(19200, generator=torch.Generator().manual_seed(5))
    turns = iter(range(100))
    return lambda source: drawn.roll(1009 * next(turns)).view(64, 300) >= P


@pytest.mark.parametrize(
    ("drawn", "figure"),
    [
        (_backwards, "repetition backwards"),
        (_inverted, "repetition backwards"),
        (_rows_turned, "repetition backwards of"),
        (_rows_shifted, "repetition"),
        (_band, "repetition of 300 elements along dimension 1"),
        (_columns_turned, "repetition backwards of"),
        (_next_shifted(), "repetition of another call"),
    ],
)
def test_what_is_used_again_shows(drawn: Drawn, figure: str) -> None:
    shape = drawn(torch.Generator().manual_seed(0)).shape
    found, _ = _echo(drawn, lambda source: torch.rand(shape, generator=source) >= P)
    assert found.score > 1.2 * echoes.LIMIT and found.figure.startswith(figure), found


def test_an_honest_generator_passes() -> None:
    found, ranks = _echo(_honest, _honest)
    again, _ = _echo(_honest, _honest, known=(ranks,), calls=1, seed=2)
    assert max(found.score, again.score) < echoes.LIMIT / 2


def test_a_later_call_that_repeats_an_earlier_one_backwards_shows_whatever_the_inputs() -> None:
    mask = torch.rand(64, 300, generator=torch.Generator().manual_seed(9)) >= P
    _, ranks = _echo(lambda source: mask, _honest, calls=1)
    found, _ = _echo(lambda source: mask.flip(0, 1), _honest, known=(ranks,), calls=1, seed=2)
    assert found.figure == "repetition of another call backwards" and found.score > 5 * echoes.LIMIT


def test_what_the_reference_ties_together_counts_as_one() -> None:
    def channels(source: torch.Generator) -> Tensor:
        return (torch.rand(16, 64, 1, 1, generator=source) >= P).expand(16, 64, 4, 5)

    def half(source: torch.Generator) -> Tensor:
        drawn = torch.rand(512, generator=source)
        return (torch.cat([drawn, drawn.flip(0)]).view(16, 64, 1, 1) >= P).expand(16, 64, 4, 5)

    assert _echo(channels, channels)[0].score < echoes.LIMIT / 2
    assert _echo(half, channels)[0].score > 1.2 * echoes.LIMIT


def test_where_the_reference_echoes_nothing_is_held_against_others() -> None:
    assert _echo(_backwards, _backwards)[0].score == 0.0


def test_where_the_module_ties_elements_together_nothing_is_said() -> None:
    """A softmax of noise moves whole rows, and rows of large numbers look alike."""
    for seed in range(3):
        source = torch.Generator().manual_seed(seed)
        x = torch.randn(64, 300, generator=source)
        calls = [
            torch.softmax(x - torch.empty(64, 300).exponential_(generator=source).log(), -1).double() for _ in range(14)
        ]
        found, _ = echoes.strongest(calls[:2], calls[2:], eps=EPS, rng=random.Random(seed))
        assert found.score == 0.0


def test_a_score_is_a_bound_on_chance() -> None:
    """Of sums of independent signs, as many lie above a score as it says, or fewer."""
    source = torch.Generator().manual_seed(3)
    sums = torch.randint(0, 2, (20000, 200), generator=source).mul_(2).sub_(1).sum(1).float()
    for wanted in (10.0, 20.0, 30.0):
        bound = 2 * torch.exp(torch.tensor(-echoes._score(torch.tensor([wanted]), 200.0, 1.0))) / 2
        assert float((sums.abs() >= wanted).double().mean()) <= float(bound) * 1.1
