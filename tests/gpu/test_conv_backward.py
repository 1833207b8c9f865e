"""A step of training through convolutions on a GPU, and the kernel of the weight's gradient, against float64: odd
sizes, strides, paddings, dilations, groups, types, layouts and channels of very different size."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.convolved import ALLOWED
from fakes.fused import load_fused
from fakes.realisers import H200
from fakes.weight_gradients import Case
from tilewright.facts.gradients import Gradients
from tilewright.facts.pattern import Choice, Pattern, without_idle
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts
from tilewright.facts.space import Point, point
from tilewright.frontend.trace import trace_training
from tilewright.realise import table
from tilewright.realise.compose import compose
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import write_candidate

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

HALF, WIDE = torch.float16, torch.bfloat16
CASES = (
    Case(x=(4, 32, 29, 31), w=(64, 32, 3, 3), padding=1),
    Case(x=(3, 64, 28, 28), w=(128, 64, 3, 3), padding=1, stride=2),
    Case(x=(5, 40, 17, 19), w=(72, 40, 3, 5), padding=2, dilation=2),
    Case(x=(8, 3, 61, 59), w=(64, 3, 7, 7), padding=3, stride=2),
    Case(x=(5, 12, 33, 35), w=(20, 12, 2, 3)),
    Case(x=(4, 64, 24, 24), w=(96, 64, 1, 1)),
    Case(x=(6, 24, 601), w=(48, 24, 5), padding=2, stride=3),
    Case(x=(2, 16, 9, 11, 13), w=(32, 16, 3, 3, 3), padding=1),
    Case(x=(4, 64, 20, 21), w=(64, 32, 3, 3), padding=1, groups=2),
    Case(x=(3, 32, 15, 14), w=(32, 48, 4, 4), padding=1, stride=2, transposed=True),
    Case(x=(2, 64, 16, 16), w=(64, 24, 3, 3), groups=2, padding=1, transposed=True),
    Case(x=(1, 256, 7, 7), w=(320, 256, 3, 3), padding=1),
)
NARROW = (
    Case(x=(4, 32, 29, 31), w=(64, 32, 3, 3), padding=1, dtype=HALF),
    Case(x=(4, 64, 28, 28), w=(128, 64, 3, 3), padding=1, dtype=WIDE),
    Case(x=(4, 64, 28, 28), w=(48, 64, 3, 3), padding=1, stride=2, dtype=HALF, last=True),
    Case(x=(2, 20, 28, 28), w=(48, 20, 3, 3), padding=1, dtype=WIDE, last=True),
    Case(x=(3, 32, 15, 14), w=(32, 48, 4, 4), padding=1, stride=2, transposed=True, dtype=WIDE),
)


@pytest.fixture(autouse=True)
def proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "UNPROVEN", frozenset())


def run_of(found: Pattern, folder: Path, settings: Point) -> Any:
    return load_fused(found.program, folder, settings).run


def operands_of(found: Pattern, case: Case, g: Tensor, x: Tensor) -> list[Tensor]:
    """As the pattern views them."""
    given = (x, g) if case.transposed else (g, x)
    return [t.reshape(o.shape) for t, o in zip(given, found.program.operands, strict=True)]


def truth_of(case: Case, g: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return case.backward(g.double(), x.double(), w.double())


def near(made: Tensor, exact: Tensor, allowed: float) -> None:
    assert torch.isfinite(made).all()
    error = (made.double().reshape(exact.shape) - exact).norm() / exact.norm()
    assert error <= allowed, f"{float(error):.2e} of {allowed:.0e}"


@pytest.mark.parametrize("precision", ["fp16x3", "tf32"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_weights_gradients_in_fp32(case: Case, precision: str, tmp_path: Path) -> None:
    found = case.pattern()
    settings = next(p for p in found.space.points if dict(p)["precision"] == precision)
    g, x, w = case.inputs("cuda")
    (made,) = run_of(found, tmp_path, settings)(*operands_of(found, case, g, x))
    near(made, truth_of(case, g, x, w), 2 * ALLOWED[precision])


@pytest.mark.parametrize("case", NARROW, ids=lambda c: c.name)
def test_weights_gradients_of_16_bits(case: Case, tmp_path: Path) -> None:
    found = case.pattern()
    g, x, w = case.inputs("cuda")
    (made,) = run_of(found, tmp_path, found.space.points[0])(*operands_of(found, case, g, x))
    assert made.dtype == case.dtype
    near(made, truth_of(case, g, x, w), ALLOWED[case.dtype])


DEEP = (
    Case(x=(8, 40, 57, 55), w=(40, 1, 7, 7), padding=3, groups=40),
    Case(x=(4, 72, 57, 55), w=(72, 1, 5, 5), padding=2, stride=2, groups=72),
    Case(x=(6, 24, 700), w=(24, 1, 7), padding=6, dilation=2, groups=24),
    Case(x=(4, 96, 28, 28), w=(96, 1, 3, 3), padding=1, groups=96, dtype=WIDE),
    Case(x=(4, 96, 28, 28), w=(96, 1, 3, 3), padding=1, groups=96, dtype=HALF),
)


@pytest.mark.parametrize("case", DEEP, ids=lambda c: c.name)
def test_depthwise_weights_gradients_at_every_point(case: Case, tmp_path: Path) -> None:
    found = case.pattern()
    assert found.space.knobs[0].name == "parts"
    g, x, w = case.inputs("cuda")
    exact = truth_of(case, g, x, w)
    viewed = dict(zip(("g", "x"), (g, x), strict=True))  # as traced: upstream, then the image
    (site,) = found.matches
    given = []
    for operand, bind in zip(found.program.operands, site.operands, strict=True):
        t = viewed["x"] if operand.indexed else viewed["g"]
        given.append(t.reshape(bind.split).permute(bind.order).reshape(operand.shape))
    for settings in found.space.points:
        (made,) = run_of(found, tmp_path / str(dict(settings)["parts"]), settings)(*given)
        assert made.dtype == case.dtype
        near(made, exact, 1e-6 if case.dtype == torch.float32 else ALLOWED[case.dtype])


@pytest.mark.parametrize("number", range(6))
def test_every_point_and_the_same_bits_again(number: int, tmp_path: Path) -> None:
    case = Case(x=(16, 72, 27, 29), w=(136, 72, 3, 3), padding=1)
    found = case.pattern()
    settings = found.space.points[number]
    g, x, w = case.inputs("cuda")
    run, given = run_of(found, tmp_path, settings), operands_of(found, case, g, x)
    first, second = (run(*given)[0] for _ in range(2))
    near(first, truth_of(case, g, x, w), 2 * ALLOWED[str(dict(settings)["precision"])])
    assert torch.equal(first, second)


@pytest.mark.parametrize("splits", [1, 4, 64])
def test_splits_are_added_up(splits: int, tmp_path: Path) -> None:
    """One, a few, and more than there are steps for."""
    case = Case(x=(4, 32, 29, 31), w=(64, 32, 3, 3), padding=1)
    found = case.pattern()
    settings = point(**dict(found.space.points[-1]) | {"splits": splits})
    g, x, w = case.inputs("cuda")
    (made,) = run_of(found, tmp_path, settings)(*operands_of(found, case, g, x))
    near(made, truth_of(case, g, x, w), 2 * ALLOWED["fp16x3"])


@pytest.mark.parametrize("precision", ["fp16x3", "tf32"])
def test_channels_of_very_different_size_are_each_as_exact(precision: str, tmp_path: Path) -> None:
    case = Case(x=(4, 32, 29, 31), w=(64, 32, 3, 3), padding=1)
    found = case.pattern()
    settings = next(p for p in found.space.points if dict(p)["precision"] == precision)
    g, x, w = case.inputs("cuda", spread=True)
    (made,) = run_of(found, tmp_path, settings)(*operands_of(found, case, g, x))
    exact = truth_of(case, g, x, w)
    normal = exact.abs() > 1e-30
    error = ((made.double() - exact).abs() / exact.flatten(2).norm(dim=2)[..., None, None])[normal]
    assert error.max() <= 16 * ALLOWED[precision]


@pytest.mark.parametrize("how", ["channels_last", "odd", "expanded"])
def test_operands_may_lie_otherwise_than_was_traced(how: str, tmp_path: Path) -> None:
    case = Case(x=(4, 32, 28, 28), w=(64, 32, 3, 3), padding=1)
    found = case.pattern()
    g, x, w = case.inputs("cuda")
    if how == "channels_last":
        g, x = (t.to(memory_format=torch.channels_last) for t in (g, x))
    elif how == "odd":
        flat = torch.empty(x.numel() + 1, device="cuda")
        flat[1:] = x.flatten()
        x = flat[1:].view(x.shape)
    else:
        g = g[:, :, :1, :1].expand(g.shape)
    (made,) = run_of(found, tmp_path, found.space.points[-1])(*operands_of(found, case, g, x))
    near(made, truth_of(case, g, x, w), 2 * ALLOWED["fp16x3"])


SOURCE = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, kind, width):
        super().__init__()
        self.kind = kind
        if kind == "deep":
            self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        elif kind == "transposed":
            self.conv = nn.ConvTranspose2d(width, width, 4, stride=2, padding=1)
        else:
            self.conv = nn.Conv2d(width, 2 * width, 1 if kind == "point" else 3, padding=int(kind != "point"))
        self.norm = nn.BatchNorm2d(2 * width if kind in ("block", "point") else width)

    def forward(self, x):
        y = self.norm(self.conv(x))
        return F.silu(y) if self.kind == "deep" else y.relu()
"""
LEFT = ("aten.add.Tensor", "aten.convolution.default")  # a counter, and weights that are turned round


@pytest.fixture
def imported() -> Any:
    yield importlib.import_module
    for name in list(sys.modules):
        if name.startswith(("fused_", "segment_", "tilewright_kernels")) or name == "model":
            del sys.modules[name]


def written(model: torch.nn.Module, x: Tensor, folder: Path, number: int) -> None:
    """The candidate at every pattern's point of this number, or its last."""
    asked = Gradients(outputs=(0,), inputs=(0,), parameters=tuple(n for n, _ in model.named_parameters()))
    graph = trace_training(model, (x,), {}, [x], asked)
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    facts = CaseFacts(inputs=(), outputs=(), work=work, graph=graph)
    matched = found_patterns((facts,), H200, allow_tf32=False)
    assert {line.split(":")[0] for line in matched[0].unmatched} <= set(LEFT)
    patterns = matched[0].patterns
    precise = [[p for p in q.space.points if dict(p).get("precision") not in ("tf32",)] or q.space.points
               for q in patterns]  # fmt: skip
    every = tuple(Choice(pattern=q.id, point=own[min(number, len(own) - 1)])
                  for q, own in zip(patterns, precise, strict=True))  # fmt: skip
    recipe = without_idle([patterns], every)
    write_candidate(compose(SOURCE, (facts,), matched, recipe, device=H200), folder)


def step(module: Any, x: Tensor, upstream: Tensor) -> list[Tensor]:
    given = x.detach().clone().requires_grad_()
    result = module(given)
    result.backward(upstream)
    found = [result.detach(), given.grad, *(p.grad for p in module.parameters())]
    module.zero_grad()
    assert all(t is not None for t in found)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
@pytest.mark.parametrize("kind", ["block", "deep", "transposed", "point"])
def test_a_step_of_a_block_is_as_near_to_the_truth_as_torchs(
    tmp_path: Path, monkeypatch: Any, imported: Any, kind: str, dtype: torch.dtype
) -> None:
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "original"}
    exec(SOURCE, names)
    model = names["Model"](kind, 32).cuda().to(dtype)
    x = torch.randn(6, 32, 29, 30, device="cuda", dtype=dtype)
    upstream = torch.randn_like(model(x))
    written(model, x, tmp_path / "candidate", 0)
    monkeypatch.syspath_prepend(str(tmp_path / "candidate"))
    made = imported("model")
    ours = made.ModelNew(kind, 32).cuda().to(dtype)
    ours.load_state_dict(model.state_dict())
    truth = step(copy.deepcopy(model).double(), x.double(), upstream.double())
    theirs, mine = step(model, x, upstream), step(ours, x, upstream)
    assert not made.FALLBACKS
    for number, (exact, torchs, own) in enumerate(zip(truth, theirs, mine, strict=True)):
        scale = exact.norm() if number != 3 else truth[2].norm()  # a bias ahead of a norm has no gradient but rounding
        allowed = 2 * (torchs.double() - exact).norm() + 16 * torch.finfo(dtype).eps * scale
        assert own.dtype == torchs.dtype and own.shape == torchs.shape and (own.double() - exact).norm() <= allowed
    torch.testing.assert_close(ours.state_dict(), model.state_dict(), rtol=2e-2, atol=1e-3)
