"""Sigmoid focal loss over dense anchors, written out as in RetinaNet (Lin et al., arXiv 1708.02002)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"anchors": 1600000, "classes": 80}, {"anchors": 9973, "classes": 91}]
CPU_CASES = [{"anchors": 40000, "classes": 80}, {"anchors": 199, "classes": 7}]


class Model(nn.Module):
    def __init__(self, alpha: float = 0.25):
        super().__init__()
        self.alpha = alpha

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        probability = torch.sigmoid(logits)
        loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        right = probability * targets + (1 - probability) * (1 - targets)
        weight = self.alpha * targets + (1 - self.alpha) * (1 - targets)
        return (weight * loss * (1 - right).square()).mean()


def get_inputs(anchors: int, classes: int):
    logits = torch.randn(anchors, classes)
    return [logits, (torch.rand(anchors, classes) < 0.05).to(logits.dtype)]


def get_init_inputs(**_):
    return []
