"""Which torch operators contract two tensors, and along which dimensions: linear, matmul, mm, bmm, addmm, baddbmm,
addbmm, einsum, tensordot, inner, each read as an einsum; and _scaled_mm, whose operands have eight bits, with its
scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .graph import Call, Node, Ref, Struct, Template

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_LETTERS = _ALPHABET + _ALPHABET.upper()
_PLACES = {"aten.linear.default": (0, 1), "aten.matmul.default": (0, 1), "aten.mm.default": (0, 1),
           "aten.bmm.default": (0, 1), "aten.addmm.default": (1, 2), "aten.baddbmm.default": (1, 2),
           "aten.addbmm.default": (1, 2)}  # fmt: skip
_EINSUM, _TENSORDOT, _INNER = "aten.einsum.default", "aten.tensordot.default", "aten.inner.default"
_SCALED = "aten._scaled_mm.default"
ROUTED = "aten._grouped_mm.default"  # rows in stretches, each with a matrix of its own
OPERATORS = tuple(target.split(".")[1] for target in (*_PLACES, _EINSUM, _TENSORDOT, _INNER, _SCALED, ROUTED))


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


def contracted(call: Call, nodes: Mapping[str, Node], *, spread: bool = False) -> Contracted | None:
    """What this call contracts; None where it is no contraction, or one with options that are not understood.

    `spread`: also where a dimension of 1 of either operand meets a longer one under the same letter."""
    if call.target == _EINSUM:
        found = _einsum(call, nodes)
    elif call.target in (_TENSORDOT, _INNER):
        found = _over_dims(call, nodes)
    else:
        found = _named(call, nodes, spread=spread)
    scales = _scales(call)
    if found is None or scales is None:
        return None
    left, right, letters = found
    return Contracted(left=left, right=right, letters=letters, alpha=scales[0], beta=scales[1], added=_added(call))


def _added(call: Call) -> str:
    place = {"linear": 2, "addmm": 0, "baddbmm": 0, "addbmm": 0}.get(call.label)
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


def _named(call: Call, nodes: Mapping[str, Node], *, spread: bool) -> tuple[Node, Node, Letters] | None:
    if call.target not in _PLACES:
        return None
    given = [call.args[i] if i < len(call.args) else None for i in _PLACES[call.target]]
    found = _tensors(nodes, given)
    if found is None or any(len(n.shape) < 2 for n in found):
        return None
    left, right = found
    # A batch that one of them lacks, or has once, is broadcast.
    both = list(zip(reversed(left.shape[:-2]), reversed(right.shape[:-2]), strict=False))
    if any(a != b and (not spread or 1 not in (a, b)) for a, b in both):
        return None
    return left, right, letters_of(call.label, len(left.shape), len(right.shape))


def letters_of(label: str, left: int, right: int) -> Letters:
    """Of an operator that multiplies two tensors of so many dimensions: vectors, matrices, or batches of matrices."""
    if label in ("outer", "ger", "addr"):
        return Letters(left="a", right="y", result="ay")
    if label == "addbmm":
        return Letters(left="amz", right="azy", result="my")
    if label == "linear":
        outer = _ALPHABET[: left - 1]
        return Letters(left=f"{outer}z", right="yz"[2 - right :], result=f"{outer}{'y' * (right - 1)}")
    batch = max(left, right, 2) - 2
    whole, m = _ALPHABET[:batch], _ALPHABET[batch] if left > 1 else ""
    outer, other = (whole[batch - max(rank - 2, 0) :] for rank in (left, right))
    y = "y" if right > 1 else ""
    return Letters(left=f"{outer}{m}z", right=f"{other}z{y}", result=f"{whole}{m}{y}")


def _tensors(nodes: Mapping[str, Node], given: Sequence[Template]) -> tuple[Node, Node] | None:
    names = [g.name for g in given if isinstance(g, Ref)]
    return (nodes[names[0]], nodes[names[1]]) if len(names) == len(given) == 2 else None


def _einsum(call: Call, nodes: Mapping[str, Node]) -> tuple[Node, Node, Letters] | None:
    equation, tensors = call.args[0], call.args[1] if len(call.args) > 1 else None
    if not isinstance(equation, str) or not isinstance(tensors, Struct):
        return None
    found = _tensors(nodes, tensors.items)
    said = None if found is None else spelt_out(equation, [len(node.shape) for node in found])
    if found is None or said is None:
        return None
    (left, right), result = said
    if not (left and right and result):
        return None
    return *found, Letters(left=left, right=right, result=result)


def spelt_out(equation: str, ranks: Sequence[int]) -> tuple[tuple[str, ...], str] | None:
    """The letters of an einsum's operands, of so many dimensions each, and of its result, with letters where dots
    stand for dimensions; None where the equation does not fit."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    words = given.split(",")
    if len(words) != len(ranks):
        return None
    counts = [rank - len(word) + 3 if "..." in word else 0 for word, rank in zip(words, ranks, strict=True)]
    free = [c for c in _LETTERS if c not in equation]
    outer = "".join(free[: max(*counts, 0)])
    words = [word.replace("...", outer[len(outer) - max(n, 0) :]) for word, n in zip(words, counts, strict=True)]
    result = result.replace("...", outer) if arrow else outer + _left_over(words, outer)
    if not all(part.isalpha() for part in (*words, result) if part):
        return None
    return None if [len(word) for word in words] != [*ranks] else (tuple(words), result)


def _left_over(letters: Sequence[str], outer: str) -> str:
    """The result of an equation without an arrow: what stands once, in the alphabet's order."""
    whole = "".join(letters)
    return "".join(sorted(c for c in set(whole) - set(outer) if whole.count(c) == 1))


def _over_dims(call: Call, nodes: Mapping[str, Node]) -> tuple[Node, Node, Letters] | None:
    """tensordot, and inner, which is over the last dimensions."""
    found = _tensors(nodes, call.args[:2])
    if found is None or call.kwargs or any(not node.shape for node in found):
        return None
    given = call.args[2:] if call.target == _TENSORDOT else (Struct(kind="list", items=(-1,)),) * 2
    dims = [[d for d in s.items if isinstance(d, int)] for s in given if isinstance(s, Struct)]
    if len(dims) != 2 or len(dims[0]) != len(dims[1]):
        return None
    said = letters_over(dims, [len(node.shape) for node in found])
    return None if said is None else (*found, said)


def letters_over(dims: Sequence[Sequence[int]], ranks: Sequence[int]) -> Letters | None:
    """Of two tensors of so many dimensions that are summed over these of each; None where letters do not suffice."""
    if sum(ranks) > len(_LETTERS):
        return None
    words = [list(_LETTERS[: ranks[0]]), list(_LETTERS[ranks[0] :][: ranks[1]])]
    for d, e in zip(*dims, strict=True):
        words[1][e] = words[0][d]
    result = [c for i in range(2) for c in words[i] if c not in words[1 - i]]
    return Letters(left="".join(words[0]), right="".join(words[1]), result="".join(result))
