"""SwiGLU: silu(gate) * up on the halves of one projection, as in Llama's feed-forward (Shazeer, arXiv 2002.05202)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [
    {"tokens": 8192, "hidden": 11008},
    {"tokens": 509, "hidden": 1367},
    {"tokens": 8192, "hidden": 14336, "dtype": "bfloat16"},
]
CPU_CASES = [{"tokens": 512, "hidden": 5504}, {"tokens": 37, "hidden": 171}]


class Model(nn.Module):
    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


def get_inputs(tokens: int, hidden: int, dtype: str = "float32"):
    return [torch.randn(tokens, 2 * hidden, dtype=getattr(torch, dtype))]


def get_init_inputs(**_):
    return []
