"""Convolutions from a function to a kernel, on a GPU: held against float64 over odd sizes, strides, paddings,
dilations, groups, types and layouts."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.bounded import Bounded
from fakes.convolved import ALLOWED, Conv, last_of, operands_of, points_of, result_of
from fakes.fused import load_fused
from fakes.judges import judge_on_gpu, judged_at_first_points
from fakes.modules import Applies
from fakes.realisers import H200
from tilewright.edges.problems import read_problem
from tilewright.facts.outcome import Timed
from tilewright.facts.pattern import Choice, Pattern
from tilewright.facts.run import Request
from tilewright.facts.space import Point, Space, point
from tilewright.frontend.trace import trace
from tilewright.fusion import kind, match
from tilewright.kernels.cuda.conv.tiles import make_points
from tilewright.realise.compose import compose
from tilewright.realise.conv import renderer as conv
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import optimize
from tilewright.run.places import Places

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A convolution of x by w with a bias, then `after`: "", "relu", "scale" (a channel's), "residual", "gelu"."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    after: str = ""
    transposed: bool = False
    bias: bool = True
    layout: str = ""  # of x: "last", as it is traced; "channels_last", "sliced", "odd" (begins anywhere) unforeseen
    kind: str = "randn"
    more: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        words = ["x".join(map(str, self.x)), "x".join(map(str, self.w)), *(f"{k}{v}" for k, v in self.more)]
        words += [str(self.dtype).split(".")[1], self.after, self.layout, "t" * self.transposed]
        words += [self.kind] * (self.kind != "randn")
        return "-".join(word.replace(" ", "") for word in words if word)

    @property
    def columns(self) -> int:
        groups = dict(self.more).get("groups", 1)
        return self.w[1] * groups if self.transposed else self.w[0]

    def forward(self, x: Tensor, w: Tensor, *rest: Tensor) -> Tensor:
        """The function; `rest`: the bias, and what `after` reads."""
        bias, *others = rest if self.bias else (None, *rest)
        name = ("conv_transpose" if self.transposed else "conv") + f"{len(self.x) - 2}d"
        y: Tensor = getattr(F, name)(x, w, bias, **dict(self.more))
        if self.after == "relu":
            return y.relu()
        if self.after == "gelu":
            return F.gelu(y)
        return y * others[0] + 1 if self.after == "scale" else y + others[0] if self.after == "residual" else y

    def inputs(self, device: str) -> list[Tensor]:
        """x, w and what else is read, with the layout of x."""
        torch.manual_seed(7)
        x, w = torch.randn(self.x, device=device), torch.randn(self.w, device=device)
        if self.kind == "spread":  # samples and channels of very different size
            x *= 10.0 ** torch.linspace(-20, 10, self.x[0], device=device).view(-1, *(1,) * (len(self.x) - 1))
            w *= 10.0 ** torch.linspace(-10, 5, self.w[0], device=device).view(-1, *(1,) * (len(self.w) - 1))
        x, w = x.to(self.dtype), w.to(self.dtype)
        if self.layout in ("channels_last", "last"):
            x = x.to(memory_format=last_of(x))
        if self.layout == "sliced":
            x = torch.cat([x, x], -1)[..., : self.x[-1]]
        if self.layout == "odd":
            flat = torch.empty(x.numel() + 1, dtype=x.dtype, device=device)
            flat[1:] = x.flatten()
            x = flat[1:].view(self.x)
        found = [x, w]
        if self.bias:
            found.append(torch.randn(self.columns, device=device).to(self.dtype))
        ones = (1,) * (len(self.x) - 2)
        if self.after == "scale":
            found.append(torch.randn(self.columns, *ones, device=device).to(self.dtype))
        if self.after == "residual":
            with torch.no_grad():
                plain = Case(x=self.x, w=self.w, dtype=self.dtype, transposed=self.transposed, bias=self.bias,
                             more=self.more)  # fmt: skip
                memory = last_of(x) if self.layout == "last" else torch.contiguous_format
                found.append(torch.randn_like(plain.forward(*found), memory_format=memory))
        return found


def more(**named: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(named.items())


HALF, WIDE = torch.float16, torch.bfloat16
PAD = more(padding=1)
CASES = (
    # few channels: constants for offsets
    Case(x=(4, 3, 33, 35), w=(64, 3, 3, 3)),
    Case(x=(4, 8, 32, 32), w=(64, 8, 3, 3), more=PAD, after="relu"),
    Case(x=(4, 3, 61, 59), w=(96, 3, 11, 11), more=more(stride=4, padding=2)),
    Case(x=(4, 8, 30, 31), w=(32, 8, 3, 3), after="scale"),
    Case(x=(4, 5, 37, 29), w=(40, 5, 5, 3), more=PAD),
    Case(x=(2, 3, 9, 20, 21), w=(64, 3, 3, 3, 3)),
    Case(x=(2, 3, 9, 20, 21), w=(16, 3, 3, 5, 7), more=PAD),
    Case(x=(2, 8, 8, 18, 17), w=(16, 8, 3, 3, 3), after="gelu"),
    Case(x=(2, 3, 16, 15, 10), w=(64, 3, 3, 3, 1)),
    Case(x=(16, 3, 19, 22, 23), w=(24, 3, 3, 3, 3), more=more(stride=2, padding=1)),
    Case(x=(40, 1, 40, 41), w=(8, 1, 5, 5)),
    Case(x=(4, 8, 32, 32), w=(64, 8, 3, 3), dtype=HALF, more=PAD),
    Case(x=(4, 3, 40, 40), w=(64, 3, 7, 7), dtype=WIDE, more=more(stride=2, padding=3), after="relu"),
    Case(x=(4, 4, 1001), w=(32, 4, 9), more=more(padding=4)),
    Case(x=(64, 3, 20, 20), w=(10, 3, 3, 3), bias=False),
    # dense: groups of neighbouring channels at one tap
    Case(x=(4, 64, 30, 29), w=(128, 64, 3, 3)),
    Case(x=(4, 64, 30, 29), w=(128, 64, 3, 3), more=PAD, after="relu"),
    Case(x=(2, 64, 40, 33), w=(128, 64, 5, 7)),
    Case(x=(2, 32, 41, 40), w=(64, 32, 5, 9), more=more(dilation=(2, 3), padding=(2, 4))),
    Case(x=(2, 16, 50, 51), w=(128, 16, 3, 3)),
    Case(x=(2, 20, 30, 31), w=(36, 20, 3, 3), more=PAD, after="residual"),
    Case(x=(2, 130, 14, 15), w=(72, 130, 3, 3), more=PAD),
    Case(x=(1, 64, 14, 14), w=(300, 64, 3, 3), more=PAD, after="gelu"),
    Case(x=(2, 64, 28, 28), w=(256, 64, 3, 3), more=more(stride=2, padding=1)),
    Case(x=(4, 96, 20, 21), w=(48, 96, 1, 1)),
    Case(x=(2, 256, 14, 14), w=(512, 256, 1, 1), more=more(stride=2), after="relu"),
    Case(x=(6, 33, 17, 9), w=(65, 33, 3, 3)),
    Case(x=(2, 64, 1000), w=(128, 64, 3)),
    Case(x=(2, 64, 1501), w=(128, 64, 3), more=more(stride=3, dilation=4)),
    Case(x=(2, 32, 8, 17, 18), w=(64, 32, 3, 3, 3), more=PAD),
    Case(x=(2, 32, 8, 17, 18), w=(64, 32, 3, 3, 3), after="gelu"),
    Case(x=(2, 64, 30, 29), w=(128, 64, 3, 3), dtype=HALF, more=PAD),
    Case(x=(2, 64, 30, 29), w=(256, 64, 3, 3), dtype=WIDE),
    Case(x=(2, 64, 30, 29), w=(64, 64, 3, 3), dtype=WIDE, more=PAD, after="residual"),
    Case(x=(2, 40, 21, 23), w=(24, 40, 3, 3), dtype=HALF),
    Case(x=(2, 128, 21, 23), w=(128, 128, 1, 1), dtype=HALF, after="relu"),
    Case(x=(2, 52, 400), w=(64, 52, 5), dtype=WIDE),
    # groups
    Case(x=(2, 64, 21, 23), w=(64, 32, 3, 3), more=more(groups=2, padding=1)),
    Case(x=(2, 96, 21, 23), w=(192, 24, 3, 3), more=more(groups=4)),
    Case(x=(2, 32, 21, 23), w=(64, 8, 3, 5), more=more(groups=4), after="scale"),
    Case(x=(2, 64, 21, 22), w=(64, 8, 3, 3), dtype=HALF, more=more(groups=8, padding=1)),
    # transposed, stride 1
    Case(x=(2, 64, 21, 23), w=(64, 64, 3, 3), transposed=True),
    Case(x=(2, 32, 21, 23), w=(32, 32, 3, 7), transposed=True, more=more(padding=(1, 3))),
    Case(x=(2, 64, 21, 23), w=(64, 128, 5, 5), transposed=True, more=PAD, after="relu"),
    Case(x=(2, 32, 500), w=(32, 64, 5), transposed=True, more=more(dilation=3)),
    Case(x=(2, 16, 6, 11, 12), w=(16, 32, 3, 3, 3), transposed=True, more=more(groups=2)),
    Case(x=(16, 8, 20, 20), w=(8, 16, 3, 3), transposed=True),
    Case(x=(2, 64, 21, 23), w=(64, 64, 3, 3), transposed=True, dtype=WIDE, after="gelu"),
    # transposed, strided: a phase for each remainder
    Case(x=(4, 64, 21, 23), w=(64, 64, 3, 3), transposed=True, more=more(stride=2, padding=1)),
    Case(x=(4, 64, 20, 22), w=(64, 64, 4, 4), transposed=True, more=more(stride=2, padding=1), after="relu"),
    Case(x=(8, 32, 300), w=(32, 64, 3), transposed=True, more=more(stride=2, padding=1, output_padding=1)),
    Case(x=(4, 32, 5, 9, 10), w=(32, 16, 3, 3, 3), transposed=True, more=more(stride=2), after="gelu"),
    Case(x=(4, 32, 20, 22), w=(32, 16, 3, 5), transposed=True, more=more(stride=(2, 3), groups=2, dilation=(1, 2))),
    Case(x=(4, 64, 20, 22), w=(64, 64, 3, 3), transposed=True, more=more(stride=2), dtype=WIDE, after="residual"),
    Case(x=(8, 32, 300), w=(32, 64, 3), transposed=True, more=more(stride=2, padding=1, dilation=2), after="relu"),
    # all phases of them in one kernel, or those along the last dimensions: outputs of whole vectors, ragged ones,
    # phases that begin elsewhere or meet no tap, few channels, steps of 3 and of 4
    Case(x=(4, 64, 20, 22), w=(64, 64, 3, 3), transposed=True, after="residual",
         more=more(stride=2, padding=1, output_padding=1)),
    Case(x=(3, 33, 21, 23), w=(33, 20, 3, 3), transposed=True, more=more(stride=2, padding=1), after="scale"),
    Case(x=(2, 64, 21, 97), w=(64, 64, 3, 3), transposed=True, more=more(stride=2, padding=1), after="residual"),
    Case(x=(2, 64, 21, 24), w=(64, 64, 3, 3), transposed=True, dtype=HALF, layout="channels_last", after="relu",
         more=more(stride=2, padding=1, output_padding=1)),
    Case(x=(4, 64, 20, 22), w=(64, 72, 4, 4), transposed=True, more=more(stride=2, padding=1), dtype=HALF,
         after="gelu"),
    Case(x=(4, 32, 20, 22), w=(32, 64, 3, 3), transposed=True, more=more(stride=2, output_padding=1), dtype=WIDE),
    Case(x=(4, 32, 9, 10), w=(32, 40, 3, 3), transposed=True, more=more(stride=5, padding=1, dilation=2), after="relu"),
    Case(x=(4, 32, 20, 22), w=(32, 8, 3, 5), transposed=True, after="residual",
         more=more(stride=(2, 3), dilation=(2, 1), padding=(1, 2), groups=4)),
    Case(x=(4, 48, 21, 22), w=(48, 64, 8, 8), transposed=True, more=more(stride=4, padding=2), after="relu"),
    Case(x=(8, 32, 300), w=(32, 64, 4), transposed=True, more=more(stride=4), dtype=HALF, after="residual"),
    Case(x=(8, 32, 301), w=(32, 64, 7), transposed=True, more=more(stride=4, padding=2), after="scale"),
    Case(x=(2, 32, 6, 9, 10), w=(32, 64, 3, 3, 3), transposed=True, after="residual",
         more=more(stride=2, padding=1, output_padding=1)),
    Case(x=(2, 32, 6, 9, 11), w=(32, 32, 4, 4, 4), transposed=True, more=more(stride=2, padding=1), dtype=WIDE),
    Case(x=(2, 32, 6, 9, 11), w=(32, 16, 5, 5, 5), transposed=True, more=more(stride=2, padding=2)),
    Case(x=(8, 3, 6, 9, 10), w=(3, 16, 3, 3, 3), transposed=True, more=more(stride=2, padding=1), after="scale"),
    Case(x=(2, 32, 6, 12, 12), w=(32, 8, 3, 5, 7), transposed=True,
         more=more(stride=2, padding=(1, 2, 3), output_padding=1, groups=4)),
    Case(x=(4, 32, 20, 22), w=(32, 64, 3, 3), transposed=True, more=more(stride=(1, 2)), after="relu"),
    Case(x=(4, 32, 20, 22), w=(32, 64, 3, 3), transposed=True, more=more(stride=(2, 1)), layout="channels_last"),
    Case(x=(70, 16, 24, 24), w=(16, 64, 3, 3), transposed=True, more=more(stride=2, padding=1, output_padding=1)),
    # layouts and values
    Case(x=(2, 64, 30, 29), w=(64, 64, 3, 3), layout="channels_last"),
    Case(x=(2, 8, 30, 29), w=(64, 8, 3, 3), layout="channels_last", dtype=HALF),
    Case(x=(2, 64, 30, 29), w=(64, 64, 3, 3), layout="sliced"),
    Case(x=(2, 8, 30, 29), w=(64, 8, 3, 3), layout="odd"),
    Case(x=(2, 64, 30, 29), w=(64, 64, 3, 3), layout="odd", dtype=HALF),
    Case(x=(4, 32, 20, 20), w=(64, 32, 3, 3), kind="spread", bias=False),
    Case(x=(4, 8, 20, 20), w=(64, 8, 3, 3), kind="spread", bias=False, more=PAD),
    Case(x=(140, 16, 9, 9), w=(64, 16, 3, 3), more=PAD),
    Case(x=(1, 16, 5, 70000), w=(64, 16, 3, 3)),
    Case(x=(300, 3, 20, 20), w=(64, 3, 3, 3)),
    Case(x=(70, 64, 24, 24), w=(128, 64, 3, 3), more=PAD),
    Case(x=(70, 8, 64, 64), w=(64, 8, 3, 3), after="relu"),
    Case(x=(33, 64, 32, 32), w=(64, 64, 3, 3), dtype=WIDE),
    # channels-last, read and written
    Case(x=(4, 64, 30, 29), w=(64, 64, 3, 3), dtype=HALF, layout="last", more=PAD, after="relu"),
    Case(x=(4, 128, 21, 23), w=(128, 128, 3, 3), dtype=WIDE, layout="last", more=PAD, after="residual"),
    Case(x=(4, 128, 29, 28), w=(128, 128, 3, 3), dtype=HALF, layout="last", after="relu",
         more=more(stride=2, padding=1)),
    Case(x=(2, 256, 28, 28), w=(512, 256, 1, 1), dtype=HALF, layout="last", more=more(stride=2)),
    Case(x=(2, 96, 21, 20), w=(96, 96, 1, 1), dtype=HALF, layout="last", after="residual"),
    Case(x=(2, 24, 30, 31), w=(40, 24, 3, 3), dtype=HALF, layout="last", more=PAD, after="scale"),
    Case(x=(2, 24, 30, 31), w=(40, 24, 3, 3), dtype=WIDE, layout="last", more=more(stride=2), after="residual"),
    Case(x=(4, 3, 61, 60), w=(64, 3, 7, 7), dtype=HALF, layout="last", more=more(stride=2, padding=3), after="relu"),
    Case(x=(2, 20, 21, 23), w=(100, 20, 3, 3), dtype=HALF, layout="last", more=PAD, after="residual"),
    Case(x=(2, 72, 21, 23), w=(33, 72, 3, 3), dtype=WIDE, layout="last", after="gelu"),
    Case(x=(2, 64, 14, 15), w=(300, 64, 3, 3), dtype=HALF, layout="last", more=PAD),
    Case(x=(1, 64, 30, 29), w=(64, 64, 3, 3), dtype=HALF, layout="last", more=PAD, after="residual"),
    Case(x=(2, 64, 21, 23), w=(64, 32, 3, 3), dtype=HALF, layout="last", more=more(groups=2, padding=1), after="relu"),
    Case(x=(2, 64, 21, 23), w=(64, 64, 3, 3), dtype=WIDE, layout="last", transposed=True,
         more=more(stride=2, padding=1), after="relu"),
    Case(x=(2, 64, 30, 29), w=(64, 64, 3, 3), layout="last", more=PAD, after="residual"),
    Case(x=(2, 64, 30, 29), w=(48, 64, 3, 3), layout="last", more=more(stride=2), after="scale"),
    Case(x=(2, 8, 30, 29), w=(64, 8, 3, 3), layout="last", more=PAD, after="relu"),
    Case(x=(70, 64, 24, 24), w=(128, 64, 3, 3), dtype=HALF, layout="last", more=PAD),
)  # fmt: skip


def pattern_of(case: Case) -> Pattern:
    """Traced on the CPU; the convolution takes all of it, where a product of matrices could, too."""
    args = replace(case, layout=case.layout if case.layout == "last" else "").inputs("cpu")
    matched = match(
        trace(Applies(case.forward), tuple(args), {}),
        unsupported=lambda program: "a product" if kind(program) == "product" else None,
        space=lambda program: Space(knobs=(), points=((),)),
    )  # fmt: skip
    (found,) = [p for p in matched.patterns if p.kind == "convolution"]
    assert not matched.unmatched
    return found


@pytest.fixture(scope="module")
def bounded() -> Bounded:
    return Bounded()


def chosen(pattern: Pattern, number: int) -> list[Point]:
    """Of each kernel, precision and way to merge phases the likeliest point, and another one, by the case's number."""
    points = points_of(pattern)
    first = {tuple(dict(p)[knob] for knob in ("kernel", "precision", "phases")): p for p in reversed(points)}
    return list(dict.fromkeys([*first.values(), *widest(pattern), points[number % len(points)]]))


def widest(pattern: Pattern) -> list[Point]:
    """Of each precision and way to merge phases the point with the most columns; for small tensors narrow ones are
    likelier."""
    read = conv.shape_of(pattern.program)
    assert read is not None
    found = []
    for p in points_of(pattern):
        knobs = dict(p) | {"pixels": 128, "columns": 0, "producers": 128, "weights": "auto"}
        try:
            made = make_points(read[0], knobs)
        except ValueError:
            continue
        found += [point(**knobs)] * (max(m.merged for m in made) > 1)
    return found


def error(case: Case, pattern: Pattern, settings: Point, folder: Path) -> tuple[float, float]:
    """Relative to float64: in the norm, and the worst element's over the largest."""
    module = load_fused(pattern.program, folder, settings, renderer=Conv())
    given = case.inputs("cuda")
    (made,) = module.run(*operands_of(pattern, given))
    with torch.no_grad():
        truth = case.forward(*(g.double() for g in given))
    made = result_of(pattern, made, truth.shape).double()
    if case.kind == "spread":  # each sample and channel by itself
        truth, made = (v.flatten(2).transpose(0, 2) for v in (truth, made))
        scale = truth.abs().amax(0, keepdim=True)
        truth, made = truth / scale, made / scale
    off = (made - truth).abs()
    return float(off.norm() / truth.norm()), float(off.max() / truth.abs().max())


def error_of(number: int, settings: Point, folder: Path) -> tuple[float, float]:
    """`error` of a case, for another process."""
    return error(CASES[number], pattern_of(CASES[number]), settings, folder)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_a_convolution_gives_what_float64_gives(number: int, tmp_path: Path, bounded: Bounded) -> None:
    case = CASES[number]
    for settings in chosen(pattern_of(case), number):
        norm, worst = bounded.call(error_of, number, settings, tmp_path)
        allowed = ALLOWED.get(case.dtype) or ALLOWED[str(dict(settings)["precision"])]
        assert norm <= allowed and worst <= 8 * allowed, (settings, norm, worst)


def specials(settings: Point, folder: Path, *, transposed: bool = False) -> list[bool]:
    """Whether NaN, infinities and their signs are where float64 has them."""
    case = STRIDED if transposed else Case(x=(2, 8, 20, 20), w=(64, 8, 3, 3), bias=False, more=PAD)
    module = load_fused(pattern_of(case).program, folder, settings, renderer=Conv())
    x, w = case.inputs("cuda")
    x[0, 1, 4, 5], x[1, 2, 7, 7] = float("inf"), float("nan")
    w[3, 1, 1, 1] = 0.0
    (made,) = module.run(x, w)
    truth = case.forward(x.double(), w.double())
    return [
        torch.equal(made.isnan(), truth.isnan()), torch.equal(made.isinf(), truth.isinf()),
        torch.equal(made[made.isinf()].double(), truth[truth.isinf()]),
    ]  # fmt: skip


STRIDED = Case(x=(2, 16, 20, 20), w=(16, 64, 3, 3), bias=False, more=more(stride=2, padding=1), transposed=True)


@pytest.mark.parametrize("transposed", [False, True])
def test_an_infinity_and_a_nan_reach_what_they_meet_alone(tmp_path: Path, bounded: Bounded, transposed: bool) -> None:
    """With phases in one kernel, too: none meets what stands for a tap that it has not."""
    case = STRIDED if transposed else Case(x=(2, 8, 20, 20), w=(64, 8, 3, 3), bias=False, more=PAD)
    for settings in chosen(pattern_of(case), 0):
        found = bounded.call(partial(specials, transposed=transposed), settings, tmp_path)
        assert found == [True, True, True], settings


PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 3)
        self.bias = nn.Parameter(torch.randn(64, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)) + self.bias


def get_inputs():
    return [torch.rand(32, 64, 96, 96)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("kernel", ["gather", "window"])
def test_the_judge_takes_a_convolution_of_each_kernel(tmp_path: Path, kernel: str) -> None:
    """In a candidate's own process, over all families of inputs; nothing falls back to torch."""
    with judge_on_gpu(PROBLEM, tmp_path) as judge:
        cases = judge.open()
        matched = found_patterns(cases, H200)
        (found,) = [p for p in matched[0].patterns if p.kind == "convolution"]
        named = {"kernel": kernel, "precision": "tf32"}
        settings = next(p for p in points_of(found) if named.items() <= dict(p).items())
        recipe = (Choice(pattern=found.id, point=settings),)
        timed = judge.evaluate(compose((tmp_path / "problem.py").read_text(), cases, matched, recipe, device=H200))
        assert isinstance(timed, Timed), timed
        assert timed.checked.own_share is not None and timed.checked.own_share > 0.95
        print(kernel, timed.ratio("eager"), file=sys.stderr)


def test_optimize_makes_a_convolution_and_what_follows_one_kernel_and_it_wins(tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM)
    said: list[str] = []
    places = Places(out=tmp_path / "run", cache=tmp_path / "cache")
    problem = read_problem(path, target="cuda")
    asked = Request(run="r", problem=problem, strategy="catalog", budget_s=240.0, seed=0)
    done = optimize(asked, places=places, say=said.append)
    told = "\n".join(said)
    assert done.stop.best is not None, told
    kinds = {p.id: p.kind for p in done.context.matched[0].patterns}
    assert [kinds[c.pattern] for c in done.stop.best] == ["convolution"], told
    judged = [e.outcome for e in done.events if isinstance(e.outcome, Timed)]
    ratio = judged[0].ratio("eager")
    assert ratio is not None and ratio.low > 1.5, f"{ratio}\n{told}"


BLOCK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Conv2d(128, 64, 1), nn.Conv2d(64, 64, 3, STRIDE, 1), nn.Conv2d(64, 256, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (64, 64, 256)])
        self.down, self.of_down = nn.Conv2d(128, 256, 1, STRIDE), nn.BatchNorm2d(256)
        self.eval().half().to(memory_format=torch.MEMORY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.one(x)).relu()
        y = self.norms[1](self.two(y)).relu()
        return (self.norms[2](self.three(y)) + self.of_down(self.down(x))).relu()


def get_inputs():
    return [torch.rand(16, 128, 56, 56).half().to(memory_format=torch.MEMORY)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("memory", ["channels_last", "contiguous_format"])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_judge_takes_a_block_of_a_residual_network(tmp_path: Path, memory: str, stride: int) -> None:
    """Every convolution is a kernel of ours, with its batch norm where it has one of its own; nothing is torch's."""
    source = BLOCK.replace("MEMORY", memory).replace("STRIDE", str(stride))
    patterns, timed = judged_at_first_points(source, tmp_path)
    assert isinstance(timed, Timed), timed
    assert timed.checked.own_share is not None and timed.checked.own_share > 0.95
    print(memory, stride, [p.title for p in patterns], timed.ratio("eager"), file=sys.stderr)
