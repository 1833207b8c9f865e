"""Residual add and RMSNorm, the seam between two layers of a Llama block; returns the normed rows and the new residual
(Zhang and Sennrich, arXiv 1910.07467)."""

import torch
from torch import nn

CASES = [
    {"tokens": 16384, "width": 4096},
    {"tokens": 1021, "width": 4097},
    {"tokens": 16384, "width": 4096, "dtype": "bfloat16"},
]
CPU_CASES = [{"tokens": 1024, "width": 2048}, {"tokens": 61, "width": 513}]


class Model(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width, dtype=dtype))
        self.eps = eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        residual = residual + x
        scale = torch.rsqrt(residual.pow(2).mean(-1, keepdim=True) + self.eps)
        return residual * scale * self.weight, residual


def get_inputs(tokens: int, width: int, dtype: str = "float32"):
    return [torch.randn(tokens, width, dtype=getattr(torch, dtype)) for _ in range(2)]


def get_init_inputs(width: int, dtype: str = "float32", **_):
    return [width, getattr(torch, dtype)]
