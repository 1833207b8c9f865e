"""Composition for training: what autograd sees of a candidate, and when the original runs instead."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.realisers import CPU
from fakes.renderer import InterpretingRenderer
from tilewright.facts.candidate import Candidate
from tilewright.facts.gradients import Gradients
from tilewright.facts.pattern import INDUCTOR, Choice, Recipe
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts, Matched
from tilewright.facts.space import point
from tilewright.frontend.trace import trace_training
from tilewright.ir.program import Reduction
from tilewright.judge.candidate_process.step import tensors_of
from tilewright.realise.compose import compose
from tilewright.run.training import match_training

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]

SOURCE = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.batch = nn.BatchNorm1d(width)
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x, mask, labels):
        h = self.norm(x * self.scale)
        gate, up = self.linear(h).chunk(2, -1)
        y = self.batch(F.silu(gate) * up) * mask + x
        return y.t(), F.cross_entropy(y, labels), (y > 0).any(1)
"""
x, mask, labels = torch.randn(10, 12), torch.rand(10, 1), torch.arange(10)


def case(
    source: str = SOURCE, inputs: Sequence[Tensor] = (x, mask, labels), wanted: tuple[int, ...] = (0,)
) -> CaseFacts:
    spec = importlib.util.spec_from_loader("problem", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(source, module.__dict__)
    model = module.Model()
    names = tuple(n for n, _ in model.named_parameters())
    asked = Gradients(outputs=(0, 1), inputs=wanted, parameters=names)
    graph = trace_training(model, tuple(inputs), {}, list(inputs), asked)
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    return CaseFacts(inputs=(), outputs=(), work=work, graph=graph)


@cache
def whole() -> CaseFacts:
    return case()


def matched(facts: CaseFacts) -> Matched:
    make = InterpretingRenderer()
    assert facts.graph is not None
    return match_training(
        facts.graph, unsupported=make.unsupported, space=make.space, first_id=0, first_segment=0, case=0
    )


def composed(facts: CaseFacts, recipe: Recipe | None = None, found: Matched | None = None) -> Candidate:
    """`found`: what `matched` gives, where it is known."""
    found = found or matched(facts)
    chosen = all_of(found) if recipe is None else recipe
    return compose(SOURCE, [facts], [found], chosen, device=CPU, make=InterpretingRenderer())


def all_of(found: Matched) -> Recipe:
    return tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in found.patterns)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Writes a candidate and imports its model.py as the judge does."""

    def forget() -> None:
        for name in list(sys.modules):
            if name.startswith(("fused_", "segment_", "original", "tilewright_kernels")) or name == "model":
                del sys.modules[name]

    def loaded(candidate: Candidate) -> ModuleType:
        forget()
        folder = tmp_path / candidate.id
        folder.mkdir(exist_ok=True)
        for file in candidate.files:
            (folder / file.path).parent.mkdir(exist_ok=True)
            (folder / file.path).write_text(file.text)
        monkeypatch.syspath_prepend(str(folder))
        return importlib.import_module("model")

    yield loaded
    forget()


def pair(model: ModuleType) -> tuple[torch.nn.Module, torch.nn.Module]:
    ours, theirs = model.ModelNew(), model.Model()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def step(module: Any, inputs: Sequence[Tensor], upstream: Sequence[Tensor]) -> list[Tensor | None]:
    """Results, and gradients of all inputs and parameters."""
    given = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    results = tensors_of(module(*given))
    graded = [t for t in results if t.requires_grad]
    torch.autograd.backward(graded, list(upstream[: len(graded)]))
    own = module._orig_mod if hasattr(module, "_orig_mod") else module
    found = [*results, *(t.grad for t in given), *(p.grad for p in own.parameters())]
    own.zero_grad()
    return found


def same(got: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> None:
    for i, (mine, value) in enumerate(zip(got, wanted, strict=True)):
        assert (mine is None) == (value is None), i
        if mine is not None and value is not None:
            assert mine.requires_grad == value.requires_grad and mine.stride() == value.stride()
            torch.testing.assert_close(mine, value, rtol=1e-4, atol=1e-5)


UP = (torch.randn(12, 10), torch.tensor(2.0))
LEAF = x.clone().requires_grad_()


def test_results_gradients_and_statistics_are_the_modules(load: Any) -> None:
    model = load(composed(whole()))
    ours, theirs = pair(model)
    for _ in range(2):
        same(step(ours, (LEAF, mask, labels), UP), step(theirs, (LEAF, mask, labels), UP))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    assert not model.FALLBACKS and int(ours.batch.num_batches_tracked) == 2 and not ours.batch.running_var.requires_grad
    assert all(sys.modules[name].CALLS for name in sys.modules if name.startswith("fused_"))


LAYERS = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.gate, self.up = nn.Linear(width, 9, bias=False), nn.Linear(width, 9)
        self.down, self.norm, self.mix = nn.Linear(9, width), nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x, mask, labels):
        h = self.norm(x + self.down(F.silu(self.gate(x)) * self.up(x)))
        y = self.mix(F.gelu(self.mix(h))) * mask
        return y.t(), F.cross_entropy(y, labels)
"""


@pytest.mark.slow
def test_layers_of_products_have_their_gradients_at_every_choice_of_kernels(load: Any) -> None:
    """A dual GEMM that writes both products, gradients that the last product adds up, sums along the way; in float64
    what autograd has, with all kernels and with each left out."""
    doubled = LAYERS.replace("    def forward", "        self.double()\n\n    def forward")
    given = (torch.randn(600, 12).double().requires_grad_(), torch.rand(600, 1).double(), torch.arange(600) % 12)
    facts = case(doubled, given)
    found = matched(facts)
    pairs = [p for p in found.patterns if len(p.program.products) == 2]
    assert len(pairs) == 1 and len(pairs[0].program.outputs) == 3
    sums = [p for p in found.patterns if p.kind == "row_column_reduce"]
    assert any(not any(isinstance(i, Reduction) for i in p.program.body) for p in sums), "beside pointwise work, too"
    choices = all_of(found)
    up = (torch.randn(12, 600).double(), torch.tensor(2.0).double())
    theirs: list[Tensor | None] = []
    for left in range(-1, len(choices)):
        recipe = choices[:left] + choices[left + 1 :] if left >= 0 else choices
        model = load(compose(doubled, [facts], [found], recipe, device=CPU, make=InterpretingRenderer()))
        ours, own = pair(model)
        theirs = step(own, given, up)
        for mine, value in zip(step(ours, given, up), theirs, strict=True):
            assert (mine is None) == (value is None)
            if mine is not None and value is not None:
                torch.testing.assert_close(mine, value, rtol=1e-8, atol=1e-10)
        assert not model.FALLBACKS


def test_every_kernel_can_be_left_out(load: Any) -> None:
    facts, found = whole(), matched(whole())
    choices = all_of(found)
    assert len(choices) > 5
    for left in range(-1, len(choices)):
        recipe = choices[:left] + choices[left + 1 :] if left >= 0 else choices[:1]
        model = load(composed(facts, recipe, found))
        ours, theirs = pair(model)
        same(step(ours, (LEAF, mask, labels), UP), step(theirs, (LEAF, mask, labels), UP))
        assert not model.FALLBACKS


def test_only_what_wants_a_gradient_gets_one(load: Any) -> None:
    model = load(composed(whole()))
    ours, theirs = pair(model)
    for module in (ours, theirs):
        module.norm.requires_grad_(False)
        module.scale.requires_grad_(False)
    same(step(ours, (x, mask, labels), UP), step(theirs, (x, mask, labels), UP))
    with torch.no_grad():
        same(tensors_of(ours(x, mask, labels)), tensors_of(theirs(x, mask, labels)))
    only_first = [module(LEAF, mask, labels)[0].sum().backward() for module in (ours, theirs)]
    assert only_first == [None, None] and not model.FALLBACKS
    torch.testing.assert_close(ours.linear.weight.grad, theirs.linear.weight.grad, rtol=1e-4, atol=1e-5)
    ours.zero_grad(), theirs.zero_grad()
    wanted = mask.clone().requires_grad_()  # nobody said that it would be
    same(step(ours, (x, wanted, labels), UP), step(theirs, (x, wanted, labels), UP))
    assert model.FALLBACKS == {"no case has this signature": 1}


def test_a_second_derivative_raises_and_is_not_nought(load: Any) -> None:
    ours, _ = pair(load(composed(whole())))
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(ours(leaf, mask, labels)[0].sum(), leaf, create_graph=True)
    assert first.requires_grad
    with pytest.raises(RuntimeError, match="no second derivative"):
        (first.square().sum() + leaf.sum()).backward()


def test_it_survives_compilation_with_its_gradients(load: Any) -> None:
    ours, theirs = pair(load(composed(whole())))
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    same(step(compiled, (LEAF, mask, labels), UP), step(theirs, (LEAF, mask, labels), UP))


def test_what_is_left_to_torch_is_compiled_with_its_gradients(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one graph, with segments in it as operators; a case is guarded as ever."""
    plain, seen = torch.compile, []

    def compiled(function: Any, *, options: dict[str, Any], **how: Any) -> Any:
        seen.append(how)
        return plain(function, backend="aot_eager", **how)

    monkeypatch.setattr(torch, "compile", compiled)
    found = matched(whole())
    choice = Choice(pattern=INDUCTOR, point=point(mode="default"))
    model = load(composed(whole(), (*all_of(found), choice), found))
    ours, theirs = pair(model)
    same(step(ours, (LEAF, mask, labels), UP), step(theirs, (LEAF, mask, labels), UP))
    assert seen == [{"fullgraph": True, "dynamic": False}] and model.FALLBACKS == {}
    with pytest.raises(ValueError, match="the next step overwrites"):
        model.configure(INDUCTOR, mode="reduce-overhead")


def test_what_a_module_detaches_stays_detached(load: Any) -> None:
    source = SOURCE.replace("* mask + x", "* mask + (x - y0).detach()").replace(
        "        y =", "        y0 = x * 2\n        y ="
    )
    facts = case(source)
    found = matched(facts)
    model = load(compose(source, [facts], [found], all_of(found), device=CPU, make=InterpretingRenderer()))
    ours, theirs = pair(model)
    same(step(ours, (LEAF, mask, labels), UP), step(theirs, (LEAF, mask, labels), UP))


def test_what_tracers_would_get_wrong_is_not_traced() -> None:
    """A block without gradients, and a backward of the author's own, of which tracers see the forward alone."""
    with pytest.raises(ValueError, match="gradients are switched off"):
        case(SOURCE.replace("        y =", "        with torch.no_grad():\n            x = x * 1.5\n        y ="))
    own = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * 3
"""
    with pytest.raises(ValueError, match=r"autograd\.Function"):
        case(SOURCE.replace("class Model", f"{own}\nclass Model").replace("* mask + x", "* mask + Own.apply(x)"))


BLOCK = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.wide, self.norm = nn.Conv2d(width, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.deep, self.last = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ConvTranspose2d(8, width, 2, stride=2)

    def forward(self, x):
        y = self.deep(self.norm(self.wide(x)).relu())
        return self.last(F.silu(y)) + x, y.square().mean()
"""


def test_a_block_of_convolutions_has_its_gradients_from_kernels(load: Any) -> None:
    """Dense, depthwise and transposed, each with its input's and its weight's gradient, at every choice of kernels."""
    given = (torch.randn(3, 6, 8, 10).requires_grad_(),)
    facts = case(BLOCK, given)
    found = matched(facts)
    kinds = [p.title for p in found.patterns if p.kind == "convolution"]
    assert sum(t == "convolution_backward" for t in kinds) == 2 and sum(t.startswith("conv") for t in kinds) == 6
    assert not [line for line in found.unmatched if "convolution_backward" in line]
    choices = all_of(found)
    up = (torch.randn(3, 6, 8, 10), torch.tensor(2.0))
    for left in range(-1, len(choices)):
        recipe = choices[:left] + choices[left + 1 :] if left >= 0 else choices
        model = load(compose(BLOCK, [facts], [found], recipe, device=CPU, make=InterpretingRenderer()))
        ours, theirs = pair(model)
        same(step(ours, given, up), step(theirs, given, up))
        assert not model.FALLBACKS
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
