"""Triplet loss on unit-length embeddings with squared distances, as in FaceNet (Schroff et al., arXiv 1503.03832)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"triplets": 65536, "width": 1024}, {"triplets": 1009, "width": 127}]
CPU_CASES = [{"triplets": 8192, "width": 512}, {"triplets": 41, "width": 63}]


class Model(nn.Module):
    def __init__(self, margin: float = 0.2):
        super().__init__()
        self.margin = margin

    def forward(self, anchor: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        anchor, positive, negative = (F.normalize(x, dim=1) for x in (anchor, positive, negative))
        near = (anchor - positive).square().sum(dim=1)
        far = (anchor - negative).square().sum(dim=1)
        return F.relu(near - far + self.margin).mean()


def get_inputs(triplets: int, width: int):
    return [torch.randn(triplets, width) for _ in range(3)]


def get_init_inputs(**_):
    return []
