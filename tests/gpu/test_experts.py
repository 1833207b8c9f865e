"""Rows in stretches, each with a matrix of its own, against float64: lengths of any kind, layouts, tiles, the judge."""

from __future__ import annotations

import sys

import pytest
import torch

from fakes.gemm_model import UNPROMOTED
from fakes.judges import judge_on_gpu
from fakes.realisers import H200
from tilewright.facts.outcome import Timed
from tilewright.facts.pattern import Choice
from tilewright.kernels.cuda.common import math as m
from tilewright.kernels.cuda.gemm.host.grouped import GroupedProduct
from tilewright.kernels.cuda.gemm.host.launch import Epilogue
from tilewright.kernels.cuda.gemm.host.plan import Point
from tilewright.realise.compose import compose
from tilewright.run.matching import found_patterns

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
LENGTHS = ([300, 0, 1, 129, 128, 500], [0, 0, 640, 0], [1] * 40, [7, 64, 63, 65, 1000, 3, 0, 0, 258], [2048])
TILES = (  # and whether warpgroups take turns
    (256, 128, 1, 2, False), (128, 256, 2, 1, False), (256, 192, 1, 2, False), (128, 128, 1, 1, False),
    (64, 64, 1, 1, False), (128, 128, 2, 2, False), (128, 192, 2, 1, True), (128, 128, 1, 1, True),
)  # fmt: skip


def by_expert(x, w, lengths):
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(x.device)
    parts = [x[rows == e].double() @ w[e].double() for e in range(len(lengths))]
    return torch.cat(parts)


def scaled(product, shares, whole):
    return m.add(m.mul(product, shares, "f32"), whole, "f32")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_stretches_of_every_length(tile, turned, dtype):
    names = ("tile_m", "tile_n", "cluster_m", "cluster_n", "pingpong")
    point = Point(**dict(zip(names, tile, strict=True)))
    epilogue = Epilogue(function=scaled, names=("shares", "whole"), dtypes=("f32", "f32"))
    run = GroupedProduct(point, "f32", epilogue)
    for lengths in LENGTHS:
        for n, k in ((264, 192), (72, 1000), (513, 64)):
            total = sum(lengths)
            x = torch.randn(total, k, device="cuda").to(dtype)
            w = torch.randn(len(lengths), *((n, k) if turned else (k, n)), device="cuda").to(dtype)
            w = w.transpose(1, 2) if turned else w
            ends = torch.tensor(lengths, device="cuda").cumsum(0).to(torch.int32)
            shares, whole = torch.rand(total, 1, device="cuda"), torch.randn(total, n, device="cuda")
            truth = by_expert(x, w, lengths) * shares + whole
            error = float((run(x, w, ends, shares, whole).double() - truth).norm() / truth.norm())
            assert error < max(1e-6, UNPROMOTED * k), f"{lengths} {n} x {k}: {error:.3g}"


def test_rows_behind_the_last_end_are_left_alone():
    run = GroupedProduct(Point(tile_m=128, tile_n=128, cluster_m=1), "f32")
    x, w = torch.randn(700, 128, device="cuda").half(), torch.randn(3, 128, 128, device="cuda").half()
    ends = torch.tensor([10, 300, 450], dtype=torch.int32, device="cuda")
    given = torch.full((700, 128), 7.0, device="cuda")
    place = given.data_ptr()
    del given  # what is allocated next is likely this
    found = run(x, w, ends)
    truth = by_expert(x[:450], w, [10, 290, 150])
    assert float((found[:450].double() - truth).norm() / truth.norm()) < 1e-6
    assert found.data_ptr() != place or bool((found[450:] == 7.0).all())


PROBLEM = """
import torch
import torch.nn.functional as F
from torch import nn
CASES = [{"tokens": 2048, "width": 512, "hidden": 1024, "experts": 8}]
class Model(nn.Module):
    def __init__(self, width, hidden, experts):
        super().__init__()
        self.experts = experts
        made = torch.randn(experts, width, 2 * hidden) * width**-0.5, torch.randn(experts, hidden, width) * hidden**-0.5
        self.into, self.out = (nn.Parameter(w.to(torch.bfloat16)) for w in made)
    def forward(self, x, choice):
        order = torch.argsort(choice, stable=True)
        ends = F.one_hot(choice, self.experts).sum(0).cumsum(0).to(torch.int32)
        gate, up = torch._grouped_mm(x[order], self.into, offs=ends).chunk(2, dim=-1)
        y = torch._grouped_mm(F.silu(gate) * up, self.out, offs=ends)
        return torch.empty_like(y).index_copy(0, order, y)
def get_inputs(tokens, width, experts, **_):
    return [torch.randn(tokens, width, dtype=torch.bfloat16), torch.randint(0, experts, (tokens,))]
def get_init_inputs(width, hidden, experts, **_):
    return [width, hidden, experts]
"""


def test_the_judge_takes_both_products_of_a_mixture_of_experts(tmp_path):
    with judge_on_gpu(PROBLEM, tmp_path) as judge:
        cases = judge.open()
        matched = found_patterns(cases, H200)
        products = [p for p in matched[0].patterns if p.kind == "product"]
        assert len(products) == 2, matched[0]
        recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in products)
        timed = judge.evaluate(compose((tmp_path / "problem.py").read_text(), cases, matched, recipe, device=H200))
    assert isinstance(timed, Timed), timed
    print(timed.ratio("eager"), file=sys.stderr)
