"""Soft Dice loss of a segmentation network, each image on its own (Milletari et al., arXiv 1606.04797)."""

import torch
from torch import nn

CASES = [{"batch": 64, "size": 1024}, {"batch": 5, "size": 509}]
CPU_CASES = [{"batch": 8, "size": 512}, {"batch": 3, "size": 31}]


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        probability = torch.sigmoid(logits)
        overlap = (probability * truth).sum(dim=(1, 2))
        total = probability.square().sum(dim=(1, 2)) + truth.square().sum(dim=(1, 2))
        return 1 - 2 * overlap / (total + 1e-6)


def get_inputs(batch: int, size: int):
    logits = torch.randn(batch, size, size)
    return [logits, (torch.rand(batch, size, size) < 0.3).to(logits.dtype)]


def get_init_inputs(**_):
    return []
