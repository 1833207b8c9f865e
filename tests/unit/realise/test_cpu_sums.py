"""Sums over rows beside the rows, in one pass on the CPU: against float64, and the same to the bit on any threads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.program_interpreter import run_program
from fakes.realisers import CPU, cpu
from tilewright.facts.candidate import Candidate
from tilewright.facts.pattern import Choice
from tilewright.ir.program import Program
from tilewright.run.ahead import compiled_ahead

pytestmark = pytest.mark.each(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("candidate")


def agrees(program: Program, operands: list[Tensor], results: tuple[Tensor, ...], bound: float) -> None:
    truth = run_program(program, [t.double() for t in operands], exact=True)
    for ours, true, spec in zip(results, truth, program.outputs, strict=True):
        assert ours.shape == spec.shape and ours.dtype == kp.TORCH[spec.dtype] and ours.is_contiguous()
        scale = true.abs().amax()
        assert float((ours.double() - true).abs().amax() / scale) < bound, spec


@pytest.mark.parametrize(
    ("program", "bound"),
    [
        (kp.norm_backward((3, 137, 217)), 2e-6),
        (kp.gelu_backward((3, 137, 2, 101), inner=2), 2e-6),
        pytest.param(kp.norm_backward((1, 5, 40001), rms=True), 2e-6, marks=pytest.mark.slow),
        pytest.param(kp.norm_backward((4099, 31), dtype="bf16", rms=True), 8e-3, marks=pytest.mark.slow),
        pytest.param(kp.norm_backward((70, 2), dtype="f16"), 4e-3, marks=pytest.mark.slow),
    ],
)
def test_gradients_of_a_norm(program: Program, bound: float, folder: Path) -> None:
    assert cpu.unsupported(program) is None
    operands = kp.make_operands(program, "cpu")
    module = load_fused(program, folder, renderer=cpu)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 7):
            torch.set_num_threads(count)
            found.append(module.run(*operands))
    finally:
        torch.set_num_threads(threads)
    for results in found:
        agrees(program, operands, results, bound)
        first = len(program.outputs) - len(program.sums)
        assert all(torch.equal(a, b) for a, b in zip(results[first:], found[0][first:], strict=True)), (
            "threads show in the sums"
        )
    turned = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in operands]
    agrees(program, operands, module.run(*turned), bound)


def test_sums_beyond_float32_show_where_they_are(folder: Path) -> None:
    """What is not finite stays in its column, and large sums of many rows lose nothing."""
    program = kp.norm_backward((3, 137, 217))
    operands = kp.make_operands(program, "cpu")
    gradient = operands[1]
    gradient[1, 5, 3], gradient[2, 136, 216] = float("inf"), float("nan")
    sums = load_fused(program, folder, renderer=cpu).run(*operands)[3].flatten()
    assert sums[3] == float("inf") and bool(sums[216].isnan()) and int(sums.isfinite().sum()) == 215


def test_both_of_its_kernels_are_compiled_ahead(tmp_path: Path) -> None:
    program = kp.norm_backward((2, 3))
    point = cpu.space(program).points[0]
    candidate = Candidate(files=cpu.render(program, "fused_0", point))
    made = compiled_ahead(
        candidate, [Choice(pattern="fused_0", point=point)], folder=tmp_path / "kept", jobs=1, device=CPU
    )
    assert sorted(path.name.split("-")[0] for path in made) == ["fused_0", "fused_0_sums"]


def test_rows_that_lie_side_by_side_are_left_to_two_kernels() -> None:
    reason = cpu.unsupported(kp.norm_backward((8, 300, 5), 1))
    assert reason is not None and "side by side" in reason
