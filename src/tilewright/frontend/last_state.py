"""Loops over time of which the last state alone is used: where they end in a graph, and what they become there.

Found by going from a value to one of its kind that it is made of, on the same way again and again. Whether that is a
recurrence, `lower_loop` says.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import product

from tilewright.ir.graph import Graph, Node
from tilewright.ir.program import POINTWISE

from .lowering.loop import last_of_loop
from .lowering.lower import Builder, Expr, NotLowered

MOST_UNROLLED = 8  # steps that one pointwise kernel does as well: it reads each slice where it lies
_DEEPEST = 12  # nodes between one state and the next
_WAYS = ("reshape", "expand", "permute")

Nodes = dict[str, Node]


@dataclass(frozen=True, slots=True)
class _Way:
    """From a state to the one before: which argument to take, again and again."""

    places: tuple[int, ...]

    def back(self, nodes: Nodes, name: str, like: str) -> str | None:
        """The state before `name`, where the way leads over the same operations as from `like`."""
        for place in self.places:
            node, model = nodes[name], nodes[like]
            if (node.op, node.shape, node.dtype) != (model.op, model.shape, model.dtype):
                return None
            step, pattern = node.args[place], str(model.args[place])
            if not isinstance(step, str):
                return None
            name, like = step, pattern
        return name if (nodes[name].shape, nodes[name].dtype) == (nodes[like].shape, nodes[like].dtype) else None


def states(nodes: Nodes, last: str) -> list[str]:
    """The states of the longest loop that ends with this value, in the order of its steps; empty where none is long
    enough to be more than a chain."""
    longest: list[str] = []
    for way in _ways(nodes, last):
        found = [last]
        while (before := way.back(nodes, found[-1], last)) is not None:
            found.append(before)
        longest = max(longest, found[::-1], key=len)
    return longest if len(longest) > MOST_UNROLLED else []


def _ways(nodes: Nodes, last: str) -> list[_Way]:
    """To values of the same operation, shape and dtype, the nearest first."""
    wanted, found = nodes[last], list[_Way]()
    ahead, seen = deque[tuple[str, tuple[int, ...]]]([(last, ())]), {last}
    while ahead and len(seen) <= 2 * _DEEPEST:
        name, places = ahead.popleft()
        node = nodes[name]
        if places and (node.op, node.shape, node.dtype) == (wanted.op, wanted.shape, wanted.dtype):
            found.append(_Way(places))
        if len(places) < _DEEPEST and (node.op in POINTWISE or node.op in _WAYS) and node.op != "index":
            for place, arg in enumerate(node.args):
                if isinstance(arg, str) and arg not in seen:
                    seen.add(arg)
                    ahead.append((arg, (*places, place)))
    return found


def ends(graph: Graph) -> frozenset[str]:
    """Names of the calls that give the last state of a loop, none of whose others is used by anything else."""
    nodes = {n.name: n for n in graph.nodes}
    place = {n.name: i for i, n in enumerate(graph.nodes)}
    inner: set[str] = set()
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if node.name in inner or node.op not in POINTWISE or not node.origin:
            continue
        loop = states(nodes, node.name)
        if not loop:
            continue
        body = _made_of(nodes, node.name, since=min(place[s] for s in loop[:2]), place=place)
        inner |= body
        if not _used_outside(graph, frozenset(loop[1:-1]), body):
            found.add(node.origin)
    return frozenset(found)


def _made_of(nodes: Nodes, last: str, *, since: int, place: dict[str, int]) -> set[str]:
    """The pointwise operations and views from there on, of which a value is made."""
    found, ahead = set[str](), [last]
    while ahead:
        name = ahead.pop()
        inside = nodes[name].op in POINTWISE or nodes[name].op in (*_WAYS, "slice")
        if name not in found and inside and place[name] >= since:
            found.add(name)
            ahead += nodes[name].sources
    return found


def _used_outside(graph: Graph, wanted: frozenset[str], body: set[str]) -> bool:
    """Whether the caller, or what is not of this body, reads one of these."""
    if wanted & {*graph.outputs, *(u.value for u in graph.updates)}:
        return True
    if any(wanted & set(n.sources) and n.name not in body for n in graph.nodes):
        return True
    return any(wanted & set(c.sources) and any(r and r not in body for r in c.results) for c in graph.calls)


def lowered(b: Builder, last: Expr) -> Expr:
    """The last state, made without a loop; as it was where that can't be."""
    loop = states(b.nodes, last.node.name)
    if not loop:
        return last
    for some, reverse in product((loop, loop[1:]), (False, True)):  # the first may be no state, only of the same shape
        try:
            return last_of_loop(b, some, reverse=reverse).to(last.dtype)
        except NotLowered:
            continue
    return last
