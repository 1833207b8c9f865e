"""On a GPU: a module of many small kernels as one CUDA graph, accepted by the judge and faster than eager; buffers that
are written, parameters that move, results that are held, other streams, and somebody else's graph."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tilewright.edges.gpu.machine import machine as measured_machine
from tilewright.facts.candidate import Candidate
from tilewright.facts.move import Compose, Try
from tilewright.facts.outcome import Timed
from tilewright.facts.pattern import CUDA_GRAPH, INDUCTOR, Choice, Recipe
from tilewright.facts.problem import Problem
from tilewright.facts.run import Request, SearchContext, Timing
from tilewright.facts.space import point
from tilewright.run.evaluator import Evaluator, Places

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(12)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(width) for _ in range(12)])

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + norm(layer(x).relu())
        return x, x.mean(0)


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return [256]
"""
BY = Choice(pattern=INDUCTOR, point=point(mode=CUDA_GRAPH))


@contextmanager
def bench(folder: Path) -> Iterator[tuple[Evaluator, SearchContext]]:
    problem = Problem(name="small", path="/nowhere/small.py", source=PROBLEM, target="cuda")
    request = Request(
        run="r", problem=problem, strategy="catalog", seed=0, budget_s=300.0,
        timing=Timing(budget_s=1.0), without=("tuning",),
    )  # fmt: skip
    machine = measured_machine("cuda", cache_dir=folder / "cache")
    places = Places(out=folder / "run", cache=folder / "cache")
    with Evaluator(request, places=places, say=print, machine=machine) as made:
        yield made, made.context(request)


def ours(context: SearchContext) -> Recipe:
    return tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in context.matched[0].patterns)


@pytest.mark.parametrize("fused", [False, True])
def test_the_judge_takes_it_and_it_is_not_behind_eager(fused: bool, tmp_path: Path) -> None:
    """Batch norms are in training mode, as modules of problem files are: their buffers move at each call. The judge's
    clock hides launches, which is what a graph of eager's kernels saves: by it that is as fast as eager."""
    with bench(tmp_path) as (made, context):
        assert CUDA_GRAPH in [dict(p)["mode"] for p in context.inductor]
        recipe = (*(ours(context) if fused else ()), BY)
        found = made.perform(context, Try(what=recipe, why="one CUDA graph"))
    assert isinstance(found, Timed), found
    assert found.checked.fallbacks == ()
    ratio = found.ratio("eager")
    assert ratio is not None and ratio.low > (1.3 if fused else 0.95), found.ratios


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Any, Any, Any]]:
    """The candidate's module file, a module of it as one CUDA graph, and the user's own with the same parameters."""
    with bench(tmp_path) as (made, context):
        candidate = made.perform(context, Compose(recipe=(BY,)))
    assert isinstance(candidate, Candidate)
    for file in candidate.files:
        path = tmp_path / "made" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
    spec = importlib.util.spec_from_file_location("graphed_model", tmp_path / "made" / "model.py")
    assert spec is not None and spec.loader is not None
    model = sys.modules["graphed_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    torch.manual_seed(0)
    graphed = model.ModelNew(256).cuda()
    theirs = model.Model(256).cuda()
    theirs.load_state_dict(graphed.state_dict())
    with torch.no_grad():
        yield model, graphed, theirs
    del sys.modules["graphed_model"]


def same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def inputs(count: int) -> list[torch.Tensor]:
    return [torch.randn(64, 256, device="cuda") for _ in range(count)]


def test_held_results_stay_and_buffers_move_once_a_call(pair: tuple[Any, Any, Any]) -> None:
    model, graphed, theirs = pair
    results = [(graphed(x), theirs(x)) for x in inputs(8)]
    for mine, wanted in results:
        same(mine, wanted)
    same(graphed.state_dict(), theirs.state_dict())
    assert model.FALLBACKS == {}


def test_parameters_that_are_written_or_moved_are_followed(pair: tuple[Any, Any, Any]) -> None:
    model, graphed, theirs = pair
    for _ in range(4):
        x = inputs(1)[0]
        same(graphed(x), theirs(x))
    graphed.layers[0].weight.mul_(2)
    theirs.layers[0].weight.mul_(2)
    same(graphed(x), theirs(x))
    for module in (graphed, theirs):
        module.layers[1].weight.data = torch.full_like(module.layers[1].weight, 0.01)
    for _ in range(4):
        same(graphed(x), theirs(x))
    same(copy.deepcopy(graphed)(x), copy.deepcopy(theirs)(x))
    assert model.FALLBACKS == {}


def test_streams_take_turns_and_a_graph_of_somebody_elses_holds_the_plain_call(pair: tuple[Any, Any, Any]) -> None:
    model, graphed, theirs = pair
    streams, given = [torch.cuda.Stream() for _ in range(3)], inputs(24)
    torch.cuda.synchronize()
    made = []
    for number, x in enumerate(given):
        with torch.cuda.stream(streams[number % 3]):
            made.append(graphed(x))
    torch.cuda.synchronize()
    for x, result in zip(given, made, strict=True):
        same(result, theirs(x))
    static, graph = given[0].clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = graphed(static)
    graph.replay()
    same(recorded, theirs(static))
    assert model.FALLBACKS == {}


def test_the_host_takes_little_for_a_call(pair: tuple[Any, Any, Any]) -> None:
    """Of 12 layers with some 60 kernels: at most a quarter of what eager's host takes."""
    import time

    _, graphed, theirs = pair
    x = inputs(1)[0]

    def host_s(module: Any) -> float:
        for _ in range(5):
            module(x)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            module(x)
        taken = time.perf_counter() - started
        torch.cuda.synchronize()
        return taken / 20

    mine, eager = host_s(graphed), host_s(theirs)
    print(f"host: {mine * 1e6:.1f} us a call, eager {eager * 1e6:.1f} us")
    assert mine < eager / 4
