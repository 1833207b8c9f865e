"""On a GPU: torch.compile runs what is left to torch, with our kernels in it and as its CUDA graph; attention by
cuDNN's backend; each as the judge takes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tilewright.edges.gpu.machine import machine as measured_machine
from tilewright.facts.move import Compose, Try, Tune
from tilewright.facts.outcome import Timed, Tuned
from tilewright.facts.pattern import INDUCTOR, Choice, Recipe
from tilewright.facts.problem import Problem
from tilewright.facts.run import Request, SearchContext, Timing
from tilewright.facts.space import point
from tilewright.run.evaluator import Evaluator
from tilewright.run.places import Places

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PROBLEM = """
import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, {parameters}):
{body}


def get_inputs():
    return [torch.randn{shape}.to(torch.{dtype}) for _ in range({count})]


def get_init_inputs():
    return []
"""
LEFT = """
        x = F.layer_norm(x, (1024,))
        for _ in range(6):
            x = torch.copysign(torch.copysign(x, y), z)
        return F.softmax(x * 2 + y, -1)
"""
ATTENTION = "        return F.scaled_dot_product_attention(x, y, z, is_causal=True)"


@contextmanager
def bench(folder: Path, body: str, *, shape: tuple[int, ...], dtype: str) -> Iterator[tuple[Evaluator, SearchContext]]:
    source = PROBLEM.format(parameters="x, y, z", body=body, shape=shape, dtype=dtype, count=3)
    problem = Problem(name="block", path="/nowhere/block.py", source=source, target="cuda")
    request = Request(
        run="r", problem=problem, strategy="catalog", seed=0, budget_s=300.0, timing=Timing(budget_s=1.0),
        without=("tuning",),
    )  # fmt: skip
    places = Places(out=folder / "run", cache=folder / "cache")
    machine = measured_machine("cuda", cache_dir=folder / "cache")
    with Evaluator(request, places=places, say=print, machine=machine) as made:
        yield made, made.context(request)


def ours(context: SearchContext) -> Recipe:
    return tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in context.matched[0].patterns)


def by(mode: str) -> Choice:
    return Choice(pattern=INDUCTOR, point=point(mode=mode))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "cuda-graph"])
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_left_is_compiled_and_accepted(mode: str, whole: bool, tmp_path: Path) -> None:
    with bench(tmp_path, LEFT, shape=(512, 1024), dtype="float32") as (made, context):
        assert [dict(p)["mode"] for p in context.inductor] == ["default", "reduce-overhead", "cuda-graph"]
        recipe = (by(mode),) if whole else (*ours(context), by(mode))
        found = made.perform(context, Try(what=recipe, why="left to torch"))
    assert isinstance(found, Timed), found
    assert found.checked.fallbacks == ()


def test_modes_are_points_of_one_tuner(tmp_path: Path) -> None:
    with bench(tmp_path, LEFT, shape=(512, 1024), dtype="float32") as (made, context):
        recipe = (*ours(context), by("default"))
        found = made.perform(context, Tune(recipe=recipe, pattern=INDUCTOR, points=context.inductor))
    assert isinstance(found, Tuned) and all(p.time_ns is not None for p in found.points), found


def test_results_of_the_cuda_graph_are_the_callers_own(tmp_path: Path) -> None:
    """Inductor's CUDA graph writes over its results at the next call; who still holds one must not see that."""
    import importlib.util
    import sys

    import torch

    with bench(tmp_path, LEFT, shape=(64, 1024), dtype="float32") as (made, context):
        candidate: Any = made.perform(context, Compose(recipe=(*ours(context), by("reduce-overhead"))))
    for file in candidate.files:
        path = tmp_path / "made" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
    spec = importlib.util.spec_from_file_location("made_model", tmp_path / "made" / "model.py")
    assert spec is not None and spec.loader is not None
    model = sys.modules["made_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    module, theirs = model.ModelNew().cuda(), model.Model().cuda()
    with torch.no_grad():
        inputs = [[torch.randn(64, 1024, device="cuda") for _ in range(3)] for _ in range(6)]
        results = [module(*given) for given in inputs]
        for given, result in zip(inputs, results, strict=True):
            torch.testing.assert_close(result, theirs(*given), rtol=1e-4, atol=1e-5)
        graph, static = torch.cuda.CUDAGraph(), [t.clone() for t in inputs[0]]
        with torch.cuda.graph(graph):  # somebody else's graph: the case runs in it as it is
            recorded = module(*static)
        graph.replay()
        torch.testing.assert_close(recorded, theirs(*static), rtol=1e-4, atol=1e-5)


def test_attention_by_each_backend_and_cudnn_is_not_behind_the_default(tmp_path: Path) -> None:
    import torch

    with bench(tmp_path, ATTENTION, shape=(4, 16, 2048, 128), dtype="bfloat16") as (made, context):
        (choice, *_) = context.libraries
        assert choice.written is not None
        found = made.perform(context, Tune(recipe=(choice,), pattern=choice.pattern, points=choice.written.points))
        assert isinstance(found, Tuned), found
        times = {dict(p.point)["backend"]: p.time_ns for p in found.points}
        why = {dict(p.point)["backend"]: p.failure for p in found.points}
        assert times["default"] is not None, why
        if torch.cuda.get_device_capability() < (9, 0):
            return
        cudnn = times["cudnn"]
        assert cudnn is not None and cudnn.low <= times["default"].high, why
        fastest = Choice(pattern=choice.pattern, point=point(backend="cudnn"), written=choice.written)
        judged = made.perform(context, Try(what=(fastest,), why="cuDNN"))
    assert isinstance(judged, Timed), judged
