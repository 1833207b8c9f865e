"""A step of training through matrix products on a GPU: forward, and both operands' gradients, against float64."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.realisers import H200
from tilewright.facts.gradients import Gradients
from tilewright.facts.pattern import Choice, without_idle
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.trace import trace_training
from tilewright.realise.compose import compose
from tilewright.run import training
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import write_candidate

pytestmark = [
    pytest.mark.gpu, pytest.mark.slow,
    # torch's own, where the first thing that autograd's thread does is a product of the reference
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]  # fmt: skip

SOURCE = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, kind, wide, inner):
        super().__init__()
        self.kind = kind
        self.up, self.down = nn.Linear(wide, inner), nn.Linear(inner, wide, bias=False)
        if kind == "swiglu":
            self.gate = nn.Linear(wide, inner, bias=False)
        if kind == "norm":
            self.norm = nn.LayerNorm(wide)

    def forward(self, x):
        match self.kind:
            case "gelu":
                return self.down(F.gelu(self.up(x))) + x
            case "swiglu":
                return self.down(F.silu(self.gate(x)) * self.up(x)) + x
            case "norm":
                return self.norm(x + self.down(F.silu(self.up(x))))
"""
# By kind: products of a step, a dual GEMM being one; row kernels that sum columns on their way.
KINDS = {"gelu": (6, 1), "swiglu": (8, 1), "norm": (6, 2)}
SIZES = {"whole": (2, 512, 1024, 2048), "odd": (3, 171, 520, 1000)}  # batch, tokens, width, inner width


@pytest.fixture
def imported() -> Any:
    yield importlib.import_module
    for name in list(sys.modules):
        if name.startswith(("fused_", "segment_", "tilewright_kernels")) or name == "model":
            del sys.modules[name]


def written(model: torch.nn.Module, x: Tensor, folder: Path, number: int) -> tuple[str, ...]:
    """The candidate at every pattern's point of this number, or its last; what was left to torch."""
    asked = Gradients(outputs=(0,), inputs=(0,), parameters=tuple(n for n, _ in model.named_parameters()))
    graph = trace_training(model, (x,), {}, [x], asked)
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    facts = CaseFacts(inputs=(), outputs=(), work=work, graph=graph)
    matched = found_patterns((facts,), H200)
    patterns = matched[0].patterns
    every = tuple(Choice(pattern=p.id, point=p.space.points[min(number, len(p.space.points) - 1)]) for p in patterns)
    recipe = without_idle([patterns], every)
    ran = [p for p in patterns if p.id in {c.pattern for c in recipe}]
    found = (sum(len(p.matches) for p in ran if p.kind == kind) for kind in ("product", "row_column_reduce"))
    assert tuple(found) == KINDS[model.kind], "each product once, and bias gradients beside what makes what they sum"
    write_candidate(compose(SOURCE, (facts,), matched, recipe, device=H200), folder)
    return matched[0].unmatched


def step(module: Any, x: Tensor, upstream: Tensor) -> list[Tensor]:
    given = x.detach().clone().requires_grad_()
    result = module(given)
    result.backward(upstream)
    found = [result.detach(), given.grad, *(p.grad for p in module.parameters())]
    module.zero_grad()
    assert all(t is not None for t in found)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "number"), [("gelu", 0), ("gelu", 1), ("gelu", 3), ("swiglu", 0), ("swiglu", 2), ("norm", 0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_a_layer_are_as_near_to_the_truth_as_torchs(
    tmp_path: Path, monkeypatch: Any, imported: Any, size: str, dtype: torch.dtype, kind: str, number: int
) -> None:
    monkeypatch.setattr(training, "PRODUCTS", True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    batch, tokens, wide, inner = SIZES[size]
    names: dict[str, Any] = {"__name__": "original"}
    exec(SOURCE, names)
    model = names["Model"](kind, wide, inner).cuda().to(dtype)
    x = torch.randn(batch, tokens, wide, device="cuda", dtype=dtype)
    upstream = torch.randn_like(x)
    left = written(model, x, tmp_path / "candidate", number)
    assert not [line for line in left if "linear" in line or "einsum" in line]
    monkeypatch.syspath_prepend(str(tmp_path / "candidate"))
    made = imported("model")
    ours = made.ModelNew(kind, wide, inner).cuda().to(dtype)
    ours.load_state_dict(model.state_dict())
    truth = step(copy.deepcopy(model).double(), x.double(), upstream.double())
    theirs, mine = step(model, x, upstream), step(ours, x, upstream)
    assert not made.FALLBACKS
    for exact, torchs, own in zip(truth, theirs, mine, strict=True):
        allowed = 2 * (torchs.double() - exact).norm() + 4 * torch.finfo(dtype).eps * exact.norm()
        assert own.dtype == torchs.dtype and own.shape == torchs.shape and (own.double() - exact).norm() <= allowed
    with torch.no_grad():  # weights change in place, as an optimizer changes them
        for module in (model, ours):
            for p in module.parameters():
                p.add_(p.detach() * 0.5)
    for torchs, own in zip(step(model, x, upstream), step(ours, x, upstream), strict=True):
        assert (own - torchs).double().norm() <= 64 * torch.finfo(dtype).eps * torchs.double().norm()
