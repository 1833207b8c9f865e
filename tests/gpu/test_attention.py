"""Attention on a GPU: held against float64 over spellings, lengths, heads, types, strides, masks and settings. Each
case runs in a process with a time limit, since a fault in the protocol of barriers would hang."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.bounded import Bounded
from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, view
from fakes.realisers import H200
from tilewright.facts.candidate import SourceFile
from tilewright.facts.pattern import Match
from tilewright.facts.space import Point
from tilewright.frontend.trace import trace
from tilewright.fusion.attention import attentions
from tilewright.fusion.region import Flow
from tilewright.ir.program import Program
from tilewright.kernels.cuda.attention.tiles import make_point
from tilewright.realise.attention import renderer as attention
from tilewright.realise.attention.points import space
from tilewright.realise.attention.shape import shape_of

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

WIDE, HALF, FULL = torch.bfloat16, torch.float16, torch.float32
# Relative error in the norm, beside twice that of the module in its own type.
ALLOWED = {FULL: 9.5e-7, HALF: 1e-3, WIDE: 8e-3}


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def written_causal(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
    kept = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device))
    return (q @ k.mT * 0.2).masked_fill(~kept, -math.inf).softmax(-1) @ v


def sliding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = torch.arange(q.shape[-2], device=q.device)[:, None], torch.arange(k.shape[-2], device=q.device)
    return torch.where((j <= i) & (j > i - 100), q @ k.mT * 0.2, -math.inf).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT * 0.2 + bias).softmax(-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask > 0)


def alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    apart = torch.arange(k.shape[-2], device=q.device)[None, :] - torch.arange(q.shape[-2], device=q.device)[:, None]
    return (q @ k.mT * 0.2 + slopes[:, None, None] * apart).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT * 0.2 / 20).tanh() * 20).softmax(-1) @ v


def relu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / k.shape[-2]).relu() @ v


def relu_causal(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    return (q @ k.mT / k.shape[-2]).masked_fill(kept < 0, -math.inf).relu() @ v


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.2 - math.log(k.shape[-2])).sigmoid() @ v


def sunk(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    """gpt-oss's: one learned score more a head."""
    own = sinks.view(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], 1)
    return torch.cat([q @ k.mT * 0.2, own], -1).softmax(-1)[..., :-1] @ v


def sunk_sliding(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    i, j = torch.arange(q.shape[-2], device=q.device)[:, None], torch.arange(k.shape[-2], device=q.device)
    own = sinks.view(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], 1)
    scores = torch.where((j <= i) & (j > i - 100), q @ k.mT * 0.2, -math.inf)
    return torch.cat([scores, own], -1).softmax(-1)[..., :-1] @ v


def buffered(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    return (q @ k.mT * 0.2).masked_fill(kept < 0, -math.inf).softmax(-1) @ v


def segments(q: Tensor, k: Tensor, v: Tensor, of_queries: Tensor, of_keys: Tensor) -> Tensor:
    """Of numbers, rounded to those of segments."""
    alike = of_queries.round()[:, None, :, None] == of_keys.round()[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, alike)


def local_and_strided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As sparse transformers have it: a window, and every 64th key."""
    i, j = torch.arange(q.shape[-2], device=q.device)[:, None], torch.arange(k.shape[-2], device=q.device)
    kept = (j <= i) & ((j > i - 64) | (j // 64 == 3))
    return torch.where(kept, q @ k.mT * 0.2, -math.inf).softmax(-1) @ v


def cosine(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    return (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * scale.exp()[:, None, None]).softmax(-1) @ v


def side_by_side(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of (batch, positions, heads, columns), as projections give them."""
    made = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
    return made.transpose(1, 2).reshape(q.shape[0], q.shape[1], -1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`sizes`: batch, heads, queries, keys, columns of query and key, of value. `shared`: queries' heads for each of
    the keys'. `kind`: "large" scores, "sliced" factors, one that begins at an "odd" address, "empty" rows of a mask, a
    mask that is "lower", or is so and hides an "infinite" value, one whose first keys are hidden ("late"), "packed"
    segments. `knobs`: those of a point whose others are the first's that fits."""

    function: Callable[..., Tensor]
    sizes: tuple[int, int, int, int, int, int]
    dtype: torch.dtype = WIDE
    more: tuple[tuple[int, ...], ...] = ()
    shared: int = 1
    kind: str = ""
    point: int = 0  # which of the points that are ranked
    knobs: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        words = [self.function.__name__, "x".join(map(str, self.sizes)), str(self.dtype).split(".")[1], self.kind]
        return "-".join([*filter(None, words), *(["shared"] if self.shared > 1 else []), str(self.point),
                         *(f"{name}{value}" for name, value in self.knobs)])  # fmt: skip

    def inputs(self, device: str) -> list[Tensor]:
        b, h, m, n, d, e = self.sizes
        shapes = [(b, h, m, d), (b, h // self.shared, n, d), (b, h // self.shared, n, e)]
        if self.function is side_by_side:
            shapes = [(s[0], s[2], s[1], s[3]) for s in shapes]
        torch.manual_seed(5)
        found = [torch.randn(s, device=device) for s in (*shapes, *self.more)]
        if self.kind == "large":
            found[0] *= 30
        found = [x.to(self.dtype) for x in found]
        if self.kind == "sliced":
            found[:3] = [torch.cat([x, x], -1)[..., : x.shape[-1]] for x in found[:3]]
        if self.kind == "odd":
            flat = torch.empty(found[1].numel() + 1, dtype=self.dtype, device=device)
            flat[1:] = found[1].flatten()
            found[1] = flat[1:].view(found[1].shape)
        if self.kind == "empty":
            found[3][..., 3, :] = -1
        if self.kind in ("lower", "infinite"):
            found[3] = found[3].abs().clamp(min=0.1).tril() - 0.05
        if self.kind == "infinite":
            found[2][0, 1, 150, 3] = math.inf
        if self.kind == "late":  # the first keys are hidden from all
            found[3] = torch.where(torch.arange(self.sizes[3], device=device) > 2000, 1.0, -1.0).expand(found[3].shape)
            found[3] = found[3].to(self.dtype).contiguous()
        if self.kind == "packed":
            found[3:] = [(torch.arange(x.numel(), device=device) // 70).view(x.shape).to(self.dtype) for x in found[3:]]
        return found


def both(function: Callable[..., Tensor], *sizes: tuple[int, ...], **how: Any) -> list[Case]:
    """In bf16 and in fp16, each at a point of its own."""
    cases = []
    for i, own in enumerate(sizes):
        cases.append(Case(function=function, sizes=own, dtype=WIDE, point=4 * i, **how))  # type: ignore[arg-type]
        cases.append(Case(function=function, sizes=own, dtype=HALF, point=4 * i + 6, **how))  # type: ignore[arg-type]
    return cases


SKIPS = (("skips", True),)

CASES = (
    # lengths, and one tile, a part of one, many
    *both(plain, (2, 4, 128, 128, 64, 64), (2, 3, 130, 131, 64, 64), (1, 2, 1, 1000, 64, 64),
          (3, 5, 77, 2049, 128, 128), (1, 2, 700, 16, 64, 64), (2, 8, 1024, 1024, 128, 128)),
    # heads
    *both(plain, (2, 4, 200, 300, 16, 16), (2, 4, 200, 300, 40, 24), (2, 4, 200, 300, 96, 80),
          (2, 4, 200, 300, 192, 128), (2, 4, 200, 300, 256, 256), (2, 4, 200, 300, 72, 136)),
    # masks over positions
    *both(causal, (2, 4, 512, 512, 64, 64), (2, 4, 700, 300, 128, 128), (2, 4, 300, 700, 64, 64)),
    *both(written_causal, (2, 4, 333, 333, 64, 64)),
    *both(sliding, (2, 4, 777, 777, 64, 64), (1, 2, 300, 901, 128, 128)),
    *both(causal, (2, 8, 512, 512, 64, 64), shared=4),
    # maps of scores
    *both(biased, (2, 4, 201, 333, 64, 64), more=((4, 201, 333),)),
    *both(biased, (2, 4, 201, 333, 128, 128), more=((2, 1, 1, 333),)),
    *both(masked, (2, 4, 201, 333, 64, 64), more=((201, 333),), kind="empty"),
    *both(alibi, (2, 4, 513, 513, 64, 64), more=((4,),)),
    *both(capped, (2, 4, 201, 333, 64, 64)),
    *both(relu, (2, 4, 201, 333, 64, 64)),
    *both(sigmoid, (2, 4, 201, 333, 64, 64)),
    *both(cosine, (2, 4, 201, 333, 64, 64), more=((4,),)),
    # sinks
    *both(sunk, (2, 4, 201, 333, 64, 64), more=((4,),)),
    *both(sunk_sliding, (2, 4, 777, 777, 128, 128), more=((4,),)),
    Case(function=sunk, sizes=(2, 4, 201, 333, 64, 64), more=((4,),), dtype=FULL),
    # tiles that masks hide
    *(Case(function=buffered, sizes=(2, 4, 700, 700, 64, 64), more=((700, 700),), kind=kind, dtype=dtype, knobs=SKIPS)
      for kind in ("lower", "infinite", "empty") for dtype in (WIDE, FULL)),
    Case(function=segments, sizes=(2, 4, 500, 700, 64, 64), more=((2, 500), (2, 700)), kind="packed", knobs=SKIPS),
    Case(function=local_and_strided, sizes=(2, 4, 900, 900, 128, 128), knobs=SKIPS),
    Case(function=masked, sizes=(2, 4, 201, 333, 64, 64), more=((201, 333),), kind="empty", knobs=SKIPS),
    Case(function=written_causal, sizes=(2, 4, 700, 700, 64, 64), kind="infinite", more=((1, 1),), knobs=SKIPS),
    *(Case(function=relu_causal, sizes=(2, 4, 700, 700, 64, 64), more=((700, 700),), kind="lower", knobs=SKIPS,
           dtype=dtype) for dtype in (WIDE, FULL)),
    # keys that CTAs share: decoding
    *(Case(function=grouped, sizes=(2, 16, 1, 5000, 128, 128), shared=8, dtype=dtype, knobs=(("splits", n),))
      for n, dtype in ((4, WIDE), (16, HALF), (8, FULL))),
    Case(function=plain, sizes=(2, 4, 1, 1000, 64, 64), knobs=(("splits", 2),)),
    Case(function=sunk, sizes=(2, 4, 2, 3000, 64, 64), more=((4,),), knobs=(("splits", 8),)),
    Case(function=masked, sizes=(2, 4, 3, 3000, 64, 64), more=((3, 3000),), kind="late", knobs=(("splits", 6),)),
    Case(function=relu, sizes=(2, 4, 5, 3000, 64, 64), dtype=FULL, knobs=(("splits", 6),)),
    Case(function=relu, sizes=(2, 4, 201, 333, 64, 64), dtype=FULL),
    # memory
    *both(side_by_side, (2, 4, 300, 300, 64, 64)),
    Case(function=plain, sizes=(2, 4, 200, 300, 64, 64), kind="sliced"),
    Case(function=plain, sizes=(2, 4, 200, 300, 64, 64), kind="odd"),
    Case(function=plain, sizes=(2, 4, 200, 300, 64, 64), kind="large"),
    Case(function=plain, sizes=(300, 7, 49, 49, 32, 32)),  # windows
    # fp32
    *(Case(function=plain, sizes=s, dtype=FULL, point=4 * i) for i, s in enumerate(
        ((2, 4, 128, 128, 64, 64), (2, 3, 130, 131, 64, 64), (2, 4, 200, 3000, 128, 128), (2, 4, 200, 300, 40, 24),
         (1, 2, 1024, 1024, 128, 64), (1, 2, 1, 1000, 64, 64))
    )),
    Case(function=causal, sizes=(2, 8, 512, 512, 64, 64), dtype=FULL, shared=4),
    Case(function=sliding, sizes=(2, 4, 777, 777, 128, 128), dtype=FULL),
    Case(function=biased, sizes=(2, 4, 201, 333, 64, 64), dtype=FULL, more=((4, 201, 333),)),
    Case(function=masked, sizes=(2, 4, 201, 333, 64, 64), dtype=FULL, more=((201, 333),), kind="empty"),
    Case(function=capped, sizes=(2, 4, 201, 333, 64, 64), dtype=FULL),
    Case(function=plain, sizes=(2, 4, 200, 300, 64, 64), dtype=FULL, kind="large"),
    Case(function=side_by_side, sizes=(2, 4, 300, 300, 64, 64), dtype=FULL),
)  # fmt: skip


class Alone:
    """The realiser of attention alone, whatever it would refuse."""

    def render(self, program: Program, name: str, settings: Point) -> tuple[SourceFile, ...]:
        return attention.render(program, name, settings, H200)

    def skeleton_files(self, programs: object) -> tuple[SourceFile, ...]:
        return attention.skeleton_files()


def found(case: Case) -> tuple[Program, Match]:
    """Traced on the CPU, of tensors that lie as they usually do."""
    usual = [x.contiguous() for x in case.inputs("cpu")]
    (whole,), _ = attentions(Flow(trace(Applies(case.function), tuple(usual), {})), lambda program: None)
    return whole


def point_of(program: Program, case: Case) -> Point:
    shape = shape_of(program)
    assert shape is not None
    points = space(program, shape, H200).points
    own = [p for p in points if set(case.knobs) <= set(p)]
    if own or not case.knobs:
        return (own or points)[case.point % len(own or points)]
    for settings in (dict(p) | dict(case.knobs) for p in points):
        try:
            make_point(shape, settings)
        except ValueError:
            continue
        return tuple(sorted(settings.items()))
    raise AssertionError(f"no point has {case.knobs}")


def check(number: int, folder: str) -> str:
    """What is wrong with a case, in a sentence; "" where nothing is."""
    case = CASES[number]
    program, site = found(case)
    settings = point_of(program, case)
    module = load_fused(program, Path(folder), point=settings, renderer=Alone())
    given = case.inputs("cuda")
    graph = trace(Applies(case.function), tuple(x.contiguous() for x in case.inputs("cpu")), {})
    values = GraphRun(graph, Applies(case.function), exact=False)
    for template, x in zip(graph.arguments, given, strict=True):
        values._bind(template, x)
    operands = [view(values.value(b.node), b, o.shape) for b, o in zip(site.operands, program.operands, strict=True)]
    (made,) = module.run(*operands)
    torch.cuda.synchronize()
    truth = case.function(*(x.double() for x in given))
    own = case.function(*given)
    made = view(made, site.outputs[0], next(n.shape for n in graph.nodes if n.name == site.outputs[0].node))
    made = made.reshape(truth.shape)
    finite = truth.isfinite()
    if not torch.equal(made.isfinite(), finite):
        return f"{settings}: other elements are finite"
    apart, theirs = (float((x.double() - truth)[finite].norm() / truth[finite].norm()) for x in (made, own))
    allowed = max(ALLOWED[case.dtype], 2 * theirs)
    return "" if apart <= allowed else f"{settings}: its error is {apart:.2g}, {allowed:.2g} is allowed"


@pytest.fixture(scope="module")
def bounded() -> Bounded:
    return Bounded()


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_it_gives_what_float64_gives(number: int, bounded: Bounded, tmp_path: Path) -> None:
    assert bounded.call(check, number, str(tmp_path), limit_s=90.0) == ""


def test_calls_repeat_and_take_memory_as_it_comes(bounded: Bounded, tmp_path: Path) -> None:
    assert bounded.call(repeated, str(tmp_path), limit_s=90.0) == ""


def repeated(folder: str) -> str:
    """Many calls of one kernel, whose results are the same bits, on inputs that change."""
    case = next(c for c in CASES if c.function is causal and c.dtype is WIDE)
    program, _ = found(case)
    module = load_fused(program, Path(folder), point=point_of(program, case), renderer=Alone())
    given = case.inputs("cuda")
    shapes = [o.shape for o in program.operands]
    first = module.run(*(x.reshape(s) for x, s in zip(given, shapes, strict=True)))[0].clone()
    for _ in range(300):
        module.run(*(torch.randn_like(x).reshape(s) for x, s in zip(given, shapes, strict=True)))
    again = module.run(*(x.reshape(s) for x, s in zip(given, shapes, strict=True)))[0]
    torch.cuda.synchronize()
    return "" if torch.equal(first, again) else "results differ"


def test_the_logarithms_of_the_sums_are_an_output_that_may_be_asked_for(bounded: Bounded, tmp_path: Path) -> None:
    for number in (0, next(i for i, c in enumerate(CASES) if c.dtype is FULL)):
        assert bounded.call(summed, number, str(tmp_path), limit_s=90.0) == ""


def summed(number: int, folder: str) -> str:
    case = CASES[number]
    program, _ = found(case)
    settings = point_of(program, case)
    module = load_fused(program, Path(folder), point=settings, renderer=Alone())
    kind = type(module._FUSED)
    fused = kind(replace(module._FUSED.spec, sums=True), dict(settings))
    q, k, v = case.inputs("cuda")
    _, logarithms = fused(q, k, v)
    torch.cuda.synchronize()
    truth = (q.double() @ k.double().mT / math.sqrt(q.shape[-1])).logsumexp(-1)
    worst = float((logarithms.double() - truth).abs().max())
    return "" if worst < (1e-5 if case.dtype is FULL else 1e-4) else f"off by {worst:.2g}"
