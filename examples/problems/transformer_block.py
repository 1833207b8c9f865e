"""A small pre-norm transformer block with causal attention written out, as in minGPT."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"batch": 8, "length": 1024, "width": 768, "heads": 12}, {"batch": 3, "length": 129, "width": 192, "heads": 3}]
CPU_CASES = [{"batch": 2, "length": 256, "width": 256, "heads": 4}, {"batch": 1, "length": 37, "width": 48, "heads": 3}]


class Model(nn.Module):
    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("causal", torch.ones(length, length, dtype=torch.bool).tril())

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        weights = F.softmax(scores.masked_fill(~self.causal, float("-inf")), dim=-1)
        return self.project((weights @ v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


def get_inputs(batch: int, length: int, width: int, **_):
    return [torch.randn(batch, length, width)]


def get_init_inputs(length: int, width: int, heads: int, **_):
    return [width, heads, length]
