"""The first of a row in order (top-k) on a GPU: torch's values to the bit, and of equals the first, over shapes,
dtypes, layouts, knobs and edge values."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import cuda
from tilewright.facts.space import point

SHAPES = {
    "of one": ((5, 1), 1, -1, "f32"),
    "all of few": ((300, 3), 3, -1, "f32"),
    "all of 64": ((70, 64), 64, -1, "f16"),
    "one of odd rows": ((77, 1003), 1, -1, "f32"),
    "routes": ((4096, 256), 8, -1, "f32"),
    "routes in bf16": ((5000, 61), 6, -1, "bf16"),
    "32 of one warp's row": ((500, 1024), 32, -1, "f32"),
    "33 of odd rows": ((301, 10007), 33, -1, "bf16"),
    "a vocabulary": ((64, 128256), 50, -1, "bf16"),
    "64 of long rows": ((150, 65536), 64, -1, "f32"),
    "long odd rows": ((40, 300001), 64, -1, "f16"),
    "one row": ((1 << 20,), 64, -1, "f32"),
    "one odd row": ((1000003,), 7, -1, "bf16"),
    "few rows": ((3, 2500000), 40, -1, "f32"),
    "whole numbers": ((100, 3001), 20, -1, "i32"),
    "bytes": ((100, 3000), 64, -1, "i8"),
    "columns": ((4, 557, 83), 5, 1, "f32"),
    "outermost": ((1000, 64), 9, 0, "f16"),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("candidate")


def holds(x, count, dim, op, results):
    """Of equals the first: a stable sort, for which all NaN are the same, and both zeros."""
    x = torch.where(x.isnan(), nan, x + 0.0) if x.is_floating_point() else x
    values, places = results
    wanted = x.sort(dim=dim, descending=op == "largest", stable=True)
    torch.testing.assert_close(values, wanted.values.narrow(dim, 0, count), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(places, wanted.indices.narrow(dim, 0, count))
    assert values.is_contiguous() and places.is_contiguous()


@pytest.mark.parametrize("op", ["largest", "smallest"])
@pytest.mark.parametrize("name", list(SHAPES))
def test_every_point(name, op, folder):
    shape, count, dim, dtype = SHAPES[name]
    program = kp.ranked(shape, count, dim, op=op, dtype=dtype)
    (x,) = kp.make_operands(program, "cuda")
    module = load_fused(program, folder)
    points = cuda.space(program).points
    for settings in points if op == "largest" else points[:1]:
        module.configure(**dict(settings))
        holds(x, count, dim, op, module.run(x))


@pytest.mark.parametrize("cta_split", ["none", "split"])
@pytest.mark.parametrize("count", [1, 8, 64])
def test_spreads(count, cta_split, folder):
    program = kp.ranked((20, 50021), count)
    (x,) = kp.make_operands(program, "cuda", seed=1)
    for threads in (128, 1024):
        settings = point(threads=threads, unroll=2, row_storage="auto", cta_split=cta_split)
        holds(x, count, 1, "largest", load_fused(program, folder, settings).run(x))


def rows(width):
    """Noise, sorted both ways, ties, NaN, infinities, zeros of both signs, nothing but one of them."""
    x = torch.randn(14, width, device="cuda")
    x[1], x[2] = x[1].sort().values, x[2].sort(descending=True).values
    x[3] = x[3].round()
    x[4, ::7], x[5, ::3], x[6, ::3] = nan, inf, -inf
    x[7], x[8], x[9], x[10] = nan, -inf, inf, 2.5
    x[11] = torch.where(x[11] > 0, 0.0, -0.0)
    x[12, : width // 2], x[12, width // 2 :] = -inf, nan
    x[13] = x[13].relu() * 1e-40
    return x


@pytest.mark.parametrize("op", ["largest", "smallest"])
@pytest.mark.parametrize("width", [64, 99, 1000, 20001, 400000])
def test_edge_values(width, op, folder):
    x = rows(width)
    for count in (1, 20, 64):
        holds(x, count, 1, op, load_fused(kp.ranked((14, width), count, op=op), folder).run(x))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_narrow_number(dtype, folder):
    every = torch.arange(65536, device="cuda").to(torch.int16).view(kp.TORCH[dtype])
    x = torch.stack([every, every.flip(0), every[torch.randperm(65536, device="cuda")]])
    for op in ("largest", "smallest"):
        holds(x, 64, 1, op, load_fused(kp.ranked((3, 65536), 64, op=op, dtype=dtype), folder).run(x))


@pytest.mark.parametrize("shape", [(4096, 256), (100, 1003), (64, 40000), (2, 700001)], ids=str)
def test_of_what_is_made_in_the_same_kernel(shape, folder):
    """The first of a softmax: those of its argument, but for neighbours whose probabilities are the same in fp32."""
    program = kp.ranked(shape, 8, fused=True)
    (x,) = kp.make_operands(program, "cuda")
    module = load_fused(program, folder)
    truth = torch.softmax(x.double(), -1)
    for settings in cuda.space(program).points:
        module.configure(**dict(settings))
        values, places = module.run(x)
        torch.testing.assert_close(values.double(), truth.topk(8).values, rtol=5e-6, atol=0)
        torch.testing.assert_close(truth.gather(1, places), truth.topk(8).values, rtol=5e-6, atol=0)
        assert bool((places.sort(1).values.diff(dim=1) > 0).all()), "an element is chosen once"


def test_layouts_and_streams(folder):
    x = torch.randn(301, 1003, device="cuda")
    module = load_fused(kp.ranked((301, 1003), 10), folder)
    wide = torch.zeros(301, 2006, device="cuda")
    wide[:, ::2] = x
    shifted = torch.empty(x.numel() + 1, device="cuda")[1:].view(x.shape).copy_(x)
    for given in (x.t().contiguous().t(), wide[:, ::2], shifted, x[:1].expand(x.shape)):
        holds(given, 10, 1, "largest", module.run(given))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = module.run(x)
    x.normal_()
    graph.replay()
    holds(x, 10, 1, "largest", results)


def test_repeats_to_the_last_bit(folder):
    for shape in ((640, 32768), (2, 1 << 21)):
        x = torch.randn(shape, device="cuda").round()
        module = load_fused(kp.ranked(shape, 64), folder)
        first = module.run(x)
        for _ in range(10):
            assert all(torch.equal(a, b) for a, b in zip(first, module.run(x), strict=True))
