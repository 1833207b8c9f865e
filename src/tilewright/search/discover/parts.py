"""Whose time a call's time is: the patterns' that make its values, or that of what is left to torch for some reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.facts.discovery import Part, Replayed, floor_of
from tilewright.facts.machine import Machine
from tilewright.facts.pattern import Pattern
from tilewright.ir.graph import SOURCES, VIEWS, Graph, Node

Rules = Callable[[Pattern], str]


@dataclass(slots=True)
class _Sum:
    """What has been added up of a part."""

    calls: dict[str, None] = field(default_factory=dict)
    ns: float = 0.0
    floor_ns: float = 0.0

    def add(self, call: str, ns: float, floor_ns: float) -> None:
        self.calls[call] = None
        self.ns += ns
        self.floor_ns += floor_ns


def parts(
    graph: Graph, patterns: Sequence[Pattern], left: Mapping[str, str], *, replay: Replayed, machine: Machine,
    rule: Rules,
) -> tuple[Part, ...]:  # fmt: skip
    """The parts of a module's time, the one that can win most first. `left`: why a call is left to torch, by its name;
    `rule` names what realises a pattern. Of a value that two patterns make, the later one is the maker; a call that
    several patterns share is theirs in the proportion of the bytes that they make of it."""
    shares = owners(graph, patterns, left)
    labels = {c.name: c.label for c in graph.calls}
    views = {c.name for c in graph.calls if c.view}
    known = {p.id: p for p in patterns}
    sums: dict[tuple[str, str], _Sum] = {}  # by pattern, or by what is left and why
    for call in replay.calls:
        floor_ns = machine.floor_ns(call.work)
        for owner, share in shares[call.call].items():
            if owner in known:
                sums.setdefault((owner, ""), _Sum()).add(call.call, share * call.ns, 0.0)
            else:
                title, why = _torchs(call.call, left, label=labels[call.call], view=call.call in views)
                sums.setdefault((title, why), _Sum()).add(call.call, share * call.ns, share * floor_ns)
    whole_ns = replay.whole_ns
    found = [
        Part(
            pattern=owner, title=known[owner].title, rule=rule(known[owner]), why="", calls=tuple(s.calls), ns=s.ns,
            share=s.ns / whole_ns if whole_ns else 0.0, floor_ns=floor_of(known[owner], machine),
        )
        if owner in known
        else Part(
            pattern="", title=owner, rule="", why=why, calls=tuple(s.calls), ns=s.ns,
            share=s.ns / whole_ns if whole_ns else 0.0, floor_ns=s.floor_ns,
        )
        for (owner, why), s in sums.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda p: (-p.gain, -p.ns)))


def _torchs(call: str, left: Mapping[str, str], *, label: str, view: bool) -> tuple[str, str]:
    """What is left to torch, and why."""
    if call in left:
        return label, left[call]
    return ("views", "they move no data") if view else ("others", "not needed once the patterns are fused")


def owners(graph: Graph, patterns: Sequence[Pattern], left: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """For each call, the shares of its time by pattern; "" for what is left to torch."""
    makers = {name: p.id for p in patterns for name in p.nodes}
    nodes: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op not in SOURCES and node.origin:
            nodes.setdefault(node.origin, []).append(node)
    return {
        call.name: _shares(nodes.get(call.name, []), makers, torch_has_some=call.name in left) for call in graph.calls
    }


def _shares(nodes: Sequence[Node], makers: Mapping[str, str], *, torch_has_some: bool) -> dict[str, float]:
    working = [n for n in nodes if n.op not in VIEWS | {"slice"}] or nodes
    weights: dict[str, float] = {}
    for node in working:
        maker = makers.get(node.name, "")
        if maker or torch_has_some:
            weights[maker] = weights.get(maker, 0.0) + max(node.bytes, 1)
    total = sum(weights.values())
    return {maker: weight / total for maker, weight in weights.items()} if total else {"": 1.0}


def call_floors(replay: Replayed, machine: Machine) -> tuple[tuple[str, float], ...]:
    """The floor of each call by itself."""
    return tuple((c.call, machine.floor_ns(c.work)) for c in replay.calls)
