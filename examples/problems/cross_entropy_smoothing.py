"""Cross entropy over a vocabulary with label smoothing: a language model's loss (Szegedy et al., arXiv 1512.00567)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"tokens": 8192, "vocabulary": 32000}, {"tokens": 251, "vocabulary": 50257}]
CPU_CASES = [{"tokens": 256, "vocabulary": 32000}, {"tokens": 31, "vocabulary": 1009}]


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=0.1)


def get_inputs(tokens: int, vocabulary: int):
    return [torch.randn(tokens, vocabulary) * 3, torch.randint(0, vocabulary, (tokens,))]


def get_init_inputs(**_):
    return []
