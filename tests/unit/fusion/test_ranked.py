"""The first of a row in order (top-k): traced, fused with what makes the values, written where the dimension was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fakes.matched import fused
from fakes.realisers import cuda
from tilewright.facts.run import Matched
from tilewright.ir.program import Operand, Output, Program, Reduction, Statement
from tilewright.ir.validation import validate

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.randn(6, 9, 5, generator=torch.Generator().manual_seed(1))


def only(matched: Matched) -> Program:
    assert len(matched.patterns) == 1 and not matched.unmatched
    return matched.patterns[0].program


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("largest", [True, False])
def test_values_and_positions_are_one_kernel(dim: int, largest: bool) -> None:
    program = only(fused(lambda x: tuple(x.topk(3, dim, largest)), X))
    (item,) = program.body
    assert isinstance(item, Reduction) and (item.op, item.count) == ("largest" if largest else "smallest", 3)
    shape = tuple(3 if d == dim % 3 else s for d, s in enumerate((6, 9, 5)))
    assert program.reduced == (dim % 3,) and [o.dtype for o in program.outputs] == ["f32", "i64"]
    assert all(o.shape == shape for o in program.outputs)


def test_what_makes_the_values_joins_and_what_reads_them_does_not() -> None:
    program = only(fused(lambda x: tuple(torch.softmax(x * 0.5, -1).topk(2)), X))
    assert [s.op for s in program.body] == ["mul", "softmax_stats", "sub", "exp", "div", "largest"]

    def routed(x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = x.relu().transpose(1, 2).topk(4)
        return values / values.sum(-1, keepdim=True), places

    matched = fused(routed, X)
    assert [p.kind for p in matched.patterns] == ["column_reduce", "row_reduce"] and not matched.unmatched
    assert only(fused(lambda x: x.topk(4).indices, X.half())).outputs[0].dtype == "i64"


def test_what_stays_torch() -> None:
    for forward in (lambda x: x.topk(3, sorted=False)[0], lambda x: x.flatten().topk(65)[0],
                    lambda x: x[:1].topk(1, 0)[0]):  # fmt: skip
        assert "aten.topk.default: no skeleton" in fused(forward, X).unmatched


def test_what_is_malformed() -> None:
    item = Reduction(results=("v", "p"), op="largest", arg="x", dtype="f32", count=2)
    outputs = (Output(name="v", dtype="f32", shape=(4, 2)), Output(name="p", dtype="i64", shape=(4, 2)))
    program = Program(domain=(4, 7), reduced=(1,), operands=(Operand(name="x", dtype="f32", shape=(4, 7)),),
                      body=(item,), outputs=outputs)  # fmt: skip
    validate(program)
    assert cuda.unsupported(program) is None
    wide = Reduction(results=("v", "p"), op="largest", arg="x", dtype="i64", count=2)
    assert cuda.unsupported(replace(program, body=(wide,))) == "the first of a row of whole numbers in 64 bits"
    read = Statement(result="y", op="neg", args=("v",), dtype="f32")
    short = Output(name="v", dtype="f32", shape=(4, 1))
    for change, message in (
        ({"body": (item, read)}, "'v' has several values a row"),
        ({"outputs": (short,)}, r"'v': shape \(4, 1\) is not \(4, 2\)"),
        ({"domain": (4, 1), "operands": (Operand(name="x", dtype="f32", shape=(4, 1)),)}, "2 of dimensions"),
    ):
        with pytest.raises(ValueError, match=message):
            validate(replace(program, **change))  # type: ignore[arg-type]
