"""Layer scale with stochastic depth's survival probability: how a CaiT branch joins its shortcut at inference
(arXiv 2103.17239, 1603.09382)."""

import torch
from torch import nn

CASES = [{"batch": 128, "tokens": 3136, "channels": 192}, {"batch": 3, "tokens": 197, "channels": 385}]
CPU_CASES = [{"batch": 8, "tokens": 784, "channels": 384}, {"batch": 2, "tokens": 49, "channels": 97}]


class Model(nn.Module):
    def __init__(self, channels: int, survival: float = 0.9):
        super().__init__()
        self.gamma = nn.Parameter(0.1 * torch.randn(channels))
        self.bias = nn.Parameter(0.1 * torch.randn(channels))
        self.survival = survival

    def forward(self, shortcut: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        return shortcut + self.survival * (self.gamma * (branch + self.bias))


def get_inputs(batch: int, tokens: int, channels: int):
    return [torch.randn(batch, tokens, channels), torch.randn(batch, tokens, channels)]


def get_init_inputs(channels: int, **_):
    return [channels]
