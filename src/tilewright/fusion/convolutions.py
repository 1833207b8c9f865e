"""Convolutions with what is computed of them on the way out: one takes the region that alone reads it for its
epilogue, where that lies over the output as it is: pointwise, or reducing all channels of each pixel, all pixels of
each sample, or windows without overlap (see `pooled`), or a norm over pixels (see `normed`).

The domain is (N, Co, *o), of groups (N, G, Co, *o), where the result lies row-major; of one that lies channels-last
(N, *o, Co) and (N, *o, G, Co). Contracted are a group's channels and the taps. A transposed convolution goes through
its taps backwards, and reads x at a quotient by its stride, where that is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.access import Access, Position, Quotient
from tilewright.ir.contraction import Contracted, Letters
from tilewright.ir.convolution import ConvolutionCall, convolved
from tilewright.ir.graph import Node, channels_last
from tilewright.ir.program import RANKED, Contraction, Operand, Output, Program, Scan, Statement

from .coarse import refined
from .normed import Twice, cuts_channels, in_groups, is_norm, split_of, twice, ungrouped
from .pooled import joined, pooled
from .region import Flow

Found = tuple[Program, Match]
Unsupported = Callable[[Program], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolved(ConvolutionCall):
    """One call. `channels_last`: how the kernel writes."""

    channels_last: bool

    @property
    def columns(self) -> tuple[int, ...]:
        """The output's channels in the domain: their number, or with groups (groups, a group's)."""
        count = self.node.shape[1]
        return (count,) if self.groups == 1 else (self.groups, count // self.groups)

    @property
    def domain(self) -> tuple[int, ...]:
        batch = self.node.shape[0]
        return (batch, *self.out, *self.columns) if self.channels_last else (batch, *self.columns, *self.out)

    @property
    def own(self) -> tuple[int, ...]:
        """The dimensions of the domain that are the batch and the channels."""
        first = 1 + len(self.out) * self.channels_last
        return (0, *range(first, first + len(self.columns)))

    @property
    def places(self) -> tuple[int, ...]:
        """The spatial ones."""
        return tuple(d for d in range(len(self.domain)) if d not in self.own)

    @property
    def lies(self) -> tuple[int, ...]:
        """The domain's dimensions in the order of the node's."""
        return (*self.own, *self.places)


def convolutions(
    flow: Flow, regions: Sequence[Found], unsupported: Unsupported, multiplied: Collection[str] = ()
) -> tuple[list[Found], dict[str, str]]:
    """The convolutions of a graph, each with its epilogue where it has one, and why others are left to torch, by the
    names of their nodes. `regions`: what was fused without them, and what no product takes; one that reads several
    convolutions is the last one's. `multiplied`: those that are products of matrices already."""
    found: list[Found] = []
    left: dict[str, str] = {}
    free = list(regions)
    for node in reversed(flow.graph.nodes):
        whole = convolution(flow, node) if node.name in flow.live and node.name not in multiplied else None
        if whole is None:
            continue
        alone = _alone(whole)
        region = _reader(flow, node.name, free) if alone is not None else None
        both = _twice(flow, whole, region, free) if region is not None else None
        if both is not None and alone is not None and not any(unsupported(f[0]) for f in (both.statistics, both.rest)):
            found += [f for f in (both.statistics, both.rest, alone) if unsupported(f[0]) is None]
            free = [r for r in free if not any(r is own for own in both.taken)]
            continue
        fused = _fused(whole, region) if region is not None else None
        made = next((f for f in (fused, alone) if f is not None and unsupported(f[0]) is None), None)
        if made is not None:
            found.append(made)
            # Whether that is better reduced there or by a kernel of its own is measured.
            found += [alone] if made[0].reduced and alone is not None and unsupported(alone[0]) is None else []
            free = [r for r in free if made is not fused or r is not region]
        else:
            left[node.name] = "its result lies in another order" if alone is None else str(unsupported(alone[0]))
    return found[::-1], left


def made_convolutions(flow: Flow, unsupported: Unsupported) -> dict[str, bool]:
    """By the results of convolutions, whether a kernel makes them by themselves."""
    found = [whole for node in flow.graph.nodes if (whole := convolution(flow, node)) is not None]
    return {w.node.name: _alone(w) is not None and unsupported(by_itself(w)[0]) is None for w in found}


def _alone(whole: Convolved) -> Found | None:
    """The convolution with its bias, where its result lies in an order that kernels write."""
    return by_itself(whole) if whole.channels_last or not whole.node.order else None


def lies_channels_last(node: Node) -> bool:
    """Whether the second of a value's dimensions is the innermost, and the others are in their order."""
    orders = (node.order, channels_last(len(node.shape)))
    wide = [[d for d in order if node.shape[d] > 1] for order in orders]
    return bool(node.order) and wide[0] == wide[1]


def convolution(flow: Flow, node: Node) -> Convolved | None:
    """The convolution that this result of a call is; None of another call, and of an empty one."""
    call = flow.calls.get(node.origin)
    if node.op != "call" or call is None or call.results != (node.name,):
        return None
    made = convolved(call, flow.nodes)
    if made is None:
        return None
    return Convolved(
        node=node, x=made.x, weight=made.weight, bias=made.bias, groups=made.groups, stride=made.stride,
        padding=made.padding, dilation=made.dilation, transposed=made.transposed,
        channels_last=lies_channels_last(node),
    )  # fmt: skip


def pointwise_convolution(flow: Flow, node: Node) -> Contracted | None:
    """The product of matrices that a convolution is whose windows are single pixels, each read once; None of others."""
    whole = convolution(flow, node)
    if whole is None or whole.groups > 1 or max(whole.weight.shape[2:]) > 1:
        return None
    if max(whole.stride) > 1 or any(whole.padding) or whole.x.shape[2:] != whole.out:
        return None
    places = "bcd"[: len(whole.out)]
    sides = "zy" if whole.transposed else "yz"
    letters = Letters(left=f"az{places}", right=f"{sides}{places}", result=f"ay{places}")
    return Contracted(
        left=whole.x, right=whole.weight, letters=letters, alpha=1.0, beta=1.0,
        added="" if whole.bias is None else whole.bias.name,
    )  # fmt: skip


def contraction_of(whole: Convolved, x: Operand, weight: Operand) -> Contraction:
    """Over the domain."""
    at, rank, out = len(whole.own), len(whole.domain), len(whole.out)
    own = [Position(steps=((d, 1),)) for d in whole.own]
    channel, taps = Position(steps=((rank, 1),)), [Position(steps=((rank + 1 + d, 1),)) for d in range(out)]
    places: list[Position | Quotient] = []
    for d in range(out):
        step, start = whole.dilation[d], -whole.padding[d]
        if whole.transposed:
            step, start = -step, -start
        along = whole.places[d], 1 if whole.transposed else whole.stride[d]
        place = Position(start=start, steps=(along, (rank + 1 + d, step)))
        if whole.transposed and whole.stride[d] > 1:
            place = Quotient(start=start, steps=place.steps, each=whole.stride[d], exact=True)
        places.append(place)
    over = (weight.shape[at - 2 + (0 if whole.transposed else 1)], *weight.shape[at:])
    whole_domain = whole.domain + over
    padded = any(not p.surely_inside(size, whole_domain) for p, size in zip(places, whole.x.shape[2:], strict=True))
    sides = (channel, own[-1]) if whole.transposed else (own[-1], channel)
    return Contraction(
        result="v0", dtype=whole.node.dtype, over=over, allow_tf32=whole.node.dtype == "f32",
        left=Access(operand=x.name, at=(*own[:-1], channel, *places), padded=padded),
        right=Access(operand=weight.name, at=(*own[1:-1], *sides, *taps)),
    )  # fmt: skip


def _bound(node: Node, shape: tuple[int, ...]) -> Bind:
    return Bind(node=node.name, split=shape, order=tuple(range(len(shape))))


def by_itself(whole: Convolved) -> Found:
    """The convolution with its bias."""
    groups, (batch, channels, *image) = whole.groups, whole.x.shape
    grouped = () if groups == 1 else (groups,)
    first, second, *taps = whole.weight.shape
    inputs = [
        (whole.x, (batch, *grouped, channels // groups, *image)),
        (whole.weight, (*grouped, first // groups, second, *taps)),
    ]
    operands = [
        Operand(name=f"x{i}", dtype=whole.node.dtype, shape=shape, indexed=True, order=_order(node, shape, 1 - i))
        for i, (node, shape) in enumerate(inputs)
    ]
    binds = [_bound(node, shape) for node, shape in inputs]
    body: list[Contraction | Statement] = [contraction_of(whole, *operands)]
    last = "v0"
    if whole.bias is not None:
        shape = tuple(size if d in whole.own[1:] else 1 for d, size in enumerate(whole.domain))
        operands.append(Operand(name="x2", dtype=whole.bias.dtype, shape=shape))
        binds.append(_bound(whole.bias, whole.columns))
        body.append(Statement(result="v1", op="add", args=("v0", "x2"), dtype=whole.node.dtype))
        last = "v1"
    outputs = (Output(name=last, dtype=whole.node.dtype, shape=whole.domain),)
    program = Program(domain=whole.domain, operands=tuple(operands), body=tuple(body), outputs=outputs)
    written = Bind(node=whole.node.name, split=whole.domain, order=whole.lies)
    return program, Match(nodes=(whole.node.name,), operands=tuple(binds), outputs=(written,))


def _order(node: Node, shape: tuple[int, ...], cut: int) -> tuple[int, ...]:
    """How it lies; its dimension `cut` may be two."""
    if len(shape) == len(node.shape):
        return node.order
    return tuple(new for d in node.order for new in ((d, d + 1) if d == cut else (d + (d > cut),)))


def _reader(flow: Flow, name: str, regions: Sequence[Found]) -> Found | None:
    """The one region that reads a value, where nothing else does."""
    readers = set(flow.readers[name])
    homes = [region for region in regions if readers & set(region[1].nodes)]
    if len(homes) != 1 or name in flow.kept or not readers <= set(homes[0][1].nodes):
        return None
    return homes[0]


def _fused(whole: Convolved, region: Found) -> Found | None:
    """Both as one Program, which writes as the region does."""
    ways = (whole.channels_last, not whole.channels_last)
    made = (_with_epilogue(replace(whole, channels_last=last), region) for last in ways)
    return next((found for found in made if found is not None), None)


def _twice(flow: Flow, whole: Convolved, region: Found, others: Sequence[Found]) -> Twice | None:
    """The norm that this region is, by two convolutions."""
    if whole.channels_last or whole.groups > 1 or not is_norm(region):
        return None
    return twice(flow, whole, region, others, lambda found: _fused(whole, found), pooled)


def _over(region: Found, domain: tuple[int, ...]) -> Found:
    """The region with the dimensions of a domain, where that can be: a region has none of size 1."""
    program, site = refined(region, tuple(size for size in domain if size > 1))
    if len(program.domain) != sum(size > 1 for size in domain):
        return region

    there = [d for d, size in enumerate(domain) if size > 1]
    single = [d for d, size in enumerate(domain) if size == 1]

    def wide(shape: tuple[int, ...]) -> tuple[int, ...]:
        sizes = dict(zip(there, shape, strict=True))
        return tuple(sizes.get(d, 1) for d in range(len(domain)))

    def order(of: tuple[int, ...]) -> tuple[int, ...]:
        return (*single, *(there[d] for d in of)) if of else ()

    operands = tuple(replace(o, shape=wide(o.shape), order=order(o.order)) for o in program.operands)
    outputs = tuple(replace(o, shape=wide(o.shape)) for o in program.outputs)
    reduced = tuple(there[d] for d in program.reduced)
    return replace(program, domain=wide(program.domain), reduced=reduced, operands=operands, outputs=outputs), site


def _with_epilogue(whole: Convolved, region: Found) -> Found | None:
    """The same; None where the region is no epilogue: over other dimensions, or of other operators."""
    if region[0].loads:
        return pooled(by_itself(whole), region) if whole.groups == 1 and not whole.channels_last else None
    if any(isinstance(i, Scan) or i.op in ("index", "inside", *RANKED) for i in region[0].body):
        return None
    split = None if whole.channels_last or whole.groups > 1 else split_of(region[0], whole.domain)
    domain = whole.domain if split is None else (whole.domain[0], *split, *whole.domain[2:])
    program, site = _over(region, domain)
    mine = [i for i, bind in enumerate(site.operands) if bind.node == whole.node.name]
    if program.domain != domain or len(mine) != 1:
        return None
    own, bind = program.operands[mine[0]], site.operands[mine[0]]
    lies = whole.lies if split is None else tuple(range(len(domain)))
    wide = [d for d in lies if domain[d] > 1]
    read = Bind(node=bind.node, split=tuple(domain[d] for d in wide), order=tuple(map(wide.index, sorted(wide))))
    if own.shape != domain or bind != read:
        return None
    alone = by_itself(whole)
    if split is not None and cuts_channels(program):
        alone = in_groups(alone, split)
    elif split is not None:
        coarse = ungrouped((program, site), split, whole.node)
        if coarse is None:
            return None
        program, site = coarse
    return joined(alone, (program, site), own.name) if _is_written(whole, program) else None


def _is_written(whole: Convolved, program: Program) -> bool:
    """Whether what leaves are elements; or, of the channels of each pixel, or all of its places, one value."""
    if any(o.parts for o in program.outputs):
        return False
    domain = program.domain
    wide = {d for d, size in enumerate(domain) if size > 1}
    reduced = tuple(1 if d in program.reduced else size for d, size in enumerate(domain))
    shapes = {o.shape for o in program.outputs}
    if any(i.op == "moments" for i in program.body) and not whole.channels_last and whole.groups == 1:
        places = {*range(len(domain) - len(whole.out), len(domain))} & wide
        between = {2} & wide if len(domain) > len(whole.domain) else set[int]()
        ways = [places | between, *([places | (wide & {0})] if not between else [])]
        if {*program.reduced} in ways:
            return shapes <= {domain, reduced}
    if whole.groups == 1 and program.reduced and {*program.reduced} == {*whole.own[1:]}:
        return len(program.outputs) == 1 and shapes <= {whole.domain, reduced}
    if program.reduced and {*program.reduced} == wide & {*whole.places}:
        return shapes == {reduced}
    return not program.reduced and shapes == {domain}
