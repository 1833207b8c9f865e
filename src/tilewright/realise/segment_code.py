"""A Segment becomes a file of its own, and one call in the graph that is left around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.facts.candidate import SourceFile
from tilewright.facts.pattern import Pattern
from tilewright.facts.segment import Segment
from tilewright.ir.graph import Call, Graph, Node, Ref

from .case_code import case_code
from .case_units import SEGMENT
from .templates import template


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCode:
    segment: Segment
    file: SourceFile
    used: tuple[str, ...]  # ids of the patterns that it calls


def segment_code(segment: Segment, patterns: Sequence[Pattern], *, target: str) -> SegmentCode | None:
    """The file of a segment in which these patterns are fused and the rest runs as torch does it; None where none of
    them stands in it."""
    forward = case_code(segment.forward, patterns, target=target)
    backward = case_code(segment.backward, patterns, target=target, by_need=True)
    used = tuple(dict.fromkeys((*forward.used, *backward.used)))
    if not used:
        return None
    results = segment.forward.outputs
    text = template(__package__, "segment.py.jinja").render(
        title=segment.title, name=segment.id, ids=used, forward=forward, backward=backward,
        outputs=len(segment.outputs), results=len(results),
        kept=tuple(segment.inputs.index(n) for n in segment.kept),
        saved=tuple(results.index(n) for n in segment.saved), graded=tuple(results.index(n) for n in segment.graded),
    )  # fmt: skip
    return SegmentCode(segment=segment, file=SourceFile(path=f"{segment.id}.py", text=f"{text.rstrip()}\n"), used=used)


def around(graph: Graph, segments: Sequence[Segment]) -> Graph:
    """The graph with each segment as one call, whose results its other operators read."""
    calls = {s.id: _call(s) for s in segments}
    made = {name: (s.id, i) for s in segments for i, name in enumerate(s.outputs)}
    nodes = tuple(_result(n, *made[n.name]) if n.name in made else n for n in graph.nodes)
    return replace(graph, nodes=nodes, calls=(*graph.calls, *calls.values()))


def _call(segment: Segment) -> Call:
    return Call(
        name=segment.id, target=f"{SEGMENT}{segment.id}", args=tuple(Ref(name=n) for n in segment.inputs),
        results=segment.outputs, single=False,
    )  # fmt: skip


def _result(node: Node, segment: str, item: int) -> Node:
    return Node(
        name=node.name, op="call", shape=node.shape, dtype=node.dtype, item=item, origin=segment, order=node.order
    )
