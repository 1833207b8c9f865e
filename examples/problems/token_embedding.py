"""The input of a transformer: token embeddings, scaled, and learned positions (Vaswani et al., arXiv 1706.03762)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [
    {"batch": 64, "length": 4096, "words": 50257, "width": 1024},
    {"batch": 3, "length": 517, "words": 1009, "width": 70},
]
CPU_CASES = [
    {"batch": 8, "length": 1024, "words": 8192, "width": 512},
    {"batch": 2, "length": 37, "words": 101, "width": 30},
]


class Model(nn.Module):
    def __init__(self, length: int, words: int, width: int):
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(words, width))
        self.positions = nn.Parameter(torch.randn(length, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.tokens) * self.tokens.shape[1] ** 0.5 + self.positions


def get_inputs(batch: int, length: int, words: int, width: int):
    return [torch.randint(0, words, (batch, length))]


def get_init_inputs(length: int, words: int, width: int, **_):
    return [length, words, width]
