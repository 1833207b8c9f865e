"""Scans on the CPU: rendered programs, built and run, against torch in float64; odd sizes, dtypes, strides, edges."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from pathlib import Path

import pytest
import torch

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import cpu
from fakes.traced import only_program
from tilewright.ir.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.one_in(4)]

PROGRAMS: dict[str, Callable[[], Program]] = {
    "rows": lambda: kp.cumulative("cumsum", (5, 1003)),
    "rows_reverse": lambda: kp.cumulative("cumsum", (5, 1003), reverse=True),
    "rows_exclusive": lambda: kp.cumulative("cumsum", (5, 64), exclusive=True),
    "rows_reverse_exclusive": lambda: kp.cumulative("cumprod", (3, 61), reverse=True, exclusive=True),
    "rows_short": lambda: kp.cumulative("cumsum", (1000, 3), reverse=True),
    "one_row": lambda: kp.cumulative("cumsum", (70001,)),
    "rows_product": lambda: kp.cumulative("cumprod", (9, 40)),
    "rows_bf16": lambda: kp.cumulative("cumsum", (9, 333), dtype="bf16", reverse=True),
    "rows_f64": lambda: kp.cumulative("cumsum", (9, 333), dtype="f64"),
    "rows_i64": lambda: kp.cumulative("cumsum", (9, 333), dtype="i64", reverse=True),
    "rows_i32": lambda: kp.cumulative("cumprod", (9, 33), dtype="i32", exclusive=True),
    "columns": lambda: kp.cumulative("cumsum", (4, 57, 83), 1),
    "columns_reverse": lambda: kp.cumulative("cumsum", (400, 77), 0, reverse=True),
    "columns_exclusive": lambda: kp.cumulative("cumprod", (40, 7, 2), 0, exclusive=True),
    "masked": lambda: kp.masked_cumsum((40, 500)),
    "busy_rows": lambda: kp.busy_cumsum((7, 101), 1, reverse=True),
    "busy_columns": lambda: kp.busy_cumsum((7, 30, 41), 1),
    "maxima": lambda: kp.extrema("cummax", (5, 1003), fused=True),
    "minima_reverse": lambda: kp.extrema("cummin", (5, 1003), fused=True, reverse=True),
    "maxima_i8": lambda: kp.extrema("cummax", (40, 33), 0, dtype="i8", reverse=True),
    "maxima_exclusive": lambda: kp.cumulative("cummax", (9, 333), dtype="bf16", exclusive=True),
    "log_sums": lambda: kp.cumulative("logcumsumexp", (5, 1003)),
    "log_sums_columns": lambda: kp.cumulative("logcumsumexp", (400, 77), 0, reverse=True),
    "recurrence": lambda: kp.recurrence((5, 1003)),
    "recurrence_columns": lambda: kp.recurrence((4, 57, 83), 1, dtype="bf16"),
    "recurrence_decay": lambda: kp.recurrence((4, 57, 83), 1, decay=(1, 1, 83), exclusive=True),
    "recurrence_reverse": lambda: kp.recurrence((9, 333), dtype="f16", reverse=True),
}
QUICK = ("minima_reverse", "log_sums", "recurrence", "recurrence_columns")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("candidate")


def agrees(module: object, program: Program, operands: list[torch.Tensor]) -> None:
    """Within a few units of the output's precision, of the largest value so far (a sum may cancel)."""
    for made, spec, truth in zip(
        module.run(*operands), program.outputs, kp.interpret(program, operands, exact=True), strict=True
    ):
        assert made.dtype == kp.TORCH[spec.dtype] and made.shape == spec.shape and made.is_contiguous()
        if made.is_floating_point():
            bound = 8 * torch.finfo(made.dtype).eps
            scale = float(truth[torch.isfinite(truth)].abs().max())
            torch.testing.assert_close(made.double(), truth, rtol=bound, atol=bound * scale, equal_nan=True)
        else:
            assert torch.equal(made, truth.to(made.dtype))


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PROGRAMS])
def test_against_float64(name: str, folder: Path) -> None:
    program = PROGRAMS[name]()
    assert cpu.unsupported(program) is None
    operands = kp.make_operands(program, "cpu")
    module = load_fused(program, folder, renderer=cpu)
    agrees(module, program, operands)
    turned = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in operands]
    agrees(module, program, turned)


@pytest.mark.optimised
def test_every_point_of_a_large_scan(folder: Path) -> None:
    program = kp.cumulative("cumsum", (3000, 3000), reverse=True)
    operands = kp.make_operands(program, "cpu")
    points = cpu.space(program).points
    assert any(dict(settings)["stream"] for settings in points)
    module = load_fused(program, folder, renderer=cpu)
    for settings in points:
        module.configure(**dict(settings))
        agrees(module, program, operands)


def test_columns_in_bands_that_are_streamed(folder: Path) -> None:
    for width in (64, 1000, 4112):  # a part of a band, several with a rest, several in whole vectors
        program = kp.recurrence((3, 20, width), 1, reverse=True)
        module = load_fused(program, folder, renderer=cpu)
        module.configure(stream=True)
        agrees(module, program, kp.make_operands(program, "cpu"))


def test_nan_and_infinities_spread_onwards_only(folder: Path) -> None:
    program = kp.cumulative("cumsum", (3, 37))
    x = torch.randn(3, 37)
    x[0, 35], x[1, 4], x[1, 9], x[2, 0] = nan, inf, -inf, -inf
    (made,) = load_fused(program, folder, renderer=cpu).run(x)
    torch.testing.assert_close(made, torch.cumsum(x, 1), equal_nan=True)
    assert bool(torch.isfinite(made[0, :35]).all()) and bool(made[1, 9:].isnan().all())


@pytest.mark.optimised
def test_extrema_keep_torch_rules_for_nan_and_ties(folder: Path) -> None:
    x = torch.randint(-2, 3, (6, 41)).float()
    x[0, 7], x[0, 20], x[1, :5], x[1, 9], x[2] = nan, nan, -inf, inf, -inf
    x[3, 40], x[4, 0] = nan, nan
    for op in ("cummax", "cummin"):
        made = load_fused(kp.extrema(op, (6, 41)), folder, renderer=cpu).run(x)
        for got, want in zip(made, getattr(torch, op)(x, 1), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_logarithms_of_sums_at_the_edges(folder: Path) -> None:
    x = torch.randn(6, 41) * 50
    x[0, 7], x[1, :5], x[1, 9], x[2], x[3, 3], x[3, 9] = nan, -inf, inf, -inf, inf, -inf
    (made,) = load_fused(kp.cumulative("logcumsumexp", (6, 41)), folder, renderer=cpu).run(x)
    torch.testing.assert_close(made, torch.logcumsumexp(x, 1), equal_nan=True)


def test_a_recurrence_is_reset_by_a_gate_of_zero(folder: Path) -> None:
    """Though what is ahead of it grows beyond fp32."""
    b = kp.Builder((3, 400), (1,))
    b.write(b.scan("recurrence", b.read("a"), b.read("x")))
    a, x = torch.full((3, 400), 3.0), torch.ones(3, 400)
    a[:, 300], x[:, :5] = 0.0, 0.0
    (made,) = load_fused(b.done(), folder, renderer=cpu).run(a, x)
    assert bool((made[:, :5] == 0).all()) and bool(made[:, 299].isinf().all()) and bool((made[:, 302] == 13).all())


def test_a_last_state_alone(folder: Path) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(7, 33)
        for t in range(300):
            h = torch.lerp(x[:, t], h, 0.9)
        return torch.relu(h)

    x = torch.randn(7, 300, 33)
    program = only_program(forward, x, renderer=cpu)
    assert program.scan is None and [o.shape for o in program.outputs] == [(7, 1, 33)]
    (made,) = load_fused(program, folder, renderer=cpu).run(x)
    torch.testing.assert_close(made.view(7, 33), forward(x), rtol=1e-6, atol=1e-6)


def test_sums_are_rounded_once(folder: Path) -> None:
    program = kp.cumulative("cumsum", (1, 200003))
    (x,) = kp.make_operands(program, "cpu")
    (made,) = load_fused(program, folder, renderer=cpu).run(x + 100.0)
    truth = torch.cumsum((x + 100.0).double(), 1)
    assert float(((made - truth) / truth).abs().max()) <= 2.0**-24


def test_what_no_scan_holds() -> None:
    b = kp.Builder((4, 5), (1,))
    b.write(b.scan("cumsum", b.read("x")))
    b.write_row(b.op("exp", b.read("r", (4, 1))))
    assert cpu.unsupported(b.done()) == "an output smaller than the domain beside a scan"
