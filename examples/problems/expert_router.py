"""Top-1 routing of tokens to experts: probabilities, the gate and the chosen expert (Switch, arXiv 2101.03961)."""

import torch
from torch import nn

CASES = [{"tokens": 2097152, "experts": 64}, {"tokens": 10007, "experts": 61}]
CPU_CASES = [{"tokens": 65536, "experts": 64}, {"tokens": 211, "experts": 7}]


class Model(nn.Module):
    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        probabilities = torch.softmax(logits, dim=-1)
        return probabilities, probabilities.amax(dim=-1), logits.argmax(dim=-1)


def get_inputs(tokens: int, experts: int):
    return [torch.randn(tokens, experts)]


def get_init_inputs(**_):
    return []
