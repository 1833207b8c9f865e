"""Which torch operators are products of two matrices, and of which: linear, matmul, mm, bmm, addmm, baddbmm, einsum.

Each is a contraction of two tensors whose dimensions carry letters; those that both have and the result lacks are
summed. Letters fall into groups: the batch (in all three), rows (left and result), columns (right and result), and what
is summed. A group is one dimension of a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.facts.graph import Call, Node, Ref, Struct, Template
from tilewright.facts.pattern import Bind

from .region import Flow

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """An operand as matrices: `bind` views the node as `shape`, (rows, columns) or (batch, rows, columns); `order` is
    how they lie in memory, as in program.Operand."""

    bind: Bind
    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Addend:
    """What is added to the product, times `scale`; its shape has the product's rank."""

    bind: Bind
    shape: tuple[int, ...]
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """`node` = `scale` * left @ right (+ addend), over `domain`: (M, N) or (B, M, N)."""

    node: Node
    left: Factor
    right: Factor
    domain: tuple[int, ...]
    scale: float = 1.0
    addend: Addend | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Letters:
    left: str
    right: str
    result: str


def contraction(flow: Flow, node: Node) -> Contraction | None:
    """The product of matrices that this result of a call is, or None."""
    call = flow.calls.get(node.origin)
    if node.op != "call" or call is None or call.results != (node.name,):
        return None
    found = _operands(flow, call)
    if found is None:
        return None
    left, right, letters = found
    if not left.dtype == right.dtype == node.dtype:
        return None
    made = _matrices(flow, (left, right), letters)
    if made is None:
        return None
    first, second, domain = made
    scaled = _scales(call)
    if scaled is None or prod(domain) != prod(node.shape):
        return None
    alpha, beta = scaled
    name = _added(call)
    addend = _addend(flow, name, domain, beta) if name and beta else None
    if name and beta and addend is None:
        return None
    return Contraction(node=node, left=first, right=second, domain=domain, scale=alpha, addend=addend)


def _added(call: Call) -> str:
    """The name of what is added, or ""."""
    place = {"linear": 2, "addmm": 0, "baddbmm": 0}.get(call.label)
    given = dict(call.kwargs).get("bias") if call.label == "linear" else None
    if place is not None and place < len(call.args):
        given = call.args[place]
    return given.name if isinstance(given, Ref) else ""


def _scales(call: Call) -> tuple[float, float] | None:
    """alpha and beta; None where a keyword is not understood."""
    named = dict(call.kwargs)
    named.pop("bias", None)
    values = [named.pop(name, 1) for name in ("alpha", "beta")]
    if any(value is not None for value in named.values()):
        return None
    alpha, beta = (float(v) if isinstance(v, int | float) else None for v in values)
    return None if alpha is None or beta is None else (alpha, beta)


def _operands(flow: Flow, call: Call) -> tuple[Node, Node, _Letters] | None:
    """Both operands and their letters."""
    if call.target == "aten.einsum.default":
        return _einsum(flow, call)
    places = {"aten.linear.default": (0, 1), "aten.matmul.default": (0, 1), "aten.mm.default": (0, 1),
              "aten.bmm.default": (0, 1), "aten.addmm.default": (1, 2), "aten.baddbmm.default": (1, 2)}  # fmt: skip
    if call.target not in places:
        return None
    given = [call.args[i] if i < len(call.args) else None for i in places[call.target]]
    nodes = _tensors(flow, given)
    if nodes is None or any(len(n.shape) < 2 for n in nodes):
        return None
    left, right = nodes
    outer, m = _LETTERS[: len(left.shape) - 2], _LETTERS[len(left.shape) - 2]
    if call.label == "linear":
        return left, right, _Letters(left=f"{outer}{m}z", right="yz", result=f"{outer}{m}y")
    if len(right.shape) == 2:
        return left, right, _Letters(left=f"{outer}{m}z", right="zy", result=f"{outer}{m}y")
    if left.shape[:-2] != right.shape[:-2]:  # a batch that is broadcast
        return None
    return left, right, _Letters(left=f"{outer}{m}z", right=f"{outer}zy", result=f"{outer}{m}y")


def _tensors(flow: Flow, given: Sequence[Template]) -> tuple[Node, Node] | None:
    names = [g.name for g in given if isinstance(g, Ref)]
    return (flow.nodes[names[0]], flow.nodes[names[1]]) if len(names) == len(given) == 2 else None


def _einsum(flow: Flow, call: Call) -> tuple[Node, Node, _Letters] | None:
    equation, tensors = call.args[0], call.args[1] if len(call.args) > 1 else None
    if not isinstance(equation, str) or not isinstance(tensors, Struct) or "->" not in equation:
        return None
    nodes = _tensors(flow, tensors.items)
    given, result = equation.replace(" ", "").split("->")
    letters = given.split(",")
    if nodes is None or len(letters) != 2 or not all(part.isalpha() for part in (*letters, result)):
        return None
    if any(len(word) != len(node.shape) for word, node in zip(letters, nodes, strict=True)):
        return None
    return *nodes, _Letters(left=letters[0], right=letters[1], result=result)


def _matrices(flow: Flow, nodes: tuple[Node, Node], letters: _Letters) -> tuple[Factor, Factor, tuple[int, ...]] | None:
    """Both operands as matrices, in the order in which their product is the result, and its domain."""
    left, right, result = letters.left, letters.right, letters.result
    if any(len(set(word)) != len(word) for word in (left, right, result)):
        return None
    batch = "".join(c for c in result if c in left and c in right)
    rows = "".join(c for c in result if c in left and c not in right)
    columns = "".join(c for c in result if c in right and c not in left)
    summed = "".join(c for c in left if c in right and c not in result)
    if set(left) != set(batch + rows + summed) or set(right) != set(batch + summed + columns):
        return None
    if not (rows and columns and summed) or result not in (batch + rows + columns, batch + columns + rows):
        return None
    if result != batch + rows + columns:
        nodes, left, right, rows, columns = (nodes[1], nodes[0]), right, left, columns, rows
    sizes = dict(zip(left + right, (*nodes[0].shape, *nodes[1].shape), strict=True))
    if any(sizes[c] != size for word, node in zip((left, right), nodes, strict=True)
           for c, size in zip(word, node.shape, strict=True)):  # fmt: skip
        return None
    front = (batch,) if batch else ()
    factors = (
        _factor(flow, nodes[0], left, (*front, rows, summed)), _factor(flow, nodes[1], right, (*front, summed, columns))
    )  # fmt: skip
    domain = tuple(prod(sizes[c] for c in group) for group in (*front, rows, columns))
    return *factors, domain


def _factor(flow: Flow, node: Node, letters: str, groups: tuple[str, ...]) -> Factor:
    order = tuple(letters.index(c) for group in groups for c in group)
    sizes = dict(zip(letters, node.shape, strict=True))
    bind = Bind(node=node.name, split=node.shape, order=order)
    in_memory = "".join(letters[d] for d in _memory(flow, node) if node.shape[d] > 1)
    return Factor(bind=bind, shape=tuple(prod(sizes[c] for c in group) for group in groups),
                  order=_lies(in_memory, groups, sizes))  # fmt: skip


def _lies(in_memory: str, groups: tuple[str, ...], sizes: dict[str, int]) -> tuple[int, ...]:
    """The groups, outermost first, as they lie; row-major where they don't lie in one piece each, and are copied."""
    wide = {i: "".join(c for c in group if sizes[c] > 1) for i, group in enumerate(groups)}
    if any(word not in in_memory for word in wide.values()):
        return ()
    narrow = [i for i, word in wide.items() if not word]
    found = (*narrow, *sorted((i for i in wide if wide[i]), key=lambda i: in_memory.index(wide[i])))
    return () if found == tuple(range(len(groups))) else found


def _memory(flow: Flow, node: Node) -> tuple[int, ...]:
    """Dimensions of a value, outermost first, as they lie in memory; those of a permuted one as its source has them."""
    if node.op == "permute":
        return tuple(node.dims.index(d) for d in _memory(flow, flow.nodes[node.sources[0]]))
    return node.order or tuple(range(len(node.shape)))


def _addend(flow: Flow, name: str, domain: tuple[int, ...], scale: float) -> Addend | None:
    node = flow.nodes[name]
    shape = (*(1 for _ in range(len(domain) - len(node.shape))), *node.shape)
    if len(shape) != len(domain) or any(s not in (1, d) for s, d in zip(shape, domain, strict=True)):
        return None
    bind = Bind(node=name, split=node.shape, order=tuple(range(len(node.shape))))
    return Addend(bind=bind, shape=shape, scale=scale)
