"""Which weight gradients the skeleton takes, the points it is tried at, and the files that are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.realisers import H200, cuda
from fakes.weight_gradients import Case
from tilewright.frontend.trace import trace
from tilewright.fusion import explained, match
from tilewright.kernels.cuda.conv_weight.tiles import DEFAULTS, make_point
from tilewright.realise import table
from tilewright.realise.conv_weight import depthwise, renderer
from tilewright.realise.conv_weight.points import work_ns
from tilewright.realise.conv_weight.shape import weight_shape_of
from tilewright.realise.realiser import Refused

DENSE = Case(x=(8, 32, 28, 28), w=(64, 32, 3, 3), padding=1)
TRANSPOSED = Case(x=(4, 32, 14, 14), w=(32, 16, 4, 4), stride=2, padding=1, transposed=True)
GROUPED = Case(x=(4, 64, 30, 31), w=(64, 32, 3, 3), groups=2, stride=2, dilation=2)
HALF = Case(x=(4, 64, 28, 28), w=(48, 64, 3, 3), padding=1, dtype=torch.float16, last=True)


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "UNPROVEN", frozenset())


def test_nothing_is_proposed_until_a_gpu_has_shown_it() -> None:
    """Kernels are proposed of what reads it all the same, and torch makes the gradient."""
    with torch.no_grad():
        graph = trace(Applies(DENSE.backward), DENSE.inputs("cpu"), {})
    matched, why = explained(graph, unsupported=cuda.unsupported, space=cuda.space)
    assert not matched.patterns and [
        "no GPU has run the kernel of weight gradients yet" in text for text in why.values()
    ] == [True]


@pytest.mark.usefixtures("proven")
@pytest.mark.parametrize("case", [DENSE, TRANSPOSED, GROUPED, HALF], ids=lambda c: c.name)
def test_a_weights_gradient_is_read_back_from_its_program(case: Case) -> None:
    found = case.pattern()
    shape = weight_shape_of(found.program)
    assert shape is not None and found.kind == "convolution"
    windowed, dense = (case.out, case.x) if case.transposed else (case.x, case.out)
    s, rank = shape.windowed, len(case.x) - 2
    assert s.image[3 - rank :] == windowed[2:] and s.out[3 - rank :] == dense[2:]
    assert (s.groups * s.columns, s.channels, *s.taps[3 - rank :]) == case.w
    assert s.start[3 - rank :] == (-case.padding,) * rank and s.stride[3 - rank :] == (case.stride,) * rank


@pytest.mark.usefixtures("proven")
def test_points_are_of_the_likelier_precision_first_in_the_models_order() -> None:
    found = DENSE.pattern().space.points
    precisions = [dict(p)["precision"] for p in found]
    assert precisions == ["tf32"] * 4 + ["fp16x3"] * 2
    few = Case(x=(8, 3, 32, 32), w=(64, 3, 7, 7), padding=3).pattern().space.points
    assert [dict(p)["precision"] for p in few] == ["fp16x3"] * 4 + ["tf32"] * 2
    assert {dict(p)["precision"] for p in HALF.pattern().space.points} == {"plain"}


@pytest.mark.usefixtures("proven")
def test_the_model_knows_more_pixels_and_more_products() -> None:
    shape = weight_shape_of(DENSE.pattern().program)
    large = weight_shape_of(Case(x=(64, 32, 56, 56), w=(64, 32, 3, 3), padding=1).pattern().program)
    assert shape is not None and large is not None
    point = make_point(shape, DEFAULTS | {"precision": "tf32"})
    assert work_ns(large, point, H200) > 2 * work_ns(shape, point, H200)
    thrice = make_point(shape, DEFAULTS | {"precision": "fp16x3"})
    assert work_ns(shape, thrice, H200) > work_ns(shape, point, H200)


@pytest.mark.usefixtures("proven")
@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case(x=(2, 8, 9, 9), w=(8, 8, 3, 3)), "8 output channels"),
        (Case(x=(2, 8, 9, 9), w=(16, 8, 3, 3)), "all launch"),
        (Case(x=(2, 8, 4, 90), w=(64, 8, 2, 40)), "32 taps"),
    ],
)
def test_what_it_refuses_it_says(case: Case, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "_LEAST_WORK", 1 << 21)
    with torch.no_grad():
        graph = trace(Applies(case.backward), case.inputs("cpu"), {})
    matched, reasons = explained(graph, unsupported=cuda.unsupported, space=cuda.space)
    (text,) = reasons.values()
    assert not matched.patterns and why in text and ";" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("proven")
@pytest.mark.parametrize("case", [TRANSPOSED, GROUPED, HALF], ids=lambda c: c.name)
def test_the_file_compiles_and_takes_what_the_program_reads(case: Case, tmp_path: Path) -> None:
    """On meta tensors, as they lie in the program."""
    program = case.pattern().program
    module: Any = load_fused(program, tmp_path)
    given = [torch.empty_strided(o.shape, o.strides, dtype=case.dtype, device="meta") for o in program.operands]
    (made,) = module._FUSED(*given)
    assert made.shape == program.domain and made.dtype == case.dtype


def test_another_contraction_is_foreign() -> None:
    with torch.no_grad():
        graph = trace(Applies(torch.nn.functional.conv2d), (torch.randn(4, 32, 24, 24), torch.randn(64, 32, 3, 3)), {})
    (found,) = match(graph, unsupported=cuda.unsupported, space=cuda.space).patterns
    answer = renderer.fits(found.program, H200)
    assert isinstance(answer, Refused) and answer.foreign


DEEP = (
    Case(x=(4, 24, 28, 27), w=(24, 1, 5, 3), stride=2, padding=2, groups=24),
    Case(x=(4, 24, 200), w=(24, 1, 7), padding=6, dilation=2, groups=24, dtype=torch.bfloat16),
    Case(x=(1, 24, 9, 30), w=(24, 1, 1, 3), padding=1, groups=24),
)


@pytest.mark.parametrize("case", DEEP, ids=lambda c: c.name)
def test_a_depthwise_weights_gradient_is_read_back_from_its_sum(case: Case) -> None:
    found = depthwise.depthwise_gradient(case.pattern().program)
    assert found is not None
    s, rank = found.shape.windowed, len(case.x) - 2
    assert (s.batch, s.groups, *s.image[3 - rank :], *s.taps[3 - rank :]) == (*case.x[:2], *case.x[2:], *case.w[2:])
    assert s.out[3 - rank :] == case.out[2:] and (s.channels, s.columns) == (1, 1)
    wide = [i for i, n in enumerate(case.w[2:], 3 - rank) if n > 1]
    assert all(s.step[i] == case.dilation for i in wide) and s.start[3 - rank :] == (-case.padding,) * rank
    assert all(s.stride[i] == case.stride for i in range(3 - rank, 3))


@pytest.mark.parametrize(
    "case",
    [
        Case(x=(4, 24, 28, 27), w=(48, 1, 3, 3), groups=24),  # two results of a channel
        Case(x=(4, 24, 28, 27), w=(24, 1, 9, 9), groups=24),  # more taps than a thread has sums for
    ],
    ids=lambda c: c.name,
)
def test_others_are_the_rows_engines(case: Case) -> None:
    found = case.pattern()
    assert depthwise.depthwise_gradient(found.program) is None and found.kind.endswith("reduce")


@pytest.mark.slow
@pytest.mark.parametrize("case", DEEP[:2], ids=lambda c: c.name)
def test_the_file_of_a_depthwise_weight_compiles(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = case.pattern().space.points
    monkeypatch.setattr(table, "UNPROVEN", frozenset())
    found = case.pattern()
    assert found.space.points[0] == (("parts", "auto"),) and before != found.space.points
    module: Any = load_fused(found.program, tmp_path)
    given = [torch.empty_strided(o.shape, o.strides, dtype=case.dtype, device="meta") for o in found.program.operands]
    (made,) = module._FUSED(*given)
    assert made.shape == found.program.outputs[0].shape and made.dtype == case.dtype
