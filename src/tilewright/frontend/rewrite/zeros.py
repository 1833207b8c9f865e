"""Declared algebra of products whose factors are zero but for some diagonals: what meets zeros alone is not multiplied.

In exact numbers nothing changes, nor does rounding. Infinities and NaN do: what they give with zero, NaN, is lost where
nobody multiplies them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.ir.bands import Bands
from tilewright.ir.contraction import Contracted, contracted
from tilewright.ir.graph import VIEWS, Graph, Node

LEAST_SPARED = 0.2  # of a product's flops


def sparing(graph: Graph, least_flops: int) -> tuple[Graph, tuple[str, ...], int] | None:
    """The graph with leave to spare products of at least so many flops their zeros, for which of them, and flops
    spared; None where there are none."""
    nodes = {n.name: n for n in graph.nodes}
    calls = {c.name: c for c in graph.calls}
    bands = Bands(nodes)
    steps: list[str] = []
    spared = 0
    for node in graph.nodes:
        call = calls.get(node.origin)
        if node.op != "call" or call is None or call.results != (node.name,):
            continue
        found = contracted(call, nodes, spread=True)
        if found is None:
            continue
        flops, left = _flops(found, bands)
        if flops < least_flops or left > (1 - LEAST_SPARED) * flops:
            continue
        names = dict.fromkeys(
            calls[_root(x, nodes).origin].label for x, kept in _factors(found, bands) if kept != (None, None)
        )
        steps.append(f"{call.label}: zeros of {' and '.join(names)} not multiplied")
        spared += flops - left
    return (replace(graph, sparing=True), tuple(steps), spared) if steps else None


def _root(node: Node, nodes: dict[str, Node]) -> Node:
    while node.op in VIEWS:
        node = nodes[node.sources[0]]
    return node


def _sides(found: Contracted) -> tuple[str, str, str]:
    """The letters of rows, of what is summed, and of columns."""
    left, right, result = found.letters.left, found.letters.right, found.letters.result
    rows = "".join(c for c in left if c in result and c not in right)
    summed = "".join(c for c in left if c in right and c not in result)
    return rows, summed, "".join(c for c in right if c in result and c not in left)


def _factors(found: Contracted, bands: Bands) -> list[tuple[Node, tuple[int | None, int | None]]]:
    """Both factors with their diagonals: of the left one (rows, K), of the right one (K, columns)."""
    rows, summed, columns = _sides(found)
    made = []
    for node, word, first, second in (
        (found.left, found.letters.left, rows, summed),
        (found.right, found.letters.right, summed, columns),
    ):
        single = len(first) == len(second) == 1
        kept = bands.between(node.name, word.index(first), word.index(second)) if single else (None, None)
        made.append((node, kept))
    return made


def _flops(found: Contracted, bands: Bands) -> tuple[int, int]:
    """Of the product, and without what meets zeros."""
    sizes: dict[str, int] = {}
    for word, node in ((found.letters.left, found.left), (found.letters.right, found.right)):
        for c, size in zip(word, node.shape, strict=True):
            sizes[c] = max(size, sizes.get(c, 1))
    whole = 2 * prod(sizes.values())
    (_, left), (_, right) = _factors(found, bands)
    if left == right == (None, None):
        return whole, whole
    rows, summed, columns = (prod(sizes[c] for c in word) for word in _sides(found))
    of_k = multiplied(left, right, rows, summed, columns)
    return whole, whole // (rows * summed * columns) * of_k


def multiplied(
    left: tuple[int | None, int | None], right: tuple[int | None, int | None], rows: int, k: int, columns: int
) -> int:
    """How many of rows x k x columns products have factors between these diagonals (column - row) of both."""
    total = 0
    for step in range(k):
        of_rows = _between(step, left, rows)
        low, high = right
        total += of_rows * _between(step, (None if high is None else -high, None if low is None else -low), columns)
    return total


def _between(step: int, kept: tuple[int | None, int | None], size: int) -> int:
    """How many i of `size` there are with low <= step - i <= high."""
    low, high = kept
    first = 0 if high is None else max(step - high, 0)
    last = size - 1 if low is None else min(step - low, size - 1)
    return max(last - first + 1, 0)
