"""A LAMB step of many layers at once: each layer's update is scaled by the norms of its weights and of the update
itself (arXiv 1904.00962), so nothing can be written before all of a layer was read."""

import torch
from torch import nn

CASES = [{"layers": 24, "count": 1048576}, {"layers": 7, "count": 100003}]
CPU_CASES = [{"layers": 8, "count": 131072}, {"layers": 3, "count": 1009}]


class Model(nn.Module):
    def __init__(
        self, rate: float = 2e-3, beta1: float = 0.9, beta2: float = 0.999, decay: float = 0.01, step: int = 100
    ):
        super().__init__()
        self.rate, self.beta1, self.beta2, self.decay = rate, beta1, beta2, decay
        self.unbias1 = 1 / (1 - beta1**step)
        self.unbias2 = 1 / (1 - beta2**step)

    def forward(self, weight: torch.Tensor, gradient: torch.Tensor, first: torch.Tensor, second: torch.Tensor):
        first = self.beta1 * first + (1 - self.beta1) * gradient
        second = self.beta2 * second + (1 - self.beta2) * gradient * gradient
        update = first * self.unbias1 / (torch.sqrt(second * self.unbias2) + 1e-6) + self.decay * weight
        norms = [torch.linalg.vector_norm(t, dim=-1, keepdim=True) for t in (weight, update)]
        return weight - self.rate * norms[0] / norms[1] * update, first, second


def get_inputs(layers: int, count: int):
    weight, gradient = torch.randn(layers, count) * 0.02, torch.randn(layers, count)
    return [weight, gradient, torch.randn(layers, count) * 0.1, torch.rand(layers, count) * 0.1]


def get_init_inputs(**_):
    return []
