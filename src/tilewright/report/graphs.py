"""The graph of one case before and after: operators as their author wrote them, fused groups in the place of theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..facts.pattern import Pattern
from ..ir.graph import SOURCES, VIEWS, Graph, Node
from . import words
from .drawing import Drawing, Item, draw

_LONGEST = 300  # lines of a list
_SOURCE_WORDS = {"input": "input", "state": "parameter", "constant": "constant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The graph at one time. Inputs are drawn, parameters and constants stand in the list alone."""

    operators: int
    views: int  # they only rename index positions, and cost nothing
    lines: tuple[str, ...]
    drawing: Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    before: Stage
    after: Stage
    legend: tuple[tuple[int, str, str], ...]  # number (of the colour), id and title of each pattern realised here


def graph_view(graph: Graph, patterns: Sequence[Pattern], *, numbers: Mapping[str, int]) -> GraphView:
    """`patterns` are those that the result realises in this graph; none: before and after are the same.

    `numbers` gives each pattern's number in the whole report, by id, so that colours agree between cases."""
    reads = _reads(graph)
    before = _before(graph, patterns, numbers)
    units = _units(graph)
    homes = units | _site_homes(graph, patterns, reads=reads)
    matches = {f"{p.id}@{i}": p for p in patterns for i in range(max(1, len(p.matches)))}
    after = [
        _site_item(matches[home], home, nodes, homes, reads, numbers)
        if home in matches
        else _unit_item(graph, nodes, homes, reads, {}, numbers)
        for home, nodes in _grouped(graph, homes).items()
    ]
    results = {homes[name] for name in graph.outputs if name in homes}
    marks = {item.id: owner for item in before if (owner := _mark(item, patterns, numbers))}
    return GraphView(
        before=_stage(before, marks),
        after=_stage(_computable(after, results), {}),
        legend=tuple((numbers[p.id], p.id, p.title) for p in patterns),
    )


def drawn_before(
    graph: Graph, patterns: Sequence[Pattern], *, numbers: Mapping[str, int], notes: Mapping[str, str], most: int
) -> Drawing:
    """The operators as they were written, in their patterns' colours, each with its note (by the call's name) below.
    Of a value that two patterns make, the later one is the maker."""
    items = [replace(i, below=notes.get(i.id, i.below)) for i in _before(graph, patterns[::-1], numbers)]
    return draw([i for i in items if i.kind not in ("state", "constant")], most=most)


def _units(graph: Graph) -> dict[str, str]:
    """Node -> the call that it is part of, or itself."""
    return {node.name: node.origin or node.name for node in graph.nodes}


def _before(graph: Graph, patterns: Sequence[Pattern], numbers: Mapping[str, int]) -> list[Item]:
    units, reads = _units(graph), _reads(graph)
    owners = {name: p for p in reversed(patterns) for name in p.nodes}
    return [_unit_item(graph, nodes, units, reads, owners, numbers) for nodes in _grouped(graph, units).values()]


def _reads(graph: Graph) -> dict[str, tuple[str, ...]]:
    calls = {call.name: call for call in graph.calls}
    return {
        node.name: calls[node.origin].sources if node.op == "call" and node.origin in calls else node.sources
        for node in graph.nodes
    }


def _site_homes(graph: Graph, patterns: Sequence[Pattern], *, reads: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Node -> the match that computes it; a view between nodes of one match belongs to it."""
    homes: dict[str, str] = {}
    for p in patterns:
        for i, site in enumerate([s.nodes for s in p.matches] or [p.nodes]):
            for name in site:
                homes.setdefault(name, f"{p.id}@{i}")
    readers: dict[str, set[str]] = {}
    for name, sources in reads.items():
        for source in sources:
            readers.setdefault(source, set()).add(name)
    for node in reversed(graph.nodes):
        around = {homes.get(n, n) for n in readers.get(node.name, ())}
        if node.op in VIEWS and node.name not in homes and node.name not in graph.outputs and len(around) == 1:
            (home,) = around
            if home in homes.values() and _origin_home(node, homes, reads) == home:
                homes[node.name] = home
    return homes


def _origin_home(node: Node, homes: Mapping[str, str], reads: Mapping[str, tuple[str, ...]]) -> str:
    """The home of what a chain of views looks at."""
    name = node.name
    while name not in homes and len(reads.get(name, ())) == 1:
        (name,) = reads[name]
    return homes.get(name, "")


def _grouped(graph: Graph, homes: Mapping[str, str]) -> dict[str, list[Node]]:
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        groups.setdefault(homes[node.name], []).append(node)
    return groups


def _outside(nodes: Iterable[Node], homes: Mapping[str, str], reads: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    own = {node.name for node in nodes}
    return tuple(dict.fromkeys(homes.get(r, r) for node in nodes for r in reads[node.name] if r not in own))


def _unit_item(
    graph: Graph, nodes: list[Node], homes: Mapping[str, str], reads: Mapping[str, tuple[str, ...]],
    owners: Mapping[str, Pattern], numbers: Mapping[str, int],
) -> Item:  # fmt: skip
    """One operator of torch's (or one node of no operator), with its last value's tensor."""
    last = nodes[-1]
    tensor = words.tensor(last.dtype, last.shape)
    owner = next((owners[n.name] for n in nodes if n.name in owners), None)
    group = numbers[owner.id] if owner else -1
    if last.op in SOURCES:
        name = last.path if last.op == "state" and last.path else last.name
        below = f"{_SOURCE_WORDS[last.op]} {tensor}"
        return Item(id=homes[last.name], label=".".join(name.split(".")[-2:]), below=below, kind=last.op, reads=())
    call = next((c for c in graph.calls if c.name == last.origin), None)
    kind = "view" if all(n.op in VIEWS or n.op == "slice" for n in nodes) else "torch"
    return Item(
        id=homes[last.name], label=call.label if call else last.op, below=tensor, kind=kind,
        reads=_outside(nodes, homes, reads), group=group,
    )  # fmt: skip


def _site_item(
    pattern: Pattern, home: str, nodes: list[Node], homes: Mapping[str, str], reads: Mapping[str, tuple[str, ...]],
    numbers: Mapping[str, int],
) -> Item:  # fmt: skip
    return Item(
        id=home, label=pattern.id, below=pattern.title, kind="fused",
        reads=tuple(r for r in _outside(nodes, homes, reads) if r != home), group=numbers[pattern.id],
    )  # fmt: skip


def _mark(item: Item, patterns: Sequence[Pattern], numbers: Mapping[str, int]) -> str:
    return next((p.id for p in patterns if numbers[p.id] == item.group), "")


def _computable(items: list[Item], results: set[str]) -> list[Item]:
    """The items that a result or a fused group needs, each after all that it reads, else in the given order."""
    by_id = {item.id: item for item in items}
    kept: dict[str, Item] = {}
    for item in items:
        todo = [item] if item.id in results or item.kind == "fused" else []
        entered: set[str] = set()
        while todo:
            current = todo[-1]
            entered.add(current.id)
            waiting = [by_id[r] for r in current.reads if r in by_id and r not in kept and r not in entered]
            if waiting:
                todo.extend(reversed(waiting))
            else:
                kept.setdefault(current.id, todo.pop())
    return list(kept.values())


def _stage(items: list[Item], marks: Mapping[str, str]) -> Stage:
    lines = [_line(item, marks.get(item.id, "")) for item in items]
    more = len(lines) - _LONGEST
    return Stage(
        operators=sum(item.kind in ("torch", "fused") for item in items),
        views=sum(item.kind == "view" for item in items),
        lines=(*lines[:_LONGEST], f"... and {more} more") if more > 0 else tuple(lines),
        drawing=draw([item for item in items if item.kind not in ("state", "constant")]),
    )


def _line(item: Item, mark: str) -> str:
    name = item.id.partition("@")[0]
    reads = ", ".join(r.partition("@")[0] for r in item.reads)
    return f"{mark:<9} {name:<22} {item.label:<18} {item.below:<32} {reads}".rstrip()
