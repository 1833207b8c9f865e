"""Soft-capped logits and the log-probabilities that follow: the head of Gemma 2 (arXiv 2408.00118)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"tokens": 2048, "vocabulary": 64000}, {"tokens": 127, "vocabulary": 9973}]
CPU_CASES = [{"tokens": 128, "vocabulary": 32000}, {"tokens": 19, "vocabulary": 701}]


class Model(nn.Module):
    def __init__(self, cap: float = 30.0):
        super().__init__()
        self.cap = cap

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.cap * torch.tanh(logits / self.cap), dim=-1)


def get_inputs(tokens: int, vocabulary: int):
    return [torch.randn(tokens, vocabulary) * 10]


def get_init_inputs(**_):
    return []
