"""What is left to torch under torch.compile: one graph with our kernels in it, guarded, and counted where refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from fakes.composed import all_of, case, composed, load, matched, same
from fakes.realisers import CPU
from fakes.renderer import InterpretingRenderer
from tilewright.facts.candidate import SourceFile
from tilewright.facts.pattern import COMPILE_MODES, INDUCTOR, Choice, Recipe
from tilewright.facts.problem import Problem
from tilewright.facts.space import Point, point
from tilewright.frontend.rows import traced as by_rows
from tilewright.ir.graph import Graph
from tilewright.ir.program import Program
from tilewright.realise.compose import compose
from tilewright.realise.library.inductor import baselines, modes

pytestmark = pytest.mark.filterwarnings("ignore")
__all__ = ["load"]

x, y = torch.randn(33, 17), torch.randn(33, 17)
BLOCK = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, width=17):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x, y):
        b = self.norm(self.net(x).relu() * 2)
        d = F.softmax(torch.i0(b) + y, -1)
        classes = torch.arange(x.shape[0], device=x.device) % 17
        return {"d": d, "loss": [F.cross_entropy(d, classes), (d * b).sum(0)]}
"""
SMALL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.i0(x.relu() * 2).t()
"""
ROWS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.i0(torch.softmax(x * 2, -1))
"""
DRAWS = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return torch.i0(torch.nn.functional.dropout(x, 0.5)) * 2
"""


def by(mode: str = "default") -> Choice:
    return Choice(pattern=INDUCTOR, point=point(mode=mode))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """torch.compile without a compiler: it traces for autograd and runs what it traced; how it was asked."""
    seen: list[dict[str, Any]] = []
    plain = torch.compile

    def compiled(function: Callable[..., Any], *, options: dict[str, Any], **how: Any) -> Any:
        seen.append({"options": options, **how})
        return plain(function, backend="aot_eager", **how)

    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", compiled)
    yield seen
    torch._dynamo.reset()


def recipes(source: str, cases: list[Any]) -> tuple[Recipe, Any]:
    found = matched(cases)
    return (*all_of(found), by()), found


@pytest.mark.slow
@pytest.mark.thorough
def test_inductor_itself_runs_a_case_as_one_graph_with_our_kernels_in_it(load: Any) -> None:
    """Batch norm's buffers are written as ever, and what was compiled is one graph."""
    torch._dynamo.reset()
    counters.clear()
    cases = [case(BLOCK, (x, y))]
    recipe, found = recipes(BLOCK, cases)
    model = load(composed(BLOCK, cases, recipe, found))
    torch.manual_seed(1)
    ours = model.ModelNew()
    torch.manual_seed(1)
    theirs = model.Model()
    with torch.no_grad():
        for _ in range(2):
            same(ours(x, y), theirs(x, y))
    same(ours.state_dict(), theirs.state_dict())
    assert (counters["stats"]["unique_graphs"], dict(counters["graph_break"]), model.FALLBACKS) == (1, {}, {})
    torch._dynamo.reset()


def test_an_empty_recipe_is_the_module_itself(load: Any, asked: list[Any]) -> None:
    cases = [case(BLOCK, (x, y))]
    model = load(composed(BLOCK, cases, (by(),), matched(cases)))
    torch.manual_seed(1)
    ours = model.ModelNew()
    torch.manual_seed(1)
    theirs = model.Model()
    same(ours(x, y), theirs(x, y))
    same(ours(x[:5], y[:5]), theirs(x[:5], y[:5]))  # other shapes, too, as torch.compile has them
    ours(x, y)["loss"][0].backward()
    assert ours.net[0].weight.grad is not None, "and gradients"
    assert model.FALLBACKS == {} and asked[0]["dynamic"] is None and not asked[0]["fullgraph"]


def test_a_case_is_guarded_before_it_is_compiled(load: Any, asked: list[Any]) -> None:
    cases = [case(SMALL, (x,))]
    recipe, found = recipes(SMALL, cases)
    model = load(composed(SMALL, cases, recipe, found))
    ours, theirs = model.ModelNew(), model.Model()
    with torch.no_grad():
        same(ours(x), theirs(x))
        assert model.FALLBACKS == {} and len(asked) == 1
        same(ours(x.double()), theirs(x.double()))
    given = x.clone().requires_grad_()
    same(ours(given), theirs(given))
    assert model.FALLBACKS == {"no case has this signature": 1, "a gradient is wanted": 1} and len(asked) == 1


def test_each_case_is_compiled_for_its_shapes(load: Any, asked: list[Any]) -> None:
    """Also one in which nothing is fused."""
    cases = [case(SMALL, (x,)), case(SMALL, (x[:, :4].contiguous(),))]
    found = matched(cases)
    only = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in found[0].patterns)
    model = load(composed(SMALL, cases, (*only, by()), found))
    with torch.no_grad():
        for given in (x, x[:, :4].contiguous()):
            same(model.ModelNew()(given), model.Model()(given))
    assert model.FALLBACKS == {} and [how["dynamic"] for how in asked] == [False, False]


def test_other_numbers_of_rows_run_as_they_are(load: Any, asked: list[Any]) -> None:
    """What was compiled is for as many rows as were judged; kernels that take any number run by themselves then."""

    class AnyRows(InterpretingRenderer):
        def any_rows(self, program: Program) -> bool:
            return True

        def render(self, program: Program, name: str, point: Point) -> tuple[SourceFile, ...]:
            made = super().render(program, name, point)
            return tuple(replace(f, text=f"{f.text}\n\ndef takes(rows):\n    return True\n") for f in made)

    facts = replace(case(ROWS, (x,)), graph=traced_by_rows(ROWS, x))
    recipe, found = recipes(ROWS, [facts])
    made = compose(ROWS, [facts], found, recipe, device=CPU, make=AnyRows())
    assert "inductor.case(_case_0, _STATES[0], lambda self, x: x.shape == (33, 17))" in made.files[0].text
    model = load(made)
    calls: list[int] = []
    sys.modules["fused_0"].run = lambda x: calls.append(len(x)) or (torch.softmax(x * 2, -1),)  # type: ignore[attr-defined]
    with torch.no_grad():
        model.ModelNew()(torch.randn(5, 17))
    assert calls == [5] and model.FALLBACKS == {} and asked == []


def traced_by_rows(source: str, *args: torch.Tensor) -> Graph:
    names: dict[str, Any] = {}
    exec(source, names)
    graph = by_rows(names["Model"](), args, {})
    assert graph.free
    return graph


def test_random_numbers_are_drawn_as_eager_draws_them(load: Any, asked: list[Any]) -> None:
    cases = [case(DRAWS, (x,))]
    recipe, found = recipes(DRAWS, cases)
    model = load(composed(DRAWS, cases, recipe, found))
    ours, theirs = model.ModelNew(), model.Model()
    with torch.no_grad():
        for seed in (1, 2):
            torch.manual_seed(seed)
            mine = ours(x)
            torch.manual_seed(seed)
            same(mine, theirs(x))
    assert ours.calls == theirs.calls == 2 and asked[0]["options"]["fallback_random"] is True


def test_what_torch_compile_refuses_runs_without_it_and_is_counted(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.compile

    def failing(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda f, options, **how: plain(f, backend=failing, **how))
    torch._dynamo.reset()
    cases = [case(SMALL, (x,))]
    recipe, found = recipes(SMALL, cases)
    model = load(composed(SMALL, cases, recipe, found))
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="torch.compile refused it"):
        for _ in range(2):
            same(model.ModelNew()(x), model.Model()(x))
    ((why, count),) = model.FALLBACKS.items()
    assert "no compiler here" in why and count == 2


def test_the_mode_is_a_knob(load: Any, asked: list[Any]) -> None:
    cases = [case(SMALL, (x,))]
    recipe, found = recipes(SMALL, cases)
    model = load(composed(SMALL, cases, recipe, found))
    ours = model.ModelNew()
    with torch.no_grad():
        same(ours(x), model.Model()(x))
        model.configure(INDUCTOR, mode="max-autotune-no-cudagraphs")
        same(ours(x), model.Model()(x))
        model.configure(INDUCTOR, mode="default")
        same(ours(x), model.Model()(x))
    assert [how["options"].get("max_autotune") for how in asked] == [None, True], "each is compiled once"
    with pytest.raises(ValueError, match=r"torch\.compile has default, reduce-overhead"):
        model.configure(INDUCTOR, mode="fast")
    model.inductor._training = True
    with pytest.raises(ValueError, match="the next step overwrites"):
        model.configure(INDUCTOR, mode="reduce-overhead")


def test_under_a_users_torch_compile_it_is_traced_through(load: Any, asked: list[Any]) -> None:
    cases = [case(SMALL, (x,))]
    recipe, found = recipes(SMALL, cases)
    model = load(composed(SMALL, cases, recipe, found))
    ours = torch.compile(model.ModelNew(), options={}, fullgraph=True)
    with torch.no_grad():
        same(ours(x), model.Model()(x))
    assert len(asked) == 1, "the user's alone"


# ---- the modes, as points and as baselines


WRITES = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(17)

    def forward(self, x):
        return self.norm(x) @ x.t()
"""
WRITES_ARGUMENTS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.i0(x.add_(1))
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SMALL, ["default", "reduce-overhead", "cuda-graph"]),
        (WRITES, ["default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune", "cuda-graph"]),
        (WRITES_ARGUMENTS, ["default"]),
        (DRAWS, ["default"]),
        ("", ["default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"]),  # not traced
    ],
)
def test_points_are_those_that_a_module_can_have(source: str, expected: list[str]) -> None:
    problem = Problem(name="p", path="", source=source, target="cuda")
    graph = case(source, (x.clone(),)).graph if source else None
    assert [dict(p)["mode"] for p in modes(problem, graph)] == expected
    training = replace(problem, mode="training")
    assert "cuda-graph" not in str(modes(training, graph)) and "reduce" not in str(modes(training, graph))
    assert modes(replace(problem, target="cpu"), graph) == (point(mode="default"),)


def test_baselines_are_those_that_are_wanted_and_may_differ() -> None:
    problem = Problem(name="p", path="", source="", target="cuda")
    assert baselines(problem, ()) == ("default", "reduce-overhead")
    assert baselines(problem, COMPILE_MODES) == COMPILE_MODES
    assert baselines(problem, ("max-autotune",)) == ("max-autotune",)
    for other in (replace(problem, target="cpu"), replace(problem, mode="training")):
        assert baselines(other, COMPILE_MODES) == baselines(other, ("reduce-overhead",)) == ("default",)
