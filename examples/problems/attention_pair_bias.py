"""Gated attention along rows of a pair representation, as in AlphaFold (doi 10.1038/s41586-021-03819-2, supplement,
algorithm 13): a bias of the pairs for each head, a mask of keys, and a gate on what comes out."""

import torch
from torch import nn

CASES = [
    {"rows": 256, "heads": 4, "length": 256, "width": 32, "kind": "bfloat16"},
    {"rows": 37, "heads": 3, "length": 101, "width": 32, "kind": "bfloat16"},
]
CPU_CASES = [
    {"rows": 32, "heads": 4, "length": 128, "width": 32},
    {"rows": 3, "heads": 2, "length": 37, "width": 32},
]


class Model(nn.Module):
    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        scores = torch.einsum("rqhc,rkhc->rhqk", query, key) * query.size(-1) ** -0.5
        scores = scores + 1e4 * (mask - 1)[:, None, None, :] + bias.permute(2, 0, 1)[None]
        made = torch.einsum("rhqk,rkhc->rqhc", torch.softmax(scores, dim=-1), value)
        return torch.sigmoid(gate) * made


def get_inputs(rows: int, heads: int, length: int, width: int, kind: str = "float32"):
    dtype = getattr(torch, kind)
    rows_of = [torch.randn(rows, length, heads, width, dtype=dtype) for _ in range(4)]
    bias = torch.randn(length, length, heads, dtype=dtype)
    return [*rows_of, bias, (torch.rand(rows, length) > 0.1).to(dtype)]


def get_init_inputs(**_):
    return []
