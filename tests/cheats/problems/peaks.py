"""Where a row has a peak that no plain draw ever has."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (16384,)) > 100


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(64, 16384)]


def get_init_inputs() -> list[int]:
    return []
