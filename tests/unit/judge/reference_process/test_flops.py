"""Flops of what torch has no figure for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tilewright.judge.candidate_process.step import tensors_of
from tilewright.judge.reference_process.flops import COUNTED, flops_of, is_counted
from tilewright.judge.reference_process.work import measure

aten = torch.ops.aten


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize("groups", [8, 2])
def test_attention_with_shared_heads_counts_each_query_head(kind: str, groups: int) -> None:
    packet = getattr(aten, f"_scaled_dot_product_{kind}_attention")
    q, k, v = (torch.empty(2, heads, size, 16, device="meta") for heads, size in ((8, 32), (groups, 48), (groups, 48)))
    assert flops_of(packet, (q, k, v), {}, q) == 2 * (2 * 8 * 32 * 48) * (16 + 16)
    backward = getattr(aten, f"_scaled_dot_product_{kind}_attention_backward")
    assert is_counted(backward) and COUNTED[backward](q.shape, q.shape, k.shape, v.shape) == 2 * 2 * 8 * 32 * 48 * 80


def test_a_call_of_grouped_attention_is_measured() -> None:
    q, k, v = torch.randn(2, 8, 32, 16), torch.randn(2, 2, 32, 16), torch.randn(2, 2, 32, 16)

    def call() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    seen = measure(call, [q, k, v], tensors_of)
    assert seen.work.matmul_flops == 2 * (2 * 8 * 32 * 32) * 32 and seen.longest_sum >= 32
