"""Recurrent layers: a call of torch's `lstm`, `gru`, `rnn_tanh` or `rnn_relu` (nn.LSTM and its like) as one Program.

Results that nothing reads are no outputs: where the final states alone are read, the last layer writes no sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.graph import Call, Node, Ref, Struct
from tilewright.ir.program import Operand, Output, Program
from tilewright.ir.recurrence import CELLS, RecurrenceOp

from .region import Flow

Found = tuple[Program, Match]
_CELL_OF = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "tanh", "rnn_relu": "relu"}
_PARAMETERS = (
    "input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first",
)  # fmt: skip
_TYPES = ("f32", "f16", "bf16")


def recurrences(flow: Flow, unsupported: Callable[[Program], str | None]) -> tuple[list[Found], dict[str, str]]:
    """The recurrent layers of a graph, and why others are left, by the names of their nodes."""
    found: list[Found] = []
    left: dict[str, str] = {}
    for call in flow.graph.calls:
        live = [n for n in call.results if n and n in flow.live]
        if call.label not in _CELL_OF or not call.target.startswith("aten.") or not live:
            continue
        made = _found(flow, call)
        why = made if isinstance(made, str) else unsupported(made[0])
        if why is None and not isinstance(made, str):
            found.append(made)
        else:
            left.update(dict.fromkeys(live, why or ""))
    return found, left


def _found(flow: Flow, call: Call) -> Found | str:
    """The Program of a call and its place, or why there is none."""
    if not call.target.endswith(".input"):
        return "packed sequences, whose steps have batches of their own"
    given: dict[str, Any] = {**dict(zip(_PARAMETERS, call.args, strict=False)), **dict(call.kwargs)}
    if call.ordered:
        return "dropout between recurrent layers"
    cell = _CELL_OF[call.label]
    states, weights = _nodes(flow, given["hx"]), _nodes(flow, given["params"])
    sequence = flow.nodes[given["input"].name]
    layers, directions = given["num_layers"], 2 if given["bidirectional"] else 1
    if len(sequence.shape) != 3 or 0 in sequence.shape:
        return "an empty sequence"
    if {n.dtype for n in (sequence, *states, *weights)} != {sequence.dtype} or sequence.dtype not in _TYPES:
        return "recurrent layers in other types than fp32, fp16 and bf16"
    item = RecurrenceOp(
        results=("y", "h", "c")[: 1 + CELLS[cell][1]], cell=cell, sequence="x0",
        states=tuple(f"x{1 + i}" for i in range(len(states))),
        weights=tuple(f"x{1 + len(states) + i}" for i in range(len(weights))), layers=layers, directions=directions,
        hidden=states[0].shape[-1], bias=bool(given["has_biases"]), dtype=sequence.dtype,
    )  # fmt: skip
    if tuple(n.shape for n in weights) != item.weight_shapes(sequence.shape[-1]):
        return "projections of hidden states"
    order = (1, 0, 2) if given["batch_first"] else (0, 1, 2)
    return _assembled(flow, call, item, (sequence, *states, *weights), order)


def _nodes(flow: Flow, template: Any) -> list[Node]:
    items = template.items if isinstance(template, Struct) else (template,)
    return [flow.nodes[item.name] for item in items if isinstance(item, Ref)]


def _assembled(
    flow: Flow, call: Call, item: RecurrenceOp, given: tuple[Node, ...], order: tuple[int, ...]
) -> Found:  # fmt: skip
    """`order`: of the sequences' dimensions, from torch's to (steps, batch, width) and back."""
    sequence = given[0]
    lies = tuple(order.index(d) for d in sequence.order or range(3))
    steps, batch = (sequence.shape[d] for d in order[:2])
    names = (item.sequence, *item.states, *item.weights)
    operands = [Operand(name=names[0], dtype=item.dtype, shape=tuple(sequence.shape[d] for d in order), indexed=True,
                        order=() if lies == (0, 1, 2) else lies)]  # fmt: skip
    operands += [
        Operand(name=name, dtype=item.dtype, shape=node.shape, indexed=True)
        for name, node in zip(names[1:], given[1:], strict=True)
    ]
    domain = (steps, batch, item.directions * item.hidden)
    state = (item.layers * item.directions, batch, item.hidden)
    outputs, binds = [], []
    for name, node in zip(item.results, call.results, strict=True):
        if node in flow.live:
            shape, turn = (domain, order) if name == item.results[0] else (state, (0, 1, 2))
            outputs.append(Output(name=name, dtype=item.dtype, shape=shape))
            binds.append(Bind(node=node, split=shape, order=turn))
    program = Program(domain=domain, operands=tuple(operands), body=(item,), outputs=tuple(outputs))
    takes = (Bind(node=sequence.name, split=sequence.shape, order=order), *map(_as_it_is, given[1:]))
    return program, Match(nodes=tuple(b.node for b in binds), operands=takes, outputs=tuple(binds))


def _as_it_is(node: Node) -> Bind:
    return Bind(node=node.name, split=node.shape, order=tuple(range(len(node.shape))))
