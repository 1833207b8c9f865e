"""Between which diagonals a result depends on the product in it: what `triu` and `tril` leave need not be multiplied.

An element (i, j) lies on diagonal j - i. Every value of the epilogue has a range of diagonals outside of which it does
not depend on the product; a choice whose condition compares positions narrows that of its branches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf

from ...ir.access import ALL_DIAGONALS, Diagonals
from ...ir.program import Program, Statement
from .shape import matrices

Range = tuple[float, float]  # of diagonals, both ends included
Kept = Diagonals
Zeros = tuple[Diagonals, Diagonals]  # of both factors, as Matrices have them
NO_ZEROS: Zeros = (ALL_DIAGONALS, ALL_DIAGONALS)
_ALL, _NONE = (-inf, inf), (inf, -inf)
_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_INVERTED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@dataclass(frozen=True, slots=True)
class _Affine:
    """row * i + column * j + constant."""

    row: float
    column: float
    constant: float


def kept_diagonals(program: Program) -> Kept:
    """The range of the only output, as far as anybody reads it; all of several."""
    assert program.product is not None
    rank = len(program.domain)
    depends: dict[str, Range] = {program.product.result: _ALL}
    affine: dict[str, _Affine] = {}
    conditions: dict[str, tuple[str, _Affine]] = {}
    for item in program.body:
        if not isinstance(item, Statement):
            continue
        if item.op == "index":
            affine[item.result] = _Affine(item.args[0] == rank - 2, item.args[0] == rank - 1, 0)
            continue
        places = [affine.get(a) if isinstance(a, str) else _Affine(0, 0, a) for a in item.args]
        if item.dtype == "i64" and item.op in ("add", "sub") and None not in places:
            affine[item.result] = _sum(places[0], places[1], 1 if item.op == "add" else -1)  # type: ignore[arg-type]
        if item.op in _TURNED and None not in places:
            conditions[item.result] = (item.op, _sum(places[0], places[1], -1))  # type: ignore[arg-type]
        ranges = [depends.get(a, _NONE) if isinstance(a, str) else _NONE for a in item.args]
        if item.op == "where" and item.args[0] in conditions and ranges[0] == _NONE:
            op, difference = conditions[str(item.args[0])]
            ranges = [_both(ranges[1], _where(op, difference)), _both(ranges[2], _where(_INVERTED[op], difference))]
        depends[item.result] = (min(r[0] for r in ranges), max(r[1] for r in ranges)) if ranges else _NONE
    if len(program.outputs) > 1:
        return None, None
    first, last = matrices(program).wanted
    read = (-inf if first is None else first, inf if last is None else last)
    low, high = _both(depends[program.outputs[0].name], read)
    if low > high:
        return None, None
    return (None if low == -inf else int(low)), (None if high == inf else int(high))


def _sum(left: _Affine, right: _Affine, sign: int) -> _Affine:
    return _Affine(
        left.row + sign * right.row, left.column + sign * right.column, left.constant + sign * right.constant
    )


def _both(one: Range, other: Range) -> Range:
    return max(one[0], other[0]), min(one[1], other[1])


def _where(op: str, difference: _Affine) -> Range:
    """The diagonals on which `difference op 0` may hold."""
    if difference.column == -difference.row == -1:
        op, difference = _TURNED[op], _sum(_Affine(0, 0, 0), difference, -1)
    if not difference.column == -difference.row == 1:
        return _ALL
    bound = -difference.constant  # diagonal op bound
    return {
        "gt": (bound + 1, inf), "ge": (ceil(bound), inf), "lt": (-inf, bound - 1), "le": (-inf, bound),
    }[op]  # fmt: skip


@lru_cache(maxsize=256)  # the model asks for every number of parts of K
def share(kept: Kept, rows: int, columns: int, *, tall: int, wide: int) -> float:
    """How many of the tiles of tall x wide have an element on a kept diagonal."""
    low = -inf if kept[0] is None else kept[0]
    high = inf if kept[1] is None else kept[1]
    down, right = -(-rows // tall), -(-columns // wide)
    needed = sum(
        1 for r in range(down) for c in range(right)
        if c * wide + wide - 1 - r * tall >= low and c * wide - (r * tall + tall - 1) <= high
    )  # fmt: skip
    return needed / (down * right)


_SEEN = 64  # rows, and columns, of tiles that are looked at where both factors have zeros


def steps_of(zeros: Zeros, rows: int, k: int, columns: int, *, tall: int, wide: int, depth: int) -> tuple[float, int]:
    """How many of the steps of K a tile of tall x wide needs on average, and how many the one that needs most."""
    (low, high), (first, last) = zeros
    lengths = []
    for r in _some(-(-rows // tall)):
        begin = 0 if low is None else max(r * tall + low, 0)
        end = k if high is None else min(r * tall + tall + high, k)
        for c in _some(-(-columns // wide)) if (first, last) != ALL_DIAGONALS else (0,):
            begins = begin if last is None else max(begin, c * wide - last)
            ends = end if first is None else min(end, c * wide + wide - first)
            lengths.append(max(-(-ends // depth) - begins // depth, 0))
    return sum(lengths) / len(lengths), max(lengths)


def _some(count: int) -> list[int]:
    """Of so many, a part that stands for all."""
    return [count * i // min(count, _SEEN) for i in range(min(count, _SEEN))] + ([count - 1] if count > _SEEN else [])
