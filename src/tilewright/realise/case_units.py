"""What a case of a graph has to run: its operators, kernels and calls of others, in an order in which they can run."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.facts.pattern import Match, Pattern
from tilewright.ir.graph import TRACED, VIEWS, Call, Graph, Node, Ref, Struct, Template
from tilewright.ir.program import Program

from .in_place import Write, writes

# How the target of a call begins that runs a segment's file.
SEGMENT = "segment."


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A call of what was written for a part of the graph, at one place of it: the nodes that it takes and gives."""

    name: str
    title: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One line to be: it gives some values and needs others."""

    what: Node | Call | Placed | tuple[Pattern, Match]
    gives: tuple[str, ...]
    needs: tuple[str, ...]


class Units:
    """Of a graph in which the matches of these patterns are fused, and what was written for parts of it is placed."""

    def __init__(self, graph: Graph, patterns: Sequence[Pattern], placed: Sequence[Placed] = ()) -> None:
        self._graph = graph
        self.nodes = {n.name: n for n in graph.nodes}
        self.calls = {c.name: c for c in graph.calls}
        self.kept = {*graph.outputs, *(u.value for u in graph.updates)}
        self._position = {n.name: i for i, n in enumerate(graph.nodes)}
        self._matches = {b.node: (p, m) for p in patterns for m in p.matches if self._is_here(m) for b in m.outputs}
        self._placed = {node: p for p in placed for node in p.gives}
        # Calls of which some part, but not the result, comes out of a kernel: what is left is run part by part.
        self._opened = {self.nodes[name].origin for name in (*self._matches, *self._placed)}
        self.in_place: dict[str, Write] = writes(graph)  # calls that write to state, by name

    def ordered(self) -> list[Unit]:
        """All that must run to have what the graph returns and writes. Raises ValueError where the patterns wait for
        one another."""
        units = self._needed(self.kept)
        try:
            return self._ordered(units)
        except ValueError:
            if not self.in_place:
                raise
        self.in_place = {}  # what reads the old contents needs the new ones
        return self._ordered(units)

    def _is_here(self, match: Match) -> bool:
        """Whether a match stands in this graph, and not in another that has some of its values for inputs."""
        return all(n in self.nodes and self.nodes[n].op != "input" for n in match.nodes)

    def _needed(self, wanted: Iterable[str]) -> list[Unit]:
        """Everything that must run to have the wanted values."""
        todo = list(wanted)
        found: dict[str, Unit] = {}
        units: list[Unit] = [self._of_call(c) for c in self._graph.calls if c.ordered]
        for unit in units:
            found.update(dict.fromkeys(unit.gives, unit))
            todo += unit.needs
        while todo:
            name = todo.pop()
            if name in found or self.nodes[name].op == "input":
                continue
            unit = self._provider(name)
            found.update(dict.fromkeys(unit.gives, unit))
            units.append(unit)
            todo += unit.needs
        return units

    def _provider(self, name: str) -> Unit:
        if name in self._placed:
            there = self._placed[name]
            return Unit(what=there, gives=there.gives, needs=tuple(dict.fromkeys(there.takes)))
        if name in self._matches:
            pattern, site = self._matches[name]
            return Unit(what=(pattern, site), gives=tuple(b.node for b in site.outputs),
                         needs=tuple(b.node for b in site.operands))  # fmt: skip
        node = self.nodes[name]
        call = self.calls.get(node.origin)
        whole = call is not None and name in call.results and node.op not in VIEWS | {"slice"}
        whole = whole and call is not None and not call.target.startswith(TRACED)  # torch has no such operator
        if call is not None and (node.op == "call" or (whole and call.name not in self._opened)):
            return self._of_call(call)
        return Unit(what=node, gives=(name,), needs=tuple(dict.fromkeys(node.sources)))

    def _of_call(self, call: Call) -> Unit:
        gives = tuple(dict.fromkeys(r for r in call.results if r and r not in self._matches and r not in self._placed))
        return Unit(what=call, gives=gives, needs=tuple(dict.fromkeys(call.sources)))

    def _ordered(self, units: Sequence[Unit]) -> list[Unit]:
        """In an order in which they can run, near that of the graph; calls with effects keep theirs."""
        maker = {name: i for i, unit in enumerate(units) for name in unit.gives}
        waits = [{maker[n] for n in unit.needs if n in maker} - {i} for i, unit in enumerate(units)]
        for i, unit in enumerate(units):
            if isinstance(unit.what, Call) and unit.what.name in self.in_place:
                old = self.in_place[unit.what.name].before
                waits[i] |= {j for j, other in enumerate(units) if j != i and not old.isdisjoint(other.needs)}
        effects = [i for i, unit in enumerate(units) if isinstance(unit.what, Call) and unit.what.ordered]
        for before, after in pairwise(effects):
            waits[after].add(before)
        readers: dict[int, list[int]] = {}
        for i, needed in enumerate(waits):
            for j in needed:
                readers.setdefault(j, []).append(i)
        ready = [(self._place(units[i]), i) for i, needed in enumerate(waits) if not needed]
        heapq.heapify(ready)
        order = []
        while ready:
            order.append(units[i := heapq.heappop(ready)[1]])
            for j in readers.get(i, ()):
                waits[j].discard(i)
                if not waits[j]:
                    heapq.heappush(ready, (self._place(units[j]), j))
        if len(order) != len(units):
            raise ValueError("the recipe's patterns wait for one another")
        return order

    def _place(self, unit: Unit) -> int:
        return max((self._position[name] for name in unit.gives), default=0)


def takes_any_rows(graph: Graph, order: Sequence[Unit], any_rows: Callable[[Program], bool]) -> bool:
    """Whether all takes any number of rows: kernels, just of the values that have as many, and torch's calls."""
    nodes = {n.name: n for n in graph.nodes}
    free = set(graph.free) if any(isinstance(unit.what, tuple) for unit in order) else set()
    for unit in order:
        if isinstance(unit.what, Node) and free.isdisjoint((unit.what.name, *unit.what.sources)):
            continue
        if isinstance(unit.what, Call) and not unit.what.target.startswith((SEGMENT, TRACED)):
            continue  # no number of rows is among its arguments, or none would be free
        if not isinstance(unit.what, tuple) or not any_rows(unit.what[0].program):
            return False
        pattern, site = unit.what
        program = pattern.program
        shapes = [o.shape for o in program.operands] + [o.shape for o in program.outputs]
        for bind, shape in zip((*site.operands, *site.outputs), shapes, strict=True):
            node = nodes[bind.node]
            plain = shape == node.shape and bind.order == tuple(sorted(bind.order))
            if (node.name in free) != (shape[:1] == program.domain[:1]) or (node.name in free and not plain):
                return False
    return bool(free)


def needed_when(result: Template, order: Sequence[Unit]) -> list[str]:
    """For each unit, under which condition one of its results is needed; "": always."""
    assert isinstance(result, Struct)
    asked = {i: item.name for i, item in enumerate(result.items) if isinstance(item, Ref)}
    reached: dict[str, set[int]] = {}
    for i, name in asked.items():
        reached.setdefault(name, set()).add(i)
    found = []
    for unit in reversed(order):
        mine = set().union(*(reached.get(n, set()) for n in unit.gives))
        for name in unit.needs:
            reached.setdefault(name, set()).update(mine)
        found.append("" if mine == set(asked) else " or ".join(f"needs[{i}]" for i in sorted(mine)))
    return found[::-1]
