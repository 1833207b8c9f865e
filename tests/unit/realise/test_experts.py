"""Products of rows in stretches, each with a matrix of its own (`_grouped_mm`): matched, right, and they compile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import run_program
from fakes.realisers import cuda
from tilewright.facts.run import Matched
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.kernels.cuda.gemm.host.grouped import GroupedProduct, grouped_grid
from tilewright.kernels.cuda.gemm.host.plan import Point
from tilewright.realise.gemm.shape import matrices

ENDS = torch.tensor([100, 100, 350, 600, 640], dtype=torch.int32)


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


X, W, SHARES = drawn(640, 256), drawn(5, 512, 256), drawn(640, 1)


def layer(x: Tensor, w: Tensor, ends: Tensor, shares: Tensor) -> Tensor:
    return F.relu(torch._grouped_mm(x, w.transpose(1, 2), offs=ends)) * shares


def matched(function: Any, *args: Tensor) -> Matched:
    return match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space, tiny_bytes=0)


def test_a_mixture_of_experts_is_one_kernel_with_what_follows(tmp_path: Path) -> None:
    found = matched(layer, X, W, ENDS, SHARES)
    (product,) = [p for p in found.patterns if p.kind == "product"]
    assert not found.unmatched and product.title == "grouped_mm -> relu -> mul"
    assert [(o.shape, o.dtype, o.indexed) for o in product.program.operands] == [
        ((640, 256), "bf16", True), ((5, 256, 512), "bf16", True), ((5,), "i32", True), ((640, 1), "bf16", False),
    ]  # fmt: skip
    assert matrices(product.program).ends == "x2"
    points = product.space.points
    assert all(product.space.holds(p) for p in points) and {dict(p)["split_k"] for p in points} == {1}
    assert {dict(p)["store"] for p in points} == {"direct"} and len(set(points)) == len(points)
    assert {dict(p)["schedule"] for p in points} == {"cooperative", "pingpong"}
    given = [X, W.transpose(1, 2), ENDS, SHARES]
    (made,) = run_program(product.program, given)
    rows = torch.repeat_interleave(torch.arange(5), torch.diff(ENDS, prepend=ENDS.new_zeros(1)))
    truth = torch.einsum("mk,mnk->mn", X.double(), W.double()[rows]).relu() * SHARES
    torch.testing.assert_close(made.double(), truth, rtol=2**-7, atol=1e-2)

    module = load_fused(product.program, tmp_path, point(tile="128x128", cluster="2x1", stages="auto", split_k=1))
    like = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in given]
    assert module.run(*like)[0].shape == (640, 512) and len(module._FUSED._compiled) == 1
    told = module._FUSED.demand(132)
    assert told["local_bytes"] == 0 and told["ctas"] == 2 * (3 + 5) * 4, "a tile more for every expert"
    for knobs in ({"split_k": 2}, {"store": "bulk"}, {"schedule": "stream_k"}):
        with pytest.raises(ValueError, match="experts multiply"):
            module.configure(**knobs)


def test_what_is_no_such_product_is_torchs() -> None:
    (product,) = [p for p in matched(layer, X, W, ENDS, SHARES).patterns if p.kind == "product"]
    first, second, *others = product.program.operands
    wide = replace(product.program, operands=(replace(first, dtype="f32"), replace(second, dtype="f32"), *others))
    assert "experts in other types" in str(cuda.unsupported(wide))
    ragged = matched(lambda x, y, ends: torch._grouped_mm(x.t(), y, offs=ends), X, drawn(640, 128), ENDS)
    assert not ragged.patterns, "sums over stretches are another product"


def test_there_are_no_more_clusters_than_tiles_there_may_be_or_fit() -> None:
    wide = Point(tile_m=128, tile_n=256, cluster_m=2)
    assert grouped_grid(wide, 256, 256, experts=8, processors=132).clusters == 9
    assert grouped_grid(wide, 16384, 7168, experts=8, processors=132).clusters == 66


def test_shapes_and_types_are_looked_at() -> None:
    routed = GroupedProduct(Point(tile_m=64, tile_n=64, cluster_m=1), "bf16")
    x, w, ends = (torch.empty(t.shape, dtype=t.dtype, device="meta") for t in (X, W.transpose(1, 2), ENDS))
    for given in ((x, w, ends[:4]), (x, w, ends.long()), (x[:, :8], w, ends), (x[None], w, ends)):
        with pytest.raises(ValueError, match="no product"):
            routed(*given)
    with pytest.raises(ValueError, match="f16 or bf16"):
        routed(x.float(), w.float(), ends)
