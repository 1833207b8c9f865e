"""GeGLU with the projection's bias: value * gelu(gate), as in T5 1.1 and diffusion transformers (arXiv 2002.05202)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"tokens": 16384, "hidden": 5120}, {"tokens": 1023, "hidden": 2731}]
CPU_CASES = [{"tokens": 1024, "hidden": 2560}, {"tokens": 29, "hidden": 333}]


class Model(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(2 * hidden) * 0.1)

    def forward(self, projected: torch.Tensor) -> torch.Tensor:
        value, gate = (projected + self.bias).chunk(2, dim=-1)
        return value * F.gelu(gate)


def get_inputs(tokens: int, hidden: int):
    return [torch.randn(tokens, 2 * hidden)]


def get_init_inputs(hidden: int, **_):
    return [hidden]
