"""Rotary embeddings and other joins: one kernel, of whichever form the author chose."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, widened
from fakes.realisers import cpu
from tilewright.facts.run import Matched
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.program import Program
from tilewright.ir.schedule import schedule
from tilewright.ir.validation import validate
from tilewright.realise.case_code import case_code

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]
X, COS, SIN = torch.randn(2, 3, 5, 12), torch.randn(5, 6), torch.randn(5, 6)


def halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def transposed(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = (torch.cat((t, t), -1) for t in (cos, sin))
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x[..., ::2], x[..., 1::2]
    return torch.stack((left * cos - right * sin, right * cos + left * sin), -1).flatten(-2)


def unbound(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((left * cos - right * sin, right * cos + left * sin), -1).flatten(-2)


def fused(function: Callable[..., Any], *args: Tensor) -> Matched:
    """Match, check every Program, and compare what is fused with the function; all of it can also be left to torch."""
    module = Applies(function)
    graph = trace(module, args, {})
    matched = match(graph, unsupported=cpu.unsupported, space=cpu.space, tiny_bytes=0)
    for pattern in matched.patterns:
        validate(pattern.program)
        schedule(pattern.program)
    for patterns in (matched.patterns, ()):
        case_code(graph, list(patterns), target="cpu")
        run = GraphRun(graph, module, patterns=patterns)
        torch.testing.assert_close(run(*widened(args)), function(*widened(args)))
    return matched


@pytest.mark.parametrize("form", [halves, transposed, pairs, unbound])
def test_a_rotary_embedding_is_one_kernel(form: Callable[..., Tensor]) -> None:
    matched = fused(form, X, COS, SIN)
    (pattern,) = matched.patterns
    assert len(pattern.program.outputs) == 1 and not matched.unmatched
    assert sorted(pattern.program.domain)[-3:-1] == [3, 5] or 6 in pattern.program.domain


def test_a_join_of_two_values_reads_each_where_it_lies() -> None:
    (pattern,) = fused(lambda x, y: torch.relu(torch.cat((torch.tanh(x), y), 1)), X, torch.randn(2, 4, 5, 12)).patterns
    assert [load.at[1].start for load in pattern.program.loads] == [0, -3]


def test_a_load_of_a_single_point() -> None:
    (pattern,) = fused(lambda x: x[..., ::2].exp(), torch.randn(1)).patterns
    assert pattern.program.domain == (1,)


def test_copies_alone_are_torch_s() -> None:
    matched = fused(lambda x, y: (torch.cat((x, y), 1), x[..., ::2].contiguous() @ y[..., 1::2].mT), X, X + 1)
    assert not matched.patterns


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tensor]:
    """The one output of a program, from a built kernel."""
    folder: Path = tmp_path_factory.mktemp("candidate")
    build = functools.cache(lambda program: load_fused(program, folder, renderer=cpu))
    return lambda program, operands: build(program).run(*operands)[0]


@pytest.mark.parametrize("program", [
    kp.rotary(3, 5, 37, pairs=True), pytest.param(kp.rotary(3, 5, 37, dtype="f16"), marks=pytest.mark.slow),
    pytest.param(kp.rotary(3, 5, 33, dtype="bf16", pairs=True), marks=pytest.mark.slow),
    pytest.param(kp.joined(5, 77, 50), marks=pytest.mark.slow),
], ids=["pairs", "halves f16", "pairs bf16", "joined"])  # fmt: skip
def test_kernels_on_the_cpu(program: Program, run: Callable[..., Tensor]) -> None:
    operands = kp.make_operands(program, "cpu")
    apart = [torch.cat((t, t), -1)[..., : t.shape[-1]] for t in operands]
    wide = [torch.stack((t, t), -1)[..., 0] for t in operands]
    (exact,), (usual,) = (kp.interpret(program, operands, exact=flag) for flag in (True, False))
    for given in (operands, apart, wide):
        got = run(program, given)
        allowed = max(2 * float((usual.double() - exact).abs().max()), 4 * torch.finfo(got.dtype).eps)
        assert got.dtype == usual.dtype and float((got.double() - exact).abs().max()) <= allowed


@pytest.mark.slow
def test_lanes_lie_along_the_longer_dimension(run: Callable[..., Tensor]) -> None:
    """Of images whose channels are innermost and few: three weights do not fill a vector."""
    b = kp.Builder((7, 45, 3))
    b.write(b.op("mul", b.op("add", b.read("x"), b.read("bias", (1, 1, 3))), b.read("gain", (7, 45, 1))))
    program = b.done()
    text = next(f.text for f in cpu.render(program, "fused", cpu.space(program).points[0]) if f.path.endswith(".cpp"))
    assert "VECTOR = 1;" in text
    x, bias, gain = kp.make_operands(program, "cpu")
    torch.testing.assert_close(run(program, [x, bias, gain]), (x + bias) * gain)
    transposed = x.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(run(program, [transposed, bias, gain]), (x + bias) * gain)
