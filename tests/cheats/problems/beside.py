"""Products beside results that no arithmetic makes as exactly: a norm far from nought, a long sum."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48) / 8)
        self.scale = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x @ self.weight
        norm = F.layer_norm(x + 1e4, (64,))
        long = (x.square() * self.scale).repeat(1, 256).sum(1, keepdim=True)
        return torch.cat((norm, h), 1), norm[:, :48] + h, torch.cat((long, h), 1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(128, 64)]


def get_init_inputs() -> list[int]:
    return []
