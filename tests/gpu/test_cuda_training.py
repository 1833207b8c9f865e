"""Backward kernels on a GPU: gradients against float64, beside torch's own; eager, compiled, and in CUDA graphs."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes.realisers import H200
from tilewright.facts.gradients import Gradients
from tilewright.facts.pattern import Choice
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.trace import trace_training
from tilewright.realise.compose import compose
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import write_candidate

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

SOURCE = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, kind, width):
        super().__init__()
        self.kind = kind
        self.weight, self.bias = nn.Parameter(torch.rand(width) + 0.5), nn.Parameter(torch.randn(width))

    def forward(self, x, y):
        match self.kind:
            case "softmax":
                return F.softmax(x, -1) * y
            case "log_softmax":
                return F.log_softmax(x, -1) + y
            case "layer_norm":
                return F.layer_norm(x + y, x.shape[-1:], self.weight, self.bias)
            case "rms_norm":
                return F.rms_norm(x, x.shape[-1:], self.weight) + y
            case "cross_entropy":
                return F.cross_entropy(x, y[:, 0].abs().mul(10).long() % x.shape[1], label_smoothing=0.1)
            case "swiglu":
                return F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]
            case "geglu":
                return F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]
            case "reglu":
                return F.relu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]
            case "glu":
                return F.glu(x)
"""
KINDS = ["softmax", "log_softmax", "layer_norm", "rms_norm", "cross_entropy", "swiglu", "geglu", "reglu", "glu"]
names: dict[str, Any] = {"__name__": "original"}
exec(SOURCE, names)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., nn.Module]]:
    """The candidate of a module at all patterns' first points, with the module's own state."""

    def make(model: nn.Module, inputs: tuple[Tensor, ...]) -> nn.Module:
        asked = Gradients(outputs=(0,), inputs=(0, 1), parameters=tuple(n for n, _ in model.named_parameters()))
        graph = trace_training(model, inputs, {}, list(inputs), asked)
        work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
        facts = CaseFacts(inputs=(), outputs=(), work=work, graph=graph)
        matched = found_patterns((facts,), H200)
        recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
        assert len(recipe) >= 2 and matched[0].segments, "forward and backward"
        write_candidate(compose(SOURCE, (facts,), matched, recipe, device=H200), tmp_path / "candidate")
        sys.path.insert(0, str(tmp_path / "candidate"))
        ours = importlib.import_module("model").ModelNew(model.kind, model.weight.numel()).cuda().to(model.weight.dtype)
        ours.load_state_dict(model.state_dict())
        return ours  # type: ignore[no-any-return]

    yield make
    sys.path[:] = [p for p in sys.path if not p.startswith(str(tmp_path))]
    for name in list(sys.modules):
        if name.startswith(("fused_", "segment_", "tilewright_kernels")) or name == "model":
            del sys.modules[name]


def step(module: Any, inputs: tuple[Tensor, ...], upstream: Tensor) -> list[Tensor]:
    given = [t.detach().clone().requires_grad_() for t in inputs]
    result = module(*given)
    result.backward(upstream)
    own = getattr(module, "_orig_mod", module)
    found = [result.detach(), *(t.grad for t in given if t.grad is not None)]
    found += [p.grad for p in own.parameters() if p.grad is not None]
    own.zero_grad()
    return found


def case(kind: str, dtype: torch.dtype, rows: int, width: int) -> tuple[nn.Module, tuple[Tensor, ...], Tensor]:
    model = names["Model"](kind, width).cuda().to(dtype)
    inputs = (
        torch.randn(rows, width, device="cuda", dtype=dtype),
        torch.randn(rows, width, device="cuda", dtype=dtype),
    )
    return model, inputs, torch.randn_like(model(*inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_as_near_to_the_truth_as_torchs(made: Any, kind: str, dtype: torch.dtype) -> None:
    model, inputs, upstream = case(kind, dtype, 513, 1336 if dtype != torch.float32 else 1334)
    ours = made(model, inputs)
    truth = step(copy.deepcopy(model).double(), tuple(t.double() for t in inputs), upstream.double())
    theirs, mine = step(model, inputs, upstream), step(ours, inputs, upstream)
    assert not sys.modules["model"].FALLBACKS
    for exact, torchs, own in zip(truth, theirs, mine, strict=True):
        allowed = 2 * (torchs.double() - exact).norm() + 4 * torch.finfo(dtype).eps * exact.norm()
        assert own.dtype == torchs.dtype and (own.double() - exact).norm() <= allowed, kind


@pytest.mark.parametrize("kind", ["layer_norm", "swiglu"])
def test_a_step_can_be_captured_in_a_graph(made: Any, kind: str) -> None:
    model, inputs, upstream = case(kind, torch.float32, 256, 1024)
    ours = made(model, inputs)
    given = [t.detach().clone().requires_grad_() for t in inputs]

    def once() -> tuple[Tensor, ...]:
        result = ours(*given)
        wanted = [t for t in (*given, *ours.parameters()) if kind == "layer_norm" or t is given[0]]
        return (result, *torch.autograd.grad(result, wanted, upstream))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        once()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = once()
    with torch.no_grad():
        for tensor in given:
            tensor.copy_(torch.randn_like(tensor))
    graph.replay()
    for mine, exact in zip(captured, once(), strict=True):
        torch.testing.assert_close(mine, exact, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["layer_norm", "swiglu"])
def test_it_works_under_reduce_overhead(made: Any, kind: str) -> None:
    model, inputs, upstream = case(kind, torch.float32, 256, 1024)
    ours = made(model, inputs)
    compiled = torch.compile(ours, mode="reduce-overhead", fullgraph=True)
    wanted = [t.clone() for t in step(ours, inputs, upstream)]
    for _ in range(4):  # the first calls record
        torch.compiler.cudagraph_mark_step_begin()
        for mine, exact in zip(step(compiled, inputs, upstream), wanted, strict=True):
            torch.testing.assert_close(mine, exact, rtol=1e-6, atol=1e-6)


def test_the_forward_alone_can_be_captured_and_reduced(made: Any) -> None:
    model, inputs, _ = case("softmax", torch.float32, 256, 1024)
    ours = made(model, inputs)
    with torch.no_grad():
        wanted = F.softmax(inputs[0], -1) * inputs[1]
        ours(*inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = ours(*inputs)
        captured.zero_()
        graph.replay()
        torch.testing.assert_close(captured, wanted)
        compiled = torch.compile(ours, mode="reduce-overhead", fullgraph=True)
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            torch.testing.assert_close(compiled(*inputs), wanted)
