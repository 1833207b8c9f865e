"""Products of matrices with what is computed of them on the way out: a contraction takes the pointwise region that
reads it for its epilogue, where that one is the only reader and its operands are rows, columns or whole matrices.

What reduces rows of it whole, or groups of neighbouring columns, is such a region, too. Where elements of a whole row
are wanted again (softmax, norms), all columns are one group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.program import DTYPE_BYTES, RANKED, Output, Program, Reduction, Statement

from .across import across
from .coarse import collapsed, parted, refined
from .contract import Multiplication, contraction
from .gates import gated
from .multiplied import Body, Found, in_order
from .program import write
from .prologues import with_prologues
from .region import Flow, lay_out
from .unrolled import unrolled
from .waiting import Waiting

Unsupported = Callable[[Program], str | None]
_COPIED = "its result, or a factor of whose batch a part between others is broadcast, would have to be copied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Products with their places, and why others are left to torch, by the names of their nodes."""

    found: tuple[Found, ...]
    left: dict[str, str]


def products(flow: Flow, regions: Sequence[Found], unsupported: Unsupported, *, allow_tf32: bool = False) -> Products:
    """The contractions of a graph. `regions`: what was fused without them; those that become epilogues stay possible by
    themselves, for whoever leaves the product to torch. A region that reads several products is the last one's.
    `allow_tf32`: factors in fp32 may be rounded (see program.Contraction)."""
    made_of: list[_Made] = []
    left: dict[str, str] = {}
    taken: set[int] = set()
    waiting = Waiting(flow, (site.nodes for _, site in regions))
    for node in reversed(flow.graph.nodes):
        whole = contraction(flow, node) if node.name in flow.live and node.dtype in DTYPE_BYTES else None
        if whole is None:
            continue
        if whole.element != node.dtype and not whole.scales:
            narrow = _alone(flow, whole)
            if narrow is None or unsupported(narrow[0]) is not None:
                whole = contraction(flow, node, eight_bits=False) or whole
        whole = replace(whole, allow_tf32=whole.allow_tf32 or (allow_tf32 and node.dtype == "f32"))
        for reading in _readings(flow, node.name, regions, taken, waiting):
            made = _fused(flow, whole, unrolled(flow, reading.region, node.name))
            if made is not None and reading.also:
                made = _also_written(flow, whole, made)
            if made is None or unsupported(made[0]) is not None:
                continue
            taken |= reading.taken
            waiting.add(made[1].nodes)
            # Whether rows are better reduced there or by a kernel of their own is measured: both stay possible. Of two
            # that each take what the other leaves, neither would be idle beside the other: the first takes factors.
            # So do both orders of one that lies as its epilogue's results do, for which a factor may have to be copied.
            both = bool(made[0].reduced) or reading.also or made[0].domain != whole.domain
            spared = (*made[1].spared, *(() if reading.also or not both else (node.name,)))
            made_of.append(_Made(found=(made[0], replace(made[1], spared=spared)), node=node.name, both=both))
            break
        if made_of and made_of[-1].node == node.name and not made_of[-1].both:
            continue
        reduced = bool(made_of) and made_of[-1].node == node.name
        made = _alone(flow, whole)
        why = _COPIED if made is None else unsupported(made[0])
        if made is not None and why is None:
            made_of.append(_Made(found=made, node=node.name, factors=not reduced))
        elif not reduced:
            left[node.name] = str(why)
    free = [region for i, region in enumerate(regions) if i not in taken]
    found = [way for made in made_of for way in _ways(flow, made, free, unsupported)]
    gates = [
        gate
        for region in regions
        if (gate := gated(flow, region, waiting, allow_tf32=allow_tf32)) and not unsupported(gate[0])
    ]
    return Products(found=(*reversed(found), *gates), left=left)


def made_alone(flow: Flow, unsupported: Unsupported, *, allow_tf32: bool) -> dict[str, bool]:
    """By the results of contractions, whether a kernel makes them by themselves."""
    found = [contraction(flow, node) for node in flow.graph.nodes if node.dtype in DTYPE_BYTES]
    wholes = [
        replace(w, allow_tf32=w.allow_tf32 or (allow_tf32 and w.node.dtype == "f32")) for w in found if w is not None
    ]
    alone = {whole.node.name: _alone(flow, whole) for whole in wholes}
    return {name: made is not None and unsupported(made[0]) is None for name, made in alone.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """The product of a node; `factors`: it may take along what makes its factors; `both`: it stays possible alone."""

    found: Found
    node: str
    factors: bool = True
    both: bool = False


def _ways(flow: Flow, made: _Made, regions: Sequence[Found], unsupported: Unsupported) -> tuple[Found, ...]:
    """The product, after the same with what makes its factors on the way in, where that can be: which is faster is
    measured. `regions`: those that no product takes for its epilogue, where they cost nothing."""
    entered = with_prologues(flow, made.found, regions, made.node) if made.factors else None
    return (entered, made.found) if entered is not None and unsupported(entered[0]) is None else (made.found,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A region that reads a product, made of those of these numbers; `also`: others need the product in memory."""

    region: Found
    taken: frozenset[int]
    also: bool


def _readings(
    flow: Flow, name: str, regions: Sequence[Found], taken: set[int], waiting: Waiting
) -> Iterator[_Reading]:  # fmt: skip
    """What may be the epilogue of this value, the best first: the region that alone reads it; all pointwise ones that
    do, as one; the first of them. None waits for what needs the value."""
    readers = set(flow.readers[name])
    homes = [i for i, (_, site) in enumerate(regions) if readers & set(site.nodes)]
    if len(homes) == 1 and name not in flow.kept and readers <= set(regions[homes[0]][1].nodes):
        if homes[0] not in taken:
            yield _Reading(region=regions[homes[0]], taken=frozenset(homes), also=False)
        return
    pointwise = [i for i in homes if i not in taken and not (regions[i][0].reduced or regions[i][0].loads)]
    for numbers in (pointwise, *([i] for i in pointwise)):
        nodes = tuple(dict.fromkeys(n for i in numbers for n in regions[i][1].nodes))
        if not numbers or waiting.for_itself((name, *nodes)):
            continue
        region = regions[numbers[0]] if len(numbers) == 1 else _joined(flow, [regions[i] for i in numbers])
        if region is not None:
            also = name in flow.kept or not readers <= set(nodes)
            yield _Reading(region=region, taken=frozenset(numbers), also=also)


def _joined(flow: Flow, regions: Sequence[Found]) -> Found | None:
    """Regions as one, over one domain."""
    names = {name for _, site in regions for name in site.nodes}
    region = lay_out(flow, names, [bind.node for _, site in regions for bind in site.outputs])
    return None if region is None else write(flow, region)


def _also_written(flow: Flow, whole: Multiplication, made: Found) -> Found | None:
    """The product with its epilogue, which writes the product itself, too; None where others expect that in another
    order."""
    alone = _alone(flow, whole)
    if alone is None or made[0].reduced:
        return None
    outputs, binds = in_order((*made[0].outputs, *alone[0].outputs), (*made[1].outputs, *alone[1].outputs))
    return replace(made[0], outputs=outputs), replace(made[1], outputs=binds)


def _alone(flow: Flow, whole: Multiplication) -> Found | None:
    """The product with what its operator adds to it; None where others expect its result in another order."""
    node = whole.node
    if node.name in flow.laid and (node.order or tuple(range(len(node.shape)))) != whole.lies:
        return None
    made = Body(whole)
    if whole.left.middle == whole.right.inner == 1 and whole.ends is None:
        made.again(wanted=flow.read.between(node.name, *whole.lies[-2:]))
    return made.found((node.name,), (Output(name=made.last, dtype=node.dtype, shape=whole.domain),), (whole.result,))


def _fused(flow: Flow, whole: Multiplication, region: Found) -> Found | None:
    """The product and the region that reads it: in the order of dimensions in which the product lies by itself, or else
    in the region's."""
    made = _with_epilogue(whole, region)
    bind = next((b for b in region[1].operands if b.node == whole.node.name), None)
    wide = [d for d, size in enumerate(whole.node.shape) if size > 1]
    if made is not None or bind is None or whole.ends or whole.scales:
        return made
    if bind.split not in (whole.node.shape, tuple(whole.node.shape[d] for d in wide)):
        return made
    lies = bind.order if bind.split == whole.node.shape else tuple(wide[d] for d in bind.order)
    lies = (*(d for d in range(len(whole.node.shape)) if d not in lies), *lies)
    other = contraction(flow, whole.node, eight_bits=whole.element != whole.node.dtype, lies=lies)
    return None if other is None else _with_epilogue(replace(other, allow_tf32=whole.allow_tf32), region)


def _wide(split: tuple[int, ...], order: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """How a value is viewed, without its dimensions of size 1."""
    wide = [d for d in range(len(split)) if split[d] > 1]
    return [split[d] for d in wide], [wide.index(d) for d in order if split[d] > 1]


def _with_epilogue(whole: Multiplication, region: Found) -> Found | None:
    """The product and the region that reads it as one Program; None where the region is no epilogue of it: pointwise,
    or reductions of its rows, or of groups of columns. Columns are reduced as the transpose's rows, where no element of
    them is needed again."""
    straight = tuple(range(len(whole.lies)))
    transposed = across(whole, region) if whole.lies == straight else None
    if transposed is not None:
        whole, region = whole.transposed, transposed
    program, site = region
    pure = all(isinstance(item, Statement | Reduction) and item.op not in ("inside", *RANKED) for item in program.body)
    positions = any(isinstance(item, Statement) and item.op == "index" for item in program.body)
    mine = [i for i, bind in enumerate(site.operands) if bind.node == whole.node.name]
    if not pure or len(mine) != 1:
        return None
    if positions and program.domain != whole.domain:
        return None
    program, site = refined((program, site), whole.domain)
    operand, bind = program.operands[mine[0]], site.operands[mine[0]]
    groups = parted(program.domain, whole.domain)
    if whole.lies == straight:
        fits = bind.order == tuple(range(len(bind.order))) and not operand.order
    else:
        fits = _wide(bind.split, bind.order) == _wide(whole.node.shape, whole.lies)
    if groups is None or not fits or operand.shape != program.domain:
        return None
    inner = len(program.reduced)
    if inner and program.reduced != groups[-1][-inner:]:
        return None
    elements = any(output.shape == program.domain for output in program.outputs)
    grouped = inner and (elements or program.reduced != groups[-1])  # groups of neighbours, or of all columns
    if grouped and (len(program.outputs) != 1 or positions or transposed is not None):
        return None
    written = tuple(1 if d in program.reduced else size for d, size in enumerate(program.domain))
    if any(output.shape not in ((program.domain, written) if grouped else (written,)) for output in program.outputs):
        return None
    made = Body(whole)
    names: dict[str, str] = {operand.name: made.last}
    for other, place in zip(program.operands, site.operands, strict=True):
        if other is operand:
            continue
        seen = collapsed(other, place, groups, program.domain)
        if grouped and (seen is None or seen.at):  # one value for each group, or the same for all
            seen = collapsed(other, place, (*groups[:-1], groups[-1][:-inner], program.reduced), program.domain)
            seen = None if seen is None or 1 not in seen.shape[-2:] else seen
        if seen is None or (seen.at and program.reduced):
            return None
        names[other.name] = made.operand(place, other.dtype, seen.shape, order=seen.order, at=seen.at)
    made.of_region(program, names)
    if grouped:
        return made.in_groups(whole.node.name, (program, site), names)
    shape = (*whole.domain[:-1], 1) if program.reduced else whole.domain
    outputs = tuple(Output(name=names[o.name], dtype=o.dtype, shape=shape) for o in program.outputs)
    reduced = (len(whole.domain) - 1,) if program.reduced else ()
    binds = site.outputs
    if not reduced:
        outputs, binds = in_order(outputs, binds)
    return made.found((whole.node.name, *site.nodes), outputs, binds, reduced)
