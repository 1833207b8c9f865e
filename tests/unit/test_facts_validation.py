"""facts.validation: a product whose factors are made on their way in, and what is wrong with one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fakes.program_interpreter import run_program
from tilewright.ir.access import Position, Quotient
from tilewright.ir.matrices import product_of
from tilewright.ir.program import Operand, Output, Program, Prologue, Reduction, Statement
from tilewright.ir.validation import validate

NORM = Program(
    domain=(6, 10), reduced=(1,),
    operands=(Operand(name="x", dtype="f32", shape=(6, 10)), Operand(name="g", dtype="f32", shape=(1, 10))),
    body=(
        Reduction(results=("most", "sum"), op="softmax_stats", arg="x", dtype="f32"),
        Statement(result="below", op="sub", args=("x", "most"), dtype="f32"),
        Statement(result="e", op="exp", args=("below",), dtype="f32"),
        Statement(result="share", op="div", args=("e", "sum"), dtype="f32"),
        Statement(result="y", op="mul", args=("share", "g"), dtype="f32"),
    ),
    outputs=(Output(name="y", dtype="f32", shape=(6, 10)),),
)  # fmt: skip
PROLOGUE = Prologue(factor="a", program=NORM, operands=("x", "g"))
W = Operand(name="w", dtype="f32", shape=(10, 4), indexed=True)
PRODUCT = replace(product_of("c", PROLOGUE.made, W, domain=(6, 4), dtype="f32"), prologues=(PROLOGUE,))
WHOLE = Program(
    domain=(6, 4),
    operands=(*(replace(o, indexed=True) for o in NORM.operands), W),
    body=(PRODUCT, Statement(result="z", op="neg", args=("c",), dtype="f32")),
    outputs=(Output(name="z", dtype="f32", shape=(6, 4)),),
)  # fmt: skip


def test_a_factor_that_is_made_is_no_operand() -> None:
    validate(WHOLE)
    assert PROLOGUE.made == Operand(name="a", dtype="f32", shape=(6, 10), indexed=True)
    assert WHOLE.traffic_bytes == 4 * (60 + 10 + 40 + 24)
    x, g, w = torch.randn(6, 10), torch.randn(1, 10), torch.randn(10, 4)
    (z,) = run_program(WHOLE, (x, g, w))
    torch.testing.assert_close(z, -(x.softmax(1) * g) @ w)


@pytest.mark.parametrize(
    ("prologue", "said"),
    [
        (replace(PROLOGUE, factor="b"), "no factor of 'c'"),
        (replace(PROLOGUE, factor="w"), "no factor of 'c'"),  # an operand
        (replace(PROLOGUE, operands=("x", "w")), "not the operands that its prologue reads"),
        (replace(PROLOGUE, operands=("x", "h")), "not the operands that its prologue reads"),
        (replace(PROLOGUE, program=replace(NORM, outputs=())), "one output"),
        (replace(PROLOGUE, program=replace(NORM, outputs=(Output(name="sum", dtype="f32", shape=(6, 1)),))),
         "a whole factor"),
        (replace(PROLOGUE, program=replace(NORM, reduced=(0,))), "reduces along K"),
        (replace(PROLOGUE, program=replace(NORM, body=NORM.body[:-1])), "is never computed"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_prologue(prologue: Prologue, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        validate(replace(WHOLE, body=(replace(PRODUCT, prologues=(prologue,)), *WHOLE.body[1:])))


def test_a_factor_is_made_or_it_is_an_operand() -> None:
    with pytest.raises(ValueError, match="no two indexed operands"):
        validate(replace(WHOLE, body=(replace(PRODUCT, prologues=()), *WHOLE.body[1:])))
    with pytest.raises(ValueError, match="only loads may read it"):
        validate(replace(WHOLE, body=(PRODUCT, Statement(result="z", op="neg", args=("x",), dtype="f32"))))


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ((Quotient(steps=((0, 1),), each=3, wrap=2), Position(steps=((1, 1),))), None),
        ((Quotient(steps=((0, 1),), each=2, wrap=3), Position(steps=((1, 1),))), "read outside of"),
        ((Quotient(steps=((0, 1),), each=3, wrap=2),), "1 positions for"),
        ((Quotient(steps=((2, 1),), each=3, wrap=2), Position(steps=((1, 1),))), "not steps along distinct"),
    ],
)  # fmt: skip
def test_an_operand_beside_a_contraction_is_broadcast_over_parts_of_rows(
    at: tuple[Position, ...], said: str | None
) -> None:
    """Each of its rows serves three neighbours."""
    table = Operand(name="t", dtype="f32", shape=(2, 4), at=at)
    body = (PRODUCT, Statement(result="z", op="add", args=("c", "t"), dtype="f32"))
    program = replace(WHOLE, operands=(*WHOLE.operands, table), body=body)
    if said is not None:
        with pytest.raises(ValueError, match=said):
            validate(program)
        return
    validate(program)
    x, g, w, t = torch.randn(6, 10), torch.randn(1, 10), torch.randn(10, 4), torch.randn(2, 4)
    (z,) = run_program(program, (x, g, w, t))
    torch.testing.assert_close(z, (x.softmax(1) * g) @ w + t.repeat_interleave(3, 0))
    with pytest.raises(ValueError, match="which no contraction makes"):
        validate(replace(program, body=(Statement(result="z", op="neg", args=("t",), dtype="f32"),)))
