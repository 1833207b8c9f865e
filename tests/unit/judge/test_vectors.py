"""Products that memory bounds, by C++ kernels: through a whole judge; few vectors, of 64 MB and more, by themselves."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from fakes.fused import load_fused
from fakes.judges import context_judge
from fakes.modules import Applies
from fakes.program_interpreter import view
from fakes.realisers import CPU, cpu
from tilewright.facts.outcome import Timed
from tilewright.facts.pattern import Choice
from tilewright.frontend.lowering import products as lower_products
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.judge.timing import measure
from tilewright.realise.compose import compose
from tilewright.run.matching import found_patterns

pytestmark = pytest.mark.slow

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, a, b, c, d, e):
        return torch.relu(a @ b), torch.einsum("ij,i->j", a, c), torch.outer(b, c), torch.bmm(d, e)

def get_inputs():
    return [torch.randn(s) for s in ((1031, 1024), (1024,), (1031,), (8, 1031, 128), (8, 128, 1))]

def get_init_inputs():
    return []
"""


@pytest.mark.thorough
def test_the_judge_takes_sums_of_rows_and_columns(tmp_path: Path) -> None:
    """Both of one matrix in one pass over it."""
    with context_judge(SOURCE, tmp_path, trace=True) as judge, patch.object(measure, "check_clock"):
        cases = judge.open()
        matched = found_patterns(cases, CPU)
        recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
        timed = judge.evaluate(compose(SOURCE, cases, matched, recipe, device=CPU))
    assert isinstance(timed, Timed), timed
    kinds = {p.kind for p in matched[0].patterns}
    assert kinds == {"column_reduce", "pointwise", "row_reduce", "row_column_reduce"} and not matched[0].unmatched


@pytest.mark.few(0)
@pytest.mark.parametrize("across", [False, True])
def test_few_vectors_take_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, across: bool) -> None:
    monkeypatch.setattr(lower_products, "LARGEST", 1)
    x, weight = torch.randn(4, 1031), torch.randn(*((1031, 517) if across else (517, 1031)))
    module = Applies(torch.matmul if across else F.linear)
    graph = trace(module, (x, weight), {})
    matched = match(graph, unsupported=cpu.unsupported, space=cpu.space)
    kinds = ["column_reduce" if across else "row_reduce", "pointwise"]
    assert [p.kind for p in matched.patterns] == kinds
    values = {"args_0": x, "args_1": weight}
    values |= {n.name: x.narrow(*n.dims) for n in graph.nodes if n.op == "slice"}
    shapes = {n.name: n.shape for n in graph.nodes}
    for pattern in matched.patterns:
        (site,) = pattern.matches
        run = load_fused(pattern.program, tmp_path, renderer=cpu).run
        operands = zip(site.operands, pattern.program.operands, strict=True)
        results = run(*(view(values[bind.node], bind, o.shape) for bind, o in operands))
        values |= {b.node: view(r, b, shapes[b.node]) for b, r in zip(site.outputs, results, strict=True)}
    torch.testing.assert_close(
        values[graph.outputs[0]].double(), module(x.double(), weight.double()), rtol=1e-4, atol=1e-3
    )
