"""Epilogues of convolutions, joined to them; and pools of windows without overlap as such epilogues."""

from __future__ import annotations

from dataclasses import replace

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.access import Position
from tilewright.ir.pooled import windowed
from tilewright.ir.program import Contraction, Load, Operand, Program, Reduction, Statement

Found = tuple[Program, Match]
_POOLS = ("sum", "max", "min")


def joined(first: Found, region: Found, name: str) -> Found:
    """A convolution and the region over its domain that reads it as the operand of this name, as one Program."""
    (whole, place), (program, site) = first, region
    operands, binds, body = list(whole.operands), list(place.operands), list(whole.body)
    names = {name: whole.outputs[0].name}
    for other, there in zip(program.operands, site.operands, strict=True):
        if other.name != name:
            names[other.name] = f"x{len(operands)}"
            operands.append(replace(other, name=names[other.name]))
            binds.append(there)
    for item in program.body:
        fresh = f"v{len(body)}"
        if isinstance(item, Reduction):
            results = tuple(f"{fresh}_{i}" if i else fresh for i in range(len(item.results)))
            names |= dict(zip(item.results, results, strict=True))
            body.append(replace(item, results=results, arg=names[item.arg]))
            continue
        assert isinstance(item, Statement)
        names[item.result] = fresh
        args = tuple(names[a] if isinstance(a, str) else a for a in item.args)
        body.append(replace(item, result=fresh, args=args))
    outputs = tuple(replace(o, name=names[o.name]) for o in program.outputs)
    made = Program(
        domain=whole.domain, reduced=program.reduced, operands=tuple(operands), body=tuple(body), outputs=outputs
    )  # fmt: skip
    nodes = (*place.nodes, *site.nodes)
    return made, Match(nodes=nodes, operands=tuple(binds), outputs=site.outputs, spared=place.nodes[:1])


def pooled(first: Found, region: Found) -> Found | None:
    """The convolution, perhaps with an epilogue, and the region that reads windows of what it gives, row-major and
    without groups; None where that is no pool of windows which lie side by side from the first place on, or where the
    epilogue reads operands that vary from pixel to pixel."""
    (whole, place), (program, site) = first, region
    window = _window(whole, region)
    if window is None or any(n > 1 for o in whole.operands if not o.indexed for n in o.shape[2:]):
        return None
    kept, inner, sizes = window
    if not _is_pool(program, inner):
        return None
    load, spatial = program.loads[0], len(sizes)
    domain = (*whole.domain[:2], *(program.domain[d] for d in kept[2:]), *sizes)
    ones = (1,) * spatial

    def moved(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*(shape[d] for d in kept), *ones)

    def lies(operand: Operand) -> tuple[int, ...]:
        order = [kept.index(d) for d in operand.order if d in kept]
        return (*range(2 + spatial, len(domain)), *order) if operand.order else ()

    operands = tuple(
        Operand(name=load.result, dtype=o.dtype, shape=domain) if o.indexed
        else replace(o, shape=moved(o.shape), order=lies(o)) for o in program.operands
    )  # fmt: skip
    body = tuple(i for i in program.body if i is not load)
    reduced = tuple(range(2 + spatial, len(domain)))
    outputs = tuple(replace(o, shape=moved(o.shape)) for o in program.outputs)
    small = Program(domain=domain, reduced=reduced, operands=operands, body=body, outputs=outputs)
    own = tuple(
        windowed(i, len(whole.domain), sizes) if isinstance(i, Contraction) else i for i in whole.body
    )  # fmt: skip
    single = (Position(),) * spatial
    read = tuple(
        o if o.indexed else replace(o, shape=(*o.shape, *ones), at=(*o.at, *single) if o.at else ())
        for o in whole.operands
    )
    wide = replace(
        whole, domain=domain, operands=read, body=own, outputs=tuple(replace(o, shape=domain) for o in whole.outputs)
    )  # fmt: skip
    return joined((wide, place), (small, site), load.result)


def _window(whole: Program, region: Found) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Of a region that reads windows of this convolution's output: its dimensions (n, co, *p) in order, those inside of
    windows, of which one that is a place wide has none, and the windows' sizes."""
    program, site = region
    loads, indexed = program.loads, [i for i, o in enumerate(program.operands) if o.indexed]
    if len(loads) != 1 or len(indexed) != 1:
        return None
    source, bind = program.operands[indexed[0]], site.operands[indexed[0]]
    plain = Bind(node=site.operands[indexed[0]].node, split=whole.domain, order=tuple(range(len(whole.domain))))
    if source.shape != whole.domain or bind != plain or source.name != loads[0].source:
        return None
    kept: list[int] = []
    inner: list[int] = []
    sizes: list[int] = []
    for number, position in enumerate(loads[0].at):
        found = _place(program, position, number < 2)
        if found is None:
            return None
        outer, own, size = found
        kept.append(outer)
        inner += own
        sizes += [size] if number >= 2 else []
    whole_domain = sorted((*kept, *inner)) == [*range(len(program.domain))]
    return (tuple(kept), tuple(inner), tuple(sizes)) if kept == sorted(kept) and whole_domain else None


def _place(program: Program, position: Position, alone: bool) -> tuple[int, list[int], int] | None:
    """The dimension along which windows follow one another, the one inside of them, and how long that is."""
    steps = sorted(position.steps, key=lambda own: own[1])
    if position.start or position.value or not 1 <= len(steps) <= (1 if alone else 2) or steps[0][1] != 1:
        return None
    if len(steps) == 1:
        return steps[0][0], [], 1
    (inside, _), (outer, size) = steps
    return (outer, [inside], size) if program.domain[inside] == size else None


def _is_pool(program: Program, inner: tuple[int, ...]) -> bool:
    """Whether the windows are reduced, once, and nothing but what becomes of that is written."""
    reductions = [i for i in program.body if isinstance(i, Reduction)]
    others = all(isinstance(i, Statement | Reduction | Load) for i in program.body)
    positions = any(isinstance(i, Statement) and i.op in ("index", "inside") for i in program.body)
    shapes = [*(o.shape for o in program.operands if not o.indexed), *(o.shape for o in program.outputs)]
    if not inner or tuple(sorted(inner)) != program.reduced or len(reductions) != 1:
        return False
    once = others and not positions and len(program.outputs) == 1 and reductions[0].op in _POOLS
    return once and all(shape[d] == 1 for shape in shapes for d in inner)
