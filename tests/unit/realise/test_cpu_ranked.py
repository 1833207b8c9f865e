"""The first of a row in order on the CPU, against torch: values to the bit, positions that attain them, edge values."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from pathlib import Path

import pytest
import torch

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import cpu
from tilewright.ir.program import Program

pytestmark = pytest.mark.each(3)

PROGRAMS: dict[str, Callable[[], Program]] = {
    "long_rows": lambda: kp.ranked((3, 50021), 64, op="smallest"),
    "one_row": lambda: kp.ranked((70001,), 8),
    "short_rows": lambda: kp.ranked((300, 3), 3),
    "columns": lambda: kp.ranked((4, 57, 83), 3, 1),
    "routes": lambda: kp.ranked((100, 61), 8, fused=True),
    "rows_bf16": lambda: kp.ranked((9, 333), 4, dtype="bf16"),
    "rows_f64": lambda: kp.ranked((9, 333), 1, dtype="f64"),
    "columns_i8": lambda: kp.ranked((33, 40), 2, 0, dtype="i8", op="smallest"),
}
QUICK = ("routes", "columns", "long_rows")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("candidate")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PROGRAMS])
def test_against_torch(name: str, folder: Path) -> None:
    program = PROGRAMS[name]()
    assert cpu.unsupported(program) is None
    operands = kp.make_operands(program, "cpu")
    module = load_fused(program, folder, renderer=cpu)
    (dim,) = program.reduced
    truth, places = kp.interpret(program, operands, exact=True)
    turned = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in operands]
    for settings in cpu.space(program).points[: 2 if name == "long_rows" else 1]:
        module.configure(**dict(settings))
        for given in (operands, turned):
            values, positions = module.run(*given)
            torch.testing.assert_close(values.double(), truth.double(), rtol=1e-6, atol=0.0)
            assert positions.dtype == torch.int64 and positions.shape == values.shape
            if len(program.body) == 1:
                assert torch.equal(given[0].gather(dim, positions), values)
                assert bool((positions.sort(dim).values.diff(dim=dim) > 0).all()), "an element is chosen once"
            else:
                assert torch.equal(positions, places)


@pytest.mark.parametrize("op", ["largest", "smallest"])
def test_nan_is_the_greatest_and_the_first_of_equals_comes_first(op: str, folder: Path) -> None:
    x = torch.randint(-3, 3, (5, 99)).float()
    x[0, 3], x[1, :97], x[2, 5], x[3, ::3] = nan, -inf, inf, nan
    values, positions = load_fused(kp.ranked((5, 99), 7, op=op), folder, renderer=cpu).run(x)
    torch.testing.assert_close(values, x.topk(7, 1, op == "largest").values, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(x.gather(1, positions), values, rtol=0, atol=0, equal_nan=True)
    alike = (values[:, 1:] == values[:, :-1]) | (values[:, 1:].isnan() & values[:, :-1].isnan())
    assert bool((positions.diff(dim=1)[alike] > 0).all()) and bool(alike.any())
