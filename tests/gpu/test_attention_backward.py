"""Gradients of attention on a GPU: held against float64 over maps of scores, lengths, heads, types, strides and
settings. Each case runs in a process with a time limit, since a fault in the protocol of barriers would hang."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.attention_step import Step, step
from fakes.bounded import Bounded
from fakes.fused import load_fused
from fakes.realisers import H200
from tilewright.facts.candidate import SourceFile
from tilewright.facts.pattern import Pattern
from tilewright.facts.space import Point
from tilewright.ir.program import Program
from tilewright.realise.attention import backward

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

WIDE, HALF = torch.bfloat16, torch.float16
ALLOWED = {HALF: 1e-3, WIDE: 8e-3}  # relative error in the norm, beside twice that of torch's own gradients


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kept = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device))
    return (q @ k.mT * 0.2).masked_fill(~kept, -math.inf).softmax(-1) @ v


def sliding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = torch.arange(q.shape[-2], device=q.device)[:, None], torch.arange(k.shape[-2], device=q.device)
    return torch.where((j <= i) & (j > i - 100), q @ k.mT * 0.2, -math.inf).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT * 0.2 + bias).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT * 0.2 / 20).tanh() * 20).softmax(-1) @ v


def relu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / k.shape[-2]).relu() @ v


def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One head of keys and values for all queries."""
    scores = torch.einsum("bhmd,bnd->bhmn", q, k[:, 0]) * 0.2
    return torch.einsum("bhmn,bne->bhme", scores.softmax(-1), v[:, 0])


@dataclass(frozen=True, kw_only=True)
class Case:
    """`sizes`: batch, heads, queries, keys, columns of query and key, of value. `more`: shapes of operands. `kind`:
    "sliced" factors, or "large" scores."""

    function: Callable[..., Tensor]
    sizes: tuple[int, int, int, int, int, int]
    dtype: torch.dtype = WIDE
    more: tuple[tuple[int, ...], ...] = ()
    kind: str = ""
    point: int = 0  # which of the points that are ranked

    @property
    def name(self) -> str:
        words = [self.function.__name__, "x".join(map(str, self.sizes)), str(self.dtype).split(".")[1], self.kind]
        return "-".join([*filter(None, words), str(self.point)])

    def inputs(self) -> tuple[Tensor, ...]:
        b, h, m, n, d, e = self.sizes
        torch.manual_seed(5)
        found = [torch.randn(s) for s in ((b, h, m, d), (b, h, n, d), (b, h, n, e), *self.more)]
        if self.kind == "large":
            found[0] *= 20
        return tuple(x.to(self.dtype) for x in found)


def both(function: Callable[..., Tensor], *sizes: tuple[int, ...], **how: Any) -> list[Case]:
    """In bf16 and in fp16, each at a point of its own."""
    found = []
    for i, own in enumerate(sizes):
        found.append(Case(function=function, sizes=own, dtype=WIDE, point=3 * i, **how))  # type: ignore[arg-type]
        found.append(Case(function=function, sizes=own, dtype=HALF, point=3 * i + 5, **how))  # type: ignore[arg-type]
    return found


CASES = (
    *both(plain, (2, 4, 128, 128, 64, 64), (2, 3, 130, 131, 64, 64), (3, 5, 77, 2049, 128, 128),
          (2, 8, 1024, 1024, 128, 128), (1, 2, 2000, 40, 64, 64)),
    *both(plain, (2, 4, 200, 300, 16, 16), (2, 4, 200, 300, 40, 24), (2, 4, 200, 300, 96, 80),
          (2, 4, 200, 300, 192, 128), (2, 4, 200, 300, 256, 256)),
    *both(causal, (2, 4, 512, 512, 64, 64), (2, 4, 700, 300, 128, 128), (2, 4, 300, 700, 64, 64)),
    *both(sliding, (2, 4, 777, 777, 64, 64), (1, 2, 300, 901, 128, 128)),
    *both(biased, (2, 4, 201, 333, 64, 64), more=((1, 4, 201, 333),)),
    *both(biased, (3, 4, 256, 256, 128, 128), more=((3, 1, 256, 256),)),
    *both(biased, (2, 4, 201, 333, 32, 32), more=((2, 4, 201, 333),)),
    *both(capped, (2, 4, 201, 333, 64, 64)),
    *both(relu, (2, 4, 201, 333, 64, 64)),
    *both(shared, (2, 4, 201, 333, 64, 64)),
    Case(function=plain, sizes=(2, 4, 200, 300, 64, 64), kind="sliced"),
    Case(function=plain, sizes=(2, 4, 200, 300, 64, 64), kind="large"),
    Case(function=plain, sizes=(300, 7, 49, 49, 32, 32)),  # windows
)  # fmt: skip


class Alone:
    """The realiser of the gradients alone, whatever it would refuse."""

    def render(self, program: Program, name: str, settings: Point) -> tuple[SourceFile, ...]:
        return backward.render(program, name, settings, H200)

    def skeleton_files(self, programs: object) -> tuple[SourceFile, ...]:
        return backward.skeleton_files()


def made_of(case: Case) -> tuple[Step, Pattern, Point]:
    made = step(case.function, *case.inputs())
    (pattern,) = (p for p in made.patterns if p.kind == "attention_backward")
    points = backward.points(pattern.program, H200).points
    return made, pattern, points[case.point % len(points)]


def check(number: int, folder: str) -> str:
    """What is wrong with a case, in a sentence; "" where nothing is. All but the gradients' Program runs on the CPU."""
    case = CASES[number]
    made, pattern, settings = made_of(case)
    module = load_fused(pattern.program, Path(folder), point=settings, renderer=Alone())

    def execute(program: Program, operands: list[Tensor], **_: object) -> list[Tensor]:
        given = [x.cuda() for x in operands]
        if case.kind == "sliced":
            given[:4] = [torch.cat([x, x], -1)[..., : x.shape[-1]] for x in given[:4]]
        found = module.run(*given)
        again = module.run(*given)
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True)), "results differ from call to call"
        return [x.cpu() for x in found]

    found = made.gradients(execute, only=[pattern])
    for i, (own, truth, theirs) in enumerate(zip(found, made.truth(), made.own(), strict=True)):
        apart, usual = (float((x.double() - truth).norm() / truth.norm()) for x in (own, theirs))
        allowed = max(ALLOWED[case.dtype], 2 * usual)
        if not apart <= allowed:
            return f"{settings}: the error of gradient {i} is {apart:.2g}, {allowed:.2g} is allowed"
    return ""


@pytest.fixture(scope="module")
def bounded() -> Bounded:
    return Bounded()


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_gradients_are_what_float64_gives(number: int, bounded: Bounded, tmp_path: Path) -> None:
    assert bounded.call(check, number, str(tmp_path), limit_s=90.0) == ""
