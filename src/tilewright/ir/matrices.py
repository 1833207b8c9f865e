"""A Contraction as a product of matrices: (M, K) by (K, N), or batches of them, and which Contractions are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from .access import ALL_DIAGONALS, Access, Bounds, Diagonals, GroupIndex, Position, Quotient, each_of
from .program import Contraction, Operand, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrices:
    """What a product of matrices has beside its operands. `zeros`: the diagonals of either factor outside of which it
    is 0; `wanted`: those of the result that are read. `each`: output batch b reads matrix (b // each) % count of a
    factor of `count` matrices. `ends`: an operand, the ends of the rows of each of the right factor's matrices."""

    zeros: tuple[Diagonals, Diagonals] = (ALL_DIAGONALS, ALL_DIAGONALS)
    wanted: Diagonals = ALL_DIAGONALS
    each: tuple[int, int] = (1, 1)
    ends: str = ""


PLAIN = Matrices()


def product_of(
    result: str, left: Operand, right: Operand, *, domain: tuple[int, ...], dtype: str, of: Matrices = PLAIN
) -> Contraction:  # fmt: skip
    """left (M, K) or (B, M, K) times right (K, N) or (B, K, N), over `domain`: (M, N) or (B, M, N), where N may be two
    dimensions: group, column. With `ends` right is (E, K, N)."""
    at = len(left.shape) - 2  # the domain's dimension of rows
    inner = domain[at + 1 :]
    steps = tuple((at + 1 + d, inner[-1] if d < len(inner) - 1 else 1) for d in range(len(inner)))
    row, column, k = Position(steps=((at, 1),)), Position(steps=steps), Position(steps=((len(domain), 1),))
    batches = [_batch(x.shape[0], e, domain[0]) if at else () for x, e in zip((left, right), of.each, strict=True)]
    if of.ends:
        batches[1] = (GroupIndex(steps=((at, 1),), offsets=of.ends),)
    zeros = [_kept(across, down, kept) for (down, across), kept in zip(((row, k), (k, column)), of.zeros, strict=True)]
    return Contraction(
        result=result, dtype=dtype, over=left.shape[-1:], within=_kept(column, row, of.wanted),
        left=Access(operand=left.name, at=(*batches[0], row, k), within=zeros[0]),
        right=Access(operand=right.name, at=(*batches[1], k, column), padded=bool(of.ends), within=zeros[1]),
    )  # fmt: skip


def _batch(count: int, each: int, batch: int) -> tuple[Position]:
    steps = ((0, 1),)
    return (Position(steps=steps) if (each, count) == (1, batch) else Quotient(steps=steps, each=each, wrap=count),)


def _kept(across: Position, down: Position, kept: Diagonals) -> tuple[Bounds, ...]:
    if kept == ALL_DIAGONALS:
        return ()
    at = Position(steps=(*across.steps, *((d, -step) for d, step in down.steps)))
    return (Bounds(at=at, first=kept[0], last=kept[1]),)


def factors_of(program: Program, item: Contraction) -> tuple[Operand, Operand]:
    """Both operands; of one that a prologue makes, what it would be as an operand."""
    named = {o.name: o for o in program.operands} | {p.factor: p.made for p in item.prologues}
    return named[item.left.operand], named[item.right.operand]


def matrices_of(program: Program, item: Contraction) -> Matrices | None:
    """What the Contraction is as a product of whole matrices; None where it is none: windows, parts of an operand, or
    several contracted dimensions."""
    left, right = factors_of(program, item)
    rank, domain = len(left.shape), program.domain
    first = item.right.at[0]
    ends = first.offsets if isinstance(first, GroupIndex) else ""
    if rank not in (2, 3) or len(right.shape) != rank + bool(ends) or (rank == 3 and ends):
        return None
    if len(domain) != rank + bool(program.reduced) and len(domain) != rank:
        return None
    each = each_of((item.left.at[0], item.right.at[0]))
    found = Matrices(
        zeros=(_diagonals(item.left.within), _diagonals(item.right.within)), wanted=_diagonals(item.within),
        each=(each[0], each[1]), ends=ends,
    )  # fmt: skip
    made = product_of(item.result, left, right, domain=domain, dtype=item.dtype, of=found)
    counts = [x.shape[0] * e for x, e in zip((left, right), each, strict=True)] if rank == 3 else [1]
    whole = rank == 2 or (max(counts) == domain[0] and not any(domain[0] % count for count in counts))
    whole = whole and (left.shape[-2], right.shape[-1]) == (domain[rank - 2], prod(domain[rank - 1 :]))
    alike = made == replace(item, allow_tf32=False, prologues=()) and right.shape[-2:-1] == item.over
    return found if whole and alike else None


def _diagonals(within: Sequence[Bounds]) -> Diagonals:
    return (within[0].first, within[0].last) if within else ALL_DIAGONALS
