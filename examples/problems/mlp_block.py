"""The feed-forward block of a pre-norm transformer: layer norm, two matrix products around a GELU, residual (GPT-2)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"tokens": 4096, "width": 4096}, {"tokens": 257, "width": 513}]
CPU_CASES = [{"tokens": 512, "width": 512}, {"tokens": 33, "width": 65}]


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.contract(F.gelu(self.expand(self.norm(x)), approximate="tanh"))


def get_inputs(tokens: int, width: int):
    return [torch.randn(tokens, width)]


def get_init_inputs(width: int, **_):
    return [width]
