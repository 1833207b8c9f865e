"""Routing of tokens to their best experts, weighted among these alone (Mixtral, arXiv 2401.04088)."""

import torch
from torch import nn

CASES = [{"tokens": 2097152, "experts": 64, "chosen": 8}, {"tokens": 10007, "experts": 61, "chosen": 3}]
CPU_CASES = [{"tokens": 65536, "experts": 64, "chosen": 8}, {"tokens": 211, "experts": 7, "chosen": 2}]


class Model(nn.Module):
    def __init__(self, chosen: int, temperature: float = 0.5):
        super().__init__()
        self.chosen, self.temperature = chosen, temperature

    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, experts = torch.topk(logits / self.temperature, self.chosen, dim=-1)
        return torch.softmax(values, dim=-1), experts


def get_inputs(tokens: int, experts: int, **_):
    return [torch.randn(tokens, experts)]


def get_init_inputs(chosen: int, **_):
    return [chosen]
