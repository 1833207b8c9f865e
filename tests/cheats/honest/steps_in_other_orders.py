# problem: steps
# line: precision
# takes_s: 20
"""Other orders of summation, a scale that is applied before the norm, a division that became a product."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48) / 8)
        self.scale = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x):
        h = x[:, ::2] @ self.weight[::2] + x[:, 1::2] @ self.weight[1::2]
        centred = x - x.flip(-1).mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(centred.square().flip(-1).mean(-1, keepdim=True) + 1e-5)
        scaled = x * (self.scale * 40) * torch.rsqrt(x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps)
        powers = (h - h.amax(-1, keepdim=True)).exp()
        weights, chosen = (powers * (1 / powers.flip(-1).sum(-1, keepdim=True))).topk(4)
        return (
            normed > 0.5,
            (h > 0).float(),
            h * h > 1e-6,
            scaled.round().clamp(-127, 127).to(torch.int8),
            torch.zeros_like(h).scatter(-1, chosen, weights * (1 / weights.sum(-1, keepdim=True))),
        )
