"""The diagonal of a matrix that the graph shows to be zero elsewhere (`diag`, `diag_embed`, a mask of one diagonal)."""

from __future__ import annotations

from tilewright.ir.bands import Bands

from ..lowering.form import aligned
from ..lowering.lower import Expr


def diagonal(matrix: Expr, own: int, summed: int) -> Expr | None:
    """A vector along dimension `own`, where the matrix along it and `summed` is zero but for its diagonal; with its
    other dimensions, `summed` left out."""
    builder, node = matrix.builder, matrix.node
    nodes = builder.nodes
    bands = Bands(nodes)
    order, casts = list(range(len(node.shape))), []
    while node.op in ("permute", "to"):
        if node.op == "to":
            casts.append(node.dtype)
        else:
            order = [node.dims[d] for d in order]
        node = nodes[node.sources[0]]
    first, second = order[own], order[summed]
    if node.op != "where" or node.args[2] != 0 or not all(isinstance(a, str) for a in node.args[:2]):
        return None
    condition, value = (nodes[str(a)] for a in node.args[:2])
    off = len(node.shape) - len(condition.shape)
    if condition.op != "eq" or bands.where(condition.name, first - off, second - off) != (0, 0):
        return None
    given = aligned(builder, value, node.shape)
    if given.shape[first] != 1 and given.shape[second] != 1:
        return None
    along, gone = (first, second) if given.shape[second] == 1 else (second, first)
    kept = [along if d == own else order[d] for d in range(len(order)) if d != summed]
    vector = given.permute((*kept, gone)).reshape(tuple(given.shape[d] for d in kept))
    for dtype in reversed(casts):
        vector = vector.to(dtype)
    return vector
