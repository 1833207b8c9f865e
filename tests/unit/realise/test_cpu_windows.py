"""Windows on the CPU target: built kernels against torch, over odd sizes, edges, strides and dtypes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun
from fakes.realisers import cpu
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.access import Position
from tilewright.ir.program import Load, Operand, Output, Program, Statement

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.one_in(4)]
INF, NAN = float("inf"), float("nan")
slow = functools.partial(pytest.param, marks=pytest.mark.slow)  # each builds a kernel


@pytest.fixture(scope="module")
def execute(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Program, Sequence[Tensor]], tuple[Tensor, ...]]:
    """Runs a program on aligned operands; equal programs are built once."""
    folder = tmp_path_factory.mktemp("candidate")
    build = functools.cache(lambda program: load_fused(program, folder, renderer=cpu))
    return lambda program, operands: build(program).run(*operands)


def kernels_of(function: Callable[..., Tensor], args: Sequence[Tensor], execute: Any) -> Callable[..., Tensor]:
    """What runs the function with all that matches in kernels: here, one."""
    graph = trace(Applies(function), tuple(args), {})
    matched = match(graph, unsupported=cpu.unsupported, space=cpu.space, tiny_bytes=0)
    assert len(matched.patterns) == 1 and not matched.unmatched
    return lambda *given: GraphRun(graph, nn.Module(), patterns=matched.patterns, exact=False, execute=execute)(*given)


def odd_values(*shape: int) -> Tensor:
    """Normal, with a NaN, infinities and a stretch of nothing but -inf."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    flat = x.view(-1)
    flat[7], flat[21], flat[40] = NAN, INF, -INF
    x[..., 3:9, -6:] = -INF
    return x


@pytest.mark.parametrize("function", [
    lambda x: F.max_pool2d(F.relu(x * 2), 3, 2, 1),
    slow(lambda x: F.relu(F.max_pool2d(x, 3, 2, 1))),
    slow(lambda x: F.max_pool2d(torch.sigmoid(x), (2, 3), (1, 3), (1, 1), (1, 2))),
    slow(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
    slow(lambda x: F.max_pool3d(x[None], (2, 3, 2), 2, 1, ceil_mode=True)),
], ids=["before", "after", "dilated", "ragged", "volume"])  # fmt: skip
def test_pools_as_torch_has_them(function: Callable[..., Tensor], execute: Any) -> None:
    x = odd_values(2, 3, 21, 71)
    run = kernels_of(function, [x], execute)
    torch.testing.assert_close(run(x), function(x), equal_nan=True)
    turned = torch.empty(2, 3, 71, 21).copy_(x.transpose(2, 3)).transpose(2, 3)
    wide = torch.zeros(2, 3, 21, 90)[..., :71].copy_(x)
    for seen in (turned, wide):  # lanes that lie apart, and rows that do
        assert not seen.is_contiguous()
        torch.testing.assert_close(run(seen), function(x), equal_nan=True)


@pytest.mark.parametrize("function", [
    lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    slow(lambda x: F.max_pool3d(x[None], (2, 3, 2), 2, 1, (1, 2, 1), ceil_mode=True, return_indices=True)),
    slow(lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True)),
], ids=["windows", "volume", "global"])  # fmt: skip
def test_indices_as_torch_has_them(function: Callable[..., tuple[Tensor, Tensor]], execute: Any) -> None:
    """Ties, NaNs and stretches of -inf among them."""
    x = odd_values(2, 3, 21, 71)
    x[0, 1], x[1, 2, 4:12, 20:40] = x[0, 1].round(), NAN
    run = kernels_of(function, [x], execute)
    for got, wanted in zip(run(x), function(x), strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("program", [
    slow(kp.pool("max", (3, 5, 131), (4,), stride=3, padding=2, dilation=2, dtype="bf16")),
    slow(kp.pool("sum", (2, 2, 9, 40), (3, 3), padding=1, fused=True, dtype="f16")),
    slow(kp.pool("sum", (2, 3, 200), (50,), stride=25)),
], ids=["bf16", "f16", "long"])  # fmt: skip
def test_against_float64(program: Program, execute: Any) -> None:
    operands = kp.make_operands(program, "cpu")
    (got,), (truth,) = execute(program, operands), kp.interpret(program, operands, exact=True)
    (usual,) = kp.interpret(program, operands, exact=False)
    allowed = max(
        2 * float((usual.double() - truth).abs().max()), 4 * torch.finfo(got.dtype).eps * float(truth.abs().max())
    )
    assert got.dtype == usual.dtype and float((got.double() - truth).abs().max()) <= allowed


def test_nothing_outside_is_read(execute: Any) -> None:
    """Each row of the source lies between rows of NaN."""
    program = kp.pool("sum", (1, 40, 40), (3, 3), padding=1)
    x = torch.full((1, 42, 42), NAN)[:, 1:-1, 1:-1].copy_(torch.ones(1, 40, 40))
    (got,) = execute(program, [x])
    (wanted,) = kp.interpret(program, [x], exact=False)
    torch.testing.assert_close(got, wanted)


@pytest.mark.slow
def test_what_is_read_backwards(execute: Any) -> None:
    backwards = Program(
        domain=(5, 37), operands=(Operand(name="x", dtype="f32", shape=(5, 30), indexed=True),),
        body=(Load(result="v", source="x", dtype="f32", fill=-1.0, at=(
                  Position(steps=((0, 1),)), Position(start=33, steps=((1, -1),)))),
              Statement(result="y", op="add", args=("v", 1.0), dtype="f32")),
        outputs=(Output(name="y", dtype="f32", shape=(5, 37)),),
    )  # fmt: skip
    x = torch.randn(5, 30)
    (got,) = execute(backwards, [x])
    assert torch.equal(got, F.pad(x, (3, 4), value=-1.0).flip(1) + 1.0)
