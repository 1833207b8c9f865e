"""GELU in its tanh form, written out: the activation of GPT-2 and minGPT (Hendrycks and Gimpel, arXiv 1606.08415)."""

import math

import torch
from torch import nn

CASES = [
    {"rows": 16384, "width": 8192},
    {"rows": 1021, "width": 4099},
    {"rows": 8192, "width": 8192, "dtype": "bfloat16"},
]
CPU_CASES = [{"rows": 1024, "width": 3072}, {"rows": 61, "width": 769}]


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def get_inputs(rows: int, width: int, dtype: str = "float32"):
    return [torch.randn(rows, width, dtype=getattr(torch, dtype))]


def get_init_inputs(**_):
    return []
