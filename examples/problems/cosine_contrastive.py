"""Cosine embedding loss: pairs of target +1 are drawn together, others pushed below a margin (sentence encoders)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"pairs": 131072, "width": 1024}, {"pairs": 1013, "width": 383}]
CPU_CASES = [{"pairs": 8192, "width": 768}, {"pairs": 47, "width": 101}]


class Model(nn.Module):
    def __init__(self, margin: float = 0.1):
        super().__init__()
        self.margin = margin

    def forward(self, left: torch.Tensor, right: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        similarity = F.cosine_similarity(left, right, dim=1)
        return torch.where(target > 0, 1 - similarity, torch.clamp(similarity - self.margin, min=0)).mean()


def get_inputs(pairs: int, width: int):
    left = torch.randn(pairs, width)
    return [left, left * 0.2 + torch.randn(pairs, width), torch.randint(0, 2, (pairs,)) * 2 - 1]


def get_init_inputs(**_):
    return []
