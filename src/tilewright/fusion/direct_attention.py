"""What a call of torch's scaled_dot_product_attention computes, spelt out."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

from tilewright.facts.pattern import Bind
from tilewright.ir.graph import Call, Node, Ref
from tilewright.ir.program import Operand, Output, Program, Statement

from .attended import Attended
from .axes import Axis
from .axis_parts import AxisPart, Dims, whole_axes
from .region import Flow

_CALL = "aten.scaled_dot_product_attention.default"
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def direct(flow: Flow, node: Node, call: Call) -> Attended | None:
    """The attention of a call; None of another call, of one with dropout, and of shapes that are broadcast."""
    if call.target != _CALL:
        return None
    given: dict[str, Any] = {**dict(zip(_PARAMETERS, call.args, strict=False)), **dict(call.kwargs)}
    tensors = [flow.nodes[x.name] for name in _PARAMETERS[:3] if isinstance(x := given.get(name), Ref)]
    mask = flow.nodes[given["attn_mask"].name] if isinstance(given.get("attn_mask"), Ref) else None
    if len(tensors) != 3 or given.get("dropout_p") or (given.get("attn_mask") is not None and mask is None):
        return None
    query, key, value = tensors
    *batch, rows, width = query.shape
    if len({len(t.shape) for t in tensors}) > 1 or node.shape != (*batch, rows, value.shape[-1]) or width < 1:
        return None
    axes = [Axis(size) for size in batch]
    row, keys, depth, column = Axis(rows), Axis(key.shape[-2]), Axis(width), Axis(value.shape[-1])
    if keys.size < 2 or depth.size < 2 or column.size < 2:
        return None
    front = [[a] if a.size > 1 else [] for a in axes]
    rows_of = [row] if rows > 1 else []
    shared = [_shared(front, t.shape[:-2], grouped=bool(given.get("enable_gqa"))) for t in (key, value)]
    if shared[0] is None or shared[1] is None:
        return None
    of_scores = [a for dim in (*front, rows_of) for a in dim]
    scale = given.get("scale")
    scores = _scores(
        [*of_scores, keys], (row if rows_of else None, keys), dtype=query.dtype,
        scale=1 / sqrt(width) if scale is None else float(scale), causal=bool(given.get("is_causal")),
        mask=None if mask is None else (mask, [*front, rows_of, [keys]]),
    )  # fmt: skip
    if scores is None:
        return None
    return Attended(
        node=node, dims=whole_axes([*front, rows_of, [column]]), query=(query, whole_axes([*front, rows_of, [depth]])),
        key=(key, (*shared[0], *whole_axes([[keys], [depth]]))),
        value=(value, (*shared[1], *whole_axes([[keys], [column]]))),
        keys=keys, depth=depth, column=column, scores=scores[0], axes=(*of_scores, keys), binds=scores[1],
        softmax=True, sink=False, empty_is_zero=True, spares=True, nodes=(node.name,), spared=(),
    )  # fmt: skip


def _shared(front: list[list[Axis]], shape: tuple[int, ...], *, grouped: bool) -> Dims | None:
    """The batch of keys or values: the query's, broadcast, or heads of which each serves several of the query's."""
    found: list[tuple[AxisPart, ...]] = []
    for d, (dim, size) in enumerate(zip(front, shape, strict=True)):
        whole = dim[0].size if dim else 1
        if size == 1:
            found.append(())
        elif size == whole:
            found += whole_axes([dim])
        elif grouped and d == len(front) - 1 and whole % size == 0:
            found.append((AxisPart(axis=dim[0], each=whole // size, size=size),))
        else:
            return None
    return tuple(found)


def _scores(
    axes: list[Axis], ends: tuple[Axis | None, Axis], *, dtype: str, scale: float, causal: bool,
    mask: tuple[Node, list[list[Axis]]] | None,
) -> tuple[Program, tuple[Bind, ...]] | None:  # fmt: skip
    """The Program of the scores over these axes, and how its mask is bound."""
    domain = tuple(a.size for a in axes)
    operands, binds, body = [Operand(name="x0", dtype=dtype, shape=domain)], list[Bind](), list[Statement]()

    def state(op: str, *args: Any, of: str = dtype) -> str:
        body.append(Statement(result=f"v{len(body)}", op=op, args=args, dtype=of))
        return body[-1].result

    last = state("mul", "x0", scale)
    if mask is not None:
        node, dims = mask
        if len(node.shape) > len(dims):
            return None
        own = dims[len(dims) - len(node.shape) :]
        sizes = [dim[0].size if dim else 1 for dim in own]
        if any(n not in (1, size) for n, size in zip(node.shape, sizes, strict=True)):
            return None
        wide = [dim[0] for n, dim in zip(node.shape, own, strict=True) if n > 1]
        operands.append(Operand(name="x1", dtype=node.dtype, shape=tuple(a.size if a in wide else 1 for a in axes)))
        split = tuple(a.size for a in wide)
        binds.append(Bind(node=node.name, split=split, order=tuple(range(len(split)))))
        last = state("where", "x1", last, -inf) if node.dtype == "bool" else state("add", last, "x1")
    if causal:
        row, keys = ends
        at = state("index", axes.index(keys), of="i64")
        upto = 0 if row is None else state("index", axes.index(row), of="i64")
        seen = state("le", at, upto, of="bool")
        last = state("where", seen, last, -inf)
    outputs = (Output(name=last, dtype=dtype, shape=domain),)
    return Program(domain=domain, operands=tuple(operands), body=tuple(body), outputs=outputs), tuple(binds)
