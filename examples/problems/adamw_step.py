"""One AdamW step on a flat parameter: three tensors from four old ones (Loshchilov and Hutter, arXiv 1711.05101)."""

import torch
from torch import nn

CASES = [{"count": 67108864}, {"count": 1000003}]
CPU_CASES = [{"count": 1048576}, {"count": 10007}]


class Model(nn.Module):
    def __init__(
        self, rate: float = 3e-4, beta1: float = 0.9, beta2: float = 0.95, decay: float = 0.1, step: int = 100
    ):
        super().__init__()
        self.rate, self.beta1, self.beta2, self.decay = rate, beta1, beta2, decay
        self.unbias1 = 1 / (1 - beta1**step)
        self.unbias2 = 1 / (1 - beta2**step)

    def forward(self, parameter: torch.Tensor, gradient: torch.Tensor, first: torch.Tensor, second: torch.Tensor):
        first = self.beta1 * first + (1 - self.beta1) * gradient
        second = self.beta2 * second + (1 - self.beta2) * gradient * gradient
        update = first * self.unbias1 / (torch.sqrt(second * self.unbias2) + 1e-8)
        return parameter - self.rate * (update + self.decay * parameter), first, second


def get_inputs(count: int):
    return [torch.randn(count), torch.randn(count), torch.randn(count) * 0.1, torch.rand(count) * 0.1]


def get_init_inputs(**_):
    return []
