"""Gradients that jump, and such as are nought but for rounding."""

from __future__ import annotations

import torch

from tilewright.judge.check import gradients


def test_the_share_of_jumps_counts_what_is_large_beside_the_gradient() -> None:
    truth = torch.tensor([1.0, 1.0, 1e-6, 1.0], dtype=torch.float64)
    slack = torch.tensor([1e-6, 1.0, 1e-4, 0.02], dtype=torch.float64)  # the third is small beside the typical one
    assert gradients.jumps(slack, truth) == 0.5
    assert gradients.jumps(torch.zeros(0), torch.zeros(0)) == 0.0


def test_a_gradient_that_is_nought_may_be_noise_of_the_references_size() -> None:
    truth = torch.full((100,), 1e-17, dtype=torch.float64)
    own = torch.full((100,), 1e-7)
    allowed = gradients.noise(own, truth, scale=1.0)
    assert 5e-6 < allowed < 7e-6
    assert gradients.noise(torch.zeros(100), truth, scale=1.0) == torch.finfo(torch.float32).eps


def test_a_small_gradient_is_no_noise() -> None:
    truth = torch.full((100,), 1e-6, dtype=torch.float64)
    assert gradients.noise(truth.float(), truth, scale=1.0) == 0.0
