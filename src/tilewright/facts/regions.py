"""Parts of a graph by the operators that they are made of: what these compute, take and give."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.graph import SOURCES, VIEWS, Call, Graph
from .pattern import Region


def region_of(graph: Graph, calls: frozenset[str]) -> Region:
    """What these operators compute, take and give. Raises ValueError where they are not closed, or give nothing."""
    reads = _reads(graph)
    inside = {n.name for n in graph.nodes if n.origin in calls and n.op not in SOURCES}
    # What reads a value of theirs, outside and from there on, may be read by none of theirs.
    after: set[str] = set()
    for node in graph.nodes:
        if node.name not in inside and any(r in inside or r in after for r in reads[node.name]):
            after.add(node.name)
    for node in graph.nodes:
        if node.name in inside and (back := [r for r in reads[node.name] if r in after]):
            raise ValueError(f"it is not closed: {node.origin} takes {back[0]}, which depends on it from outside")
    needed = [r for n in graph.nodes if n.name not in inside for r in reads[n.name] if r in inside]
    kept = {*graph.outputs, *(u.value for u in graph.updates), *needed}
    outputs = tuple(n.name for n in graph.nodes if n.name in inside and n.name in kept)
    constants = {n.name for n in graph.nodes if n.op == "constant"}
    entering = dict.fromkeys(
        r for n in graph.nodes if n.name in inside for r in reads[n.name] if r not in inside | constants
    )
    if not outputs or not entering:
        raise ValueError("it gives nothing that anybody takes, or takes nothing")
    return Region(nodes=tuple(n.name for n in graph.nodes if n.name in inside), inputs=tuple(entering), outputs=outputs)


def _reads(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """What each node takes: of a call's whole result what the call takes, of a part of it what that part does."""
    calls: dict[str, Call] = {c.name: c for c in graph.calls}
    found = {}
    for node in graph.nodes:
        call = calls.get(node.origin)
        whole = call is not None and node.name in call.results and node.op not in VIEWS | {"slice"}
        found[node.name] = (*node.sources, *(call.sources if whole and call is not None else ()))
    return found
