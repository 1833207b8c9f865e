"""Convolutions by the skeleton `conv`: what is taken and what is refused, points, and the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.realisers import H200, cuda
from tilewright.facts.devices import DEVICES
from tilewright.facts.pattern import Pattern
from tilewright.facts.space import Space, point
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.kernels.cuda.conv.tiles import make_points
from tilewright.realise.conv.points import ranked_points, work_ns
from tilewright.realise.conv.renderer import fits, shape_of, space
from tilewright.realise.realiser import Fit, Refused


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def convolved(function: Any, *args: Tensor) -> Pattern:
    """The convolution of a function, whether a realiser takes it or not."""
    graph = trace(Applies(function), args, {})
    matched = match(graph, unsupported=lambda p: None, space=lambda p: Space(knobs=(), points=((),)), tiny_bytes=0)
    return next(p for p in matched.patterns if p.kind == "convolution")


X, W = rand(8, 64, 30, 29), rand(128, 64, 3, 3)


def test_the_shape_of_a_convolution_is_read_off_its_accesses() -> None:
    found = convolved(lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(0, 2), dilation=(1, 2), groups=2).relu(),
                      X, rand(64, 32, 3, 3))  # fmt: skip
    read = shape_of(found.program)
    assert read is not None
    shape, transposed, channels_last = read
    assert (shape.batch, shape.groups, shape.channels, shape.columns) == (8, 2, 32, 32)
    assert not transposed and not channels_last
    assert (shape.image, shape.out, shape.taps) == ((1, 30, 29), (1, 14, 29), (1, 3, 3))
    assert (shape.stride, shape.start, shape.step) == ((1, 2, 1), (0, 0, -2), (1, 1, 2))
    backwards = shape_of(convolved(lambda x, w: F.conv_transpose2d(x, w, padding=1), X, rand(64, 32, 3, 3)).program)
    assert backwards is not None and backwards[1]
    assert (backwards[0].start, backwards[0].step, backwards[0].columns) == ((0, 1, 1), (1, -1, -1), 32)
    apart = shape_of(convolved(lambda x, w: F.conv_transpose2d(x, w, stride=(2, 1)), X, rand(64, 32, 3, 3)).program)
    assert apart is not None and apart[0].spread == (1, 2, 1) and apart[0].stride == (1, 1, 1)


@pytest.mark.parametrize(
    ("why", "function", "args"),
    [
        ("groups of 1 channels", lambda x, w: F.conv2d(x, w, groups=64), (X, rand(320, 1, 3, 3))),
        ("of 36 phases", lambda x, w: F.conv_transpose2d(x, w, stride=6), (X, rand(64, 32, 3, 3))),
        ("all launch", F.conv2d, (X[:1, :, :5, :5], W)),
        ("more than 32 taps", F.conv1d, (rand(8, 8, 4000), rand(64, 8, 33))),
    ],
)  # fmt: skip
def test_what_would_gain_nothing_is_refused_in_a_sentence(why: str, function: Any, args: Any) -> None:
    graph = trace(Applies(function), args, {})
    (line,) = match(graph, unsupported=cuda.unsupported, space=cuda.space).unmatched
    assert why in line


def test_it_needs_wgmma_and_leaves_products_of_matrices_alone() -> None:
    program = convolved(F.conv2d, X, W).program
    assert isinstance(fits(program, H200), Fit)
    assert "needs sm_90a" in str(fits(program, DEVICES["a100"]))
    graph = trace(Applies(torch.mm), (rand(512, 512), rand(512, 512)), {})
    (product,) = match(graph, unsupported=cuda.unsupported, space=cuda.space).patterns
    found = fits(product.program, H200)
    assert isinstance(found, Refused) and found.foreign and product.kind == "product"


@pytest.mark.parametrize(
    ("args", "first"), [((X, W), "tf32"), ((rand(8, 8, 40, 40), rand(64, 8, 3, 3)), "fp16x3"),
                        ((X.bfloat16(), W.bfloat16()), "plain")]
)  # fmt: skip
def test_points_fit_and_come_in_the_order_of_the_model(args: tuple[Tensor, Tensor], first: str) -> None:
    program = convolved(F.conv2d, *args).program
    read = shape_of(program)
    assert read is not None
    points = [dict(p) for p in ranked_points(program, read[0], H200)]
    precisions = {"plain"} if first == "plain" else {"tf32", "fp16x3"}
    assert points[0]["precision"] == first and {p["precision"] for p in points} == precisions
    assert {(p["kernel"], p["precision"]) for p in points} == {(k, p) for k in ("gather", "window") for p in precisions}
    assert all(space(program, read[0], H200).holds(point(**p)) for p in points)
    assert len({str(p) for p in points}) == len(points)
    times = [work_ns(program, read[0], make_points(read[0], p), H200) for p in points if p["precision"] == first]
    assert times == sorted(times)


def test_some_points_of_each_precision_are_tried_the_likelier_first() -> None:
    for args, first in (((X, W), "tf32"), ((rand(8, 8, 40, 40), rand(64, 8, 3, 3)), "fp16x3")):
        program = convolved(F.conv2d, *args).program
        read = shape_of(program)
        assert read is not None
        tried = [dict(p)["precision"] for p in space(program, read[0], H200).points]
        assert tried[:4] == [first] * 4 and set(tried[4:]) == {"tf32", "fp16x3"} - {first}


def test_phases_in_one_kernel_are_likelier() -> None:
    x, w = torch.empty(16, 64, 128, 128), torch.empty(64, 64, 3, 3)
    program = convolved(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1), x, w).program
    read = shape_of(program)
    assert read is not None
    ranked = [dict(p) for p in ranked_points(program, read[0], H200)]
    assert ranked[0]["phases"] == "plane" and {p["phases"] for p in ranked} == {"apart", "last", "plane"}
    best = {m: min(work_ns(program, read[0], make_points(read[0], p), H200) for p in ranked if p["phases"] == m)
            for m in ("plane", "last", "apart")}  # fmt: skip
    assert best["plane"] < best["last"] < best["apart"]
    proposed = [dict(p)["phases"] for p in space(program, read[0], H200).points]
    assert proposed[0] == "plane" and "apart" in proposed


def test_a_file_compiles_and_gives_meta_tensors_of_the_output(tmp_path: Path) -> None:
    pattern = convolved(lambda x, w, b, y: F.gelu(F.conv2d(x, w, b)) + y, X, W, rand(128), rand(8, 128, 28, 27))
    module = load_fused(pattern.program, tmp_path)
    operands = [torch.empty(o.shape, device="meta") for o in pattern.program.operands]
    (made,) = module._FUSED(*operands)
    assert made.shape == (8, 128, 28, 27) and dict(cuda.space(pattern.program).points[0]) == module.KNOBS
    with pytest.raises(ValueError, match="wanted"):
        module._FUSED(operands[0][:4], *operands[1:])
    for settings in cuda.space(pattern.program).points:
        module.configure(**dict(settings))
