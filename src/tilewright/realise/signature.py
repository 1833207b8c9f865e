"""What arguments a case takes, for a reader: model.py says it of a call that no case takes."""

from __future__ import annotations

from collections.abc import Collection

from ..ir.graph import Graph, Ref, Struct, Template
from .torch_code import TORCH_DTYPES, literal

_LONGEST = 40  # characters of a number or a text


def signature(graph: Graph, parameters: Collection[str], *, free: Collection[str], target: str) -> str:
    """Such as `x: float32 [2 or more, 64] on cpu, scale: 2.0`; so many rows may be there that are free."""
    nodes = {n.name: n for n in graph.nodes}

    def shown(value: Template) -> str:
        if isinstance(value, Struct):
            return f"{value.kind}({', '.join(map(shown, value.items))})"
        if not isinstance(value, Ref):
            return literal(value)[:_LONGEST]
        node = nodes[value.name]
        sizes = ["2 or more", *map(str, node.shape[1:])] if value.name in free else map(str, node.shape)
        dtype = TORCH_DTYPES.get(node.dtype, node.dtype).removeprefix("torch.")
        return f"{dtype} [{', '.join(sizes)}] on {target}"

    given = [*zip(parameters, graph.arguments, strict=True), *graph.keywords]
    mode = {True: " in training mode", False: " in eval mode", None: ""}[graph.training]
    return (", ".join(f"{name}: {shown(value)}" for name, value in given) or "no arguments") + mode
