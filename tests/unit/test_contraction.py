"""Contractions with access maps: torch's operators of four kinds, each as one Contraction, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d

from fakes.kernel_programs import product
from fakes.program_interpreter import run_program
from tilewright.facts.codec import dumps, loads
from tilewright.facts.devices import DEVICES
from tilewright.facts.pattern import Pattern
from tilewright.facts.space import Space
from tilewright.ir.access import Access, Bounds, GroupIndex, Position, Quotient
from tilewright.ir.matrices import matrices_of, product_of
from tilewright.ir.program import Contraction, Operand, Output, Program
from tilewright.ir.validation import validate
from tilewright.realise.gemm import ampere, renderer
from tilewright.realise.gemm.shape import matrices
from tilewright.realise.realiser import Refused


def along(*steps: tuple[int, int], start: int = 0) -> Position:
    return Position(start=start, steps=steps)


def contracts(
    left: Access, right: Access, *, domain: tuple[int, ...], over: tuple[int, ...],
    shapes: dict[str, tuple[int, ...]], within: tuple[Bounds, ...] = (),
) -> Program:  # fmt: skip
    """One Contraction of operands of these shapes in fp32; those named `ends` are of i32."""
    item = Contraction(result="y", left=left, right=right, over=over, dtype="f32", within=within)
    operands = [
        Operand(name=name, dtype="i32" if name == "ends" else "f32", shape=shape, indexed=True)
        for name, shape in shapes.items()
    ]
    output = Output(name="y", dtype="f32", shape=domain)
    made = Program(domain=domain, operands=tuple(operands), body=(item,), outputs=(output,))
    validate(made)
    assert loads(dumps(made)) == made
    return made


def rand(program: Program) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(o.shape, dtype=torch.float64) for o in program.operands if o.dtype == "f32"]


def convolution(*, stride: int = 2, pad: int = 2, dilation: int = 3) -> Program:
    """x (2, 4, 11, 9) with w (6, 2, 3, 2) in two groups of channels, of which x has a dimension of its own: (2, 2, 2,
    11, 9). Dimensions: n, c, i, j; over channel, k, l."""
    rows, columns = ((size + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for size, k in ((11, 3), (9, 2)))
    slides = (along((2, stride), (5, dilation), start=-pad), along((3, stride), (6, dilation), start=-pad))
    group = Quotient(steps=((1, 1),), each=3)
    return contracts(
        Access(operand="x", at=(along((0, 1)), group, along((4, 1)), *slides), padded=True),
        Access(operand="w", at=(along((1, 1)), along((4, 1)), along((5, 1)), along((6, 1)))),
        domain=(2, 6, rows, columns), over=(2, 3, 2), shapes={"x": (2, 2, 2, 11, 9), "w": (6, 2, 3, 2)},
    )  # fmt: skip


def transposed_convolution(*, stride: int = 3, pad: int = 1, dilation: int = 2) -> Program:
    """x (2, 4, 5, 6) with w (4, 3, 3, 2): windows that are read backwards, where the stride divides."""
    rows, columns = ((size - 1) * stride - 2 * pad + dilation * (k - 1) + 1 for size, k in ((5, 3), (6, 2)))
    slides = [
        Quotient(start=pad, steps=((2 + d, 1), (5 + d, -dilation)), each=stride, exact=stride > 1) for d in range(2)
    ]
    return contracts(
        Access(operand="x", at=(along((0, 1)), along((4, 1)), *slides), padded=True),
        Access(operand="w", at=(along((4, 1)), along((1, 1)), along((5, 1)), along((6, 1)))),
        domain=(2, 3, rows, columns), over=(4, 3, 2), shapes={"x": (2, 4, 5, 6), "w": (4, 3, 3, 2)},
    )  # fmt: skip


def scores(*, last: int | None = 0) -> Program:
    """Causal scores of 8 heads of queries with 2 of keys, over (batch, head, query, key)."""
    causal = Bounds(at=along((3, 1), (2, -1)), last=last)
    return contracts(
        Access(operand="q", at=tuple(along((d, 1)) for d in (0, 1, 2, 4))),
        Access(operand="k", at=(along((0, 1)), Quotient(steps=((1, 1),), each=4), along((3, 1)), along((4, 1)))),
        domain=(3, 8, 5, 7), over=(4,), shapes={"q": (3, 8, 5, 4), "k": (3, 2, 7, 4)}, within=(causal,),
    )  # fmt: skip


def experts() -> Program:
    """Rows (9, 4), in three groups, times matrices (3, 4, 5)."""
    return contracts(
        Access(operand="x", at=(along((0, 1)), along((2, 1)))),
        Access(operand="w", at=(GroupIndex(steps=((0, 1),), offsets="ends"), along((2, 1)), along((1, 1))),
               padded=True),
        domain=(9, 5), over=(4,), shapes={"x": (9, 4), "w": (3, 4, 5), "ends": (3,)},
    )  # fmt: skip


@pytest.mark.parametrize("how", [{}, {"stride": 1, "pad": 0, "dilation": 1}, {"stride": 3, "pad": 1, "dilation": 2}])
def test_a_convolution_is_one_contraction(how: dict[str, int]) -> None:
    program = convolution(**how)
    x, w = rand(program)
    (found,) = run_program(program, (x, w), exact=True)
    given = {"stride": 2, "pad": 2, "dilation": 3} | how
    wanted = conv2d(x.reshape(2, 4, 11, 9), w, stride=given["stride"], padding=given["pad"],
                    dilation=given["dilation"], groups=2)  # fmt: skip
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("how", [{}, {"stride": 1, "pad": 0, "dilation": 1}, {"stride": 2, "pad": 0, "dilation": 1}])
def test_a_transposed_convolution_is_one_contraction(how: dict[str, int]) -> None:
    program = transposed_convolution(**how)
    x, w = rand(program)
    (found,) = run_program(program, (x, w), exact=True)
    given = {"stride": 3, "pad": 1, "dilation": 2} | how
    wanted = conv_transpose2d(x, w, stride=given["stride"], padding=given["pad"], dilation=given["dilation"])
    torch.testing.assert_close(found, wanted)


def test_scores_of_grouped_queries_are_one_contraction() -> None:
    program = scores()
    q, k = rand(program)
    (found,) = run_program(program, (q, k), exact=True)
    wanted = torch.where(torch.ones(5, 7).tril().bool(), q @ k.repeat_interleave(4, 1).mT, 1e9)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("ends", [[2, 2, 7], [4, 8, 9], [0, 0, 0]])
def test_ragged_experts_are_one_contraction(ends: list[int]) -> None:
    program = experts()
    x, w = rand(program)
    (found,) = run_program(program, (x, w, torch.tensor(ends, dtype=torch.int32)), exact=True)
    wanted = torch.zeros(9, 5, dtype=torch.float64)
    for e, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
        wanted[first:last] = x[first:last] @ w[e]
    torch.testing.assert_close(found, wanted)
    assert matrices(program).ends == "ends"


def test_zeros_of_a_factor_are_bounds_on_its_positions() -> None:
    """What lies outside of them does not count, whatever it is."""
    lower = Bounds(at=along((2, 1), (0, -1)), last=0)
    program = contracts(
        Access(operand="a", at=(along((0, 1)), along((2, 1))), within=(lower,)),
        Access(operand="b", at=(along((2, 1)), along((1, 1)))),
        domain=(5, 4), over=(5,), shapes={"a": (5, 5), "b": (5, 4)},
    )  # fmt: skip
    a, b = rand(program)
    (found,) = run_program(program, (a.masked_fill(torch.ones(5, 5).triu(1).bool(), float("inf")), b), exact=True)
    torch.testing.assert_close(found, a.tril() @ b)
    assert matrices(program).zeros == ((None, 0), (None, None))


@pytest.mark.parametrize("program", [convolution(), transposed_convolution(), scores()])
def test_products_of_matrices_alone_are_multiplied_by_the_skeleton(program: Program) -> None:
    """Windows are no matrices, nor is a batch of two dimensions."""
    for realiser, device in ((renderer, "h200"), (ampere, "a100")):
        said = realiser.fits(program, DEVICES[device])
        assert isinstance(said, Refused) and "a contraction" in said.why
    windows = "over windows of an operand" in str(renderer.fits(program, DEVICES["h200"]))
    assert windows == (program.operands[0].name == "x")
    assert not isinstance(renderer.fits(product(512, 512, 512), DEVICES["h200"]), Refused)


def test_parts_of_operands_are_no_whole_matrices() -> None:
    whole = contracts(
        Access(operand="a", at=(along((0, 1)), along((2, 1)))), Access(operand="b", at=(along((2, 1)), along((1, 1)))),
        domain=(5, 4), over=(6,), shapes={"a": (5, 6), "b": (6, 4)},
    )  # fmt: skip
    assert whole.product is not None and matrices_of(whole, whole.product) is not None
    for changed in ({"domain": (3, 4)}, {"domain": (5, 2)}):
        part = replace(whole, **changed)
        validate(replace(part, outputs=(Output(name="y", dtype="f32", shape=part.domain),)))
        assert matrices_of(part, whole.product) is None
    split = product_of("y", *whole.operands, domain=(5, 2, 2), dtype="f32")
    assert matrices_of(replace(whole, domain=(5, 2, 2)), split) is None, "groups of columns are reduced"
    assert matrices_of(replace(whole, domain=(5, 2, 2), reduced=(2,)), split) is not None
    shifted = replace(whole.product, left=replace(whole.product.left, at=(along((0, 1)), along((2, 1), start=1))))
    assert matrices_of(whole, shifted) is None
    short = replace(whole.product, over=(5,))
    assert matrices_of(whole, short) is None


def test_what_differs_in_its_windows_is_tuned_by_itself() -> None:
    programs = (convolution(), convolution(stride=1), convolution(dilation=2), scores(), scores(last=1))
    found = {
        Pattern(id="p", title="", kind="product", nodes=(), program=p, space=Space(knobs=(), points=())).shape_class
        for p in programs
    }
    assert len(found) == len(programs)


X, W = (
    Access(operand="x", at=(along((0, 1)), along((2, 1)))),
    Access(operand="w", at=(along((2, 1)), along((1, 1)))),
)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"left": replace(X, operand="v")}, "no two indexed operands"),
        ({"left": replace(X, at=X.at[:1])}, "1 positions for"),
        ({"left": replace(X, at=(along((0, 1)), along((5, 1))))}, "not steps along distinct dimensions"),
        ({"left": replace(X, at=(along((0, 1), (0, 1)), along((2, 1))))}, "not steps along distinct dimensions"),
        ({"left": replace(X, at=(along((0, 1), start=1), along((2, 1))))}, "read outside of"),
        ({"left": replace(X, at=(along((0, 1)), along((2, -1))))}, "read outside of"),
        ({"left": replace(X, at=(Quotient(steps=((0, 1),), each=2, exact=True), along((2, 1))))}, "read outside of"),
        ({"left": replace(X, at=(Quotient(steps=((0, 1),), each=0), along((2, 1))))}, "divided by 0"),
        ({"left": replace(X, at=(Position(steps=((0, 1),), value="y"), along((2, 1))))}, "no position that a value"),
        ({"left": replace(X, at=(along((0, 1)), along((1, 1))))}, "not read along all that is contracted"),
        ({"over": ()}, "not steps along distinct dimensions"),
        ({"left": replace(X, at=(GroupIndex(steps=((0, 1),), offsets="e"), along((2, 1))))}, "no offsets of 6 groups"),
        ({"left": replace(X, within=(Bounds(at=along((4, 1))),))}, "not steps along distinct dimensions"),
        ({"within": (Bounds(at=along((2, 1))),)}, "not steps along distinct dimensions"),
        ({"dtype": "f16"}, "f32 times f32 in f16"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_contraction(changed: dict[str, Any], said: str) -> None:
    whole = contracts(X, W, domain=(6, 4), over=(5,), shapes={"x": (6, 5), "w": (5, 4)})
    assert whole.product is not None
    with pytest.raises(ValueError, match=said):
        validate(replace(whole, body=(replace(whole.product, **changed),)))
