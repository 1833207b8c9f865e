"""Products with what makes their factors on the way in: a factor that a region computes for this product alone, from
rows, columns or whole matrices; a norm where it reduces along K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.matrices import matrices_of
from tilewright.ir.program import RANKED, Contraction, Operand, Program, Prologue, Reduction, Statement

from .coarse import collapsed, parted
from .region import Flow
from .unrolled import transposed

Found = tuple[Program, Match]


def with_prologues(flow: Flow, found: Found, regions: Sequence[Found], node: str) -> Found | None:
    """The product of this node, whose factors are its first two operands, with the regions that make them; None where
    there are none, or others read what they make."""
    program, site = found
    product = program.product
    matrices = None if product is None else matrices_of(program, product)
    if product is None or matrices is None or matrices.ends or len(program.operands) < 2:
        return None
    left, right = product.left.operand, product.right.operand
    operands, binds, prologues = list[Operand](), list[Bind](), list[Prologue]()
    nodes, spared = list(site.nodes), list(site.spared)
    for factor, bind in zip(program.operands, site.operands, strict=True):
        made = _made(flow, factor, bind, regions, _Side(reader=node, k=2 if factor.name == right else 1))
        if factor.name not in (left, right) or made is None:
            operands.append(factor)
            binds.append(bind)
            continue
        of, where = made
        names = tuple(f"{factor.name}_{i}" for i in range(len(of.operands)))
        operands += [replace(o, name=name, indexed=True) for o, name in zip(of.operands, names, strict=True)]
        binds += where.operands
        prologues.append(Prologue(factor=factor.name, program=of, operands=names))
        nodes = [*(n for n in where.nodes if n not in nodes), *nodes]
        spared.append(where.outputs[0].node)
    if not prologues:
        return None
    body = tuple(replace(i, prologues=tuple(prologues)) if isinstance(i, Contraction) else i for i in program.body)
    whole = replace(program, operands=tuple(operands), body=body)
    return whole, replace(site, nodes=tuple(nodes), operands=tuple(binds), spared=tuple(spared))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Who reads a factor, and how far from its last dimension K is, from 1."""

    reader: str
    k: int


def _made(flow: Flow, factor: Operand, bind: Bind, regions: Sequence[Found], side: _Side) -> Found | None:
    """The region that makes this factor, over its shape."""
    root = flow.root(bind.node)
    if root in flow.kept or set(flow.readers[root]) != {side.reader}:
        return None
    homes = [r for r in regions if r[1].outputs[0].node == root and len(r[1].outputs) == 1]
    strides = _strides(flow, root, factor, bind)
    if len(homes) != 1 or strides is None:
        return None
    program, site = homes[0]
    pure = all(isinstance(i, Statement | Reduction) and i.op not in ("inside", *RANKED) for i in program.body)
    copied = {i.op for i in program.body} <= {"to"} and {o.dtype for o in program.operands} == {factor.dtype}
    (output,) = program.outputs
    whole = output.shape == program.domain and output.dtype == factor.dtype and not output.parts
    lies = _lies(factor.shape, strides)
    in_order = site.outputs[0].order == tuple(range(len(site.outputs[0].order)))
    if not (pure and whole and in_order) or copied or lies is None:
        return None
    groups = parted(program.domain, tuple(factor.shape[d] for d in lies))
    k = len(factor.shape) - side.k
    if groups is None or program.reduced not in ((), groups[lies.index(k)]):
        return None
    found = _over(factor.shape, (program, site), groups, lies, k)
    return found or _in_groups(factor.shape, (program, site), groups, lies, k)


def _in_groups(
    shape: tuple[int, ...], region: Found, groups: tuple[tuple[int, ...], ...], lies: tuple[int, ...], k: int
) -> Found | None:
    """The same with K in two, group and place in it, where something is of a group."""
    program, _ = region
    at = lies.index(k)
    if program.reduced or len(groups[at]) != 2:
        return None
    parts = tuple((d,) for d in groups[at])
    fine = (*shape[:k], *(program.domain[d] for d in groups[at]), *shape[k + 1 :])
    moved = [d + (d > k) for d in lies]
    made = _over(
        fine, region, (*groups[:at], *parts, *groups[at + 1 :]), (*moved[: at + 1], k + 1, *moved[at + 1 :]), k
    )  # fmt: skip
    if made is None:
        return None
    outputs = (replace(made[0].outputs[0], shape=shape),)
    return replace(made[0], outputs=outputs), made[1]


def _over(
    shape: tuple[int, ...], region: Found, groups: tuple[tuple[int, ...], ...], lies: tuple[int, ...], k: int
) -> Found | None:
    """The region with the factor's dimensions, where `lies` says in which order they stand in its own domain."""
    program, site = region
    order = tuple(lies.index(d) for d in range(len(shape)))
    turn = {old: new for new, old in enumerate(order)}
    fine = [d for i in order for d in groups[i]]
    operands, binds = [], []
    body = _placed(program, groups, lies)
    if body is None:
        return None
    for operand, bind in zip(program.operands, site.operands, strict=True):
        coarse = collapsed(operand, bind, groups, program.domain)
        wide = [d for d, size in enumerate(operand.shape) if size > 1]
        if coarse is None or coarse.at or len(wide) != len(bind.order):
            return None
        source = dict(zip(wide, bind.order, strict=True))
        operands.append(transposed(coarse, order, turn))
        binds.append(replace(bind, order=tuple(source[d] for d in fine if d in source)))
    made = Program(
        domain=shape, reduced=(k,) if program.reduced else (), operands=tuple(operands), body=body,
        outputs=(replace(program.outputs[0], shape=shape),),
    )  # fmt: skip
    return made, replace(site, operands=tuple(binds))


def _placed(
    program: Program, groups: tuple[tuple[int, ...], ...], lies: tuple[int, ...]
) -> tuple[Statement | Reduction, ...] | None:
    """The body, with positions along the factor's dimensions; None where one is along a part of a dimension."""
    wide = [[d for d in group if program.domain[d] > 1] for group in groups]
    home = {d[0]: lies[i] for i, d in enumerate(wide) if len(d) == 1}
    body: list[Statement | Reduction] = []
    for item in program.body:
        if isinstance(item, Statement) and item.op == "index":
            if int(item.args[0]) not in home:
                return None
            item = replace(item, args=(home[int(item.args[0])],))
        if isinstance(item, Statement | Reduction):
            body.append(item)
    return tuple(body)


def _strides(flow: Flow, root: str, factor: Operand, bind: Bind) -> tuple[int, ...] | None:
    """Of a factor's dimensions, in elements of its root as it lies when it is written row by row; None where it is no
    permutation of it."""
    chain = []
    name = bind.node
    while name != root:
        chain.append(flow.nodes[name])
        name = chain[-1].sources[0]
    sizes = flow.nodes[root].shape
    steps = _dense(sizes)
    for view in reversed(chain):
        if view.op == "permute":
            sizes, steps = tuple(sizes[d] for d in view.dims), tuple(steps[d] for d in view.dims)
        elif view.op == "reshape" and steps == _dense(sizes):
            sizes, steps = view.shape, _dense(view.shape)
        else:
            return None
    if bind.split != sizes:
        return None
    sizes, steps = tuple(sizes[d] for d in bind.order), tuple(steps[d] for d in bind.order)
    groups = parted(sizes, factor.shape)
    if groups is None:
        return None
    found = []
    for group in groups:
        wide = [d for d in group if sizes[d] > 1]
        if any(steps[a] != sizes[b] * steps[b] for a, b in pairwise(wide)):
            return None
        found.append(steps[wide[-1]] if wide else 0)
    return tuple(found)


def _dense(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, row by row."""
    return tuple(prod(sizes[d + 1 :]) for d in range(len(sizes)))


def _lies(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The dimensions, outermost first, if they lie densely."""
    narrow = [d for d, size in enumerate(shape) if size == 1]
    wide = sorted((d for d, size in enumerate(shape) if size > 1), key=lambda d: -strides[d])
    dense = all(strides[d] == prod(shape[e] for e in wide[i + 1 :]) for i, d in enumerate(wide))
    return (*narrow, *wide) if dense else None
