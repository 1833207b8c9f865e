"""Which steps of a case depend on no argument and no state, so that a module need take them only once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from tilewright.ir.graph import VIEWS, Call, Graph, Node

MOST_BYTES = 64 << 20  # of what is kept for the following calls


class Step(Protocol):
    """What gives some values and needs others."""

    @property
    def what(self) -> object: ...
    @property
    def gives(self) -> tuple[str, ...]: ...
    @property
    def needs(self) -> tuple[str, ...]: ...


def constant(graph: Graph, order: Sequence[Step], kept: Collection[str]) -> tuple[frozenset[int], tuple[str, ...]]:
    """Places in `order` of what gives the same each time, and the values of it that other steps need; nothing where
    these take more than MOST_BYTES. What shares memory with a result is not among them: who gets it may write to it."""
    nodes = {node.name: node for node in graph.nodes}
    shared = _shared(order, kept)
    found: dict[str, int] = {}
    for place, step in enumerate(order):
        if _is_plain(step.what) and shared.isdisjoint(step.gives) and all(name in found for name in step.needs):
            found.update(dict.fromkeys(step.gives, place))
    places = frozenset(found.values())
    others = [step for place, step in enumerate(order) if place not in places]
    needed = dict.fromkeys(name for step in others for name in step.needs if name in found)
    if not needed or sum(nodes[name].bytes for name in needed) > MOST_BYTES:
        return frozenset(), ()
    return places, tuple(needed)


def _is_plain(what: object) -> bool:
    """Whether it gives the same for the same, and is written without the arguments of the case."""
    if isinstance(what, Call):
        return not what.ordered and what.target.startswith("aten.")
    if isinstance(what, Node):
        return what.op in VIEWS | {"slice", "constant"}
    return isinstance(what, tuple)  # a pattern at its place


def _shared(order: Sequence[Step], kept: Collection[str]) -> set[str]:
    """The values that may lie in the memory of one of these."""
    found = set(kept)
    for step in reversed(order):
        what = step.what
        views = what.view if isinstance(what, Call) else isinstance(what, Node) and what.op in VIEWS | {"slice"}
        if views and not found.isdisjoint(step.gives):
            found.update(step.needs)
    return found
