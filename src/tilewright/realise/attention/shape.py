"""An attention's Program in the numbers of the skeletons."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir.access import Access, Position, Quotient
from ...ir.alone import attention_in
from ...ir.program import AttentionOp, Operand, Program, Statement
from ...kernels.cuda.attention.shape import AttentionShape, BatchStep, Layers
from .visible import kept, scaled, visible

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
    seen = visible(item.scores, row, softmax=item.softmax, spares=item.spares)
    return AttentionShape(
        domain=program.domain, row=row, keys=item.keys, depth=item.depth, query=query, key=key, value=value,
        visible=seen.diagonals, spares=item.spares, sparse=_moved_along(kept(item.scores, seen), row),
    )  # fmt: skip


def _moved_along(condition: Program | None, row: int) -> tuple[int, ...] | None:
    """The dimensions, queries and keys aside, along which a condition on scores moves; None where there is none."""
    if condition is None:
        return None
    body = [i for i in condition.body if isinstance(i, Statement)]
    read = {a for i in body for a in i.args if isinstance(a, str)} | {condition.outputs[0].name}
    dims = {d for o in condition.operands if o.name in read for d, size in enumerate(o.shape) if size > 1}
    dims |= {int(i.args[0]) for i in body if i.op == "index"}
    return tuple(sorted(d for d in dims if d not in (row, len(condition.domain) - 1)))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreMaps:
    """`scale`: a factor of the product. `whole`: the score of the product times it; `inner`: the same where all of a
    tile is on the visible diagonals; `clear`: where all of it is kept. `kept` says whether a score is, None where the
    diagonals say that. Their first operand is called `score`, the others as in the attention's Program."""

    scale: float
    whole: Program
    inner: Program
    clear: Program
    kept: Program | None


def scores_of(program: Program) -> ScoreMaps:
    """The maps of the scores."""
    item, row = attention_of(program), row_of(program)
    names = dict(zip((o.name for o in item.scores.operands), ("score", *item.operands), strict=True))
    whole = short(renamed(item.scores, names))
    scale = 1.0
    if item.softmax:
        scale, whole = scaled(whole, row)
    seen = visible(whole, row, softmax=item.softmax, spares=item.spares)
    return ScoreMaps(scale=scale, whole=whole, inner=seen.inner, clear=seen.clear, kept=kept(whole, seen))


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
