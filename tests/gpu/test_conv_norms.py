"""Convolutions with norms, on a GPU: in one pattern and in two, held against float64; means far above deviations."""

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
from fakes.convolved import ALLOWED, Conv, points_of
from fakes.fused import load_fused
from fakes.modules import Applies
from tilewright.facts.pattern import Bind, Pattern
from tilewright.facts.space import Point, Space
from tilewright.frontend.trace import trace
from tilewright.fusion import match, normed

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

HALF = torch.float16


@dataclass(frozen=True, kw_only=True)
class Case:
    """A convolution of x by w with a bias, then `after` of it, of a weight and a shift of channels. `twice`: by two
    convolutions. `far`: what is added to the convolution's bias."""

    after: Callable[..., Tensor]
    x: tuple[int, ...]
    w: tuple[int, ...]
    more: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    transposed: bool = False
    twice: bool = False
    far: float = 0.0

    def forward(self, x: Tensor, w: Tensor, bias: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        name = ("conv_transpose" if self.transposed else "conv") + f"{len(self.x) - 2}d"
        return self.after(getattr(F, name)(x, w, bias, **self.more), weight, shift)

    def inputs(self, device: str) -> list[Tensor]:
        """Of outputs of about 1 beside the bias."""
        torch.manual_seed(7)
        x, w = torch.randn(self.x, device=device), torch.randn(self.w, device=device)
        w /= (self.w[0] * prod(self.w[2:]) if self.transposed else prod(self.w[1:])) ** 0.5
        columns = self.w[1] if self.transposed else self.w[0]
        bias, weight, shift = (torch.randn(columns, device=device) for _ in range(3))
        return [t.to(self.dtype) for t in (x, w, bias + self.far, weight, shift)]


def batch(y: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(F.mish(y), None, None, weight, shift, training=True)


def plain(y: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(y, None, None, weight, shift, training=True).relu()


def instance(y: Tensor, _weight: Tensor, _shift: Tensor) -> Tensor:
    return F.instance_norm(y) / 2


def group(y: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    return F.hardswish(F.group_norm(F.gelu(y), 8, weight, shift))


def pool(window: int, kind: str = "max") -> Callable[..., Tensor]:
    def after(y: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        made: Tensor = getattr(F, f"{kind}_pool{y.ndim - 2}d")(F.group_norm(y, 4, weight, shift), window)
        return made.clamp(-1, 1)

    return after


def channels(y: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    return torch.logsumexp(y + F.group_norm(y, 8, weight, shift).tanh(), 1, keepdim=True)


def places(y: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    normal = F.group_norm(F.hardswish(y), 4, weight, shift)
    return normal.square().mean(tuple(range(2, y.ndim)))


UP: dict[str, Any] = {"stride": 2, "padding": 1, "output_padding": 1}
SHAPES = (  # pairs of pixels, ragged lines and channels, many samples a tile, chunks of one, tiles of columns
    {"x": (4, 16, 34, 36), "w": (64, 16, 3, 3)},
    {"x": (3, 8, 35, 37), "w": (40, 8, 3, 3)},
    {"x": (300, 16, 7, 9), "w": (48, 16, 3, 3)},
    {"x": (2, 8, 300, 301), "w": (64, 8, 3, 3)},
    {"x": (5, 64, 35, 37), "w": (128, 64, 3, 3), "more": {"padding": 1}},
    {"x": (3, 32, 21, 23), "w": (320, 32, 3, 3)},
    {"x": (3, 16, 9, 20, 21), "w": (24, 16, 3, 3, 3)},
    {"x": (4, 32, 6, 9, 10), "w": (32, 64, 3, 3, 3), "transposed": True, "more": UP},
)  # fmt: skip
CASES = (
    *(Case(after=plain, **own) for own in SHAPES),
    *(Case(after=group, **own) for own in SHAPES),
    *(Case(after=own, **SHAPES[i]) for own in (batch, instance) for i in (0, 3, 7)),
    *(Case(after=plain, dtype=HALF, **SHAPES[i]) for i in (0, 4)),
    *(Case(after=own, twice=True, **SHAPES[i]) for own in (plain, group) for i in (0, 1, 3, 5, 7)),
    Case(after=instance, twice=True, **SHAPES[6]),
    Case(after=pool(2), twice=True, **SHAPES[1]), Case(after=pool(4), twice=True, **SHAPES[0]),
    Case(after=pool(2, "avg"), twice=True, transposed=True, x=(8, 3, 6, 9, 10), w=(3, 16, 3, 3, 3), more=UP),
    Case(after=channels, twice=True, **SHAPES[0]), Case(after=channels, twice=True, **SHAPES[1]),
    Case(after=places, twice=True, **SHAPES[3]), Case(after=places, twice=True, **SHAPES[6]),
    *(Case(after=own, far=1000.0, twice=two, **SHAPES[i])
      for own in (plain, instance) for two in (False, True) for i in (0, 3)),
)  # fmt: skip


def patterns_of(case: Case) -> list[Pattern]:
    """Traced on the CPU: the convolution with its norm, or the two."""
    before, normed._FLOPS_A_BYTE = normed._FLOPS_A_BYTE, 10**9 if case.twice else 0
    try:
        graph = trace(Applies(case.forward), tuple(case.inputs("cpu")), {})
        matched = match(graph, unsupported=lambda p: None, space=lambda p: Space(knobs=(), points=((),)))
    finally:
        normed._FLOPS_A_BYTE = before
    found = [p for p in matched.patterns if p.kind == "convolution"][1:]
    assert len(found) == 1 + case.twice
    return found


def viewed(value: Tensor, bind: Bind, shape: tuple[int, ...]) -> Tensor:
    return value.reshape(bind.split).permute(bind.order).reshape(shape)


def error_of(number: int, which: int, folder: Path) -> tuple[float, float, bool]:
    """Relative to float64: in the norm, and the worst element's over the largest; and whether a second call gives the
    same bits. `which`: of the points of each convolution."""
    case = CASES[number]
    names = ("args_0", "args_1", "args_2", "args_3", "args_4")
    given = case.inputs("cuda")
    values = dict(zip(names, given, strict=True))
    same = True
    for pattern in reversed(patterns_of(case)):  # what measures comes first
        settings = chosen(pattern)[which % len(chosen(pattern))]
        module = load_fused(pattern.program, folder / pattern.id, settings, renderer=Conv())
        (site,) = pattern.matches
        operands = [
            viewed(values[bind.node], bind, o.shape)
            for o, bind in zip(pattern.program.operands, site.operands, strict=True)
        ]
        made, again = module.run(*operands), module.run(*operands)
        same = same and all(torch.equal(a, b) for a, b in zip(made, again, strict=True))
        for own, bind in zip(made, site.outputs, strict=True):
            values[bind.node] = own.reshape(bind.split).permute(bind.order)
            last = values[bind.node]
    with torch.no_grad():
        truth = case.forward(*(g.double() for g in given))
    off = (last.reshape(truth.shape).double() - truth).abs()
    return float(off.norm() / truth.norm()), float(off.max() / truth.abs().max()), same


def chosen(pattern: Pattern) -> list[Point]:
    """Of each kernel and precision the likeliest point."""
    points = points_of(pattern)
    first = {tuple(dict(p)[knob] for knob in ("kernel", "precision", "phases")): p for p in reversed(points)}
    return list(first.values())


@pytest.fixture(scope="module")
def bounded() -> Bounded:
    return Bounded()


def allowed_of(case: Case, pattern: Pattern, which: int) -> float:
    """Twice what a convolution is allowed; a mean a thousand times the deviation costs as many roundings of fp32."""
    precision = str(dict(chosen(pattern)[which % len(chosen(pattern))])["precision"])
    own = ALLOWED.get(case.dtype) or ALLOWED[precision]
    return 4 * own + case.far * 6e-7


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n].after.__name__}")
def test_a_norm_is_what_float64_gives(number: int, tmp_path: Path, bounded: Bounded) -> None:
    case = CASES[number]
    found = patterns_of(case)
    for which in (2 * number, 2 * number + 1):  # two of the four or so: all are met by many cases
        norm, worst, same = bounded.call(error_of, number, which, tmp_path / str(which))
        allowed = max(allowed_of(case, p, which) for p in found)
        assert same and norm <= allowed and worst <= 8 * allowed, (which, norm, worst, same)
