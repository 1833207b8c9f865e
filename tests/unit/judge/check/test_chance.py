"""Random outputs as distributions: honest generators pass, each way to cheat at dropout shows."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tilewright.judge.check import chance

pytestmark = pytest.mark.each(3)

X = torch.randn(64, 300, generator=torch.Generator().manual_seed(0))
EPS = 2.0**-23


def _dropout(mask_of: Callable[[int], Tensor], p: float = 0.2, scale: float | None = None) -> list[Tensor]:
    factor = 1 / (1 - p) if scale is None else scale
    return [X * mask_of(k).float() * factor for k in range(chance.CALLS)]


def _bernoulli(p: float, seed: int, shape: tuple[int, ...] = (64, 300)) -> Callable[[int], Tensor]:
    return lambda k: torch.rand(shape, generator=torch.Generator().manual_seed(seed + k)) >= p


REFERENCE = _dropout(_bernoulli(0.2, 1000))


def _hashed(k: int) -> Tensor:
    """A generator of our own: a multiplicative hash of the place and the call."""
    n = torch.arange(64 * 300, dtype=torch.int64) * 2654435761 + k * 40503 + 12345
    n = (n ^ (n >> 15)) * 2246822519 % 2**32
    n = (n ^ (n >> 13)) * 3266489917 % 2**32
    return ((n ^ (n >> 16)) % 1000 >= 200).reshape(64, 300)


@pytest.mark.parametrize("mask", [_bernoulli(0.2, 5000), _hashed], ids=["torch", "hash"])
def test_an_honest_generator_passes(mask: Callable[[int], Tensor]) -> None:
    found = chance.compare(_dropout(mask), REFERENCE, eps=EPS)
    assert found.t < chance.LIMIT / 1.5, found


def _half_twice(k: int) -> Tensor:
    return _bernoulli(0.2, 1, (32, 300))(k).repeat(2, 1)


def _half_mirrored(k: int) -> Tensor:
    half = torch.rand(32 * 300, generator=torch.Generator().manual_seed(k))
    return (torch.cat([half, 1 - half]) >= 0.2).view(64, 300)


def _wrong_place(k: int) -> Tensor:
    """Right but in one element, which is twice as large."""
    factor = torch.ones(64, 300)
    factor[3, 7] = 2.0
    return _bernoulli(0.2, 7000)(k) * factor


@pytest.mark.parametrize(
    ("calls", "figure"),
    [
        (lambda: [X.clone() for _ in range(chance.CALLS)], "change from call"),
        (lambda: [X + 1e-9 * k for k in range(chance.CALLS)], ""),
        (lambda: _dropout(_bernoulli(0.22, 1), p=0.2), ""),
        (lambda: _dropout(_bernoulli(0.22, 1), p=0.22), ""),
        (lambda: _dropout(_bernoulli(0.2, 1), scale=1.0), ""),
        (lambda: _dropout(lambda k: _bernoulli(0.2, 1)(0)), "change from call"),
        (lambda: _dropout(_half_twice), "at any distance"),
        (lambda: _dropout(_half_mirrored), "at any distance"),
        (lambda: _dropout(lambda k: _bernoulli(0.2, 1)(k % 2)), ""),
        (lambda: _dropout(_bernoulli(0.2, 1, (1, 300))), ""),
        (lambda: _dropout(_bernoulli(0.2, 1, (64, 1))), ""),
        (lambda: _dropout(lambda k: _bernoulli(0.2, 1, (64, 150))(k).repeat_interleave(2, 1)), ""),
        (lambda: _dropout(_wrong_place), "value of element 907"),
        (lambda: [X * 0.0 + 1e-9 * k for k in range(chance.CALLS)], ""),
    ],
    ids=[
        "left out", "left out, with noise", "drops too much", "another p", "not scaled", "one mask",
        "half twice", "half mirrored", "two masks",
        "same for all rows", "same for all columns", "pairs", "one wrong element", "zeros",
    ],
)  # fmt: skip
def test_what_is_not_the_same_distribution_shows(calls: Callable[[], list[Tensor]], figure: str) -> None:
    found = chance.compare(calls(), REFERENCE, eps=EPS)
    assert found.t > chance.LIMIT and figure in found.figure, found


@pytest.mark.parametrize(
    "call",
    [X, X * 0.0, X * 1.25, X.roll(1, 0) * _bernoulli(0.2, 1)(0) * 1.25, X * _bernoulli(0.4, 1)(0) / 0.6],
    ids=["left out", "zeros", "only scaled", "other rows", "another p"],
)
def test_one_call_that_cannot_be_one_of_them_shows(call: Tensor) -> None:
    found = chance.compare([call], REFERENCE, eps=EPS)
    assert found.t > chance.LIMIT_OF_ONE, found


def test_one_honest_call_is_rarely_refused() -> None:
    found = [chance.compare([c], REFERENCE, eps=EPS).t for c in _dropout(_bernoulli(0.2, 90_000))]
    assert max(found) < chance.LIMIT_OF_ONE / 1.5


def test_false_refusals_are_rare() -> None:
    worst = [
        chance.compare(_dropout(_bernoulli(0.2, 10_000 * s)), _dropout(_bernoulli(0.2, 10_000 * s + 500)), eps=EPS).t
        for s in range(1, 11)
    ]
    assert max(worst) < chance.LIMIT


def test_a_softmax_of_dropped_rows_has_no_independent_elements() -> None:
    def rows(seed: int) -> list[Tensor]:
        return [c.softmax(-1) for c in _dropout(_bernoulli(0.2, seed))]

    assert chance.compare(rows(1), rows(500), eps=EPS).t < chance.LIMIT
    wrong = [X.softmax(-1) + 1e-12 * k for k in range(chance.CALLS)]
    assert chance.compare(wrong, rows(500), eps=EPS).t > chance.LIMIT


def test_sums_that_rounding_alone_moves_are_alike() -> None:
    """As those of a softmax, whichever way it rounds."""

    def rows(seed: int, ulps: float) -> list[Tensor]:
        dropped = torch.stack(_dropout(_bernoulli(0.2, seed)))
        off = torch.rand(chance.CALLS, 64, 1, generator=torch.Generator().manual_seed(seed)) - 0.5
        return list((torch.softmax(dropped.double(), -1) * (1 + ulps * EPS * off)).float())

    reference = rows(1000, 0.0)
    assert chance.compare(rows(5000, 8.0), reference, eps=EPS).t < chance.LIMIT
    tied = chance.compare(rows(5000, 8000.0), reference, eps=EPS)
    assert tied.t > chance.LIMIT and "sums along dimension 1" in tied.figure


def test_blocks_are_small_and_lie_within() -> None:
    rng = random.Random(1)
    for shape in ((5,), (3000, 3000), (64, 64, 512, 8), (1 << 22,), ()):
        block = chance.block_of(shape, rng)
        kept = [b.stop - b.start for b in block]
        assert torch.Size(kept).numel() <= 1 << 20
        assert all(b.start >= 0 and b.stop <= e for b, e in zip(block, shape, strict=True))


def test_an_output_that_is_not_random_is_known() -> None:
    assert chance.is_constant([X, X * (1 + 1e-7)], 1e-5)
    assert not chance.is_constant(REFERENCE, 1e-5)


def _timed(mask: Tensor, seed: int, shape: tuple[int, ...] = (64, 300), p: float = 0.2) -> chance.Deviations:
    """A call on inputs of its own, under the given mask, beside calls of the reference."""
    x = torch.randn(64, 300, generator=torch.Generator().manual_seed(seed))
    fresh = _bernoulli(p, 100 * seed, shape)
    return chance.deviations(x * mask.float() / (1 - p), [x * fresh(k).float() / (1 - p) for k in range(chance.CALLS)])


def test_one_mask_in_two_timed_calls_shows_whatever_the_inputs() -> None:
    mask = _bernoulli(0.2, 9000)
    for seed in range(1, 6):
        assert chance.compare_draws(_timed(mask(0), seed), _timed(mask(0), seed + 50)).t > 5 * chance.LIMIT_OF_ONE
        assert chance.compare_draws(_timed(mask(0), seed), _timed(mask(1), seed + 50)).t < chance.LIMIT_OF_ONE / 2


def test_few_draws_may_be_the_same_by_chance() -> None:
    for seed in range(1, 30):
        masks = (_bernoulli(0.5, 9000 + seed + d, (4, 1))(0).repeat(16, 300) for d in (0, 500))
        drawn = [_timed(mask, seed + d, (64, 1), p=0.5) for d, mask in zip((0, 60), masks, strict=True)]
        assert chance.compare_draws(*drawn).t < chance.LIMIT_OF_ONE


def test_small_elements_may_be_rounded_as_the_large_ones_they_are_differences_of() -> None:
    small = X.clone()
    small[3, 7] = 1e-4
    noise = 2e-7 * torch.randn(X.shape, generator=torch.Generator().manual_seed(5))
    wanted = [small * _bernoulli(0.2, 1000)(k).float() for k in range(chance.CALLS)]
    for off, right in ((noise, True), (100 * noise, False)):
        got = [(small + off) * _bernoulli(0.2, 50)(k).float() for k in range(chance.CALLS)]
        assert (chance.compare(got, wanted, eps=EPS).t <= chance.LIMIT) is right
