"""Im2col products among the points of convolutions: which are proposed, in which order, and that they compile."""

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
from tilewright.facts.pattern import Pattern
from tilewright.facts.space import Space
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.kernels.cuda.conv.im2col import KERNELS, im2col_point
from tilewright.realise import table
from tilewright.realise.conv import im2col_points
from tilewright.realise.conv.renderer import shape_of


def last(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.empty(shape, dtype=dtype).to(memory_format=torch.channels_last)


def convolved(function: Any, *args: Tensor) -> Pattern:
    graph = trace(Applies(function), args, {})
    matched = match(graph, unsupported=lambda p: None, space=lambda p: Space(knobs=(), points=((),)), tiny_bytes=0)
    return next(p for p in matched.patterns if p.kind == "convolution")


def proposed(pattern: Pattern) -> list[dict[str, Any]]:
    return [dict(p) for p in cuda.space(pattern.program).points if dict(p)["kernel"] in KERNELS]


LAYER = (last(64, 64, 56, 56), last(64, 64, 3, 3))


def layer(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=1).relu()


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "UNPROVEN", frozenset())


def test_none_is_proposed_whose_tests_have_not_run_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = convolved(layer, *LAYER)
    monkeypatch.setattr(table, "UNPROVEN", frozenset(KERNELS))
    assert proposed(pattern) == [] and cuda.space(pattern.program).points
    monkeypatch.setattr(table, "UNPROVEN", frozenset({"im2col_tma"}))
    assert {p["kernel"] for p in proposed(pattern)} == {"im2col"}


@pytest.mark.usefixtures("proven")
@pytest.mark.parametrize(
    ("args", "how", "kernels"),
    [
        (LAYER, {"padding": 1}, {"im2col", "im2col_tma"}),
        ((last(64, 128, 56, 56), last(128, 128, 3, 3)), {"padding": 1, "stride": 2}, {"im2col", "im2col_tma"}),
        (
            (last(64, 96, 28, 28), last(192, 96, 3, 3)),
            {"padding": 1},
            {"im2col"},
        ),  # TMA brings whole stages of channels
        ((last(64, 128, 28, 28), last(128, 64, 3, 3)), {"padding": 1, "groups": 2}, {"im2col"}),
        ((last(64, 3, 224, 224), last(64, 3, 7, 7)), {"padding": 3, "stride": 2}, set()),
        ((torch.empty(64, 64, 56, 56).half(), LAYER[1]), {"padding": 1}, set()),
        ((last(8, 64, 56, 56, dtype=torch.float32), last(64, 64, 3, 3, dtype=torch.float32)), {"padding": 1}, set()),
    ],
)
def test_those_that_can_compute_it_come_first_beside_their_rivals(args: Any, how: Any, kernels: set[str]) -> None:
    program = convolved(lambda x, w: F.conv2d(x, w, **how).relu(), *args).program
    space = cuda.space(program)
    kinds = [str(dict(p)["kernel"]) for p in space.points]
    own = [kind for kind in kinds if kind in KERNELS]
    assert set(own) == kernels and kinds[: len(own)] == own and {"gather"} <= set(kinds)
    assert all(space.holds(p) for p in space.points) and len(set(space.points)) == len(space.points)


@pytest.mark.usefixtures("proven")
def test_they_come_in_the_order_of_the_model_and_what_is_added_comes_by_shared_memory() -> None:
    pattern = convolved(lambda x, w, y: (F.conv2d(x, w, padding=1) + y).relu(), *LAYER, LAYER[0])
    read = shape_of(pattern.program)
    assert read is not None
    found = proposed(pattern)
    times = [
        im2col_points._work_ns(pattern.program, read[0], p["kernel"], im2col_point(read[0], p), H200) for p in found
    ]
    assert times == sorted(times) and {p["store"] for p in found} == {"staged"}
    assert {p["store"] for p in proposed(convolved(layer, *LAYER))} == {"bulk"}
    odd = convolved(layer, LAYER[0], last(60, 64, 3, 3))
    assert {p["store"] for p in proposed(odd)} == {"direct"}


@pytest.mark.usefixtures("proven")
def test_a_file_compiles_and_gives_meta_tensors_of_the_output(tmp_path: Path) -> None:
    args = (last(4, 64, 30, 29), last(128, 64, 3, 3), torch.empty(128).half(), last(4, 128, 30, 29))
    pattern = convolved(lambda x, w, b, y: F.gelu(F.conv2d(x, w, b, padding=1)) + y, *args)
    module = load_fused(pattern.program, tmp_path, cuda.space(pattern.program).points[0])
    operands = [
        g.to("meta").reshape(bind.split).permute(bind.order).reshape(o.shape)
        for g, o, bind in zip(args, pattern.program.operands, pattern.matches[0].operands, strict=True)
    ]
    found = cuda.space(pattern.program).points
    for kernel in KERNELS:
        settings = next(p for p in found if dict(p)["kernel"] == kernel)
        module.configure(**dict(settings))
        (made,) = module._FUSED(*operands)
        assert made.shape == pattern.program.outputs[0].shape
        demand = module._FUSED.demand(132)
        assert demand["shared_bytes"] <= 227 * 1024 and demand["ctas"] % 2 == 0
