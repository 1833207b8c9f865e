"""State that is written in place: the calls that may write to a cache's own memory, as the module does itself.

A traced graph is functional: a write of one row gives a new cache, which is copied over the old one at the end. Where
everything that reads the old contents can run before the write, the write goes to the state, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.ir.graph import VIEWS, Call, Graph, Ref

_WRITERS = {  # functional operators, and the operators that write the same to their first argument
    "aten.index_copy.default": "aten.index_copy_.default", "aten.index_put.default": "aten.index_put_.default",
    "aten.scatter.src": "aten.scatter_.src", "aten.scatter.value": "aten.scatter_.value",
}  # fmt: skip
_PARTS = {"aten.slice_scatter.default": "aten.slice.Tensor", "aten.select_scatter.default": "aten.select.int"}
_SHARING = VIEWS | {"slice", "load", "flip"}  # nodes that may be run as views of what they read


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A call that may write to the state `target`. `before`: the values that may lie in the memory to which it writes,
    and hold what stood there; whatever reads them must have run."""

    target: str
    before: frozenset[str]


def writes(graph: Graph) -> dict[str, Write]:
    """The calls that may write in place, by name, each with its state; none in training, where autograd may keep what
    is overwritten."""
    found: dict[str, Write] = {}
    for update in graph.updates if not graph.wanted else ():
        chain = _chain(graph, update.target, update.value)
        values = [update.target, *(call.results[0] for call in chain)]
        sharing = [_sharing(graph, value) for value in values]
        held = {*graph.outputs, *(u.value for u in graph.updates if u is not update)}
        if chain and held.isdisjoint(set[str]().union(*sharing)):
            found |= {call.name: Write(target=update.target, before=frozenset(seen))
                      for call, seen in zip(chain, sharing, strict=False)}  # fmt: skip
    return found


def written(call: Call, args: Sequence[str]) -> str:
    """The statement that writes in place, `args` being the call's arguments as text."""
    if call.target in _WRITERS:
        return f"torch.ops.{_WRITERS[call.target]}({', '.join(args)})"
    place, source, *rest = args
    return f"torch.ops.{_PARTS[call.target]}({', '.join((place, *rest))}).copy_({source})"


def _chain(graph: Graph, target: str, value: str) -> list[Call]:
    """The writes that make `value` of the state, the first one first; [] where something else is among them."""
    nodes, calls = {n.name: n for n in graph.nodes}, {c.name: c for c in graph.calls}
    chain: list[Call] = []
    while value != target:
        call = calls.get(nodes[value].origin)
        if call is None or call.target not in {*_WRITERS, *_PARTS} or call.results != (value,):
            return []
        first = call.args[0]
        if not isinstance(first, Ref) or nodes[value].op != "call" or not _by_place(call):
            return []
        chain.insert(0, call)
        value = first.name
    return chain


def _by_place(call: Call) -> bool:
    return call.target in _WRITERS or isinstance(call.args[1], Ref)


def _sharing(graph: Graph, value: str) -> Collection[str]:
    """The value and what may share its memory."""
    views = {name for call in graph.calls if call.view for name in call.results}
    sources = {call.name: call.sources for call in graph.calls}
    found = {value}
    for node in graph.nodes:
        reads = node.sources or sources.get(node.origin, ())
        if (node.op in _SHARING or node.name in views) and not found.isdisjoint(reads):
            found.add(node.name)
    return found
