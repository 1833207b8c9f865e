"""Networks of convolutions in 16 bits that lie row-major outside may lie channels-last inside: a value that kernels
write and convolutions read lies as both like it best, eight neighbouring channels to an access."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.ir.graph import Graph, Node, channels_last
from tilewright.ir.program import POINTWISE, Program

from .convolutions import Convolved, by_itself, convolution
from .region import Flow

_GROUP = 8  # channels: 16 bytes of 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaid:
    """A graph whose values differ from another's in Node.order alone, and how many convolutions read such a one."""

    graph: Graph
    convolutions: int


def channels_last_between(graph: Graph, supported: Callable[[Program], bool]) -> Relaid | None:
    """The graph with values between convolutions in channels-last, and with what these are computed of; None where
    there is none. `supported`: whether a kernel of ours makes a convolution; what another operator reads, and what
    leaves the graph, lies as torch lays it."""
    flow = Flow(graph)
    found = {node.name: whole for node in graph.nodes if (whole := _ours(flow, node, supported)) is not None}
    moved = {whole.x.name for whole in found.values() if _is_free(flow, whole.x, found)}
    if not moved:
        return None
    read = sum(whole.x.name in moved for whole in found.values())
    todo = list(moved)
    while todo:
        for source in _alike(flow, flow.nodes[todo.pop()]):
            if source.name not in moved and _is_free(flow, source, found):
                moved.add(source.name)
                todo.append(source.name)
    nodes = tuple(replace(n, order=channels_last(len(n.shape))) if n.name in moved else n for n in graph.nodes)
    return Relaid(graph=replace(graph, nodes=nodes), convolutions=read)


def _ours(flow: Flow, node: Node, supported: Callable[[Program], bool]) -> Convolved | None:
    """A convolution that a kernel of ours computes, of 16 bits."""
    whole = convolution(flow, node) if node.dtype in ("f16", "bf16") and node.name in flow.live else None
    return whole if whole is not None and supported(by_itself(whole)[0]) else None


def _is_free(flow: Flow, node: Node, found: dict[str, Convolved]) -> bool:
    """Whether kernels alone write this value, and those and convolutions alone read it, eight channels at a time."""
    if node.order or len(node.shape) < 3 or node.name in flow.kept:
        return False
    if node.name not in found and not (node.op in POINTWISE and flow.fusable(node.name)):
        return False  # a reduction's kernel keeps an order of its own
    calls = [flow.nodes[name] for name in flow.readers[node.name] if flow.nodes[name].op == "call"]
    theirs = [found.get(call.name) for call in calls]
    return all(
        whole is not None and whole.x.name == node.name and node.shape[1] // whole.groups % _GROUP == 0
        for whole in theirs
    )


def _alike(flow: Flow, node: Node) -> list[Node]:
    """What an element of this value is computed of, and is best laid alike."""
    sources = [flow.nodes[name] for name in node.sources]
    return [s for s in sources if s.shape == node.shape] if node.op in POINTWISE else []
