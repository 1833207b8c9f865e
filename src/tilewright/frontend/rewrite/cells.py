"""Recurrent cells in a loop over time, as one layer: what each step's input gives is then one product over all steps.

    h[t] = act([x[t], h[t - 1]] @ w.T + b)     = torch's rnn_tanh or rnn_relu over the sequence x
    stack of h[t] @ v.T + c                    = (stack of h[t]) @ v.T + c

`act` is tanh or relu. A loop is traced as a copy of its body for each step; the copies are held against each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.graph import Call, Graph, Node, Ref, Struct

from ..lowering.lower import Expr
from .draft import Draft
from .readers import Readers

LEAST_STEPS = 8
_LINEAR = "aten.linear.default"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """`weight` (hidden, inputs + hidden), of which the inputs come first, or last; `dim`: that of the sequence which is
    its time."""

    act: str
    sequence: str
    dim: int
    state: str
    inputs_first: bool
    weight: str
    bias: str


def looped_cells(graph: Graph, least_flops: int) -> tuple[Graph, str, int] | None:
    """The graph with a stack of what a loop of cells gives made by one layer, and what was done; None where there is no
    such loop, or one of fewer than `least_flops`."""
    index = Readers(graph)
    for call in graph.calls:
        given = call.args[0] if call.label == "stack" and call.args else None
        items = given.items if isinstance(given, Struct) else ()
        names = [item.name for item in items if isinstance(item, Ref)]
        if len(names) != len(items) or len(names) < LEAST_STEPS or len(call.results) != 1:
            continue
        after = _linear_of(index, names)
        found = _loop(index, after[0] if after else names)
        if found is not None and _flops(index, found, len(names)) >= least_flops:
            dim = next((n for n in (*call.args[1:], *dict(call.kwargs).values()) if isinstance(n, int)), 0)
            return _made(index, index.nodes[call.results[0]], found, (dim, after[1] if after else ()))
    return None


def _flops(index: Readers, loop: _Loop, steps: int) -> int:
    """Of the loop's own products."""
    return 2 * steps * index.nodes[loop.state].shape[0] * prod(index.nodes[loop.weight].shape)


def _linear_of(index: Readers, names: list[str]) -> tuple[list[str], tuple[str, ...]] | None:
    """What the same linear layer makes all of these of, and the names of its weight and bias."""
    calls = [_call(index, name) for name in names]
    args = [[a.name for a in c.args if isinstance(a, Ref)] for c in calls if c is not None and c.target == _LINEAR]
    if len(args) != len(names) or len({tuple(a[1:]) for a in args}) > 1:
        return None
    return [a[0] for a in args], tuple(args[0][1:])


def _call(index: Readers, name: str) -> Call | None:
    """The call that gives this one value."""
    found = index.calls.get(index.nodes[name].origin)
    return found if found is not None and found.results == (name,) else None


def _loop(index: Readers, states: list[str]) -> _Loop | None:
    acts = [_call(index, s) for s in states]
    labels = {a.label if a is not None else "" for a in acts}
    if len(labels) > 1 or not labels <= {"tanh", "relu"}:
        return None
    sums = [a.args[0].name for a in acts if a is not None and isinstance(a.args[0], Ref)]
    linear = _linear_of(index, sums) if len(sums) == len(states) else None
    if linear is None or len(linear[1]) != 2:
        return None
    pairs = [_pair(index, name) for name in linear[0]]
    if any(p is None for p in pairs):
        return None
    joined = [p for p in pairs if p is not None]
    at = next((i for i in range(2) if joined[1][i] == states[0]), None)
    if at is None or [p[at] for p in joined[1:]] != states[:-1]:
        return None
    taken = [_call(index, p[1 - at]) for p in joined]
    if any(c is None or c.label != "select" or c.args != (*taken[0].args[:2], t) for t, c in enumerate(taken)):  # type: ignore[union-attr]
        return None
    source, dim, _ = taken[0].args  # type: ignore[union-attr]
    if not isinstance(source, Ref) or not isinstance(dim, int) or dim not in (0, 1):
        return None
    if index.nodes[source.name].shape[dim] != len(states):
        return None
    return _Loop(act=labels.pop(), sequence=source.name, dim=dim, state=joined[0][at], inputs_first=at == 1,
                 weight=linear[1][0], bias=linear[1][1])  # fmt: skip


def _pair(index: Readers, name: str) -> tuple[str, str] | None:
    """The two matrices of which this one is made, side by side."""
    call = _call(index, name)
    if (
        call is None
        or call.label != "cat"
        or call.args[1:] not in ((1,), (-1,))
        or not isinstance(call.args[0], Struct)
    ):
        return None
    names = [item.name for item in call.args[0].items if isinstance(item, Ref)]
    fits = len(names) == 2 and all(len(index.nodes[n].shape) == 2 for n in names)
    return (names[0], names[1]) if fits else None


def _made(
    index: Readers, end: Node, loop: _Loop, last: tuple[int, tuple[str, ...]]
) -> tuple[Graph, str, int] | None:  # fmt: skip
    """`last`: along which dimension results are stacked, and the weight and bias of the layer after the loop."""
    draft = Draft(index)
    draft.origin = f"{end.origin}_looped"
    sequence, state, weight, bias = (
        Expr(draft, index.nodes[n]) for n in (loop.sequence, loop.state, loop.weight, loop.bias)
    )
    sequence = sequence.permute((1, 0, 2)) if loop.dim else sequence
    (steps, batch, inputs), hidden = sequence.shape, state.shape[-1]
    if weight.shape != (hidden, inputs + hidden) or state.shape != (batch, hidden) or sequence.dtype != state.dtype:
        return None
    starts = (0, inputs) if loop.inputs_first else (hidden, 0)
    parts = [weight.slice(1, start, size) for start, size in zip(starts, (inputs, hidden), strict=True)]
    zero = draft.call("aten.zeros_like.default", (Ref(name=bias.node.name),), bias.shape, dtype=bias.dtype)
    weights = Struct(kind="list", items=tuple(Ref(name=x.node.name) for x in (*parts, bias, zero)))
    given = (Ref(name=sequence.node.name), Ref(name=state.reshape((1, batch, hidden)).node.name), weights)
    made = draft.call(f"aten.rnn_{loop.act}.input", (*given, True, 1, 0.0, False, False, False),
                      (steps, batch, hidden), dtype=state.dtype)  # fmt: skip
    draft.more[-1] = replace(draft.more[-1], results=(made.node.name, ""), single=False)
    dim, after = last
    if after:
        width = index.nodes[after[0]].shape[0]
        args = tuple(Ref(name=n) for n in (made.node.name, *after))
        made = draft.call(_LINEAR, args, (steps, batch, width), dtype=state.dtype)
    else:
        made = draft.point("to", made, dtype=made.dtype)
    turn = {0: (0, 1, 2), 1: (1, 0, 2), 2: (1, 2, 0)}[dim % 3]
    value = made if turn == (0, 1, 2) else draft.point("to", made.permute(turn), dtype=made.dtype)
    return draft.replaced(end, value), f"{steps} steps of a cell: one recurrent layer", 0
