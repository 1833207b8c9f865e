"""The graph of one case before and after: the same nodes as lines of text and as items to draw, fused groups marked."""

from __future__ import annotations

from dataclasses import dataclass

from ..facts.graph import SOURCES, Graph, Node
from ..facts.pattern import Pattern
from . import words
from .drawing import Drawing, Item, draw

_LONGEST = 300  # lines of a list


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    """Lists and drawings of one case; `before` and `after` count what is computed: sources left out."""

    before: int
    after: int
    legend: tuple[tuple[int, str, str], ...]  # number (of the colour), id and title of each pattern realised here
    before_lines: tuple[str, ...]
    after_lines: tuple[str, ...]
    before_drawing: Drawing
    after_drawing: Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One box of the graph: a node, or a fused group where it stands."""

    item: Item
    line: str


def graph_view(graph: Graph, patterns: tuple[Pattern, ...], *, numbers: dict[str, int]) -> GraphView:
    """`patterns` are those that the result realises in this graph; none: before and after are the same.

    `numbers` gives each pattern's number in the whole report, by id, so that colours agree between cases."""
    reads = _reads(graph)
    owners = {name: p for p in reversed(patterns) for name in p.nodes}
    before = [
        _plain(graph, node, reads=reads[node.name], owner=owners.get(node.name), numbers=numbers)
        for node in graph.nodes
    ]
    after = _after(graph, before, reads=reads, patterns=patterns, numbers=numbers)
    return GraphView(
        before=sum(s.item.kind != "source" for s in before),
        after=sum(s.item.kind != "source" for s in after),
        legend=tuple((numbers[p.id], p.id, p.title) for p in patterns),
        before_lines=_lines(before),
        after_lines=_lines(after),
        before_drawing=draw([s.item for s in before]),
        after_drawing=draw([s.item for s in after]),
    )


def _reads(graph: Graph) -> dict[str, tuple[str, ...]]:
    calls = {call.name: call for call in graph.calls}
    return {
        node.name: calls[node.origin].sources if node.op == "call" and node.origin in calls else node.sources
        for node in graph.nodes
    }


def _label(graph: Graph, node: Node) -> str:
    if node.op == "call":
        return next((call.label for call in graph.calls if call.name == node.origin), "call")
    if node.op in SOURCES:
        return {"input": "input", "state": "parameter", "constant": "constant"}[node.op]
    return node.op


def _plain(
    graph: Graph, node: Node, *, reads: tuple[str, ...], owner: Pattern | None, numbers: dict[str, int]
) -> _Step:
    tensor = words.tensor(node.dtype, node.shape)
    label = _label(graph, node)
    kind = "source" if node.op in SOURCES else "torch" if node.op == "call" else "plain"
    name = node.path if node.op == "state" and node.path else node.name
    item = Item(
        id=node.name,
        label=f"{label} {name}" if kind == "source" else label,
        below=tensor,
        kind=kind,
        reads=reads,
        group=numbers[owner.id] if owner else -1,
    )
    result = "  -> result" if node.name in graph.outputs else ""
    line = f"{owner.id if owner else '':<10} {label:<16} {name:<24} {tensor:<24} {', '.join(reads)}{result}"
    return _Step(item=item, line=line.rstrip())


def _after(
    graph: Graph,
    before: list[_Step],
    *,
    reads: dict[str, tuple[str, ...]],
    patterns: tuple[Pattern, ...],
    numbers: dict[str, int],
) -> list[_Step]:
    """Sites stand where their last node stood; nodes that nothing reads any more are gone."""
    places = {step.item.id: place for place, step in enumerate(before)}
    nodes = {node.name: node for node in graph.nodes}
    sites = [
        (p, tuple(n for n in site if n in places))
        for p in patterns
        for site in ([s.nodes for s in p.sites] or [p.nodes])
    ]
    sites = [(p, site) for p, site in sites if site]
    home = {name: f"{p.id}@{i}" for i, (p, site) in enumerate(sites) for name in site}
    steps: dict[float, _Step] = {}
    for i, (p, site) in enumerate(sites):
        inputs = tuple(dict.fromkeys(r for name in site for r in reads[name] if r not in site))
        last = nodes[max(site, key=places.__getitem__)]
        tensor = words.tensor(last.dtype, last.shape)
        within = tuple(home.get(r, r) for r in inputs)
        item = Item(id=f"{p.id}@{i}", label=p.id, below=p.title, kind="fused", reads=within, group=numbers[p.id])
        line = f"{p.id:<10} {p.title:<41} {tensor:<24} {', '.join(inputs)}"
        steps[places[last.name] + i / (len(sites) + 1)] = _Step(item=item, line=line)
    for place, step in enumerate(before):
        if step.item.id not in home:
            reading = tuple(dict.fromkeys(home.get(r, r) for r in step.item.reads))
            kept = Item(
                id=step.item.id, label=step.item.label, below=step.item.below, kind=step.item.kind, reads=reading
            )
            steps[float(place) - 0.5] = _Step(item=kept, line=step.line)
    return _computable([steps[place] for place in sorted(steps)], {home.get(o, o) for o in graph.outputs})


def _computable(steps: list[_Step], results: set[str]) -> list[_Step]:
    """The steps that a result or a fused group needs, each after all that it reads, else in the given order."""
    by_id = {step.item.id: step for step in steps}
    kept: dict[str, _Step] = {}
    for step in steps:
        todo = [step] if step.item.id in results or step.item.kind == "fused" else []
        entered: set[str] = set()
        while todo:
            current = todo[-1]
            entered.add(current.item.id)
            waiting = [by_id[r] for r in current.item.reads if r in by_id and r not in kept and r not in entered]
            if waiting:
                todo.extend(reversed(waiting))
            else:
                kept.setdefault(current.item.id, todo.pop())
    return list(kept.values())


def _lines(steps: list[_Step]) -> tuple[str, ...]:
    more = len(steps) - _LONGEST
    lines = tuple(step.line for step in steps[:_LONGEST])
    return (*lines, f"... and {more} more") if more > 0 else lines
