"""An attention's Program in the numbers of the skeletons."""

from __future__ import annotations

from dataclasses import replace

from ...ir.access import Access, Position, Quotient
from ...ir.program import AttentionOp, Operand, Program, Statement, attention_in
from ...kernels.cuda.attention.shape import AttentionShape, BatchStep, Layers
from .visible import scaled, visible

_SHORT = ("index", "add", "sub", "eq", "ne", "lt", "le", "gt", "ge", "to", "where", "neg", "abs")


def attention_of(program: Program) -> AttentionOp:
    found = attention_in(program)
    assert found is not None
    return found


def shape_of(program: Program) -> AttentionShape | None:
    """None where a factor is read in another way than row by row of layers that the batch tells."""
    item = attention_of(program)
    named = {o.name: o for o in program.operands}
    row = row_of(program)
    read = [
        layers(named[access.operand], access, at)
        for access, at in ((item.query, row), (item.key, len(program.domain)), (item.value, len(program.domain)))
    ]
    if any(x is None for x in read):
        return None
    query, key, value = (x for x in read if x is not None)
    if key.at is None or value.at is None or (query.at is None and program.domain[row] > 1):
        return None
    if any(step.dim == row for x in (key, value) for step in x.batch):
        return None
    diagonals = visible(item.scores, row).diagonals
    return AttentionShape(
        domain=program.domain, row=row, keys=item.keys, depth=item.depth, query=query, key=key, value=value,
        visible=diagonals, spares=item.spares,
    )  # fmt: skip


def row_of(program: Program) -> int:
    """The dimension of the queries: the longest that the query alone moves along; where there is none, of size 1."""
    item = attention_of(program)
    moved = [{d for p in x.at for d, _ in p.steps} for x in (item.query, item.key, item.value)]
    outer = range(len(program.domain) - 1)
    alone = [d for d in outer if d in moved[0] and d not in moved[1] | moved[2]]
    if alone:
        return max(alone, key=lambda d: program.domain[d])
    return max((d for d in outer if program.domain[d] == 1), default=0)


def layers(operand: Operand, access: Access, rows: int) -> Layers | None:
    """How a factor is read whose rows are along dimension `rows`; None where it is not row by row of layers."""
    """How a factor is read whose rows are along dimension `rows`; None where it is not row by row of layers."""
    batch: list[BatchStep] = []
    at: int | None = None
    for place, (position, size) in enumerate(zip(access.at[:-1], operand.shape[:-1], strict=True)):
        if position.start or len(position.steps) != 1 or position.steps[0][1] != 1 or position.value:
            return None
        ((dim, _),) = position.steps
        if dim == rows:
            if at is not None or type(position) is not Position:
                return None
            at = place
        elif isinstance(position, Quotient):
            batch.append(BatchStep(dim=dim, each=position.each, size=size))
        else:
            batch.append(BatchStep(dim=dim, each=1, size=size))
    return Layers(batch=tuple(batch), at=at)


def scores_of(program: Program) -> tuple[float, Program, Program]:
    """A factor of the product, the scores of the product times it, and these where all of a tile is visible. Their
    first operand is called `score`, the others as in the Program."""
    item, row = attention_of(program), row_of(program)
    names = dict(zip((o.name for o in item.scores.operands), ("score", *item.operands), strict=True))
    whole = short(renamed(item.scores, names))
    factor = 1.0
    if item.softmax:
        factor, whole = scaled(whole, row)
    return factor, whole, visible(whole, row).inner


def renamed(program: Program, names: dict[str, str]) -> Program:
    """With other names of operands, and of results that no operand has."""
    items = [i for i in program.body if isinstance(i, Statement)]
    every = names | {i.result: f"s{n}" for n, i in enumerate(items)}
    body = tuple(
        replace(i, result=every[i.result], args=tuple(every[a] if isinstance(a, str) else a for a in i.args))
        for i in items
    )
    operands = tuple(replace(o, name=every[o.name]) for o in program.operands)
    outputs = tuple(replace(o, name=every[o.name]) for o in program.outputs)
    return replace(program, operands=operands, body=body, outputs=outputs)


def short(scores: Program) -> Program:
    """Positions in 32 bits, where nothing but sums and comparisons is made of them: 64 would halve the lanes."""
    whole = [i for i in scores.body if isinstance(i, Statement) and i.dtype == "i64"]
    small = all(i.op in _SHORT and all(isinstance(a, str) or abs(a) < 1 << 30 for a in i.args) for i in whole)
    if any(o.dtype == "i64" for o in scores.operands) or not small or max(scores.domain) >= 1 << 28:
        return scores
    body = tuple(replace(i, dtype="i32") if isinstance(i, Statement) and i.dtype == "i64" else i for i in scores.body)
    return replace(scores, body=body)
