"""Any number of rows by one compiled kernel, on a GPU: against float64, and as a module whose user changes them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.program_interpreter import run_program
from fakes.realisers import H200
from tilewright.facts.pattern import Choice
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.rows import traced
from tilewright.ir.program import Program
from tilewright.realise.compose import compose
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import write_candidate

pytestmark = pytest.mark.gpu

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(512))

    def forward(self, x, y):
        z = x * torch.sigmoid(1.5 * x) + y
        return z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6) * self.gain, torch.softmax(z, -1)
"""

# A program of so many rows; how many it is rendered for, and called with; kernels that suffice; the error that may be.
PROGRAMS: dict[str, tuple[Callable[[int], Program], int, tuple[int, ...], int, float]] = {
    "softmax": (lambda n: kp.softmax((n, 4096)), 640, (640, 2, 3, 641, 8200), 1, 1e-6),
    "several rows a CTA": (lambda n: kp.softmax((n, 24), dtype="bf16"), 1000, (1000, 2, 3, 64, 4097), 2, 1e-2),
    "a cluster a row": (lambda n: kp.softmax((n, 65536)), 256, (256, 132, 133, 500), 1, 1e-6),
    "a norm and its weights": (
        lambda n: kp.norm((n, 1000), (1,), affine=(1, 1000), residual=True, dtype="f16"), 640, (640, 5, 641), 2, 4e-3),
    "a chain": (lambda n: kp.chain((n, 512), bias=(1, 512)), 4096, (4096, 2, 5, 1021, 4100, 70000), 3, 1e-5),
    "a chain of three dimensions": (
        lambda n: kp.chain((n, 24, 16), bias=(1, 24, 1), dtype="bf16"), 64, (64, 63, 1000), 2, 2e-2),
    "columns": (lambda n: kp.rms_norm((n, 64, 32, 32), 1), 130, (130, 131, 300), 2, 1e-5),
    "a gather": (lambda n: kp.embedded(n, 1024), 4096, (4096, 2, 1021), 2, 1e-6),
    "windows": (lambda n: kp.pool("max", (n, 16, 30, 33), (3, 3), stride=2, padding=1), 64, (64, 3, 130), 3, 1e-6),
    "halves of each row": (lambda n: kp.rotary(n, 128, 32, dtype="bf16"), 16, (16, 3, 1000), 2, 2e-2),
    "a scan": (lambda n: kp.cumulative("cumsum", (n, 4096)), 640, (640, 133, 1000), 1, 1e-5),
}  # fmt: skip


def truth_of(operands: list[Tensor]) -> list[Tensor]:
    return [o.double() if o.is_floating_point() else o for o in operands]


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_one_kernel_takes_many_numbers_of_rows(name: str, tmp_path: Path) -> None:
    make, home, rows, kernels, bound = PROGRAMS[name]
    module = load_fused(make(home), tmp_path)
    for n in rows:
        program = make(n)
        operands = kp.make_operands(program, "cuda", seed=n)
        results = module.run(*operands)
        assert module.takes(n)
        for ours, true, spec in zip(results, run_program(program, truth_of(operands), exact=True),
                                    program.outputs, strict=True):  # fmt: skip
            assert ours.shape == spec.shape and ours.dtype == kp.TORCH[spec.dtype] and ours.is_contiguous()
            assert float((ours.double() - true).abs().amax() / true.abs().amax()) < bound, (n, spec)
        again = module.run(*operands)
        assert all(torch.equal(a, b) for a, b in zip(again, results, strict=True))
    assert len(module._FUSED.objects) <= kernels + 1  # at home, a chain of a ragged end has one of its own


def test_other_layouts_and_rows_that_no_free_kernel_takes(tmp_path: Path) -> None:
    module = load_fused(kp.softmax((640, 4096)), tmp_path)
    for operand in (torch.randn(4096, 77, device="cuda").t(), torch.randn(2 * 77 * 4096 + 1, device="cuda")[1:],
                    torch.randn(1, 4096, device="cuda").expand(77, -1)):  # fmt: skip
        x = operand[: 77 * 4096].view(77, 4096) if operand.ndim == 1 else operand
        torch.testing.assert_close(module.run(x)[0].double(), x.double().softmax(-1), rtol=1e-5, atol=1e-7)
    wide = load_fused(kp.softmax((640, 65536)), tmp_path)
    x = torch.randn(3, 65536, device="cuda")
    assert not wide.takes(3)  # yet it is right
    torch.testing.assert_close(wide.run(x)[0].double(), x.double().softmax(-1), rtol=1e-5, atol=1e-7)


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    """A composed module, traced at 640 rows; nothing of it is left for other tests."""
    path, known = list(sys.path), set(sys.modules)
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    graph = traced(names["Model"]().cuda(), operands_of(640), {})
    assert graph.free
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    case = CaseFacts(inputs=(), outputs=(), work=work, graph=graph)
    matched = found_patterns((case,), H200)
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
    write_candidate(compose(SOURCE, (case,), matched, recipe, device=H200), tmp_path / "c")
    sys.path.insert(0, str(tmp_path / "c"))
    spec = importlib.util.spec_from_file_location("model_free", tmp_path / "c" / "model.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    yield found
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.startswith(("fused_", "tilewright_kernels", "model_", "original_")):
            del sys.modules[name]


def operands_of(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 512, device="cuda"), torch.randn(rows, 512, device="cuda")


@pytest.mark.filterwarnings("ignore")  # torch._dynamo's own
@torch.no_grad()
def test_a_module_takes_any_number_of_rows_and_counts_what_it_leaves_to_torch(module: ModuleType) -> None:
    ours, exact = module.ModelNew().cuda(), module.Model().cuda().double()
    exact.load_state_dict({k: v.double() for k, v in ours.state_dict().items()})

    def check(call: Callable[..., Any], rows: int) -> None:
        given = operands_of(rows)
        for mine, truth in zip(call(*given), exact(*(g.double() for g in given)), strict=True):
            assert mine.dtype == torch.float32 and mine.shape == truth.shape
            torch.testing.assert_close(mine.double(), truth, rtol=1e-5, atol=1e-6)

    for rows in (640, 2, 3, 10007, 640):
        check(ours, rows)
    assert module.FALLBACKS == {} and len(sys.modules["fused_0"]._FUSED.objects) <= 2
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for rows in (640, 7, 9):
        check(compiled, rows)
    assert module.FALLBACKS == {}
    check(ours, 1)
    assert module.FALLBACKS == {"no case has this signature": 1}
