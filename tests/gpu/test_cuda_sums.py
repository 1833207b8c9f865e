"""Sums over the rows beside the rows, in one pass on a GPU: against float64, over shapes, dtypes, layouts and knobs."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isnan, nan
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.program_interpreter import run_program
from fakes.realisers import cuda
from tilewright.ir.program import Program

PROGRAMS: dict[str, tuple[Callable[[], Program], float]] = {
    "odd rows": (lambda: kp.norm_backward((3, 137, 217)), 1e-5),
    "usual rows": (lambda: kp.norm_backward((2048, 4096)), 1e-5),
    "usual rows in bf16": (lambda: kp.norm_backward((2049, 4096), dtype="bf16"), 1e-2),
    "many short rows": (lambda: kp.norm_backward((70001, 64), rms=True), 1e-5),
    "short odd rows in f16": (lambda: kp.norm_backward((4099, 35), dtype="f16"), 2e-3),
    "few rows": (lambda: kp.norm_backward((5, 1024), rms=True), 1e-5),
    "two rows": (lambda: kp.norm_backward((2, 1000)), 1e-5),
    "wide rows": (lambda: kp.norm_backward((301, 7168)), 1e-5),
    "a cluster a row": (lambda: kp.norm_backward((70, 16384)), 1e-5),
    "a cluster an odd row": (lambda: kp.norm_backward((301, 20488)), 1e-5),
    "large clusters": (lambda: kp.norm_backward((131, 65536), dtype="bf16", rms=True), 1e-2),
    "wider rows": (lambda: kp.norm_backward((1030, 10240), rms=True), 1e-5),
    "elements": (lambda: kp.gelu_backward((2048, 4096)), 1e-5),
    "elements in bf16": (lambda: kp.gelu_backward((2049, 4096), dtype="bf16"), 1e-2),
    "elements of odd rows": (lambda: kp.gelu_backward((3, 137, 217)), 1e-5),
    "elements of two halves": (lambda: kp.gelu_backward((1030, 2, 2816), inner=2), 1e-5),
    "elements of wide rows": (lambda: kp.gelu_backward((301, 16384)), 1e-5),
    "elements of clusters": (lambda: kp.gelu_backward((131, 65536)), 1e-5),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("candidate")


def agrees(program: Program, operands: list[Tensor], results: tuple[Tensor, ...], bound: float) -> None:
    truth = run_program(program, [t.double() for t in operands], exact=True)
    for ours, true, spec in zip(results, truth, program.outputs, strict=True):
        assert ours.shape == spec.shape and ours.dtype == kp.TORCH[spec.dtype] and ours.is_contiguous()
        assert float((ours.double() - true).abs().amax() / true.abs().amax()) < bound, spec


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_every_point(name: str, folder: Path) -> None:
    make, bound = PROGRAMS[name]
    program = make()
    assert cuda.unsupported(program) is None
    operands = kp.make_operands(program, "cuda")
    module = load_fused(program, folder)
    for settings in cuda.space(program).points:
        module.configure(**dict(settings))
        results = module.run(*operands)
        agrees(program, operands, results, bound)
        assert all(torch.equal(a, b) for a, b in zip(module.run(*operands), results, strict=True)), "not the same again"


def test_other_layouts(folder: Path) -> None:
    program = kp.norm_backward((3, 137, 220))
    operands = kp.make_operands(program, "cuda")
    module = load_fused(program, folder)
    turned = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in operands]
    agrees(program, turned, module.run(*turned), 1e-5)
    shifted = [torch.empty(t.numel() + 1, device="cuda", dtype=t.dtype)[1:].view(t.shape).copy_(t) for t in operands]
    agrees(program, shifted, module.run(*shifted), 1e-5)
    wide = kp.norm_backward((40, 32768), rms=True)
    operands = kp.make_operands(wide, "cuda")
    shifted = [torch.empty(t.numel() + 1, device="cuda", dtype=t.dtype)[1:].view(t.shape).copy_(t) for t in operands]
    agrees(wide, shifted, load_fused(wide, folder).run(*shifted), 1e-5)


def test_what_is_not_finite_stays_in_its_column(folder: Path) -> None:
    program = kp.norm_backward((1000, 516))
    operands = kp.make_operands(program, "cuda")
    operands[1][17, 3], operands[1][999, 515] = inf, nan
    sums = load_fused(program, folder).run(*operands)[3].flatten()
    assert float(sums[3]) == inf and isnan(float(sums[515])) and int(sums.isfinite().sum()) == 514
