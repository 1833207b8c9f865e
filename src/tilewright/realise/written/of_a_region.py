"""A candidate for a whole problem becomes one for the region that the problem's graph is: what the module holds comes
as arguments there."""

from __future__ import annotations

import json

from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.pattern import Region
from tilewright.facts.problem import Problem
from tilewright.ir.graph import SOURCES, Graph, Ref, Struct

from ..subproblem_code import NotAlone, arguments
from ..templates import template

_ENTRY, _PROBLEM = "of_a_region", "of_a_region_problem"


def region_of_all(graph: Graph) -> Region | None:
    """All that a graph computes of tensors that forward takes and gives by position; None where it does more: draws
    random numbers, writes to state, takes or gives containers or numbers."""
    flat = graph.result.items if isinstance(graph.result, Struct) and not graph.result.keys else (graph.result,)
    plain = all(isinstance(item, Ref) for item in (*graph.arguments, *flat))
    if not plain or graph.keywords or graph.updates or any(call.ordered for call in graph.calls) or not graph.outputs:
        return None
    nodes = tuple(n.name for n in graph.nodes if n.op not in SOURCES)
    inputs = tuple(dict.fromkeys(item.name for item in graph.arguments if isinstance(item, Ref)))
    used = {name for n in graph.nodes for name in n.sources} | {name for c in graph.calls for name in c.sources}
    return Region(
        nodes=nodes, inputs=tuple(i for i in inputs if i in used), outputs=tuple(dict.fromkeys(graph.outputs))
    )


def standing_alone(candidate: Candidate, problem: Problem, graph: Graph, region: Region) -> Candidate | None:
    """The candidate with another entry, whose `ModelNew()` takes what `region` takes and gives what it gives; None
    where the region takes anything but inputs and state of the graph, or gives other values."""
    try:
        takes = arguments(graph, region)
    except NotAlone:
        return None
    nodes = {n.name: n for n in graph.nodes}
    if any(nodes[name].op not in ("input", "state") for name in takes) or {*region.outputs} != {*graph.outputs}:
        return None
    forward = [item.name for item in graph.arguments if isinstance(item, Ref)]
    if not {n for n in takes if nodes[n].op == "input"} >= set(forward):
        return None
    text = template(__package__, "of_a_region.py.jinja").render(
        entry=candidate.entry.removesuffix(".py").replace("/", "."), problem=_PROBLEM,
        case=json.loads(problem.cases[0]),
        forward=[takes.index(name) for name in forward],
        evaluates=graph.training is False,
        state=[(nodes[name].path, i) for i, name in enumerate(takes) if nodes[name].op == "state"],
        gives=[graph.outputs.index(name) for name in region.outputs], title=problem.name,
    )  # fmt: skip
    more = (
        SourceFile(path=f"{_ENTRY}.py", text=f"{text.rstrip()}\n"),
        SourceFile(path=f"{_PROBLEM}.py", text=problem.source),
    )
    return Candidate(files=(*candidate.files, *more), entry=f"{_ENTRY}.py", language=candidate.language)
