"""Algebra in a run: the judge's floor counts what is left of the work, and recipes of either side become candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fakes.facts import PROBLEM, context
from fakes.modules import Applies
from fakes.realisers import CPU, H200
from tilewright.facts import codec
from tilewright.facts.candidate import Candidate
from tilewright.facts.pattern import Choice, without_idle
from tilewright.facts.problem import Work
from tilewright.facts.run import SearchContext
from tilewright.frontend.rewrite.algebra import rewritten
from tilewright.frontend.trace import trace
from tilewright.judge.memories import case_of
from tilewright.judge.wire import messages as wire
from tilewright.realise.compose import compose
from tilewright.run.matching import composed, found_patterns

X, W = torch.randn(512, 256), torch.randn(512, 256)


def given() -> SearchContext:
    """Mean, over the columns, of a product; what the evaluator knows of it."""
    graph = trace(Applies(lambda x, w: (x @ w.T).mean(1)), (X, W), {})
    less = rewritten(graph)
    assert less is not None
    whole = replace(context(), problem=replace(PROBLEM, source="class Model: ...\n"))
    case = replace(whole.cases[0], graph=graph, rewritten=less.graph, algebra=less.steps)
    matched = found_patterns((case,), CPU)
    behind = found_patterns((replace(case, graph=less.graph),), CPU, first_id=len(matched[0].patterns))
    return replace(whole, cases=(case,), matched=matched, rewritten=behind)


def test_a_recipe_of_either_side_becomes_a_candidate() -> None:
    whole = given()

    def model(candidate: Candidate) -> str:
        return next(f.text for f in candidate.files if f.path == "model.py")

    sides = [tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in m.patterns)
             for m in (whole.matched[0], whole.rewritten[0])]  # fmt: skip
    assert not {c.pattern for c in sides[0]} & {c.pattern for c in sides[1]}
    plain, less = (model(composed(whole, recipe)) for recipe in sides)
    assert "torch.ops.aten.matmul" in plain and "torch.ops.aten" not in less
    assert all(f"{choice.pattern}.run(" in less for choice in sides[1])
    alone = model(composed(whole, sides[1][-1:]))  # what is not fused of it is torch's, part by part
    assert "torch.ops.aten" not in alone and ".sum((" in alone


def test_a_case_says_what_algebra_makes_of_it_where_that_is_wanted() -> None:
    graph = given().cases[0].graph
    work = Work(bytes_read=1, bytes_written=1, matmul_flops=2 * 512 * 512 * 256, conv_flops=0, dtype="f32")
    described = wire.Described(
        init="", init_tensors=(), args="", inputs=(), outputs_tree="", outputs=(), state=(), mutated_state=(),
        gradients=wire.Gradients(), random=False, work=work, longest_sum=1, graph=codec.dumps(graph), trace_failure="",
        nominal_s=0.0,
    )  # fmt: skip
    less = case_of(0, described, 1, algebra=True)
    assert less.facts.algebra == ("mean of matmul: weights summed",) and less.facts.rewritten != less.facts.graph
    assert less.described.work.flops == 2 * 512 * 256 and less.facts.work == less.described.work
    plain = case_of(0, described, 1, algebra=False)
    assert plain.facts.rewritten is None and plain.described.work == work


def test_spared_flops_are_no_work_and_bytes_are() -> None:
    machine = given().machine
    work = Work(bytes_read=10**10, bytes_written=0, matmul_flops=10**13, conv_flops=0, dtype="f32")
    spared = replace(work, spared_flops=work.matmul_flops - 10**6)
    assert machine.floor_ns(work) > 50 * machine.floor_ns(spared) and spared.flops == 10**6
    assert machine.impossible_ns(spared) >= 0.8 * machine.floor_ns(spared)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda a, b: torch.tril(a) @ b, "zeros=((None, 0), (None, None))"),
        (lambda a, b: torch.relu(a @ a.T) + b, "diagonals=(None, 0)"),
        (lambda a, b: torch.softmax(a.masked_fill(torch.ones_like(a).triu(1).bool(), float("-inf")), -1) @ b,
         "zeros=((None, 0), (None, None))"),
        (lambda a, b: torch.softmax((a @ b.T).masked_fill(torch.ones_like(a).triu(1).bool(), float("-inf")), -1) @ b,
         "diagonals=(None, 0)"),
    ],
)  # fmt: skip
def test_what_algebra_spares_on_a_gpu_becomes_a_candidate_of_kernels_alone(function: Any, told: str) -> None:
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    graph = trace(Applies(function), (a, b), {})
    less = rewritten(graph)
    assert less is not None and less.spared_flops > 2**29
    cases = (replace(context().cases[0], graph=less.graph),)
    matched = found_patterns(cases, H200)
    whole = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
    recipe = without_idle([matched[0].patterns], whole)
    candidate = compose("class Model: ...\n", cases, matched, recipe, device=H200)
    texts = {f.path: f.text for f in candidate.files}
    assert "torch.ops.aten" not in texts["model.py"]
    assert all(f"{choice.pattern}.run(" in texts["model.py"] for choice in recipe)
    assert any(told in texts[f"{choice.pattern}.py"] for choice in recipe)
