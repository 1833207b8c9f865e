"""Epilogues of the skeleton `conv` that measure, without a GPU: warps run on numpy, and what they compile to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.conv_lanes import run_on_lanes
from fakes.convolutions import contiguous, shape_of, spec_of
from fakes.lanes import on_lanes
from tilewright.kernels.cuda.common import math as m
from tilewright.kernels.cuda.common.cubin import taken
from tilewright.kernels.cuda.common.spec import ArraySpec
from tilewright.kernels.cuda.conv import epilogue, gather, kernel, moments, window
from tilewright.kernels.cuda.conv.fused import ConvSpec, FusedConv
from tilewright.kernels.cuda.conv.reduction import MOMENTS, WARPS, ConvReduction, slots, unreduced
from tilewright.kernels.cuda.conv.tiles import DEFAULTS, make_points

MODULES = (epilogue, gather, kernel, moments, window)
STRIDED = {"transposed": True, "stride": 2, "padding": 1}
TOGETHER = {"kernel": "window", "phases": "all", "producers": 128}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A convolution whose results, and a channel's operand more, are measured; they are written, too, where `kept`."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    how: dict[str, Any]
    knobs: dict[str, Any]
    kept: bool = True
    dtype: str = "f16"


CASES = (
    Case(x=(3, 8, 9, 11), w=(64, 8, 3, 3), how={}, knobs={}),
    Case(x=(3, 8, 9, 12), w=(40, 8, 3, 3), how={}, knobs={}, kept=False),  # pairs of pixels
    Case(x=(40, 8, 7, 6), w=(20, 8, 3, 3), how={"padding": 1}, knobs={"pixels": 256}),  # many samples a tile
    Case(x=(2, 8, 40, 41), w=(8, 8, 3, 3), how={}, knobs={}, kept=False),
    Case(x=(2, 8, 40, 41), w=(56, 8, 3, 3), how={}, knobs={"columns": 24}),  # tiles of columns, chunk by chunk
    Case(x=(2, 8, 41, 40), w=(64, 4, 3, 3), how={"groups": 2}, knobs={"columns": 16}),
    Case(x=(3, 8, 9, 11), w=(16, 8, 3, 3), how={"padding": 1}, knobs={"kernel": "window"}),
    Case(x=(3, 8, 5, 7), w=(8, 16, 3, 3), how=STRIDED, knobs=TOGETHER | {"phases": "plane"}),
    Case(x=(1, 8, 3, 4, 5), w=(8, 16, 3, 3, 3), how=STRIDED, knobs=TOGETHER, kept=False),
)  # fmt: skip


def spec_and_shape(case: Case, *, traced: bool = False) -> ConvSpec:
    """The Spec, with a channel's operand b. `traced`: by a kernel's own arithmetic."""
    shape = shape_of(case.x, case.w, **case.how)
    spec = spec_of(shape, case.x, case.w, case.how, case.dtype)
    add = (lambda x, y: m.add(x, y, "f32")) if traced else (lambda x, y: x + y)

    def both(product: Any, b: Any) -> Any:
        made = add(product, b)
        return made, made

    def alone(product: Any, b: Any) -> Any:
        return add(product, b)

    columns = (shape.groups, shape.columns)[shape.groups == 1 :]
    b = ArraySpec(name="b", dtype="f32", shape=(1, *columns, *(1,) * (len(case.x) - 2)))
    states = (MOMENTS, shape.batch, shape.groups * shape.columns, slots(shape), WARPS)
    outputs = (*(spec.outputs if case.kept else ()), ArraySpec(name="states", dtype="f32", shape=states))
    return replace(spec, operands=(b,), outputs=outputs, epilogue=both if case.kept else alone,
                   reduction=ConvReduction(over="moments"))  # fmt: skip


def joined(states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and squares of all parts of a channel."""
    count, mean, squares = (s.flatten(2).double() for s in states)
    total = count.sum(-1)
    whole = (count * mean).sum(-1) / total
    return total, whole, (squares + count * (mean - whole[..., None]) ** 2).sum(-1)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{'x'.join(map(str, c.x))}-{'x'.join(map(str, c.w))}")
def test_what_warps_measure_and_write_is_what_torch_has(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of values whose mean is a thousand times their deviation."""
    spec = spec_and_shape(case)
    points = make_points(spec.shape, DEFAULTS | case.knobs)
    assert unreduced(spec.shape, points, "moments", operands=1) is None
    channels = spec.shape.groups * spec.shape.columns
    y = 1000 + torch.randn(spec.shape.batch, channels, *spec.shape.out, dtype=torch.float64)
    b = torch.randn(channels, dtype=torch.float64)
    warp = on_lanes(monkeypatch, MODULES)
    *kept, states = map(torch.from_numpy, run_on_lanes(warp, spec, points, y.numpy(), [b.numpy()]))
    assert not states.isnan().any()
    whole = y + b.view(1, -1, 1, 1, 1)
    for made in kept:
        torch.testing.assert_close(made, whole.reshape(spec.outputs[0].shape))
    count, mean, squares = joined(states)
    flat = whole.flatten(2)
    assert (count == flat.shape[-1]).all()
    torch.testing.assert_close(mean, flat.mean(-1))
    torch.testing.assert_close(squares, flat.var(-1, correction=0) * flat.shape[-1])


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_welford_in_fp32_keeps_a_deviation_a_thousandth_of_the_mean(rows: int) -> None:
    """A thread's rows, then threads in pairs, in fp32, against float64: the error of the mean is a few roundings of it,
    that of the deviation 1e-3 of it."""
    torch.manual_seed(rows)
    values = (1000 + torch.randn(rows, 4096, dtype=torch.float64)).float()
    mean, squares = torch.zeros(4096), torch.zeros(4096)
    for n, value in enumerate(values):
        off = value - mean
        mean = mean + off * (1.0 / torch.tensor(n + 1.0))
        squares = squares + off * (value - mean)
    count = float(rows)
    while len(mean) > 1:
        a, b = mean[::2], mean[1::2]
        mean, squares = a + (b - a) * 0.5, squares[::2] + squares[1::2] + (b - a) ** 2 * (count / 2)
        count *= 2
    true = values.double()
    assert abs(float(mean) - float(true.mean())) < 3e-4
    assert abs(float(squares) / count / float(true.var(correction=0)) - 1) < 1e-3


def test_more_than_the_registers_hold_is_refused() -> None:
    case = Case(x=(2, 64, 34, 34), w=(128, 64, 3, 3), how={}, knobs={"producers": 128, "columns": 128})
    with pytest.raises(ValueError, match="registers"):
        FusedConv(spec_and_shape(case), case.knobs)


@pytest.mark.each(3)
@pytest.mark.parametrize(
    "case",
    [
        Case(x=(16, 8, 66, 66), w=(64, 8, 3, 3), how={}, knobs={"precision": "fp16x3"}, kept=False, dtype="f32"),
        Case(x=(16, 64, 34, 34), w=(128, 64, 3, 3), how={}, dtype="f32",
             knobs={"precision": "tf32", "producers": 128, "columns": 64}),
        Case(x=(16, 64, 34, 34), w=(96, 64, 3, 3), how={}, knobs={"precision": "tf32", "producers": 128}, dtype="f32"),
        Case(x=(16, 64, 66, 66), w=(64, 64, 3, 3), how={}, knobs={"precision": "tf32", "kernel": "window"},
             dtype="f32"),
        Case(x=(4, 16, 8, 16, 16), w=(16, 32, 3, 3, 3), how=STRIDED,
             knobs=TOGETHER | {"precision": "tf32", "phases": "all"}, dtype="f32"),
        Case(x=(16, 64, 34, 34), w=(256, 64, 3, 3), how={}, knobs={"columns": 96, "producers": 128}, dtype="f16"),
    ],
    ids=lambda c: f"{'x'.join(map(str, c.x))}-{'x'.join(map(str, c.w))}",
)  # fmt: skip
def test_it_compiles_without_spills(case: Case, tmp_path: Path) -> None:
    fused = FusedConv(spec_and_shape(case, traced=True), case.knobs)
    launch = fused.compile([contiguous(o.shape) for o in fused.spec.read], f"--keep-cubin --dump-dir={tmp_path}")
    kernels = taken(launch.artifacts.CUBIN)  # type: ignore[attr-defined]
    assert len(kernels) == 2 * len(fused.points) and not any(k.local_bytes for k in kernels)
