"""Facts that journals of format 4 hold, as this version has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..ir.access import ALL_DIAGONALS, Diagonals, Position, in_parts
from ..ir.matrices import Matrices, product_of
from ..ir.program import Operand, Program, Prologue


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product of two matrices, named, in a Program's body; `contracted` makes a Contraction of it."""

    result: str
    left: str
    right: str
    dtype: str
    rounded: bool = False
    ends: str = ""
    prologues: tuple[Prologue, ...] = ()
    zeros: tuple[Diagonals, Diagonals] = (ALL_DIAGONALS, ALL_DIAGONALS)
    wanted: Diagonals = ALL_DIAGONALS
    each: tuple[int, int] = (1, 1)


def was_guess(kind: str, program: Program) -> bool:
    """Whether a library may well be faster than a pattern whose Space does not say it."""
    products = kind == "product" and program.operands[0].dtype in ("f16", "bf16")
    return products or kind in ("convolution", "attention")


def broadcast(each: Sequence[int], shape: Sequence[int]) -> tuple[Position, ...]:
    """Where an Operand is read that is broadcast, `each` time for so many neighbours, or () where it is not."""
    return in_parts(shape, each) if each else ()


def contracted(body: Sequence[object], operands: Sequence[Operand], domain: tuple[int, ...]) -> tuple[object, ...]:
    """A Program's body with a Contraction for each Product; KeyError where one names no operand."""
    named = {o.name: o for o in operands}

    def made(item: Product) -> object:
        known = named | {p.factor: p.made for p in item.prologues}
        of = Matrices(zeros=item.zeros, wanted=item.wanted, each=item.each, ends=item.ends)
        found = product_of(item.result, known[item.left], known[item.right], domain=domain, dtype=item.dtype, of=of)
        return replace(found, allow_tf32=item.rounded, prologues=item.prologues)

    return tuple(made(item) if isinstance(item, Product) else item for item in body)
