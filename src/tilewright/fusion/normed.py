"""Norms behind convolutions: their statistics leave the convolution that makes what they are of.

Either one Program holds the convolution and the norm: it writes what is normalised once, and its statistics beside it.
Or there are two, each with the convolution: one that writes statistics alone, and one that normalises on the way out,
with what reads the result where that shrinks it. Multiplying twice is chosen where it takes less time than memory does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.channelled import channelled
from tilewright.ir.convolution import ConvolutionCall
from tilewright.ir.graph import Node
from tilewright.ir.program import REDUCTIONS, Contraction, Program

from .coarse import collapsed, parted
from .program import write
from .region import Flow, lay_out

Found = tuple[Program, Match]
Epilogue = Callable[[Found], Found | None]  # the convolution with a region as its epilogue
# Multiplications and additions that tensor cores do while memory moves a byte, in the precisions of fp32's class.
_FLOPS_A_BYTE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Twice:
    """A norm by two convolutions: `statistics`, `rest`, and the regions that they take the place of."""

    statistics: Found
    rest: Found
    taken: tuple[Found, ...]


def is_norm(region: Found) -> bool:
    """Whether a region measures something, and writes what is computed with that."""
    program = region[0]
    reductions = {i.op for i in program.body if i.op in REDUCTIONS}
    return reductions == {"moments"} and any(o.shape == program.domain for o in program.outputs)


def twice(
    flow: Flow, whole: ConvolutionCall, region: Found, others: Sequence[Found], epilogue: Epilogue,
    pooled: Callable[[Found, Found], Found | None],
) -> Twice | None:  # fmt: skip
    """The norm of this region by two convolutions; None where that can't be, or would take longer than to write and
    read what is normalised. `others`: regions that may read the norm; `pooled` gives a convolution that is pooled."""
    apart = _apart(flow, region)
    statistics = None if apart is None else epilogue(apart[0])
    if apart is None or statistics is None:
        return None
    _, (rest, names) = apart
    (written,) = [b.node for b in rest[1].outputs]
    saved = 2 * flow.nodes[whole.node.name].bytes
    reader = _reader(flow, written, others)
    if reader is not None:
        behind = _behind(flow, rest, (reader, names), epilogue, pooled)
        if behind is not None and whole.flops < _FLOPS_A_BYTE * (saved + 2 * flow.nodes[written].bytes):
            behind = behind[0], replace(behind[1], spared=(*behind[1].spared, written))
            return Twice(statistics=_unspared(statistics), rest=behind, taken=(region, reader))
    made = epilogue(rest)
    if made is None or whole.flops >= _FLOPS_A_BYTE * saved:
        return None
    return Twice(statistics=_unspared(statistics), rest=made, taken=(region,))


def _unspared(found: Found) -> Found:
    return found[0], replace(found[1], spared=())


def _apart(flow: Flow, region: Found) -> tuple[Found, tuple[Found, tuple[str, ...]]] | None:
    """A norm as what it measures, with all that is made of that alone; and what is computed with it, with its nodes."""
    names, outputs = region[1].nodes, [b.node for b in region[1].outputs]
    grown = lay_out(flow, names, outputs)
    if grown is None:
        return None
    elements = [n for n in names if grown.reach[n] & grown.reduced]
    rows = [n for n in names if n not in elements and grown.levels[n]]  # what is known of rows before goes with either
    shown = [n for n in rows if n in outputs or any(r in elements for r in flow.readers[n])]
    written = [n for n in outputs if n in elements]
    before = [n for n in names if not grown.levels[n]]
    first = lay_out(flow, (*rows, *_needed(flow, rows, before)), shown)
    elements = list(dict.fromkeys((*elements, *_needed(flow, elements, before))))
    second = lay_out(flow, elements, written)
    if first is None or second is None or len(written) != 1:
        return None
    return write(flow, first), (write(flow, second), tuple(elements))


def _needed(flow: Flow, names: Sequence[str], among: Sequence[str]) -> list[str]:
    """Those nodes of which these are made."""
    found: list[str] = []
    todo = list(names)
    while todo:
        for name in flow.roots(flow.nodes[todo.pop()]):
            if name in among and name not in found:
                found.append(name)
                todo.append(name)
    return found


def _reader(flow: Flow, name: str, regions: Sequence[Found]) -> Found | None:
    """The one region that reads a value, where nothing else does."""
    readers = set(flow.readers[name])
    homes = [region for region in regions if readers & set(region[1].nodes)]
    if name in flow.kept or len(homes) != 1 or not readers <= set(homes[0][1].nodes):
        return None
    return homes[0]


def _behind(
    flow: Flow, rest: Found, reader: tuple[Found, tuple[str, ...]], epilogue: Epilogue,
    pooled: Callable[[Found, Found], Found | None],
) -> Found | None:  # fmt: skip
    """The convolution, normalised and with the region that reads that."""
    region, names = reader
    if region[0].loads:
        made = epilogue(rest)
        return None if made is None else pooled(made, region)
    grown = lay_out(flow, (*names, *region[1].nodes), [b.node for b in region[1].outputs])
    return None if grown is None else epilogue(write(flow, grown))


def split_of(program: Program, domain: tuple[int, ...]) -> tuple[int, int] | None:
    """How a region over a convolution's row-major domain (N, Co, *o) has the channels in two; None where it has them in
    one dimension, or others in several."""
    groups = parted(tuple(n for n in program.domain if n > 1), tuple(n for n in domain if n > 1))
    if groups is None or domain[1] == 1:
        return None
    number = sum(n > 1 for n in domain[:1])
    sizes = [tuple([n for n in program.domain if n > 1][d] for d in group) for group in groups]
    if any(len(own) != 1 for i, own in enumerate(sizes) if i != number) or len(sizes[number]) != 2:
        return None
    return sizes[number][0], sizes[number][1]


def cuts_channels(program: Program) -> bool:
    """Whether a region over (N, groups, Co / groups, *o) reduces channels of groups apart."""
    return (1 in program.reduced) != (2 in program.reduced)


def in_groups(found: Found, split: tuple[int, int]) -> Found:
    """A convolution by itself over a row-major domain, with its channels in two."""
    program, site = found

    def wide(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], *(split if shape[1] > 1 else (1, 1)), *shape[2:])

    operands = tuple(o if o.indexed else replace(o, shape=wide(o.shape)) for o in program.operands)
    body = tuple(channelled(i, split) if isinstance(i, Contraction) else i for i in program.body)
    outputs = tuple(replace(o, shape=wide(o.shape)) for o in program.outputs)
    binds = tuple(
        b if o.indexed else replace(b, split=split, order=(0, 1))
        for o, b in zip(program.operands, site.operands, strict=True)
    )
    made = replace(program, domain=wide(program.domain), operands=operands, body=body, outputs=outputs)
    return made, replace(site, operands=binds)


def ungrouped(found: Found, split: tuple[int, int], node: Node) -> Found | None:
    """A region over (N, groups, Co / groups, *o), over (N, Co, *o): neighbouring channels read what is one element a
    group at one place. None where an operand would have to be copied."""
    program, site = found
    domain = (program.domain[0], split[0] * split[1], *program.domain[3:])
    groups = ((0,), (1, 2), *((d,) for d in range(3, len(program.domain))))
    operands = []
    for operand, bind in zip(program.operands, site.operands, strict=True):
        seen = collapsed(operand, bind, groups, program.domain)
        if seen is None or (seen.at and seen.order):
            return None
        operands.append(seen)
    outputs = tuple(replace(o, shape=(o.shape[0], o.shape[1] * o.shape[2], *o.shape[3:])) for o in program.outputs)
    binds = tuple(
        Bind(node=b.node, split=tuple(n for n in domain if n > 1), order=tuple(range(sum(n > 1 for n in domain))))
        if b.node == node.name else b for b in site.operands
    )  # fmt: skip
    reduced = tuple(sorted({d - (d > 1) for d in program.reduced}))
    made = replace(program, domain=domain, reduced=reduced, operands=tuple(operands), outputs=outputs)
    return made, replace(site, operands=binds)
