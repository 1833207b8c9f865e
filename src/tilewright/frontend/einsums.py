"""An einsum of three tensors and more as products of two, in the order in which torch multiplies them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx

from tilewright.ir.contraction import spelt_out

_EINSUM = torch.ops.aten.einsum.default


def chain_einsums(graph: fx.Graph) -> fx.Graph:
    """The graph, in which each of them is several calls now, the last one under its name."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is _EINSUM and len(node.args[1]) > 2:
            _chain(graph, node)
    return graph


def _chain(graph: fx.Graph, node: fx.Node) -> None:
    equation, tensors = str(node.args[0]), list(node.args[1])  # type: ignore[arg-type]
    said = spelt_out(equation, [t.meta["val"].dim() for t in tensors])
    if said is None:
        return
    words, result = list(said[0]), said[1]
    path = node.kwargs.get("path")
    with graph.inserting_before(node):
        for i, j in _pairs(len(tensors), path if isinstance(path, Sequence) else None):
            others = "".join(word for n, word in enumerate(words) if n not in (i, j))
            made = result if len(words) == 2 else _kept(words[i], words[j], result + others)
            step, pair = f"{words[i]},{words[j]}->{made}", [tensors[i], tensors[j]]
            if len(tensors) == 2:
                node.args, node.kwargs = (step, pair), {}
                return
            call = graph.call_function(_EINSUM, (step, pair))
            call.meta["val"] = _EINSUM(step, [t.meta["val"] for t in pair])
            for n in (j, i):
                del words[n], tensors[n]
            at = 0 if path is None else len(words)
            words.insert(at, made)
            tensors.insert(at, call)


def _pairs(count: int, path: Sequence[object] | None) -> Iterator[tuple[int, int]]:
    """Places of the two that are next, of those that are left: what they give goes to the end of these, without a path
    to the front."""
    given = [int(str(place)) for place in path] if path is not None else [0, 1] * (count - 1)
    for i, j in zip(given[::2], given[1::2], strict=True):
        yield min(i, j), max(i, j)


def _kept(left: str, right: str, wanted: str) -> str:
    """The letters of a product of two that are still wanted: those of both first, as a batch."""
    both = [c for c in dict.fromkeys(left) if c in right]
    order = [*both, *(c for c in dict.fromkeys(left + right) if c not in both)]
    return "".join(c for c in order if c in wanted)
