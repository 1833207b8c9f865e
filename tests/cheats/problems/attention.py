"""Attention with a mask that leaves some rows nothing."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.mT / 4).masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ v


def get_inputs() -> list[torch.Tensor]:
    return [*(torch.randn(2, 4, 32, 16) for _ in range(3)), torch.ones(32, 32, dtype=torch.bool).tril(-1)]


def get_init_inputs() -> list[int]:
    return []
