"""Scaled residual and LayerNorm, layer_norm(alpha * x + f(x)): DeepNet's way to 1000 layers (arXiv 2203.00555)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"tokens": 16384, "width": 5120}, {"tokens": 1019, "width": 1025}]
CPU_CASES = [{"tokens": 1024, "width": 2560}, {"tokens": 67, "width": 257}]


class Model(nn.Module):
    def __init__(self, width: int, layers: int = 24):
        super().__init__()
        self.alpha = (2.0 * layers) ** 0.25
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))
        self.bias = nn.Parameter(0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(self.alpha * x + branch, self.weight.shape, self.weight, self.bias)


def get_inputs(tokens: int, width: int):
    return [torch.randn(tokens, width), torch.randn(tokens, width)]


def get_init_inputs(width: int, **_):
    return [width]
