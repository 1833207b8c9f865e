"""The table of rules is true: all its examples stand in one module, which is traced once for each dtype and matched."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from fakes.modules import Applies
from fakes.realisers import DEVICES_OF
from tilewright.faces.patterns import operators
from tilewright.facts import codec
from tilewright.facts.devices import DEVICES
from tilewright.facts.pattern import Choice, Pattern, without_idle
from tilewright.facts.problem import Target
from tilewright.facts.rule import FEATURES, Example, rule_of
from tilewright.frontend.lowering.lowerings import LOWERING_FAMILIES
from tilewright.frontend.trace import trace
from tilewright.fusion import explained
from tilewright.ir.graph import SOURCES, Graph
from tilewright.realise.table import realisers
from tilewright.report.rules import rules_page
from tilewright.search.retrieve import rules

ROOT = Path(__file__).parents[4]
RULES = rules()
DTYPES: Mapping[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
}  # fmt: skip
TARGETS: tuple[Target, ...] = get_args(Target)
EXAMPLES = {r.name: r.example for r in RULES} | {f"{r.name}: {m.text}": m.example for r in RULES for m in r.limits}


def function(example: Example) -> Any:
    names: dict[str, Any] = {"torch": torch}
    exec(example.code, names)
    return names["example"]


def given(example: Example, dtype: torch.dtype) -> list[Tensor]:
    made = []
    for line in example.inputs:
        what, *shape = line.split()
        size = [int(s) for s in shape]
        if what == "x":
            made.append(torch.ones(size, dtype=dtype))
        elif what == "bool":
            made.append(torch.ones(size, dtype=torch.bool))
        else:
            assert what.startswith("i64<")
            made.append(torch.zeros(size, dtype=torch.int64))
    return made


@cache
def together(dtype: str) -> tuple[Graph, dict[str, str]]:
    """The graph of all examples side by side, and whose each node is. That of f16 is bf16's under another name."""
    if dtype == "f16":
        graph, owner = together("bf16")
        return codec.loads(codec.dumps(graph).replace('"bf16"', '"f16"')), owner
    counts = {name: len(e.inputs) for name, e in EXAMPLES.items()}
    functions = {name: function(e) for name, e in EXAMPLES.items()}

    def every(*inputs: Tensor) -> list[Any]:
        rest = iter(inputs)
        return [f(*(next(rest) for _ in range(counts[name]))) for name, f in functions.items()]

    inputs = [t for e in EXAMPLES.values() for t in given(e, DTYPES[dtype])]
    graph = trace(Applies(every), tuple(inputs), {})
    order = [name for name, count in counts.items() for _ in range(count)]
    owner = dict(zip([n.name for n in graph.nodes if n.op == "input"], order, strict=True))
    calls = {c.name: c for c in graph.calls}
    for node in graph.nodes:
        if node.op not in SOURCES:
            reads = calls[node.origin].sources if node.op == "call" else node.sources
            owners = {owner[r] for r in reads if r in owner}
            assert len(owners) <= 1, "examples have nothing in common"
            owner.update(dict.fromkeys([node.name], *owners) if owners else {})
    return graph, owner


@cache
def found(target: Target, dtype: str) -> tuple[dict[str, list[Pattern]], dict[str, str]]:
    """By example: the patterns that realise it, and why torch does what of it."""
    graph, owner = together(dtype)
    make = realisers(DEVICES_OF[target])
    matched, left = explained(graph, unsupported=make.unsupported, space=make.space)
    every = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched.patterns)
    busy = {c.pattern for c in without_idle([matched.patterns], every)}
    patterns: dict[str, list[Pattern]] = {name: [] for name in EXAMPLES}
    for p in matched.patterns:
        if p.id in busy:
            for name in {owner[n] for site in p.matches for n in site.nodes if n in owner}:
                patterns[name].append(p)
    whose = {n.origin: owner[n.name] for n in graph.nodes if n.name in owner and n.origin}
    return patterns, {whose[call]: why for call, why in left.items()}


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_the_example_is_realised_as_the_rule_says(rule: Any) -> None:
    for target in TARGETS:
        said = rule.on(target)
        for dtype in DTYPES:
            mine = [p for p in found(target, dtype)[0][rule.name] if rule_of(RULES, p) is rule]
            wanted = said is not None and dtype in said.dtypes
            assert bool(mine) == wanted, f"{target} {dtype}: {found(target, dtype)[0][rule.name]}"
            if said is not None and wanted:
                others = [
                    p.title for p in found(target, dtype)[0][rule.name] if p not in mine and p.kind != "pointwise"
                ]
                assert (len(mine), others) == (1, []), f"{target} {dtype}"
                files = realisers(DEVICES_OF[target]).render(mine[0].program, "fused_0", mine[0].space.points[0])
                assert said.mark in "\n".join(f.text for f in files), f"{target}: {said.mark}"
                shared = realisers(DEVICES_OF[target]).skeleton_files([mine[0].program])
                assert f"tilewright_kernels/{said.skeleton}" in {f.path for f in shared}


@pytest.mark.parametrize("rule", [r for r in RULES if r.limits], ids=lambda r: r.name)
def test_what_is_beyond_its_limits_is_left_for_the_reason_said(rule: Any) -> None:
    for limit in rule.limits:
        for target in limit.targets:
            patterns, why = found(target, "f32")
            name = f"{rule.name}: {limit.text}"
            assert not patterns[name] and limit.says in why.get(name, ""), f"{target} {limit.text}: {why.get(name)}"


def test_every_family_of_operators_and_every_kind_of_pattern_has_a_rule() -> None:
    named = {family for r in RULES for family in r.lowerings}
    assert named == {*LOWERING_FAMILIES, "products"} - {"views"}, "views are read through, by any rule"
    kinds = {"pointwise", "row_reduce", "column_reduce", "row_column_reduce", "whole_reduce", "scan", "product",
             "convolution", "attention", "attention_backward", "recurrence"}  # fmt: skip
    assert {k for r in RULES for k in r.kinds} == kinds
    assert {k for r in RULES for k in r.kinds if not r.feature} == kinds, "none without a rule of last resort"
    assert {r.feature for r in RULES if r.feature} <= set(FEATURES) and len({r.name for r in RULES}) == len(RULES)


def test_the_evidence_is_there() -> None:
    for rule in RULES:
        assert any(e.startswith("tests/") for e in rule.evidence), rule.name
        for page, _, heading in (e.partition("#") for e in rule.evidence):
            text = (ROOT / page).read_text()
            assert not heading or f"# {heading}\n" in text, f"{rule.name}: {page} has no heading {heading!r}"
    compiled = (ROOT / "tests/unit/kernels/test_cuda_compile.py").read_text()
    every = {d.architecture for d in DEVICES.values()}
    for made in (m for r in RULES for m in r.realised if m.target == "cuda"):
        tensor_cores = made.skeleton.startswith(("cuda/gemm/", "cuda/conv/", "cuda/attention/"))
        assert set(made.architectures) == ({"sm_90a"} if tensor_cores else every)
    assert "gpu()" in compiled  # an H200's


def test_the_page_is_what_the_table_says() -> None:
    page = ROOT / "docs" / "patterns.md"
    again = "write it anew: tilewright patterns page > docs/patterns.md"
    assert page.read_text() == rules_page(RULES, operators()), again
