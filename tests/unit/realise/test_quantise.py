"""Results of eight bits, int8 and float8_e4m3fn: one kernel with what comes before, and torch's own bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.realisers import cpu, cuda
from fakes.traced import only_program
from tilewright.ir.program import Operand, Output, Program, Reduction, Statement
from tilewright.realise.float8 import computes_in_float8, rounded_once

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.one_in(4)]
X = torch.randn(40, 200, generator=torch.Generator().manual_seed(0))


def to_int8(y: Tensor) -> tuple[Tensor, Tensor]:
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
    return torch.round(y / scale).clamp(-127, 127).to(torch.int8), scale


def to_e4m3(y: Tensor) -> tuple[Tensor, Tensor]:
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 448
    return (y / scale).to(torch.float8_e4m3fn), scale


def asymmetric(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = (high - low) / 255
    zero = torch.round(-low / scale)
    return (torch.round(x / scale) + zero).clamp(0, 255).to(torch.uint8), scale, zero


@pytest.mark.parametrize(("function", "arg"), [
    (lambda x: to_int8(torch.relu(x)), X), (lambda x: to_int8(x + F.silu(x)), X.bfloat16()), (to_e4m3, X),
    (asymmetric, X), (lambda x: (F.gelu(x) * 16).clamp(-448, 448).to(torch.float8_e4m3fn), X),
    (lambda x: x.float() * 0.5, X.to(torch.float8_e4m3fn)),
    (lambda x: to_int8(F.layer_norm(x, (200,))), X),
], ids=range(7))  # fmt: skip
@pytest.mark.parametrize("target", [cpu, cuda], ids=["cpu", "cuda"])
def test_one_kernel(target: Any, function: Callable[..., Any], arg: Tensor) -> None:
    program = only_program(function, arg, renderer=target)
    wanted = function(arg)
    kinds = {torch.int8: "i8", torch.uint8: "u8", torch.float8_e4m3fn: "float8_e4m3fn"}
    first = wanted[0] if isinstance(wanted, tuple) else wanted
    assert kinds.get(first.dtype, "f32") in {o.dtype for o in program.outputs}


def test_nothing_is_computed_in_float8() -> None:
    def program(op: str, dtype: str) -> Program:
        operand = Operand(name="x", dtype="float8_e4m3fn", shape=(4, 4))
        body = (Statement(result="y", op=op, args=("x", "x")[: 1 + (op == "add")], dtype=dtype),)
        output = (Output(name="y", dtype=dtype, shape=(4, 4)),)
        return Program(domain=(4, 4), operands=(operand,), body=body, outputs=output)

    assert not computes_in_float8(program("to", "f32")) and computes_in_float8(program("add", "float8_e4m3fn"))
    assert computes_in_float8(program("isnan", "bool"))
    for target in (cpu, cuda):
        assert target.unsupported(program("add", "float8_e4m3fn")) == "arithmetic in float8"
        assert target.unsupported(program("to", "f32")) is None
    most = Reduction(results=("m",), op="max", arg="x", dtype="float8_e4m3fn")
    operand = Operand(name="x", dtype="float8_e4m3fn", shape=(4, 4))
    assert computes_in_float8(Program(domain=(4, 4), reduced=(1,), operands=(operand,), body=(most,), outputs=()))


def test_what_is_only_written_is_rounded_once() -> None:
    once = only_program(lambda x: (x * 2).bfloat16(), X)
    assert [s.dtype for s in rounded_once(once).body if isinstance(s, Statement) and s.op == "to"] == ["f32"]
    again = only_program(lambda x: ((y := (x * 2).bfloat16()), y.float() + 1), X)
    assert rounded_once(again) == again
    assert [o.dtype for o in rounded_once(once).outputs] == ["bf16"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Program, Sequence[Tensor]], tuple[Tensor, ...]]:
    folder: Path = tmp_path_factory.mktemp("candidate")
    build = functools.cache(lambda program: load_fused(program, folder, renderer=cpu))
    return lambda program, operands: build(program).run(*operands)


def test_e4m3_is_torchs_to_the_last_bit(run: Any) -> None:
    """Every number, ties and what rounds to them, what is too large, NaN and both zeros."""
    every = torch.arange(65536, dtype=torch.int32).mul(65536).view(torch.float32)  # all of bf16
    near = torch.cat([every, every.view(torch.int32).add(1).view(torch.float32), torch.tensor([463.9, 464.0, 464.1])])
    near = torch.cat([near, torch.full((-near.numel() % 13,), 1.0)]).reshape(-1, 13)
    eighth = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).repeat(near.numel() // 256 + 1)
    eighth = eighth[: near.numel()].reshape(near.shape)

    for function, given in ((lambda x: (x * 1.0).to(torch.float8_e4m3fn), near), (lambda x: x.float() * 1.0, eighth)):
        (got,), wanted = run(only_program(function, given, renderer=cpu), [given]), function(given)
        assert torch.equal(got.float().isnan(), wanted.float().isnan())
        there, integers = ~wanted.float().isnan(), torch.uint8 if got.itemsize == 1 else torch.int32
        assert torch.equal(got.view(integers)[there], wanted.view(integers)[there])


@pytest.mark.slow
@pytest.mark.parametrize("function", [
    lambda x: to_int8(F.rms_norm(x, x.shape[-1:])), lambda x: to_e4m3(F.gelu(x)), asymmetric,
], ids=range(3))  # fmt: skip
def test_quantised_on_the_cpu(function: Callable[[Tensor], tuple[Tensor, ...]], run: Any) -> None:
    """torch's own numbers, but for a few next to a tie."""
    x = torch.randn(300, 1001)
    program = only_program(lambda x: function(x), x, renderer=cpu)
    results = run(program, [x])
    first, *others = function(x)
    (got,) = [r for r in results if r.shape == first.shape]
    assert got.dtype == first.dtype and int((got.float() != first.float()).sum()) <= 10
    step = (got.float() - first.float()).abs() / first.float().abs().clamp(min=1.0)
    assert float(step.max()) <= 1.0
    rows = [r for r in results if r.shape == (300, 1)]
    assert len(rows) == len(others)
    for wanted in others:
        assert any(torch.allclose(g, wanted, rtol=1e-6) for g in rows)
