"""Where wrong elements lie, told in words."""

from __future__ import annotations

import pytest
import torch

from tilewright.judge.check.contract import located

ALLOWED = (1e-6, 1e-5)


def told(value, truth, **named):
    return located(value, truth, truth.to(value.dtype), **({"allowed": ALLOWED, "slack": None} | named))


def spoilt(shape, *places):
    """A result that is wrong at these places, and its truth."""
    truth = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    value = truth.float()
    for place in places:
        value[place] += 1.0
    return value, truth


@pytest.mark.parametrize(
    ("shape", "place", "said"),
    [
        ((64, 96), (slice(None), slice(90, 96)), "all with dimension 1 at 90 to 95 (the last 6 of 96)"),
        ((64, 96), (slice(0, 8), slice(16, 32)), "all with dimension 0 at 0 to 7 and dimension 1 at 16 to 31"),
        ((64, 96), (slice(3, None, 4),), "all with dimension 0 modulo 4 at 3"),
        ((64, 96), (5, 7), "all with dimension 0 at 5 and dimension 1 at 7"),
        ((4, 3, 50), (slice(None), 1), "all with dimension 1 at 1"),
        ((256,), (slice(None, None, 128),), "all with dimension 0 at 0, 128"),
    ],
)
def test_a_pattern_is_named(shape, place, said):
    value, truth = spoilt(shape, place)
    assert told(value, truth).endswith(said), told(value, truth)


def test_tiles_are_told_by_their_period():
    value, truth = spoilt((512, 40), *(slice(at + 96, at + 128) for at in range(0, 512, 128)))
    assert told(value, truth).endswith("all with dimension 0 modulo 128 at 96 to 127 (the last 32 of 128)")


def test_scattered_elements_are_counted_alone():
    value, truth = spoilt((40, 40), *((i, (7 * i * i) % 40) for i in range(40)))
    assert told(value, truth).startswith("wrong are 40 of 1600 elements (2.5%)")
    assert "dimension 0" not in told(value, truth)


def test_all_none_and_a_scalar():
    value, truth = spoilt((8, 8), slice(None))
    assert told(value, truth) == "all 64 elements are wrong"
    assert told(truth.float(), truth) == ""
    assert told(torch.tensor(2.0), torch.tensor(1.0, dtype=torch.float64)) == "wrong are 1 of 1 elements (100%)"


def test_small_errors_everywhere_break_the_norm_alone():
    truth = torch.ones(16, 16, dtype=torch.float64)
    assert (
        told((truth * (1 + 5e-6)).float(), truth) == "all 256 elements are wrong"
    )  # beyond the norm's, not the worst's


def test_what_is_not_finite_is_wrong_and_slack_is_not():
    value, truth = spoilt((8, 16))
    value[2] = float("nan")
    assert told(value, truth).endswith("all with dimension 0 at 2")
    value, truth = spoilt((8, 16), (slice(1, 3),))
    slack = torch.zeros(8, 16, dtype=torch.float64)
    slack[1] = 2.0
    assert told(value, truth, slack=slack).endswith("all with dimension 0 at 2")


def test_integers_are_compared_exactly():
    truth = torch.arange(64).view(8, 8)
    value = truth.clone()
    value[:, 4:] += 1
    assert located(value, truth, truth, allowed=(0.0, 0.0), slack=None).endswith(
        "all with dimension 1 at 4 to 7 (the last 4 of 8)"
    )
