"""Gated pairs: two products of one left factor that a pointwise region reads, as one Program. The products are two
calls' (`silu(x @ w) * (x @ v)`), and are written where others need them; or both halves of the columns of one (`chunk`,
or every other column), which that region alone reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.access import ALL_DIAGONALS
from tilewright.ir.graph import Node
from tilewright.ir.program import Load, Operand, Output, Program, Statement

from .coarse import collapsed, parted
from .contract import Addend, Multiplication, contraction
from .multiplied import Body, Found, in_order
from .region import Flow
from .waiting import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class _Half:
    """A product that a region reads: under this name, instead of the operand `read` or of a Load of it."""

    name: str
    read: str
    whole: Multiplication


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Which half of a product's columns: number `part`, of halves in a row, or of every other column
    (`interleaved`)."""

    part: int
    woven: bool


def gated(flow: Flow, region: Found, waiting: Waiting, *, allow_tf32: bool = False) -> Found | None:
    """The region with both products that it reads; None where it reads others, or waits for what is made of them by
    others. `loose` as for `products`."""
    program, site = region
    pure = all(isinstance(item, Load) or (isinstance(item, Statement) and item.op not in ("inside", "index"))
               for item in program.body)  # fmt: skip
    if program.reduced or not pure or any(o.shape != program.domain for o in program.outputs):
        return None
    halves = list(_of_calls(flow, region)) or list(_of_columns(flow, region))
    if len(halves) != 2:
        return None
    first, second = (replace(h.whole, allow_tf32=allow_tf32 and h.whole.node.dtype == "f32") for h in halves)
    if not _match(first, second):
        return None
    read = {h.read for h in halves}
    if any(load.source not in read for load in program.loads):
        return None
    products = tuple(dict.fromkeys((first.node.name, second.node.name)))
    written = tuple(c for c in (first, second) if not _alone(flow, c.node.name, _readers(flow, site)))
    if written and waiting.for_itself((*products, *site.nodes)):
        return None
    made = _joined(first, second, region, [h.name for h in halves], read, written)
    if made is None or any(_lies_otherwise(flow, c) for c in written):
        return None
    spared = tuple(name for name in products if name not in {c.node.name for c in written})
    return made[0], replace(made[1], spared=spared)


def _match(first: Multiplication, second: Multiplication) -> bool:
    """Whether both are products of one left factor, and lie in order."""
    in_order = all(c.lies == tuple(range(len(c.lies))) and c.ends is None and not c.scales for c in (first, second))
    same = (first.left, first.domain, first.element) == (second.left, second.domain, second.element)
    whole = all(f.diagonals == ALL_DIAGONALS for f in (first.left, first.right, second.right))
    return in_order and same and whole and first.right.shape == second.right.shape


def _joined(
    first: Multiplication, second: Multiplication, region: Found, halves: list[str], read: set[str],
    written: tuple[Multiplication, ...],
) -> Found | None:  # fmt: skip
    """`halves`: what the region calls both products; `read`: its operands that are these; `written`: of the products,
    those that others need."""
    program, site = region
    groups = parted(program.domain, first.domain)
    if groups is None:
        return None
    made = Body(first, second)
    names = dict(zip(halves, made.values, strict=True))
    for other, place in zip(program.operands, site.operands, strict=True):
        if other.name in read:
            continue
        seen = collapsed(other, place, groups, program.domain)
        if seen is None:
            return None
        names[other.name] = made.operand(place, other.dtype, seen.shape, order=seen.order, at=seen.at)
    made.of_region(program, names)
    outputs = [Output(name=names[o.name], dtype=o.dtype, shape=first.domain) for o in program.outputs]
    values = [value for value, whole in zip(made.values, (first, second), strict=True) if whole in written]
    outputs += [Output(name=value, dtype=first.node.dtype, shape=first.domain) for value in values]
    nodes = tuple(dict.fromkeys((first.node.name, second.node.name, *site.nodes)))
    return made.found(nodes, *in_order(tuple(outputs), (*site.outputs, *(whole.result for whole in written))))


def _of_calls(flow: Flow, region: Found) -> Iterator[_Half]:
    """The products of two calls."""
    program, site = region
    for operand, bind in zip(program.operands, site.operands, strict=True):
        whole = contraction(flow, flow.nodes[bind.node])
        if whole is not None and _is_whole(operand, bind, program):
            yield _Half(name=operand.name, read=operand.name, whole=whole)


def _of_columns(flow: Flow, region: Found) -> Iterator[_Half]:
    """Both halves of one call's columns, the first half first."""
    program, site = region
    slices = [
        (operand, flow.nodes[bind.node]) for operand, bind in zip(program.operands, site.operands, strict=True)
        if flow.nodes[bind.node].op == "slice" and _is_whole(operand, bind, program)
    ]  # fmt: skip
    binds = dict(zip((o.name for o in program.operands), site.operands, strict=True))
    read = [(o.name, o.name, flow.root(node.sources[0]), _sliced(flow, node)) for o, node in slices]
    read += [(load.result, load.source, flow.root(binds[load.source].node), _loaded(flow, load, region, binds))
             for load in program.loads]  # fmt: skip
    found = [(name, source, node, cut) for name, source, node, cut in read if cut is not None]
    if sorted(cut.part for *_, cut in found) != [0, 1] or len({(node, cut.woven) for *_, node, cut in found}) != 1:
        return
    node = found[0][2]
    readers = {*site.nodes, *(n.name for _, n in slices)}
    both = contraction(flow, flow.nodes[node])
    if both is None or not _alone(flow, node, readers) or any(not _alone(flow, n.name, site.nodes) for _, n in slices):
        return
    for name, source, _, cut in sorted(found, key=lambda f: f[3].part):
        half = _half(both, cut)
        if half is not None:
            yield _Half(name=name, read=source, whole=half)


def _is_whole(operand: Operand, bind: Bind, program: Program) -> bool:
    """Whether an operand has an element for each of the region's, in their order."""
    in_order = bind.order == tuple(range(len(bind.order))) and not operand.order
    return in_order and operand.shape == program.domain and not operand.indexed


def _alone(flow: Flow, node: str, inside: set[str] | tuple[str, ...]) -> bool:
    """Whether nobody but these reads a value."""
    return node not in flow.kept and bool(flow.readers[node]) and set(flow.readers[node]) <= set(inside)


def _readers(flow: Flow, site: Match) -> set[str]:
    """What a region computes, and the slices that it reads."""
    return {*site.nodes, *(b.node for b in site.operands if flow.nodes[b.node].op == "slice")}


def _lies_otherwise(flow: Flow, whole: Multiplication) -> bool:
    """Whether others expect a product in another order than a kernel writes it."""
    node = whole.node
    return node.name in flow.laid and (node.order or tuple(range(len(node.shape)))) != whole.lies


def _sliced(flow: Flow, node: Node) -> _Cut | None:
    """Which half of the last dimension a slice is."""
    (dim, start, length), source = node.dims, flow.nodes[node.sources[0]]
    if dim != len(source.shape) - 1 or 2 * length != source.shape[-1] or start not in (0, length):
        return None
    return _Cut(part=start // length, woven=False)


def _loaded(flow: Flow, load: Load, region: Found, binds: dict[str, Bind]) -> _Cut | None:
    """The same of a Load that reads each element of one half at its place."""
    program, _ = region
    source = next(o for o in program.operands if o.name == load.source)
    bind, domain = binds[load.source], program.domain
    in_order = bind.order == tuple(range(len(bind.order))) and not source.order
    inside = all(p.surely_inside(n, domain) for p, n in zip(load.at, source.shape, strict=True))
    ones = len(source.shape) - len(domain)  # of one row the domain has columns alone
    if not in_order or not inside or ones < 0 or max(source.shape[:ones], default=1) > 1:
        return None
    *outer, last = load.at
    walks: list[tuple[tuple[int, int], ...]] = [()] * ones
    walks += [((d, 1),) if n > 1 else () for d, n in enumerate(domain[:-1])]
    if 2 * domain[-1] != source.shape[-1] or any(p.start or p.steps != w for p, w in zip(outer, walks, strict=True)):
        return None
    for cut, step, start in (
        *((_Cut(part=i, woven=True), 2, i) for i in range(2)),
        *((_Cut(part=i, woven=False), 1, i * domain[-1]) for i in range(2)),
    ):
        if (last.start, last.steps) == (start, ((len(domain) - 1, step),)):
            return cut
    return None


def _half(whole: Multiplication, cut: _Cut) -> Multiplication | None:
    """The product of one half of the columns."""
    *front, columns = whole.domain
    if whole.right.inner != 1 or whole.right.shape[-1] != columns or columns % 2:
        return None
    bind = _of_part(whole.right.bind, cut)
    right = replace(whole.right, bind=bind, shape=(*whole.right.shape[:-1], columns // 2))
    addend = whole.addend and _half_of(whole.addend, cut)
    return replace(whole, right=right, addend=addend, domain=(*front, columns // 2))


def _half_of(addend: Addend, cut: _Cut) -> Addend:
    if addend.shape[-1] == 1:
        return addend
    shape = (*addend.shape[:-1], addend.shape[-1] // 2)
    return replace(addend, bind=_of_part(addend.bind, cut), shape=shape)


def _of_part(bind: Bind, cut: _Cut) -> Bind:
    """Half of the value along the last dimension of the operand."""
    dim = bind.order[-1]
    half = bind.split[dim] // 2
    split = (*bind.split[:dim], *((half, 2) if cut.woven else (2, half)), *bind.split[dim + 1 :])
    which, kept = (dim + 1, dim) if cut.woven else (dim, dim + 1)
    order = tuple(d if d < dim else d + 1 for d in bind.order[:-1])
    return Bind(node=bind.node, split=split, order=(which, *order, kept), part=cut.part)
