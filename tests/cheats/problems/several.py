"""Several outputs of several types: a dictionary of maxima, where they stand, and how many are positive."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor | tuple[torch.Tensor, ...]]:
        values, places = x.max(-1)
        return {"top": (values, places), "positive": (x > 0).sum(-1)}


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(64, 300)]


def get_init_inputs() -> list[int]:
    return []
