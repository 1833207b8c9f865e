"""Which torch operators contract two tensors, and along which dimensions: linear, matmul, mm, bmm, addmm, baddbmm,
einsum, each read as an einsum; and _scaled_mm, whose operands have eight bits, with its scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .graph import Call, Node, Ref, Struct, Template

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_PLACES = {"aten.linear.default": (0, 1), "aten.matmul.default": (0, 1), "aten.mm.default": (0, 1),
           "aten.bmm.default": (0, 1), "aten.addmm.default": (1, 2), "aten.baddbmm.default": (1, 2)}  # fmt: skip
_EINSUM = "aten.einsum.default"
_SCALED = "aten._scaled_mm.default"
ROUTED = "aten._grouped_mm.default"  # rows in stretches, each with a matrix of its own
OPERATORS = tuple(target.split(".")[1] for target in (*_PLACES, _EINSUM, _SCALED, ROUTED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """A letter for each dimension of both operands and the result; what the result lacks is summed."""

    left: str
    right: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """The call is left @ right * of_left * of_right + added, summed in fp32, (M, K) @ (K, N) of float8_e4m3fn. Scales
    are fp32: one number each, or of every row of `left`, (M, 1), and every column of `right`, (1, N)."""

    left: Node
    right: Node
    of_left: Node
    of_right: Node
    added: str

    letters = Letters(left="mz", right="zy", result="my")


def scaled(call: Call, nodes: Mapping[str, Node]) -> Scaled | None:
    """What this `_scaled_mm` multiplies; None where it is none, or one with other scales or options."""
    if call.target != _SCALED:
        return None
    names = ("self", "mat2", "scale_a", "scale_b", "bias", "scale_result", "out_dtype", "use_fast_accum")
    given = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    tensors = [nodes[x.name] for name in names[:4] if isinstance(x := given.get(name), Ref)]
    if len(tensors) != 4 or given.get("scale_result") is not None:
        return None
    left, right, of_left, of_right = tensors
    ones = [all(size == 1 for size in x.shape) for x in (of_left, of_right)]
    by_rows = of_left.shape == (left.shape[0], 1) and of_right.shape == (1, right.shape[1])
    if {left.dtype, right.dtype} != {"float8_e4m3fn"} or {of_left.dtype, of_right.dtype} != {"f32"}:
        return None
    if not (all(ones) or by_rows):
        return None
    bias = given.get("bias")
    return Scaled(left=left, right=right, of_left=of_left, of_right=of_right,
                  added=bias.name if isinstance(bias, Ref) else "")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracted:
    """The call is alpha * left @ right + beta * added, in the letters' sense; `added` is a node's name, or ""."""

    left: Node
    right: Node
    letters: Letters
    alpha: float
    beta: float
    added: str


def contracted(call: Call, nodes: Mapping[str, Node]) -> Contracted | None:
    """What this call contracts; None where it is no contraction, or one with options that are not understood."""
    found = _einsum(call, nodes) if call.target == _EINSUM else _named(call, nodes)
    scales = _scales(call)
    if found is None or scales is None:
        return None
    left, right, letters = found
    return Contracted(left=left, right=right, letters=letters, alpha=scales[0], beta=scales[1], added=_added(call))


def _added(call: Call) -> str:
    place = {"linear": 2, "addmm": 0, "baddbmm": 0}.get(call.label)
    given = dict(call.kwargs).get("bias") if call.label == "linear" else None
    if place is not None and place < len(call.args):
        given = call.args[place]
    return given.name if isinstance(given, Ref) else ""


def _scales(call: Call) -> tuple[float, float] | None:
    named = dict(call.kwargs)
    named.pop("bias", None)
    values = [named.pop(name, 1) for name in ("alpha", "beta")]
    if any(value is not None for value in named.values()):
        return None
    alpha, beta = (float(v) if isinstance(v, int | float) else None for v in values)
    return None if alpha is None or beta is None else (alpha, beta)


def _named(call: Call, nodes: Mapping[str, Node]) -> tuple[Node, Node, Letters] | None:
    if call.target not in _PLACES:
        return None
    given = [call.args[i] if i < len(call.args) else None for i in _PLACES[call.target]]
    found = _tensors(nodes, given)
    if found is None or any(len(n.shape) < 2 for n in found):
        return None
    left, right = found
    outer, m = _ALPHABET[: len(left.shape) - 2], _ALPHABET[len(left.shape) - 2]
    if call.label == "linear":
        return left, right, Letters(left=f"{outer}{m}z", right="yz", result=f"{outer}{m}y")
    if len(right.shape) == 2:
        return left, right, Letters(left=f"{outer}{m}z", right="zy", result=f"{outer}{m}y")
    if left.shape[:-2] != right.shape[:-2]:  # a batch that is broadcast
        return None
    return left, right, Letters(left=f"{outer}{m}z", right=f"{outer}zy", result=f"{outer}{m}y")


def _tensors(nodes: Mapping[str, Node], given: Sequence[Template]) -> tuple[Node, Node] | None:
    names = [g.name for g in given if isinstance(g, Ref)]
    return (nodes[names[0]], nodes[names[1]]) if len(names) == len(given) == 2 else None


def _einsum(call: Call, nodes: Mapping[str, Node]) -> tuple[Node, Node, Letters] | None:
    equation, tensors = call.args[0], call.args[1] if len(call.args) > 1 else None
    if not isinstance(equation, str) or not isinstance(tensors, Struct) or "->" not in equation:
        return None
    found = _tensors(nodes, tensors.items)
    given, result = equation.replace(" ", "").split("->")
    letters = given.split(",")
    if found is None or len(letters) != 2 or not all(part.isalpha() for part in (*letters, result)):
        return None
    if any(len(word) != len(node.shape) for word, node in zip(letters, found, strict=True)):
        return None
    return *found, Letters(left=letters[0], right=letters[1], result=result)
