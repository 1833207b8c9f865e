"""Sliding over windows on a GPU: pools against float64, at every point of their space, however their input lies."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
import torch.nn.functional as F

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import cuda, gpu
from fakes.traced import only_program

from .test_cuda_kernels import close, every_other, padded_rows, shifted

pytestmark = pytest.mark.gpu

PROGRAMS = {
    "as KernelBench's 42": lambda: kp.pool("max", (8, 64, 129, 128), (4, 4), padding=1),
    "as its 43": lambda: kp.pool("max", (8, 16, 40, 48, 64), (3, 3, 3), stride=2, padding=1, dilation=3),
    "as its 46": lambda: kp.pool("sum", (4, 32, 32, 64, 96), (3, 3, 3), stride=2, padding=1),
    "odd lines in half precision": lambda: kp.pool("max", (32, 64, 57, 61), (3, 3), stride=2, padding=1, dtype="f16"),
    "even lines in bf16": lambda: kp.pool("sum", (32, 64, 56, 64), (5, 5), padding=2, dtype="bf16"),
    "long lines": lambda: kp.pool("max", (16, 8, 64, 3000), (3, 5), padding=1),
    "long odd lines": lambda: kp.pool("sum", (16, 8, 64, 2051), (3, 3), stride=2, padding=1),
    "without its padding": lambda: only_program(
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), torch.randn(16, 64, 111, 112)),
    "and what comes before": lambda: kp.pool("max", (32, 64, 56, 60), (3, 3), stride=2, padding=1, fused=True),
    "a network's first layers": lambda: only_program(
        lambda x, a, b: F.max_pool2d(torch.relu(x * a + b), 3, 2, 1), torch.randn(16, 64, 112, 112),
        torch.randn(64, 1, 1), torch.randn(64, 1, 1)),
    "and what follows": lambda: only_program(
        lambda x, y, b: torch.relu(F.max_pool2d(x, 3, 1, 1) + b) * y, torch.randn(16, 64, 56, 60),
        torch.randn(16, 64, 56, 60), torch.randn(64, 1, 1)),
}  # fmt: skip


def device():
    return gpu()


def plan_of(module, operands):
    return module._FUSED.plan([o.stride() for o in operands], [16] * len(operands), device())


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_pools_against_float64(name, tmp_path):
    program = PROGRAMS[name]()
    operands = kp.make_operands(program, "cuda")
    module = load_fused(program, tmp_path)
    assert plan_of(module, operands).slide is not None
    close(module.run(*operands), program, operands)


def test_every_point_and_layout(tmp_path):
    program = PROGRAMS["as its 46"]()
    module, operands = load_fused(program, tmp_path), kp.make_operands(program, "cuda", seed=1)
    for settings in cuda.space(program).points:
        module.configure(**dict(settings))
        close(module.run(*operands), program, operands)
    for layout in (shifted, every_other, padded_rows):
        moved = [layout(t) for t in operands]
        close(module.run(*moved), program, moved)


def test_one_kernel_takes_many_numbers_of_rows(tmp_path):
    def make(rows):
        return kp.pool("max", (rows, 64, 57, 64), (3, 3), stride=2, padding=1)

    module = load_fused(make(64), tmp_path)
    for rows in (64, 65, 131, 640):
        (x,) = operands = kp.make_operands(make(rows), "cuda", seed=rows)
        assert module.takes(rows) and module._FUSED.plan([x.stride()], [16], device(), rows=rows).slide is not None
        close(module.run(x), make(rows), operands)
    assert len(module._FUSED.objects) <= 2, "one with shorter walks, for few rows"


def test_many_runs_agree_to_the_last_bit_and_edge_values_stay(tmp_path):
    """A barrier that is missing, or a row that two walks write differently, would show sooner or later."""
    for op, window in (("sum", (3, 3)), ("max", (4, 4))):
        program = kp.pool(op, (32, 64, 127, 128), window, padding=1)
        module, (x,) = load_fused(program, tmp_path), kp.make_operands(program, "cuda", seed=2)
        (first,) = module.run(x)
        assert all(torch.equal(first, module.run(x)[0]) for _ in range(50))
    x[0, 0, 5, 7], x[0, 1, 0, 0], x[0, 2], x[0, 3, 126, 127] = nan, inf, -inf, nan
    (got,), (want,) = module.run(x), kp.interpret(program, [x], exact=False)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
