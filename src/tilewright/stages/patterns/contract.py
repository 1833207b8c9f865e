"""Which torch operators are products of two matrices, and of which.

Each is a contraction of two tensors whose dimensions carry letters; those that both have and the result lacks are
summed. Letters fall into groups: the batch (in all three), rows (left and result), columns (right and result), and what
is summed. A group is one dimension of a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.facts.contraction import ROUTED, Letters, Scaled, contracted, scaled
from tilewright.facts.graph import Call, Node, Ref
from tilewright.facts.pattern import Bind

from .region import Flow


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
    """`node` = `scale` * left @ right (+ addend), over `domain`: (M, N) or (B, M, N); `rounded` as program.Product.
    `element`: the factors' dtype. With `scales`, which the product is multiplied by, all is computed in fp32."""

    node: Node
    left: Factor
    right: Factor
    domain: tuple[int, ...]
    scale: float = 1.0
    addend: Addend | None = None
    rounded: bool = False
    element: str = ""
    ends: Bind | None = None  # of the rows of each of the right factor's matrices (see program.Product)
    scales: tuple[Addend, ...] = ()


def contraction(flow: Flow, node: Node) -> Contraction | None:
    """The product of matrices that this result of a call is, or None."""
    call = flow.calls.get(node.origin)
    if node.op != "call" or call is None or call.results != (node.name,):
        return None
    if call.target == ROUTED:
        return _routed(flow, node, call)
    eighth = scaled(call, flow.nodes)
    if eighth is not None:
        return _scaled(flow, node, eighth)
    found = contracted(call, flow.nodes)
    if found is None or not found.left.dtype == found.right.dtype == node.dtype:
        return None
    made = _matrices(flow, (found.left, found.right), found.letters)
    if made is None:
        return None
    first, second, domain = made
    if prod(domain) != prod(node.shape):
        return None
    addend = _addend(flow, found.added, domain, found.beta) if found.added and found.beta else None
    if found.added and found.beta and addend is None:
        return None
    return Contraction(
        node=node, left=first, right=second, domain=domain, scale=found.alpha, addend=addend, element=node.dtype
    )


def _routed(flow: Flow, node: Node, call: Call) -> Contraction | None:
    """Rows in stretches, each with a matrix of its own: `_grouped_mm(rows, matrices, offs=ends)`."""
    given = dict(zip(("self", "mat2", "offs", "bias", "out_dtype"), call.args, strict=False)) | dict(call.kwargs)
    names = [x.name for key in ("self", "mat2", "offs") if isinstance(x := given.get(key), Ref)]
    if len(names) != 3 or given.get("bias") is not None:
        return None
    rows, matrices, ends = (flow.nodes[name] for name in names)
    if (len(rows.shape), len(matrices.shape), ends.dtype) != (2, 3, "i32"):
        return None
    if not rows.dtype == matrices.dtype == node.dtype or ends.shape != matrices.shape[:1]:
        return None
    return Contraction(
        node=node, left=_factor(flow, rows, "mz", ("m", "z")), right=_factor(flow, matrices, "ezy", ("e", "z", "y")),
        domain=(rows.shape[0], matrices.shape[2]), element=node.dtype,
        ends=Bind(node=ends.name, split=ends.shape, order=(0,)),
    )  # fmt: skip


def _scaled(flow: Flow, node: Node, found: Scaled) -> Contraction | None:
    """A product of eight bits: scales and bias are operands of its epilogue."""
    made = _matrices(flow, (found.left, found.right), found.letters)
    if made is None:
        return None
    first, second, domain = made
    scales = [_addend(flow, x.name, domain, 1.0) for x in (found.of_left, found.of_right)]
    addend = _addend(flow, found.added, domain, 1.0) if found.added else None
    if None in scales or (found.added and addend is None):
        return None
    return Contraction(node=node, left=first, right=second, domain=domain, addend=addend, element=found.left.dtype,
                       scales=tuple(s for s in scales if s is not None))  # fmt: skip


def _matrices(flow: Flow, nodes: tuple[Node, Node], letters: Letters) -> tuple[Factor, Factor, tuple[int, ...]] | None:
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
