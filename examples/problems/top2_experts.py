"""A top-2 mixture of experts, gated, after the router: tokens go to the experts that were chosen for them (Mixtral,
arXiv 2401.04088)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [
    {"tokens": 8192, "width": 1024, "hidden": 3584, "experts": 8, "kind": "bfloat16"},
    {"tokens": 509, "width": 256, "hidden": 640, "experts": 5, "kind": "bfloat16"},
]
CPU_CASES = [
    {"tokens": 512, "width": 256, "hidden": 512, "experts": 8},
    {"tokens": 37, "width": 32, "hidden": 48, "experts": 3},
]


class Model(nn.Module):
    def __init__(self, width: int, hidden: int, experts: int, kind: str):
        super().__init__()
        made = (torch.randn(experts, *shape) * shape[0] ** -0.5 for shape in ((width, 2 * hidden), (hidden, width)))
        self.into, self.out = (nn.Parameter(weight.to(getattr(torch, kind))) for weight in made)

    def forward(self, x: torch.Tensor, shares: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        for expert in range(self.into.size(0)):
            rows, place = torch.where(choice == expert)
            gate, up = (x[rows] @ self.into[expert]).chunk(2, dim=-1)
            y.index_add_(0, rows, (F.silu(gate) * up) @ self.out[expert] * shares[rows, place, None])
        return y


def get_inputs(tokens: int, width: int, experts: int, kind: str = "float32", **_):
    shares, choice = torch.softmax(torch.randn(tokens, experts), dim=-1).topk(2, dim=-1)
    dtype = getattr(torch, kind)
    return [torch.randn(tokens, width, dtype=dtype), (shares / shares.sum(-1, keepdim=True)).to(dtype), choice]


def get_init_inputs(width: int, hidden: int, experts: int, kind: str = "float32", **_):
    return [width, hidden, experts, kind]
