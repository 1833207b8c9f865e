"""A Graph without what nobody needs, and with what it reads moved to where a kernel would read it."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.graph import Graph

from .loads import loaded_early
from .slices import sliced_early


def pruned(graph: Graph) -> Graph:
    """The same without nodes and calls on which nothing depends; inputs and calls with an effect stay."""
    nodes = {n.name: n for n in graph.nodes}
    calls = {c.name: c for c in graph.calls}
    todo = [*graph.outputs, *(u.value for u in graph.updates), *(u.target for u in graph.updates)]
    todo += [name for c in graph.calls if c.ordered for name in (*c.sources, *c.results) if name]
    live: set[str] = set()
    while todo:
        name = todo.pop()
        if name in live:
            continue
        live.add(name)
        node = nodes[name]
        todo += node.sources
        if node.origin:  # a call that may be run as a whole needs what it reads
            todo += calls[node.origin].sources
    kept = tuple(n for n in graph.nodes if n.name in live or n.op == "input")
    origins = {n.origin for n in kept}
    alive = tuple(
        replace(c, results=tuple(r if r in live else "" for r in c.results))
        for c in graph.calls if c.name in origins or c.ordered
    )  # fmt: skip
    return replace(graph, nodes=kept, calls=alive)


def early(graph: Graph) -> Graph:
    """The same values, with slices and loads before the pointwise operations whose results they take."""
    return pruned(loaded_early(pruned(sliced_early(pruned(graph)))))
