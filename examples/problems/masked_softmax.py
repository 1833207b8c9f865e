"""Attention probabilities with a temperature, a causal mask and a padding mask, written out as in GPT-2's attention."""

import torch
from torch import nn

CASES = [{"batch": 4, "heads": 16, "length": 2048}, {"batch": 2, "heads": 3, "length": 509}]
CPU_CASES = [{"batch": 2, "heads": 4, "length": 768}, {"batch": 2, "heads": 3, "length": 61}]


class Model(nn.Module):
    def __init__(self, length: int, temperature: float = 1.3):
        super().__init__()
        self.register_buffer("causal", torch.ones(length, length, dtype=torch.bool).tril())
        self.temperature = temperature

    def forward(self, scores: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        seen = self.causal & padding[:, None, None, :]
        scores = (scores / self.temperature).masked_fill(~seen, torch.finfo(scores.dtype).min)
        return torch.softmax(scores, dim=-1)


def get_inputs(batch: int, heads: int, length: int):
    lengths = torch.randint(length // 2, length + 1, (batch, 1))
    return [torch.randn(batch, heads, length, length), torch.arange(length)[None, :] < lengths]


def get_init_inputs(length: int, **_):
    return [length]
