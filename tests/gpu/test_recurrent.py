"""Recurrent layers on a GPU: held against float64 over cells, sizes, directions, layers, layouts, types and settings.
Each case runs in a process with a time limit, since a fault in the protocol of barriers would hang."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fakes.bounded import Bounded
from fakes.fused import load_fused
from fakes.program_interpreter import view
from fakes.realisers import H200
from tilewright.facts.candidate import SourceFile
from tilewright.facts.pattern import Match
from tilewright.facts.space import Point
from tilewright.frontend.trace import trace
from tilewright.fusion.recurrence import recurrences
from tilewright.fusion.region import Flow
from tilewright.ir.program import Program
from tilewright.realise.recurrent import renderer as recurrent
from tilewright.realise.recurrent.points import space
from tilewright.realise.recurrent.shape import shape_of

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

WIDE, HALF, FULL = torch.bfloat16, torch.float16, torch.float32
# Relative error in the norm, beside twice that of the module in its own type, TF32 off.
ALLOWED = {FULL: 2e-6, HALF: 2e-3, WIDE: 2e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`sizes`: steps, batch, inputs, hidden units; `point`: which of the space's, modulo how many there are."""

    kind: str
    sizes: tuple[int, int, int, int]
    options: tuple[tuple[str, Any], ...] = ()
    dtype: torch.dtype = FULL
    point: int = 0
    states: bool = True

    @property
    def name(self) -> str:
        options = "-".join(f"{k}={v}" for k, v in self.options)
        return f"{self.kind}-{'x'.join(map(str, self.sizes))}-{options}-{str(self.dtype)[6:]}-{self.point}"

    def module(self, dtype: torch.dtype, device: str) -> nn.Module:
        torch.manual_seed(5)
        options = dict(self.options) | ({"nonlinearity": "relu"} if self.kind == "relu" else {})
        made = Layers("RNN" if self.kind == "relu" else self.kind, self.sizes[2], self.sizes[3], **options)
        return made.to(self.dtype).to(dtype).to(device).eval()

    def inputs(self, device: str) -> list[Tensor]:
        steps, batch, inputs, hidden = self.sizes
        options = dict(self.options)
        shape = (batch, steps, inputs) if options.get("batch_first") else (steps, batch, inputs)
        count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        drawn = torch.Generator().manual_seed(7)
        shapes = [shape, *([(count, batch, hidden)] * (2 if self.kind == "LSTM" else 1) if self.states else [])]
        return [torch.randn(s, generator=drawn).to(self.dtype).to(device) for s in shapes]


class Layers(nn.Module):
    def __init__(self, kind: str, inputs: int, hidden: int, **options: Any) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(inputs, hidden, **options)

    def forward(self, x: Tensor, *states: Tensor) -> Any:
        return self.layers(x, states if len(states) > 1 else states[0]) if states else self.layers(x)


ODD = ((3, 1, 4, 17), (9, 7, 5, 100), (2, 3, 8, 64))
KINDS = ("LSTM", "GRU", "RNN", "relu")
BOTH, FIRST, PLAIN = ("bidirectional", True), ("batch_first", True), ("bias", False)
CASES = (
    # every cell, at the first six points: sizes of cluster and ways to share the weights
    *(Case(kind=k, sizes=(40, 10, 16, 256), point=p) for k, p in product(("LSTM", "GRU"), range(6))),
    *(Case(kind=k, sizes=(40, 8, 16, 256), point=3 * p) for k, p in product(("RNN", "relu"), range(2))),
    # sizes: hidden units that no cluster divides, a part of a group of the batch, one and two steps
    *(Case(kind=k, sizes=s, point=i) for k in KINDS for i, s in enumerate(ODD)),
    # directions, layers, layouts
    *(Case(kind=k, sizes=(30, 5, 12, 64), options=(BOTH, ("num_layers", 3), FIRST)) for k in KINDS),
    *(Case(kind=k, sizes=(30, 5, 12, 40), options=(PLAIN, ("num_layers", 2)), states=False) for k in KINDS),
    # weights in shared memory, many groups of the batch, clusters that wait for room
    Case(kind="LSTM", sizes=(20, 32, 16, 512)), Case(kind="LSTM", sizes=(20, 32, 16, 512), point=1),
    Case(kind="LSTM", sizes=(20, 300, 16, 256)), Case(kind="GRU", sizes=(20, 300, 16, 256), options=(BOTH,)),
    Case(kind="RNN", sizes=(20, 3, 16, 1024)),
    # narrow types
    *(Case(kind=k, sizes=(20, 5, 16, 96), dtype=t) for k, t in product(("LSTM", "GRU"), (HALF, WIDE))),
    # long
    Case(kind="LSTM", sizes=(2000, 2, 8, 64)), Case(kind="GRU", sizes=(2000, 2, 8, 128), options=(BOTH,)),
)  # fmt: skip


class Alone:
    """The realiser of recurrent layers alone, whatever it would refuse."""

    def render(self, program: Program, name: str, settings: Point) -> tuple[SourceFile, ...]:
        return recurrent.render(program, name, settings, H200)

    def skeleton_files(self, programs: object) -> tuple[SourceFile, ...]:
        return recurrent.skeleton_files()


def found(case: Case) -> tuple[Program, Match, list[str]]:
    """And the paths of the parameters among its operands, "" of what is none."""
    graph = trace(case.module(case.dtype, "cpu"), tuple(case.inputs("cpu")), {})
    ((program, site),), _ = recurrences(Flow(graph), lambda program: None)
    nodes = {n.name: n for n in graph.nodes}
    return program, site, [nodes[b.node].path if nodes[b.node].op == "state" else "" for b in site.operands]


def operands_of(case: Case, device: str = "cuda") -> tuple[Program, Match, list[Tensor], nn.Module]:
    program, site, paths = found(case)
    module, given = case.module(case.dtype, device), case.inputs(device)
    if not case.states:
        given += [
            torch.zeros(o.shape, dtype=case.dtype, device=device) for o in program.operands[1:3] if len(o.shape) == 3
        ]
    inputs = iter(given)
    values = [module.get_parameter(p).detach() if p else next(inputs) for p in paths]
    viewed = [view(v, b, o.shape) for v, b, o in zip(values, site.operands, program.operands, strict=True)]
    return program, site, viewed, module


def check(number: int, folder: str) -> str:
    """What is wrong with a case, in a sentence; "" where nothing is."""
    torch.backends.cudnn.allow_tf32 = False
    case = CASES[number]
    program, site, operands, module = operands_of(case)
    points = space(shape_of(program), H200.processors).points
    settings = points[case.point % len(points)]
    fused = load_fused(program, Path(folder), point=settings, renderer=Alone())
    with torch.no_grad():
        made = fused.run(*operands)
        torch.cuda.synchronize()
        theirs = tree_leaves(module(*case.inputs("cuda")))
        truth = tree_leaves(case.module(torch.float64, "cuda")(*(x.double() for x in case.inputs("cuda"))))
    for one, own, right, bind in zip(made, theirs, truth, site.outputs, strict=True):
        one = view(one, bind, right.shape)
        apart, beside = (float((x.double() - right).norm() / right.norm()) for x in (one, own))
        allowed = max(ALLOWED[case.dtype], 2 * beside)
        if not apart <= allowed:
            return f"{settings}: the error of {bind.node} is {apart:.2g}, {allowed:.2g} is allowed"
    return ""


@pytest.fixture(scope="module")
def bounded() -> Bounded:
    return Bounded()


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_it_gives_what_float64_gives(number: int, bounded: Bounded, tmp_path: Path) -> None:
    assert bounded.call(check, number, str(tmp_path), limit_s=60.0) == ""


def test_calls_repeat(bounded: Bounded, tmp_path: Path) -> None:
    assert bounded.call(repeated, str(tmp_path), limit_s=90.0) == ""


def repeated(folder: str) -> str:
    """Many calls of one kernel, whose results are the same bits, on inputs that change between them."""
    program, _, operands, _ = operands_of(Case(kind="LSTM", sizes=(50, 10, 16, 256), options=(BOTH,)))
    fused = load_fused(program, Path(folder), renderer=Alone(), point=space(shape_of(program), 132).points[0])
    first = [x.clone() for x in fused.run(*operands)]
    for _ in range(300):
        fused.run(torch.randn_like(operands[0]), *operands[1:])
    again = fused.run(*operands)
    torch.cuda.synchronize()
    return "" if all(map(torch.equal, first, again)) else "results differ"


def test_a_cuda_graph_replays_it(bounded: Bounded, tmp_path: Path) -> None:
    assert bounded.call(replayed, str(tmp_path), limit_s=90.0) == ""


def replayed(folder: str) -> str:
    program, _, operands, _ = operands_of(Case(kind="GRU", sizes=(50, 10, 16, 256), options=(("num_layers", 3),)))
    fused = load_fused(program, Path(folder), renderer=Alone(), point=space(shape_of(program), 132).points[0])
    plain = [x.clone() for x in fused.run(*operands)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = fused.run(*operands)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return "" if all(map(torch.equal, plain, made)) else "a replayed graph gives something else"
