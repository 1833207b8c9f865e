"""Column sums that a row kernel takes along: where they are found, and what that spares."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fakes.program_interpreter import GraphRun, run_program
from tilewright.facts.gradients import Gradients
from tilewright.facts.pattern import Choice, Pattern, without_idle
from tilewright.facts.run import Matched
from tilewright.facts.space import Space
from tilewright.frontend.trace import trace, trace_training
from tilewright.fusion import match
from tilewright.ir.partial import adding_up, in_parts, usual_parts
from tilewright.ir.program import Operand, Output, Program, Reduction, Statement
from tilewright.ir.validation import validate
from tilewright.run.training import match_training

pytestmark = pytest.mark.each(3)

ROWS, WIDTH = 1200, 256


class Backward(nn.Module):
    """A layer norm's gradients, and those of a bias before it, as functions of rows."""

    def forward(self, x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = x.mean(-1, keepdim=True)
        centred = x - mean
        scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
        hat = centred * scale
        inner = g * w
        dx = (inner - inner.mean(-1, keepdim=True) - hat * (inner * hat).mean(-1, keepdim=True)) * scale
        return dx, (g * hat).sum((0, 1)), g.sum((0, 1)), dx.sum((0, 1))


def found(module: nn.Module, *args: Any, refuses: str = "") -> tuple[Matched, GraphRun]:
    graph = trace(module, args, {})
    matched = match(
        graph, unsupported=lambda p: "no" if refuses and p.sums else None,
        space=lambda _: Space(knobs=(), points=((),)), tiny_bytes=0,
    )  # fmt: skip
    for pattern in matched.patterns:
        validate(pattern.program)
    return matched, GraphRun(graph, module, patterns=matched.patterns)


def joint(matched: Matched) -> list[Pattern]:
    return [p for p in matched.patterns if p.kind == "row_column_reduce"]


def given(dtype: torch.dtype = torch.float32, rows: int = ROWS) -> tuple[torch.Tensor, ...]:
    x, g = torch.randn(2, rows // 2, WIDTH), torch.randn(2, rows // 2, WIDTH)
    return x.to(dtype), g.to(dtype), torch.rand(WIDTH).to(dtype)


def test_the_gradients_of_a_norm_are_one_kernel() -> None:
    matched, run = found(Backward(), *given())
    (whole,) = joint(matched)
    assert [o.shape for o in whole.program.outputs] == [(2, ROWS // 2, WIDTH), *[(1, 1, WIDTH)] * 3]
    assert [o.parts for o in whole.program.outputs] == [0, 1, 1, 1]
    assert [o.shape for o in whole.program.operands].count((2, ROWS // 2, WIDTH)) == 2, "x and g, each read once"
    double = [t.double() for t in given()]
    for ours, wanted in zip(run(*double), Backward()(*double), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9)


def test_what_is_taken_along_is_idle_and_stays_for_candidates_without() -> None:
    matched, _ = found(Backward(), *given())
    (whole,) = joint(matched)
    every = tuple(Choice(pattern=p.id, point=()) for p in matched.patterns)
    assert without_idle([matched.patterns], every) == (Choice(pattern=whole.id, point=()),)
    others = tuple(c for c in every if c.pattern != whole.id)
    assert others and without_idle([matched.patterns], others) == others
    assert without_idle([matched.patterns], every[1:])[-1].pattern == whole.id


@pytest.mark.parametrize(("dtype", "transfers"), [(torch.float32, 5), (torch.bfloat16, 5)])
def test_where_a_target_has_no_such_kernel_sums_compute_anew_what_rows_would_write(
    dtype: torch.dtype, transfers: int
) -> None:
    """Of a layer norm's backward: x and g read, dx written; x and g read again. Else products in fp32 lay between."""
    norm, x = nn.LayerNorm(WIDTH).to(dtype), torch.randn(ROWS, WIDTH).to(dtype).requires_grad_()
    asked = Gradients(outputs=(0,), inputs=(0,), parameters=("weight", "bias"))
    graph = trace_training(norm, (x,), {}, [x], asked)
    matched = match_training(
        graph, unsupported=lambda p: "no" if p.sums else None, space=lambda _: Space(knobs=(), points=((),)),
        first_id=0, first_segment=0, case=0,
    )  # fmt: skip
    rows, sums = matched.patterns[1:]
    assert (rows.kind, sums.kind) == ("row_reduce", "column_reduce") and len(sums.program.outputs) == 2
    moved = [v for p in (rows, sums) for v in (*p.program.operands, *p.program.outputs) if v.shape == (ROWS, WIDTH)]
    assert len(moved) == transfers and {v.dtype for v in moved} == {"f32" if dtype == torch.float32 else "bf16"}


def test_sums_of_what_rows_reduce_first_are_read_from_memory() -> None:
    matched, run = found(Backward(), *given(), refuses="sums")
    assert not joint(matched) and {p.kind for p in matched.patterns} == {"row_reduce", "column_reduce"}
    double = [t.double() for t in given()]
    for ours, wanted in zip(run(*double), Backward()(*double), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9)


def test_few_rows_are_not_worth_partial_sums() -> None:
    assert not joint(found(Backward(), *given(rows=16))[0])


class Points(nn.Module):
    """Activation gradients, of which one is summed as a bias's, over the rows or over all but the last two."""

    def __init__(self, inner: int = 1) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        back = g * (1 - torch.tanh(x).square()) * w
        dims = tuple(range(back.dim() - self.inner))
        return back, back.sum(dims), g.sum(dims)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pointwise_kernel_takes_sums_along(dtype: torch.dtype) -> None:
    """What it writes and what it reads, summed as it passes; both are read by nobody again."""
    matched, run = found(Points(), *given(dtype))
    (whole,) = joint(matched)
    assert whole.program.reduced == (2,) and not [i for i in whole.program.body if isinstance(i, Reduction)]
    assert [o.shape for o in whole.program.outputs] == [(2, ROWS // 2, WIDTH), *[(1, 1, WIDTH)] * 2]
    assert [o.shape for o in whole.program.operands] == [(2, ROWS // 2, WIDTH)] * 2 + [(1, 1, WIDTH)]
    assert sorted(p.kind for p in matched.patterns if p is not whole)[-1:] == ["pointwise"], (
        "apart, each stays possible"
    )
    every = tuple(Choice(pattern=p.id, point=()) for p in matched.patterns)
    assert without_idle([matched.patterns], every) == (Choice(pattern=whole.id, point=()),)
    double = [t.double() for t in given()]
    for ours, wanted in zip(run(*double), Points()(*double), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9)


def test_a_row_may_be_several_dimensions() -> None:
    x, g, w = torch.randn(ROWS, 2, WIDTH), torch.randn(ROWS, 2, WIDTH), torch.rand(WIDTH)
    matched, run = found(Points(2), x, g, w)
    assert [p.program.reduced for p in joint(matched)] == [(1, 2)]
    double = [t.double() for t in (x, g, w)]
    for ours, wanted in zip(run(*double), Points(2)(*double), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9)


def test_where_no_kernel_sums_on_its_way_what_is_written_is_read_once() -> None:
    """And not twice by one kernel of columns, which knows a sum when all rows have passed, and writes then."""
    matched, run = found(Points(), *given(), refuses="sums")
    assert sorted(p.kind for p in matched.patterns)[-1] == "pointwise" and not joint(matched)
    for pattern in matched.patterns:
        assert pattern.kind == "pointwise" or all(o.shape != pattern.program.domain for o in pattern.program.outputs)
    double = [t.double() for t in given()]
    for ours, wanted in zip(run(*double), Points()(*double), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9)


def test_columns_that_stay_on_the_chip_are_summed_and_written_by_one_kernel() -> None:
    first, _ = found(Points(), *given(rows=128))[0].patterns
    assert first.kind == "column_reduce" and first.program.outputs[0].shape == first.program.domain


class Between(nn.Module):
    """Columns of what somebody else makes of the rows: `cumsum` is no part of a row reduction's kernel."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.softmax(x, -1)
        return rows, (torch.cumsum(rows, 0) * x).sum(0)


class Beforehand(nn.Module):
    """Rows that need the columns first."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.sum(0)
        return torch.softmax(x * total, -1), total


@pytest.mark.parametrize("module", [Between(), Beforehand()])
def test_kernels_that_wait_for_one_another_are_not_joined(module: nn.Module) -> None:
    x = torch.randn(ROWS, WIDTH)
    matched, run = found(module, x)
    assert not joint(matched)
    for ours, wanted in zip(run(x.double()), module(x.double()), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9)


class Others(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = torch.softmax(x, -1)
        return rows, rows.amax(0), rows.sum(0).exp()


def test_other_reductions_and_what_is_made_of_sums_stay_apart() -> None:
    assert not joint(found(Others(), torch.randn(ROWS, WIDTH))[0])


def test_narrow_values_are_summed_as_they_are_written() -> None:
    class Sums(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            rows = torch.softmax(x, -1)
            return rows, rows.float().sum(0)

    x = torch.randn(ROWS, WIDTH).bfloat16()
    (whole,) = joint(found(Sums(), x)[0])
    rows, sums = run_program(whole.program, [x])
    torch.testing.assert_close(sums, rows.float().sum(0, keepdim=True), rtol=1e-5, atol=1e-5)


def test_a_program_in_parts_and_what_adds_them_up_are_the_program() -> None:
    body = (
        Reduction(results=("t",), op="sum", arg="x", dtype="f32"),
        Statement(result="y", op="div", args=("x", "t"), dtype="f32"),
        Statement(result="z", op="mul", args=("y", "x"), dtype="f32"),
    )
    program = Program(
        domain=(3, 7, 5), reduced=(2,), operands=(Operand(name="x", dtype="f32", shape=(3, 7, 5)),), body=body,
        outputs=(Output(name="y", dtype="f32", shape=(3, 7, 5)),
                 Output(name="z", dtype="bf16", shape=(1, 1, 5), parts=1)),
    )  # fmt: skip
    x = torch.rand(3, 7, 5).double() + 1
    wanted = run_program(program, [x], exact=True)
    for parts in (2, 4, 21):
        first, second = in_parts(program, parts), adding_up(program, parts)
        validate(first)
        validate(second)
        y, partial = run_program(first, [x], exact=True)
        assert first.outputs[1].dtype == "f32" and partial.shape == (parts, 1, 5)
        (z,) = run_program(second, [partial], exact=True)
        assert second.outputs[0].dtype == "bf16"
        torch.testing.assert_close((y, z), wanted)
    assert usual_parts(10) == 10 and usual_parts(1000) == 64 and usual_parts(2**20) == 2**14


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": (1, 2, 5)}, "shape"),
        ({"parts": 30, "shape": (30, 1, 5)}, "30 part"),
        ({"name": "t"}, "element level"),
        ({"name": "y"}, "names of their own"),
    ],
)
def test_sums_that_make_no_sense_are_refused(changes: dict[str, Any], words: str) -> None:
    body = (
        Reduction(results=("t",), op="sum", arg="x", dtype="f32"),
        Statement(result="y", op="div", args=("x", "t"), dtype="f32"),
        Statement(result="z", op="mul", args=("y", "x"), dtype="f32"),
    )
    settings = {"name": "z", "dtype": "f32", "shape": (1, 1, 5), "parts": 1} | changes
    program = Program(
        domain=(3, 7, 5), reduced=(2,), operands=(Operand(name="x", dtype="f32", shape=(3, 7, 5)),), body=body,
        outputs=(Output(name="y", dtype="f32", shape=(3, 7, 5)), Output(**settings)),
    )  # fmt: skip
    with pytest.raises(ValueError, match=words):
        validate(program)
