"""A composed module as its user runs it: under CUDA graphs, torch.compile(mode="reduce-overhead"), in small calls."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.realisers import DEVICES_OF
from tilewright.facts.pattern import Choice
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.trace import trace
from tilewright.realise.compose import compose
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import write_candidate

pytestmark = pytest.mark.gpu

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 512)
        self.gain = nn.Parameter(torch.rand(512))

    def forward(self, x, y):
        h = nn.functional.gelu(self.inner(x)) + y
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * self.gain
        return h, torch.softmax(h, -1).sort(-1).values
"""
SMALL = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return x * torch.sigmoid(1.5 * x) + y
"""
SHAPES = {SOURCE: ((512, 256), (512, 512)), SMALL: ((64, 64), (64, 64))}


def composed(source: str, folder: Path, target: str = "cuda") -> ModuleType:
    """model.py with every pattern at its likeliest point."""
    names: dict[str, Any] = {}
    exec(source, names)
    operands = tuple(torch.randn(shape, device=target) for shape in SHAPES[source])
    graph = trace(names["Model"]().to(target), operands, {})
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    case = CaseFacts(inputs=(), outputs=(), work=work, graph=graph)
    matched = found_patterns((case,), DEVICES_OF[target])
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
    assert recipe
    write_candidate(compose(source, (case,), matched, recipe, device=DEVICES_OF[target]), folder)
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(f"model_{folder.parent.name}", folder / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    """`composed`, and nothing of it left for other tests."""
    path, known = list(sys.path), set(sys.modules)
    ours = [n for n in sys.modules if n.startswith(("fused_", "tilewright_kernels"))]
    for name in ours:
        del sys.modules[name]
    yield lambda source: composed(source, tmp_path / "candidate")
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.startswith(("fused_", "tilewright_kernels", "model_")):
            del sys.modules[name]


def drawn(source: str, seed: int) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    return tuple(torch.randn(shape, device="cuda") for shape in SHAPES[source])


def assert_right(found: tuple[Tensor, ...], model: torch.nn.Module, operands: tuple[Tensor, ...]) -> None:
    exact = model.double()(*(o.double() for o in operands))
    model.float()
    for mine, truth in zip(found, (exact,) if isinstance(exact, Tensor) else exact, strict=True):
        torch.testing.assert_close(mine.double(), truth, rtol=1e-5, atol=1e-5)


def pair(module: ModuleType) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Ours, and the reference with the same parameters."""
    ours, reference = module.ModelNew().cuda(), module.Model().cuda()
    reference.load_state_dict(ours.state_dict())
    return ours, reference


@torch.no_grad()
def test_a_composed_module_is_captured_whole_and_replayed_on_new_contents(load: Callable[[str], ModuleType]) -> None:
    module = load(SOURCE)
    ours, reference = pair(module)
    held = drawn(SOURCE, 0)
    assert_right(ours(*held), reference, held)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = ours(*held)
    for seed in (1, 2):
        for place, new in zip(held, drawn(SOURCE, seed), strict=True):
            place.copy_(new)
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert_right(results, reference, held)
    assert module.FALLBACKS == {}


@pytest.mark.filterwarnings("ignore")  # torch._dynamo's own
@torch.no_grad()
def test_reduce_overhead_takes_a_composed_module_in_one_graph(load: Callable[[str], ModuleType]) -> None:
    module = load(SOURCE)
    ours, reference = pair(module)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = torch.compile(ours, mode="reduce-overhead", fullgraph=True)
    for seed in range(4):  # the first two warm up and record
        torch.compiler.cudagraph_mark_step_begin()
        operands = drawn(SOURCE, seed)
        assert_right(compiled(*operands), reference, operands)
    assert counters["inductor"]["cudagraph_skips"] == 0, dict(counters["inductor"])
    assert counters["stats"]["unique_graphs"] == 1 and module.FALLBACKS == {}


@torch.no_grad()
def test_a_call_of_a_composed_module_costs_little_beyond_its_bare_kernel(load: Callable[[str], ModuleType]) -> None:
    """The aim is 5 us (docs/measured.md has the figure); hosts differ, and others run beside us."""
    module = load(SMALL)
    ours, operands = module.ModelNew(), drawn(SMALL, 0)
    assert_right((ours(*operands),), module.Model(), operands)
    fused = sys.modules["fused_0"]._FUSED
    ((launch, scrap, *_),) = fused._ready.values()
    x, y, out = *operands, torch.empty_like(operands[0])
    bare_us = _host_us(lambda: launch(x, y, out, scrap))
    added_us = _host_us(lambda: ours(*operands)) - bare_us
    assert 0 < added_us < 15, (added_us, bare_us)


def _host_us(call: Callable[[], object]) -> float:
    samples = []
    for _ in range(40):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(50):
            call()
        samples.append((time.perf_counter_ns() - start) / 50 / 1e3)
    return statistics.median(samples[5:])
