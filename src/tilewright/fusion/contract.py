"""Which torch operators are products of two matrices, and of which.

Each is a contraction of two tensors whose dimensions carry letters; those that both have and the result lacks are
summed. Letters fall into groups: the batch (in all three), rows (left and result), columns (right and result), and what
is summed. A group is one dimension of a matrix. The batch may have letters that a factor lacks: where those it has are
neighbours there, each of its matrices serves several of the result, as it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from string import ascii_letters

from tilewright.facts.pattern import Bind
from tilewright.ir.access import ALL_DIAGONALS, Diagonals
from tilewright.ir.contraction import ROUTED, Contracted, Letters, Scaled, contracted, scaled
from tilewright.ir.graph import Call, Node, Ref

from .coarse import parted
from .convolutions import pointwise_convolution
from .region import Flow


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """An operand as matrices: `bind` views the node as `shape`, (rows, columns) or (batch, rows, columns); `order` is
    how they lie in memory, as in program.Operand. The node has `middle` dimensions for rows, the `inner` ones last for
    columns. `diagonals`: outside of them there are zeros that need not be multiplied. `each` as matrices.Matrices."""

    bind: Bind
    shape: tuple[int, ...]
    order: tuple[int, ...]
    middle: int = 1
    inner: int = 1
    diagonals: Diagonals = ALL_DIAGONALS
    each: int = 1
    copied: bool = False  # it has to be, for its groups to be dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class Addend:
    """What is added to the product, times `scale`; its shape has the product's rank. `order` as a Factor's."""

    bind: Bind
    shape: tuple[int, ...]
    scale: float
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplication:
    """`node` = `scale` * left @ right (+ addend), over `domain`: (M, N) or (B, M, N), as `result` views it; of a batch
    that a factor lacks it has one matrix. `lies`: the node's dimensions, outermost first, as the product writes them.
    `allow_tf32` as program.Contraction. `element`: the factors' dtype. With `scales`, which the product is multiplied
    by, all is computed in fp32."""

    node: Node
    left: Factor
    right: Factor
    domain: tuple[int, ...]
    result: Bind
    lies: tuple[int, ...]
    scale: float = 1.0
    addend: Addend | None = None
    allow_tf32: bool = False
    element: str = ""
    spared: tuple[str, ...] = ()  # values that nobody else reads, and that this is made without
    ends: Bind | None = None  # of the rows of each of the right factor's matrices (see matrices.Matrices)
    scales: tuple[Addend, ...] = ()

    @property
    def transposed(self) -> Multiplication:
        """The same of the transposes: right.T @ left.T, whose rows are this one's columns."""
        *front, m, n = self.domain
        return replace(
            self, left=_transposed(self.right), right=_transposed(self.left), domain=(*front, n, m),
            addend=self.addend and _across(self.addend), scales=tuple(map(_across, self.scales)),
        )  # fmt: skip


def _transposed(factor: Factor) -> Factor:
    """Of each matrix the transpose."""
    rank, inner = len(factor.shape), factor.inner
    order = factor.bind.order
    at = len(order) - inner
    before = at - factor.middle
    bind = replace(factor.bind, order=(*order[:before], *order[at:], *order[before:at]))
    turn = {rank - 2: rank - 1, rank - 1: rank - 2}
    lies = tuple(turn.get(d, d) for d in factor.order or range(rank))
    low, high = factor.diagonals
    return Factor(
        bind=bind, shape=_swapped(factor.shape), order=() if lies == tuple(range(rank)) else lies,
        middle=inner, inner=factor.middle,
        diagonals=(None if high is None else -high, None if low is None else -low), each=factor.each,
    )  # fmt: skip


def _across(addend: Addend) -> Addend:
    """The same for the product's transpose."""
    rank, order = len(addend.shape), addend.bind.order
    order = _swapped(order) if len(order) > 1 else order
    lies = (*range(rank - 2), rank - 1, rank - 2) if min(addend.shape[-2:]) > 1 else ()
    return replace(addend, bind=replace(addend.bind, order=order), shape=_swapped(addend.shape), order=lies)


def _swapped(items: tuple[int, ...]) -> tuple[int, ...]:
    """With the last two in each other's place."""
    return (*items[:-2], items[-1], items[-2])


def contraction(
    flow: Flow, node: Node, *, eight_bits: bool = True, lies: tuple[int, ...] = ()
) -> Multiplication | None:  # fmt: skip
    """The product of matrices that this result of a call is, or None. `eight_bits`: of what was converted from
    float8_e4m3fn to 16 bits for it, of these. `lies`: the order in which the result is wanted."""
    call = flow.calls.get(node.origin)
    if node.op != "call" or call is None or call.results != (node.name,):
        return None
    if call.target == ROUTED:
        return _routed(flow, node, call)
    eighth = scaled(call, flow.nodes)
    if eighth is not None:
        return _scaled(flow, node, eighth)
    pointwise = pointwise_convolution(flow, node)
    if pointwise is not None:
        lies = lies or node.order
    found = contracted(call, flow.nodes, spread=True) if pointwise is None else pointwise
    if found is None or not found.left.dtype == found.right.dtype == node.dtype:
        return None
    spared: tuple[str, ...] = ()
    if eight_bits and node.dtype in ("f16", "bf16"):
        found, spared = _before_conversion(flow, node, found)
    made = None if lies else _expanded(flow, node, found)
    if made is not None:
        spared = (*spared, *made[1])
    laid = made[0] if made is not None else _laid(flow, node, found, lies)
    if laid is None:
        return None
    first, second, domain, result, lies = laid
    added = found.added if found.beta else ""
    if pointwise is None:
        addend = _addend(flow, added, domain, found.beta) if added else None
    else:
        addend = _of_channels(flow, added, domain, lies) if added else None
    if added and addend is None:
        return None
    return Multiplication(
        node=node, left=first, right=second, domain=domain, result=result, lies=lies, scale=found.alpha, addend=addend,
        element=found.left.dtype, spared=spared, allow_tf32=pointwise is not None and node.dtype == "f32",
    )  # fmt: skip


def _before_conversion(flow: Flow, node: Node, found: Contracted) -> tuple[Contracted, tuple[str, ...]]:
    """The same of both factors as they were in eight bits, where 16 hold them as well, and what nobody reads then."""
    nodes, words, made = [], [], []
    for factor, word in ((found.left, found.letters.left), (found.right, found.letters.right)):
        while factor.op == "permute":
            inner = dict(zip(factor.dims, word, strict=True))
            factor, word = flow.nodes[factor.sources[0]], "".join(inner[d] for d in range(len(word)))
        source = flow.nodes[factor.sources[0]] if factor.op == "to" else factor
        if factor.op != "to" or source.dtype != "float8_e4m3fn":
            return found, ()
        nodes.append(source)
        words.append(word)
        if factor.name not in flow.kept and set(flow.readers[factor.name]) == {node.name}:
            made.append(factor.name)
    letters = replace(found.letters, left=words[0], right=words[1])
    return replace(found, left=nodes[0], right=nodes[1], letters=letters), tuple(made)


Laid = tuple[Factor, Factor, tuple[int, ...], Bind, tuple[int, ...]]


def _expanded(flow: Flow, node: Node, found: Contracted) -> tuple[Laid, tuple[str, ...]] | None:
    """The same of a factor as it was before its matrices were repeated, and what nobody reads then. A dimension that
    repeats is two, for the other factor and the result, too."""
    letters = found.letters
    for first, factor, word in ((True, found.left, letters.left), (False, found.right, letters.right)):
        before = _before_expansion(flow, factor, word, set(letters.left + letters.right + letters.result))
        if before is None:
            continue
        source, its, parts, between = before
        other, its_word = (found.right, letters.right) if first else (found.left, letters.left)
        theirs, their_word = _divided(flow, other, its_word, parts)
        result, whole = _divided(flow, node, letters.result, parts)
        words, nodes = ((its, their_word), (source, theirs)) if first else ((their_word, its), (theirs, source))
        spelt = Letters(left=words[0], right=words[1], result=whole)
        made = _laid(flow, result, replace(found, left=nodes[0], right=nodes[1], letters=spelt))
        lies = None if made is None else _joined(made[4], [len(parts.get(c, (1,))) for c in letters.result])
        if made is None or lies is None or made[2][-2:] == (1, 1):
            continue
        spared = tuple(n for n in between if n not in flow.kept and set(flow.readers[n]) == {node.name})
        return (*made[:4], lies), spared
    return None


def _before_expansion(
    flow: Flow, factor: Node, word: str, taken: set[str]
) -> tuple[Node, str, dict[str, tuple[tuple[str, int], ...]], tuple[str, ...]] | None:
    """What a factor repeats, that one's letters, what each letter becomes of which a part is repeated (letters with
    their sizes), and the copies between."""
    copies: list[str] = []

    def copied(x: Node) -> Node:
        while x.op == "to" and flow.nodes[x.sources[0]].dtype == x.dtype:
            copies.append(x.name)
            x = flow.nodes[x.sources[0]]
        return x

    factor = copied(factor)
    while factor.op == "permute":
        inner = dict(zip(factor.dims, word, strict=True))
        factor, word = copied(flow.nodes[factor.sources[0]]), "".join(inner[d] for d in range(len(word)))
    source = copied(flow.nodes[factor.sources[0]]) if factor.op == "reshape" else factor
    groups = parted(source.shape, factor.shape)
    if factor.op != "reshape" or source.op != "expand" or groups is None:
        return None
    free = iter(c for c in ascii_letters if c not in taken)
    parts: dict[str, tuple[tuple[str, int], ...]] = {}
    spelt = ""
    for c, group in zip(word, groups, strict=True):
        if len(group) > 1:
            parts[c] = tuple((next(free), source.shape[d]) for d in group)
        spelt += "".join(new for new, _ in parts[c]) if c in parts else c * len(group)
    base = flow.nodes[source.sources[0]]
    return (base, spelt, parts, tuple(copies)) if len(base.shape) == len(spelt) else None


def _divided(
    flow: Flow, node: Node, word: str, parts: dict[str, tuple[tuple[str, int], ...]]
) -> tuple[Node, str]:  # fmt: skip
    """A value with some of its dimensions in several, and its letters."""
    inside = [parts.get(c, ((c, size),)) for c, size in zip(word, node.shape, strict=True)]
    sizes = [[1 if whole == 1 else size for _, size in part] for part, whole in zip(inside, node.shape, strict=True)]
    starts = [sum(map(len, inside[:d])) for d in range(len(inside))]
    order = tuple(starts[d] + i for d in memory(flow, node) for i in range(len(inside[d])))
    shape = tuple(size for part in sizes for size in part)
    spelt = "".join(new for part in inside for new, _ in part)
    return replace(node, op="reshape", shape=shape, dims=(), order=order), spelt


def _joined(lies: tuple[int, ...], counts: list[int]) -> tuple[int, ...] | None:
    """The order of dimensions of which each is so many of these; None where they are apart."""
    home = [d for d, count in enumerate(counts) for _ in range(count)]
    starts = [sum(counts[:d]) for d in range(len(counts))]
    order = tuple(dict.fromkeys(home[i] for i in lies))
    return order if lies == tuple(starts[d] + i for d in order for i in range(counts[d])) else None


def _routed(flow: Flow, node: Node, call: Call) -> Multiplication | None:
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
    left, right = (
        _factor(flow, rows, "mz", ("m", "z"), {*"mz"}),
        _factor(flow, matrices, "ezy", ("e", "z", "y"), {*"ezy"}),
    )
    return Multiplication(
        node=node, left=left, right=right, domain=(rows.shape[0], matrices.shape[2]), element=node.dtype,
        result=Bind(node=node.name, split=node.shape, order=(0, 1)), lies=(0, 1),
        ends=Bind(node=ends.name, split=ends.shape, order=(0,)),
    )  # fmt: skip


def _scaled(flow: Flow, node: Node, found: Scaled) -> Multiplication | None:
    """A product of eight bits: scales and bias are operands of its epilogue."""
    made = _laid(flow, node, found)
    if made is None:
        return None
    first, second, domain, result, lies = made
    scales = [_addend(flow, x.name, domain, 1.0) for x in (found.of_left, found.of_right)]
    addend = _addend(flow, found.added, domain, 1.0) if found.added else None
    if None in scales or (found.added and addend is None):
        return None
    return Multiplication(node=node, left=first, right=second, domain=domain, result=result, lies=lies, addend=addend,
                          element=found.left.dtype, scales=tuple(s for s in scales if s is not None))  # fmt: skip


def _laid(flow: Flow, node: Node, found: Contracted | Scaled, lies: tuple[int, ...] = ()) -> Laid | None:
    """Both factors, the domain, and how the result is viewed and lies: as is wanted, or as others expect it to, where
    that can be."""
    made = [m for m in _matrices(flow, (found.left, found.right), found.letters)
            if prod(m[2]) == prod(node.shape) and len(m[3]) == len(node.shape)]  # fmt: skip
    ways = [tuple(found.letters.result.index(c) for c in word) for *_, word in made]
    if not made:
        return None
    wanted = (node.order or tuple(range(len(node.shape)))) if node.name in flow.laid else ways[0]
    wanted = lies or wanted
    if lies and lies not in ways:
        return None
    wanted = wanted if wanted in ways else ways[0]
    alike = [i for i, way in enumerate(ways) if way == wanted]
    chosen = min(alike, key=lambda i: sum(prod(f.shape) for f in made[i][:2] if f.copied))
    first, second, domain, word = made[chosen]
    order = tuple(word.index(c) for c in found.letters.result)
    result = Bind(node=node.name, split=tuple(node.shape[d] for d in ways[chosen]), order=order)
    return first, second, domain, result, ways[chosen]


def _matrices(
    flow: Flow, nodes: tuple[Node, Node], letters: Letters
) -> Iterator[tuple[Factor, Factor, tuple[int, ...], str]]:
    """Both operands as matrices, in the order in which their product is written, its domain, and the result's letters
    as they then lie: in their own order first, in another where that can't be."""
    words = (letters.left, letters.right)
    if any(len(set(word)) != len(word) for word in (*words, letters.result)):
        return
    sizes: dict[str, int] = {}
    for word, node in zip(words, nodes, strict=True):
        for c, size in zip(word, node.shape, strict=True):
            sizes[c] = max(size, sizes.get(c, 1))
    if any(size not in (1, sizes[c]) for word, node in zip(words, nodes, strict=True)
           for c, size in zip(word, node.shape, strict=True)):  # fmt: skip
        return
    # A dimension of 1 that meets a longer one is as good as none.
    left, right = ({c for c, size in zip(word, node.shape, strict=True) if size == sizes[c]}
                   for word, node in zip(words, nodes, strict=True))  # fmt: skip
    summed = "".join(c for c in words[0] if c in left and c not in letters.result)
    if not summed or (left ^ right) - set(letters.result) or set(letters.result) - (left | right):
        return
    for front, first, second in _groups(letters.result, left, right):
        turn = 1 if first[0] in left else -1
        own, theirs = (left, right)[::turn]
        fronts = (front,) if front else ()
        each = [_each(front, factor, sizes) for factor in (own, theirs)]
        if None in each:
            continue
        one = _factor(flow, nodes[::turn][0], words[::turn][0], (*fronts, first, summed), own)
        other = _factor(flow, nodes[::turn][1], words[::turn][1], (*fronts, summed, second), theirs)
        one, other = (replace(factor, each=e or 1) for factor, e in zip((one, other), each, strict=True))
        domain = tuple(prod(sizes[c] for c in group) for group in (*fronts, first, second))
        yield one, other, domain, front + first + second


def _groups(result: str, left: set[str], right: set[str]) -> Iterator[tuple[str, str, str]]:
    """The letters of the batch and of either factor, in orders in which they may lie: as the result has them, of which
    as few as can be stand in front of rows and columns, or more; then in others, of which both have the batch."""

    def sides(of: str) -> tuple[str, str]:
        return "".join(c for c in of if c not in right), "".join(c for c in of if c not in left)

    rows, columns = sides(result)
    front = "".join(c for c in result if c in left and c in right)
    if not rows or not columns:
        return
    for at in range(len(result) - 1):
        batch, rest = result[:at], result[at:]
        own, theirs = sides(rest)
        if own and theirs and rest in (own + theirs, theirs + own):
            yield (batch, own, theirs) if rest == own + theirs else (batch, theirs, own)
            if not front:  # one matrix is for all rows
                break
    yield from (way for way in ((front, rows, columns), (front, columns, rows)) if "".join(way) != result)


def _each(front: str, own: set[str], sizes: dict[str, int]) -> int | None:
    """For how many neighbours of the batch a factor with these letters has one matrix; None where what it has of the
    batch is apart."""
    mine = "".join(c for c in front if c in own)
    if mine not in front:
        return None
    return prod(sizes[c] for c in front[front.index(mine) + len(mine) :]) if mine else 1


def _factor(flow: Flow, node: Node, letters: str, groups: tuple[str, ...], own: set[str]) -> Factor:
    """`own`: the letters that the node has, of which it varies along those of more than 1."""
    thin = tuple(d for d, c in enumerate(letters) if c not in own)
    order = (*thin, *(letters.index(c) for group in groups for c in group if c in own))
    sizes = {c: size for c, size in zip(letters, node.shape, strict=True) if c in own}
    bind = Bind(node=node.name, split=node.shape, order=order)
    in_memory = "".join(letters[d] for d in memory(flow, node) if node.shape[d] > 1)
    mine = tuple("".join(c for c in group if c in own) for group in groups)
    zeros = ALL_DIAGONALS
    if flow.graph.sparing and len(mine[-2]) == len(mine[-1]) == 1 and flow.nodes[node.name] is node:
        zeros = flow.bands.between(node.name, letters.index(mine[-2]), letters.index(mine[-1]))
    copied = any("".join(c for c in group if sizes[c] > 1) not in in_memory for group in mine)
    return Factor(bind=bind, shape=tuple(prod(sizes[c] for c in group) for group in mine), diagonals=zeros,
                  order=_lies(in_memory, mine, sizes), middle=len(mine[-2]), inner=len(mine[-1]),
                  copied=copied)  # fmt: skip


def _lies(in_memory: str, groups: tuple[str, ...], sizes: dict[str, int]) -> tuple[int, ...]:
    """The groups, outermost first, as they lie; row-major where they don't lie in one piece each, and are copied."""
    wide = {i: "".join(c for c in group if sizes[c] > 1) for i, group in enumerate(groups)}
    if any(word not in in_memory for word in wide.values()):
        return ()
    narrow = [i for i, word in wide.items() if not word]
    found = (*narrow, *sorted((i for i in wide if wide[i]), key=lambda i: in_memory.index(wide[i])))
    return () if found == tuple(range(len(groups))) else found


def memory(flow: Flow, node: Node) -> tuple[int, ...]:
    """Dimensions of a value, outermost first, as they lie in memory; those of a permuted one as its source has them."""
    if node.op == "permute":
        return tuple(node.dims.index(d) for d in memory(flow, flow.nodes[node.sources[0]]))
    return node.order or tuple(range(len(node.shape)))


def _of_channels(flow: Flow, name: str, domain: tuple[int, ...], lies: tuple[int, ...]) -> Addend:
    """A convolution's bias, of one number for each of its channels, the second of the result's dimensions."""
    bias = flow.nodes[name]
    along = len(domain) - 1 if lies[-1] == 1 else len(domain) - 2
    shape = tuple(size if d == along else 1 for d, size in enumerate(domain))
    return Addend(bind=Bind(node=name, split=bias.shape, order=(0,)), shape=shape, scale=1.0)


def _addend(flow: Flow, name: str, domain: tuple[int, ...], scale: float) -> Addend | None:
    node = flow.nodes[name]
    shape = (*(1 for _ in range(len(domain) - len(node.shape))), *node.shape)
    if len(shape) != len(domain) or any(s not in (1, d) for s, d in zip(shape, domain, strict=True)):
        return None
    bind = Bind(node=name, split=node.shape, order=tuple(range(len(node.shape))))
    return Addend(bind=bind, shape=shape, scale=scale)
