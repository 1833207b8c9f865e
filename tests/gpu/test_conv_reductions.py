"""Convolutions that reduce on the way out, on a GPU: channels, places and windows, held against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.bounded import Bounded
from fakes.convolved import ALLOWED, Conv, last_of, operands_of, points_of, result_of
from fakes.fused import load_fused
from fakes.modules import Applies
from tilewright.facts.pattern import Pattern
from tilewright.facts.space import Point, Space
from tilewright.frontend.trace import trace
from tilewright.fusion import match

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

HALF, WIDE = torch.float16, torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class Case:
    """A convolution of x by w with a bias, then `after` of it and of operands of these shapes."""

    after: Callable[..., Tensor]
    x: tuple[int, ...]
    w: tuple[int, ...]
    more: dict[str, Any] = field(default_factory=dict)
    read: tuple[tuple[int, ...], ...] = ()
    dtype: torch.dtype = torch.float32
    transposed: bool = False
    last: bool = False

    def forward(self, x: Tensor, w: Tensor, bias: Tensor, *rest: Tensor) -> Tensor:
        name = ("conv_transpose" if self.transposed else "conv") + f"{len(self.x) - 2}d"
        return self.after(getattr(F, name)(x, w, bias, **self.more), *rest)

    def inputs(self, device: str) -> list[Tensor]:
        """Of outputs of about 1."""
        torch.manual_seed(7)
        x, w = torch.randn(self.x, device=device), torch.randn(self.w, device=device)
        w /= (self.w[0] * prod(self.w[2:]) if self.transposed else prod(self.w[1:])) ** 0.5
        columns = self.w[1] if self.transposed else self.w[0]
        found = [x, w, *(torch.randn(shape, device=device) for shape in ((columns,), *self.read))]
        found = [t.to(self.dtype) for t in found]
        return [found[0].to(memory_format=last_of(x)), *found[1:]] if self.last else found


def lowest(y: Tensor) -> Tensor:
    return y.amin(1, keepdim=True).tanh()


def softmax(y: Tensor) -> Tensor:
    return y.softmax(1).sigmoid()


def spread(y: Tensor) -> Tensor:
    """By a second sweep."""
    return (y - y.mean(1, keepdim=True)) * (y.var(1, correction=0, keepdim=True) + 1e-5).rsqrt()


def logsumexp(y: Tensor) -> Tensor:
    return y.logsumexp(1, keepdim=True) * 2


def weighed(y: Tensor, c: Tensor) -> Tensor:
    """Softmax, then the largest of what is made of it."""
    return (y.softmax(1) * c).amax(1)


def beside(y: Tensor, z: Tensor) -> Tensor:
    return (y + z).sum(1, keepdim=True)


def mean(y: Tensor) -> Tensor:
    return F.gelu(y).mean((-2, -1) if y.ndim == 4 else tuple(range(2, y.ndim)), keepdim=True)


def highest(y: Tensor, c: Tensor) -> Tensor:
    return y.amax((2, 3), keepdim=True) + c


def pool(window: Any, kind: str = "max") -> Callable[..., Tensor]:
    def after(y: Tensor, c: Tensor) -> Tensor:
        pooled: Tensor = getattr(F, f"{kind}_pool{y.ndim - 2}d")(F.hardswish(y * c), window)
        return F.mish(pooled)

    return after


UP: dict[str, Any] = {"stride": 2, "padding": 1, "output_padding": 1}
C, C3 = (64, 1, 1), (16, 1, 1, 1)
CASES = (
    # channels: of pairs of pixels, of ragged lines, of few and odd channels, wide tiles, phases, channels-last
    Case(after=lowest, x=(4, 16, 34, 36), w=(64, 16, 3, 3)),
    Case(after=lowest, x=(3, 16, 35, 37), w=(64, 16, 3, 3)),
    Case(after=lowest, x=(4, 64, 34, 36), w=(128, 64, 3, 3), more={"padding": 1}),
    Case(after=lowest, x=(3, 8, 35, 37), w=(33, 8, 3, 3)),
    Case(after=softmax, x=(4, 16, 34, 36), w=(64, 16, 3, 3)),
    Case(after=softmax, x=(3, 16, 35, 37), w=(40, 16, 3, 3), more={"stride": 2}),
    Case(after=softmax, x=(3, 64, 21, 23), w=(160, 64, 3, 3)),
    Case(after=softmax, x=(2, 16, 9, 20, 21), w=(24, 16, 3, 3, 3)),
    Case(after=logsumexp, x=(3, 16, 35, 37), w=(64, 16, 3, 3)),
    Case(after=spread, x=(3, 16, 35, 37), w=(48, 16, 3, 3)),
    Case(after=weighed, x=(3, 16, 34, 36), w=(64, 16, 3, 3), read=(C,)),
    Case(after=beside, x=(3, 16, 34, 36), w=(64, 16, 3, 3), read=((3, 64, 32, 34),)),
    Case(after=softmax, x=(4, 64, 21, 23), w=(64, 128, 4, 4), transposed=True, more={"stride": 2, "padding": 1}),
    Case(after=softmax, x=(4, 32, 6, 9, 10), w=(32, 64, 3, 3, 3), transposed=True, more=UP),
    Case(after=logsumexp, x=(8, 3, 6, 9, 10), w=(3, 16, 3, 3, 3), transposed=True, more={"stride": 2, "padding": 1}),
    Case(after=lowest, x=(4, 64, 20, 22), w=(64, 64, 3, 3), transposed=True, more=UP),
    Case(after=softmax, x=(3, 64, 35, 37), w=(64, 64, 3, 3), dtype=HALF),
    Case(after=softmax, x=(3, 64, 34, 36), w=(64, 64, 3, 3), dtype=WIDE, last=True),
    Case(after=lowest, x=(3, 64, 35, 37), w=(100, 64, 3, 3), dtype=HALF, last=True),
    Case(after=lowest, x=(300, 16, 10, 12), w=(64, 16, 3, 3)),
    # places: samples that end within a tile, many in one, chunks of one sample, phases
    Case(after=mean, x=(4, 8, 34, 36), w=(64, 8, 3, 3)),
    Case(after=mean, x=(5, 64, 35, 37), w=(128, 64, 3, 3), more={"padding": 1}),
    Case(after=mean, x=(300, 16, 7, 9), w=(40, 16, 3, 3)),
    Case(after=mean, x=(2, 8, 300, 301), w=(64, 8, 3, 3)),
    Case(after=mean, x=(70, 8, 130, 131), w=(64, 8, 3, 3)),
    Case(after=highest, x=(5, 16, 35, 37), w=(64, 16, 3, 3), read=(C,)),
    Case(after=mean, x=(3, 16, 9, 20, 21), w=(24, 16, 3, 3, 3)),
    Case(after=mean, x=(4, 64, 20, 22), w=(64, 64, 3, 3), transposed=True, more=UP),
    Case(after=mean, x=(8, 32, 3000), w=(64, 32, 5)),
    Case(after=mean, x=(5, 64, 35, 37), w=(64, 64, 3, 3), dtype=HALF),
    # windows: of 2, 4, 8 and 16 pixels, what is left over, phases
    Case(after=pool(2), x=(4, 64, 34, 36), w=(64, 64, 3, 3), read=(C,)),
    Case(after=pool(2, "avg"), x=(3, 64, 35, 37), w=(64, 64, 3, 3), read=(C,)),
    Case(after=pool(4), x=(3, 8, 35, 37), w=(64, 8, 3, 3), read=(C,)),
    Case(after=pool((1, 2)), x=(3, 16, 35, 37), w=(40, 16, 3, 3), read=((40, 1, 1),), more={"padding": 1}),
    Case(after=pool((4, 2), "avg"), x=(3, 16, 35, 37), w=(100, 16, 3, 3), read=((100, 1, 1),)),
    Case(after=pool(2), x=(3, 16, 9, 20, 21), w=(16, 16, 3, 3, 3), read=(C3,)),
    Case(after=pool(2), x=(4, 16, 6, 9, 10), w=(16, 16, 3, 3, 3), transposed=True, more=UP, read=(C3,)),
    Case(after=pool(2), x=(8, 3, 6, 9, 10), w=(3, 16, 3, 3, 3), transposed=True, more=UP, read=(C3,)),
    Case(after=pool(2), x=(3, 32, 20, 22), w=(32, 64, 3, 3), transposed=True, more={"padding": 1}, read=(C,)),
    Case(after=pool(2), x=(3, 64, 35, 37), w=(64, 64, 3, 3), dtype=HALF, read=(C,)),
)  # fmt: skip


def pattern_of(case: Case) -> Pattern:
    """Traced on the CPU: the convolution that reduces."""
    graph = trace(Applies(case.forward), tuple(case.inputs("cpu")), {})
    matched = match(graph, unsupported=lambda p: None, space=lambda p: Space(knobs=(), points=((),)))
    (found,) = [p for p in matched.patterns if p.kind == "convolution" and p.program.reduced]
    return found


def chosen(pattern: Pattern, number: int) -> list[Point]:
    """Of each kernel, precision and way to merge phases the likeliest point, and another one."""
    points = points_of(pattern)
    first = {tuple(dict(p)[knob] for knob in ("kernel", "precision", "phases")): p for p in reversed(points)}
    return list(dict.fromkeys([*first.values(), points[number % len(points)]]))


def error_of(number: int, settings: Point, folder: Path) -> tuple[float, float, bool]:
    """Relative to float64: in the norm, and the worst element's over the largest; and whether a second call gives the
    same bits."""
    case = CASES[number]
    pattern = pattern_of(case)
    module = load_fused(pattern.program, folder, settings, renderer=Conv())
    given = case.inputs("cuda")
    operands = operands_of(pattern, given)
    (made,), (again,) = module.run(*operands), module.run(*operands)
    with torch.no_grad():
        truth = case.forward(*(g.double() for g in given))
    off = (result_of(pattern, made, truth.shape).double() - truth).abs()
    return float(off.norm() / truth.norm()), float(off.max() / truth.abs().max()), torch.equal(made, again)


@pytest.fixture(scope="module")
def bounded() -> Bounded:
    return Bounded()


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n].after.__name__}")
def test_what_is_reduced_is_what_float64_gives(number: int, tmp_path: Path, bounded: Bounded) -> None:
    for settings in chosen(pattern_of(CASES[number]), number):
        norm, worst, same = bounded.call(error_of, number, settings, tmp_path)
        allowed = ALLOWED.get(CASES[number].dtype) or 2 * ALLOWED[str(dict(settings)["precision"])]
        assert same and norm <= allowed and worst <= 8 * allowed, (settings, norm, worst, same)


def nans(number: int, settings: Point, folder: Path) -> bool:
    case = CASES[number]
    pattern = pattern_of(case)
    module = load_fused(pattern.program, folder, settings, renderer=Conv())
    given = case.inputs("cuda")
    given[0][0, 1, 4, 5], given[0][1, 2, 7, 7] = float("nan"), float("inf")
    (made,) = module.run(*operands_of(pattern, given))
    truth = case.forward(*(g.double() for g in given))
    return torch.equal(result_of(pattern, made, truth.shape).isnan(), truth.isnan())


@pytest.mark.parametrize("number", [0, 4, 20, 25, 30])
def test_a_nan_and_an_infinity_reach_what_they_meet_alone(number: int, tmp_path: Path, bounded: Bounded) -> None:
    """Of channels, places and windows; a NaN is the extremum."""
    for settings in chosen(pattern_of(CASES[number]), number):
        assert bounded.call(nans, number, settings, tmp_path), settings
