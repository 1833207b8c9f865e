"""T5's attention (arXiv 1910.10683): a learned bias for each head and bucket of distances, and no scale."""

import math

import torch
from torch import nn
from torch.nn import functional as F

CASES = [
    {"batch": 16, "heads": 16, "length": 1024, "width": 64, "kind": "bfloat16"},
    {"batch": 3, "heads": 5, "length": 333, "width": 64, "kind": "bfloat16"},
]
CPU_CASES = [
    {"batch": 2, "heads": 8, "length": 256, "width": 64},
    {"batch": 1, "heads": 3, "length": 37, "width": 32},
]
BUCKETS, FARTHEST = 32, 128


class Model(nn.Module):
    def __init__(self, heads: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(BUCKETS, heads, generator=torch.Generator().manual_seed(0)))

    def bias(self, length: int) -> torch.Tensor:
        place = torch.arange(length, device=self.table.device)
        apart = place[None, :] - place[:, None]
        half = BUCKETS // 2
        exact = half // 2
        far = torch.log(apart.abs().clamp(min=1).float() / exact) / math.log(FARTHEST / exact) * (half - exact)
        far = (exact + far.long()).clamp(max=half - 1)
        bucket = (apart > 0).long() * half + torch.where(apart.abs() < exact, apart.abs(), far)
        return F.embedding(bucket, self.table).permute(2, 0, 1).unsqueeze(0)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(query, key.transpose(-1, -2)) + self.bias(query.size(-2)).to(query.dtype)
        return torch.matmul(torch.softmax(scores, dim=-1), value)


def get_inputs(batch: int, heads: int, length: int, width: int, kind: str = "float32"):
    query, key, value = (torch.randn(batch, heads, length, width, dtype=getattr(torch, kind)) for _ in range(3))
    return [query * width**-0.5, key, value]


def get_init_inputs(heads: int, **_):
    return [heads]
