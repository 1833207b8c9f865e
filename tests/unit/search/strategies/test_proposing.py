"""A model's proposals: what it is shown, what of its reply is taken, and why the rest is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.facts import MACHINE, PROBLEM, context
from fakes.modules import Applies
from tilewright.facts.discovery import Part
from tilewright.facts.document import Document
from tilewright.facts.regions import region_of
from tilewright.facts.run import SearchContext
from tilewright.frontend.trace import trace
from tilewright.judge.reference_process.observe import spread_of
from tilewright.realise.subproblem_code import subproblem_code
from tilewright.search.strategies.proposing import MOST, asked, inspection, read, told_why


def module(x: Tensor, w: Tensor) -> Tensor:
    a = torch.i0(x @ w)
    b = torch.sort(a.relu(), -1)[0]
    c = torch.nn.functional.dropout(b, 0.5, True)
    return torch.special.i1(a + b) + c


GRAPH = trace(Applies(module), (torch.randn(8, 16), torch.randn(16, 16)), {})
CALLS = {c.label: c.name for c in GRAPH.calls}
RANDOM = next(c.name for c in GRAPH.calls if c.ordered)


def part(ns: float, *calls: str, pattern: str = "", why: str = "no skeleton") -> Part:
    return Part(
        pattern=pattern, title=" -> ".join(calls), rule="", why=why, calls=tuple(CALLS[c] for c in calls), ns=ns,
        share=0.0, floor_ns=1.0,
    )  # fmt: skip


PARTS = (
    part(40e3, "sort"),
    part(30e3, "i0"),
    part(20e3, "special_i1"),
    part(5e3, "matmul"),
    part(5e3, "relu", pattern="fused_0"),
)


def given() -> SearchContext:
    case = replace(context().cases[0], graph=GRAPH)
    note = Document(kind="note", name="n", title="Sorting networks", text="Compare in registers.")
    problem = replace(PROBLEM, source="class Model: ...\n")
    return replace(context(), cases=(case,), parts=PARTS, notes=(note,), model="scripted:x", problem=problem)


def reply(*entries: Any) -> str:
    return f"Two ideas.\n```json\n{json.dumps({'patterns': list(entries)})}\n```\n"


def entry(*labels: str, title: str = "t", **more: object) -> dict[str, object]:
    return {"title": title, "calls": [CALLS.get(label, label) for label in labels], "why": "fewer passes", **more}


def test_the_model_sees_the_graph_with_times_what_is_left_and_what_is_known() -> None:
    (message,) = inspection(given(), GRAPH)
    assert f"- {CALLS['sort']} = aten.sort.default(" in message.text and "f32[8, 16]" in message.text
    assert "40.0%" in message.text and "sort: 40.0% of the time, no skeleton" in message.text
    assert f"{CALLS['relu']}" in message.text and "in fused_0" in message.text
    assert "### Sorting networks" in message.text and "class Model: ..." in message.text
    ask = asked(given(), (message,), turn=3, least=0.03, why="w")
    assert f"at most {MOST} parts" in ask.prompt.system and "less than 3%" in ask.prompt.system and ask.turn == 3


def test_what_is_valid_is_taken_and_can_be_run_by_itself() -> None:
    found = read(
        reply(entry("matmul", "i0", title="product and i0"), entry("relu", "sort")), given(), GRAPH, least=0.03
    )
    assert not found.problems
    first, second = found.proposals
    assert (first.subproblem.name, first.subproblem.title, second.subproblem.name) == (
        "piece_0",
        "product and i0",
        "piece_1",
    )
    assert first.gain == pytest.approx(0.35, abs=0.01) and second.gain == pytest.approx(0.45, abs=0.01)
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    assert len(first.subproblem.region.inputs) == 2 and len(first.subproblem.region.outputs) == 1
    spreads = [spread_of(name, value) for name, value in zip(first.subproblem.region.inputs, (x, w), strict=True)]
    code = subproblem_code(PROBLEM, GRAPH, first.subproblem, spreads)
    scope: dict[str, Any] = {}
    exec(code.problem.source, scope)
    torch.testing.assert_close(scope["Model"]()(x, w), torch.i0(x @ w))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("No.", "no JSON object"),
        ('```json\n{"patterns": 3}\n```', 'no list "patterns"'),
        (reply("sort"), 'number 1: it is no object of "title"'),
        (reply(entry("sort", more=1)), "it is no object of"),
        (reply(entry("sort", title="")), "its title is no line"),
        (reply({"title": "t", "calls": [], "why": ""}), "its calls are no list of names"),
        (reply(entry("conv9")), "number 1 (t): no operator is called conv9"),
        (reply(entry(RANDOM)), "draws random numbers"),
        (reply(entry("i0", "special_i1")), "it is not closed"),
        (reply(entry("matmul")), ""),
        (reply(entry("relu", "matmul")), "it is not closed"),
        (reply(entry("sort"), entry("sort", title="again")), "number 2 (again): it is 't' once more"),
        (
            reply(*(entry(c, title=c) for c in ("sort", "i0", "special_i1", "matmul", "relu"))),
            f"there are {MOST} already",
        ),
    ],
)
def test_what_is_not_valid_is_told_why(text: str, why: str) -> None:
    problems = read(text, given(), GRAPH, least=0.03).problems
    assert len(problems) == (1 if why else 0) and (not why or why in problems[0]), problems
    if why:
        _, said, told = told_why(inspection(given(), GRAPH), text, read(text, given(), GRAPH, least=0.03))
        assert said.text == text and why in told.text


def test_what_could_win_too_little_is_not_taken() -> None:
    assert "it could win 4.8% of" in read(reply(entry("matmul")), given(), GRAPH, least=0.1).problems[0]
    slow = replace(given(), machine=replace(MACHINE, copy_bytes_per_s=1e7))
    assert "it could win 0.0%" in read(reply(entry("matmul")), slow, GRAPH, least=0.03).problems[0]


def test_a_region_takes_what_comes_from_outside_and_gives_what_others_take() -> None:
    region = region_of(GRAPH, frozenset({CALLS["i0"], CALLS["relu"], CALLS["sort"]}))
    assert [n for n in region.inputs if n in ("x", "w")] == [] and len(region.inputs) == 1
    assert len(region.outputs) == 2, "i0's is taken by the sum, sort's by that and by dropout"
    with pytest.raises(ValueError, match="gives nothing"):
        region_of(GRAPH, frozenset())
