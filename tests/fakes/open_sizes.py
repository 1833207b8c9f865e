"""Problems with open sizes, and the modules of all kernels that fit them."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from fakes.realisers import DEVICES_OF
from tilewright.edges.problems import read_problem
from tilewright.facts.pattern import Choice
from tilewright.facts.problem import Problem, Target, Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.trace import trace
from tilewright.realise.compose import compose
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import write_candidate

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

"""
PERCEPTRON = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.norm = nn.Linear(64, 128), nn.Linear(128, 64), nn.LayerNorm(64)
        self.eval()

    def forward(self, x):
        return self.norm(x + self.narrow(F.gelu(self.wide(x))))

CASES = [{"rows": 96}]
DYNAMIC = {"rows": (1, 512)}
def get_inputs(rows): return [torch.randn(rows, 64)]
def get_init_inputs(rows): return []
"""
)
BLOCK = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)
        self.eval()

    def forward(self, x):
        batch, seq, width = x.shape
        q, k, v = (t.view(batch, seq, 4, 16).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        weights = torch.softmax(q @ k.mT / 4.0, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, seq, width))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))

CASES = [{"batch": 4, "seq": 48}]
DYNAMIC = {"batch": (1, 16), "seq": (2, 128)}
def get_inputs(batch, seq): return [torch.randn(batch, seq, 64)]
def get_init_inputs(batch, seq): return []
"""
)
CONVOLUTIONS = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 10)
        self.eval()

    def forward(self, x):
        x = F.relu(self.norm(self.one(x)))
        x = F.silu(self.two(x)) + x
        return torch.softmax(self.head(x.mean((2, 3))), -1)

CASES = [{"batch": 8}]
DYNAMIC = {"batch": (1, 32)}
def get_inputs(batch): return [torch.randn(batch, 3, 20, 20)]
def get_init_inputs(batch): return []
"""
)


def problem_of(source: str, folder: Path, target: Target = "cpu") -> Problem:
    path = folder / "problem.py"
    path.write_text(source)
    return read_problem(path, target=target)


def cases_of(problem: Problem) -> tuple[CaseFacts, ...]:
    names: dict[str, Any] = {}
    exec(problem.source, names)
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    found = []
    for text in problem.cases:
        numbers = json.loads(text)
        graph = trace(names["Model"](), tuple(names["get_inputs"](**numbers)), {})
        sizes = tuple(replace(size, size=numbers[size.name]) for size in problem.open)
        found.append(CaseFacts(inputs=(), outputs=(), work=work, graph=graph, open=sizes, fixed="{}"))
    return tuple(found)


def composed(source: str, folder: Path, *, target: Target = "cpu") -> tuple[ModuleType, list[str]]:
    """The module of all kernels that fit, and their titles."""
    problem = problem_of(source, folder, target)
    cases = cases_of(problem)
    matched = found_patterns(cases, DEVICES_OF[target])
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
    candidate = compose(source, cases, matched, recipe, device=DEVICES_OF[target])
    write_candidate(candidate, folder / "c")
    sys.path.insert(0, str(folder / "c"))
    spec = importlib.util.spec_from_file_location("model_open", folder / "c" / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, [p.title for p in matched[0].patterns]
