"""Attention masks that depend on no input: one that masks nothing is left out, a causal one becomes `is_causal`.

Both give what the mask gives, bit by bit where the operator's kernels agree, and let torch take kernels that have no
mask. What depends on no input is computed for that, where it takes little memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_MOST_BYTES = 64 << 20  # of all that is computed for one mask
_LEAST = -1e30  # what is added to a score that is masked, or less: its weight is zero in any type of sums


def without_masks(graph: fx.Graph, constants: Mapping[str, Tensor]) -> fx.Graph:
    """The functional graph of aten operators, changed in place. `constants`: placeholders with the value they have."""
    known: dict[fx.Node, Tensor | None] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is _ATTENTION:
            _simplify(node, constants, known)
    graph.eliminate_dead_code()
    return graph


def _simplify(node: fx.Node, constants: Mapping[str, Tensor], known: dict[fx.Node, Tensor | None]) -> None:
    names = [argument.name for argument in _ATTENTION._schema.arguments]
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    if not isinstance(mask, fx.Node) or given.get("is_causal"):
        return
    if mask not in known:
        known[mask] = _value(mask, constants)
    value = known[mask]
    if value is None:
        return
    square = query.meta["val"].shape[-2] == key.meta["val"].shape[-2] == value.shape[-1] == value.shape[-2]
    if _masks_nothing(value):
        given.pop("attn_mask")
    elif square and _is_causal(value):
        given.pop("attn_mask")
        given["is_causal"] = True
    else:
        return
    node.args, node.kwargs = (query, key, given.pop("value")), {
        name: v for name, v in given.items() if name not in ("query", "key")
    }  # fmt: skip


def _masks_nothing(mask: Tensor) -> bool:
    return bool(mask.all()) if mask.dtype == torch.bool else not bool(mask.any())


def _is_causal(mask: Tensor) -> bool:
    """Whether each query sees itself and what is before it, in all of the leading dimensions."""
    sees = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    if mask.dtype == torch.bool:
        return bool((mask == sees).all())
    return bool(torch.where(sees, mask == 0, mask <= _LEAST).all())


def _value(node: fx.Node, constants: Mapping[str, Tensor]) -> Tensor | None:
    """What a node always is; None where it depends on an input or a state, is drawn, or takes much memory."""
    order: dict[fx.Node, None] = {}
    todo = [node]
    total = 0
    while todo:
        last = todo.pop()
        if last in order:
            continue
        order[last] = None
        if last.op == "placeholder" and last.name in constants:
            continue
        if last.op != "call_function" or not isinstance(last.target, torch._ops.OpOverload) or _acts(last.target):
            return None
        found = last.meta.get("val")
        total += found.nbytes if isinstance(found, Tensor) and not last.target.is_view else 0
        if not isinstance(found, Tensor) or total > _MOST_BYTES:
            return None
        todo += last.all_input_nodes
    return _computed(node, order, constants)


def _acts(operator: torch._ops.OpOverload) -> bool:
    return operator._schema.is_mutable or torch.Tag.nondeterministic_seeded in operator.tags


def _computed(node: fx.Node, needed: Mapping[fx.Node, None], constants: Mapping[str, Tensor]) -> Tensor | None:
    values: dict[fx.Node, Any] = {}
    try:
        with torch.no_grad():
            for step in (n for n in node.graph.nodes if n in needed):
                if step.op == "placeholder":
                    values[step] = constants[step.name]
                    continue
                args, kwargs = pytree.tree_map_only(fx.Node, values.__getitem__, (step.args, step.kwargs))
                values[step] = step.target(*args, **kwargs)
    except (RuntimeError, TypeError, NotImplementedError):  # an operator that can't be run as it stands in the graph
        return None
    return values[node] if isinstance(values[node], Tensor) else None
