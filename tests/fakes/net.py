"""A module with one of everything that a call may depend on, and a candidate for it whose kernels are interpreted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes.realisers import DEVICES_OF
from fakes.renderer import InterpretingRenderer
from tilewright.faces.capture import write_examples, write_problem
from tilewright.faces.examples import ExampleCall, examples_of
from tilewright.faces.live import replacement
from tilewright.faces.trees import trees_of
from tilewright.facts.pattern import Choice, Recipe
from tilewright.facts.problem import Target, Work
from tilewright.facts.run import CaseFacts, patterns_by_id
from tilewright.frontend.trace import trace, trace_training
from tilewright.fusion import match_all
from tilewright.ir.graph import Graph
from tilewright.judge.candidate_process import values
from tilewright.judge.reference_process.learn import learn
from tilewright.realise.compose import compose
from tilewright.realise.table import realisers
from tilewright.run.optimize import write_candidate
from tilewright.run.training import match_training

BIAS = 0.25  # of the file: read by name in each call


def shifted(x: Tensor) -> Tensor:
    return x + BIAS


class Gate(nn.Module):
    strength = 0.5  # of the class

    def __init__(self) -> None:
        super().__init__()
        self.slope = 0.1

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.slope) * self.strength


class Net(nn.Module):
    """(rows, 16) float32 and (rows,) int64 to (rows, 8) float32."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 16)
        self.fc = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.act = nn.GELU()
        self.gate = Gate()
        self.drop = nn.Dropout(0.5)
        self.pool = nn.AvgPool1d(2)
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.linspace(-1, 1, 8))
        self.table = torch.linspace(1, 2, 8)
        self.scale = 1.5
        self.settings = {"gain": 0.75, "powers": [1, 2]}
        self.config = SimpleNamespace(floor=-3.0)

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.scale

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        y = self.gate(self.act(self.norm(self.fc(x + self.words(ids)))))
        y = self.pool(self.drop(shifted(self.scaled(y))))
        y = self.second(torch.tanh(self.first(y))) * self.settings["gain"]
        y = sum(y**power for power in self.settings["powers"])
        return y.clamp(min=self.config.floor) + self.shift * self.table


def example(rows: int = 6) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 16, generator=source), torch.randint(0, 11, (rows,), generator=source)


@cache
def made(training: bool = False) -> Net:
    torch.manual_seed(0)
    return Net().train(training)


def write_fused(folder: Path, module: nn.Module, inputs: tuple[Any, ...], *, target: Target = "cpu") -> Path:
    """The folder of a candidate for this module, made as `optimize` makes it: on a GPU with real kernels."""
    problem = write_problem(module, inputs, folder / "problem").read_text()
    with torch.no_grad():
        graph = trace(module, inputs, {})
    return _composed(folder, problem, [graph], target)


def fused_as_given(
    folder: Path, module: nn.Module, examples: list[ExampleCall], *, target: Target = "cpu", more: Recipe = ()
) -> nn.Module:  # fmt: skip
    """What `optimize` gives for these examples, with nothing judged; `more` is chosen beside all patterns."""
    trees = trees_of(module, examples)
    problem = write_examples(module, examples, trees, folder / "problem")
    names: dict[str, Any] = {"__file__": str(problem), "__name__": "captured"}
    exec(problem.read_text(), names)
    graphs = [_traced_case(names, case, target) for case in names["CASES"]]
    return replacement(module, _composed(folder, problem.read_text(), graphs, target, more), trees)


def _traced_case(names: dict[str, Any], case: dict[str, Any], target: Target) -> Graph:
    with torch.device(target):
        captured, given = names["Model"](*names["get_init_inputs"](**case)), names["get_inputs"](**case)
    with torch.no_grad():
        return trace(captured, (), given) if isinstance(given, dict) else trace(captured, tuple(given), {})


def fused_training(folder: Path, module: nn.Module, args: tuple[Any, ...]) -> nn.Module:
    """What `optimize` gives in mode "training", with nothing judged."""
    examples = examples_of(args)
    trees = trees_of(module, examples)
    problem = write_examples(module, examples, trees, folder / "problem")
    names: dict[str, Any] = {"__file__": str(problem), "__name__": "captured"}
    exec(problem.read_text(), names)
    captured = names["Model"]().train(module.training)
    tensors = [a for a in args if isinstance(a, Tensor)]
    with torch.autocast("cpu", enabled=False):
        text = values.encode(list(args), [])
        gradients, _ = learn(captured, text, tensors, [i for i, t in enumerate(tensors) if t.requires_grad])
        graph, make = trace_training(captured, args, {}, tensors, gradients), InterpretingRenderer()
    found = match_training(
        graph, unsupported=make.unsupported, space=make.space, first_id=0, first_segment=0, case=0
    )  # fmt: skip
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in found.patterns)
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    case = CaseFacts(inputs=(), outputs=(), work=work, graph=graph)
    candidate = compose(problem.read_text(), [case], [found], recipe, device=DEVICES_OF["cpu"], make=make)
    write_candidate(candidate, folder / "candidate")
    return replacement(module, folder / "candidate", trees)


def _composed(folder: Path, problem: str, graphs: list[Graph], target: Target, more: Recipe = ()) -> Path:
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    make: Any = InterpretingRenderer() if target == "cpu" else realisers(DEVICES_OF[target])
    found = match_all(graphs, unsupported=make.unsupported, space=make.space, tiny_bytes=0)
    patterns = patterns_by_id(found).values()
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in patterns)
    cases = [CaseFacts(inputs=(), outputs=(), work=work, graph=graph) for graph in graphs]
    write_candidate(
        compose(problem, cases, found, (*recipe, *more), device=DEVICES_OF[target], make=make),
        folder / "candidate",
    )
    return folder / "candidate"
