"""Epilogues of the skeleton `conv` that reduce, without a GPU: warps run on numpy, and what they compile to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.conv_lanes import run_on_lanes
from fakes.convolutions import contiguous, shape_of, spec_of
from fakes.lanes import on_lanes
from tilewright.kernels.cuda.common import math as m
from tilewright.kernels.cuda.common.cubin import taken
from tilewright.kernels.cuda.common.spec import ArraySpec, ReductionSpec, Sweep
from tilewright.kernels.cuda.conv import epilogue, gather, kernel, reduced, window
from tilewright.kernels.cuda.conv.fused import ConvSpec, FusedConv
from tilewright.kernels.cuda.conv.reduction import WARPS, ConvReduction, chunk_rows, slots, unreduced
from tilewright.kernels.cuda.conv.tiles import DEFAULTS, make_points

MODULES = (epilogue, gather, kernel, reduced, window)
STRIDED = {"transposed": True, "stride": 2, "padding": 1}
TOGETHER = {"kernel": "window", "phases": "all", "producers": 128}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A convolution whose results are reduced `over` this with `op`."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    over: str
    op: str = "sum"
    how: dict[str, Any]
    knobs: dict[str, Any]
    pool: tuple[int, int, int] = (1, 1, 1)
    last: bool = False
    dtype: str = "f16"


CASES = (
    Case(x=(2, 8, 9, 11), w=(64, 8, 3, 3), over="channels", op="min", how={}, knobs={}),
    Case(x=(2, 8, 9, 12), w=(40, 8, 3, 3), over="channels", op="sum", how={}, knobs={"columns": 48}),
    Case(x=(2, 8, 9, 11), w=(33, 8, 3, 3), over="channels", op="softmax_stats", how={}, knobs={}),
    Case(x=(2, 8, 9, 12), w=(64, 8, 3, 3), over="channels", op="softmax_stats", how={"padding": 1}, knobs={}),
    Case(x=(1, 8, 9, 11), w=(24, 8, 3, 3), over="channels", op="moments", how={}, knobs={"kernel": "window"}),
    Case(x=(1, 8, 6, 5), w=(8, 24, 3, 3), over="channels", op="max", how=STRIDED, knobs={}),
    Case(x=(1, 8, 6, 5), w=(8, 16, 4, 4), over="channels", op="softmax_stats", how=STRIDED,
         knobs=TOGETHER | {"phases": "plane"}),
    Case(x=(1, 8, 6, 5), w=(8, 16, 3, 3), over="channels", op="min", how=STRIDED,
         knobs=TOGETHER | {"phases": "plane"}),
    Case(x=(1, 8, 3, 4, 5), w=(8, 24, 2, 3, 4), over="channels", op="softmax_stats", how=STRIDED, knobs=TOGETHER),
    Case(x=(2, 8, 9, 11), w=(64, 8, 3, 3), over="channels", op="softmax_stats", how={}, knobs={}, last=True),
    Case(x=(2, 8, 9, 11), w=(36, 8, 3, 3), over="channels", op="max", how={}, knobs={}, last=True),
    Case(x=(2, 8, 9, 11), w=(64, 8, 3, 3), over="window", op="max", how={}, knobs={}, pool=(1, 2, 2)),
    Case(x=(2, 8, 15, 14), w=(40, 8, 3, 3), over="window", op="sum", how={}, knobs={}, pool=(1, 4, 4)),
    Case(x=(2, 8, 15, 14), w=(52, 8, 3, 3), over="window", op="min", how={}, knobs={"columns": 40}, pool=(1, 2, 4)),
    Case(x=(1, 8, 40), w=(24, 8, 3), over="window", op="max", how={}, knobs={}, pool=(1, 1, 2)),
    Case(x=(1, 8, 7, 8, 9), w=(16, 8, 3, 3, 3), over="window", op="max", how={}, knobs={}, pool=(2, 2, 2)),
    Case(x=(1, 8, 3, 4, 5), w=(8, 16, 2, 2, 2), over="window", op="max", how={"transposed": True, "stride": 2},
         knobs=TOGETHER, pool=(2, 2, 2)),
    Case(x=(3, 8, 9, 11), w=(64, 8, 3, 3), over="places", how={}, knobs={}),
    Case(x=(40, 8, 9, 11), w=(20, 8, 3, 3), over="places", op="max", how={}, knobs={"pixels": 256}),
    Case(x=(2, 8, 40, 41), w=(8, 8, 3, 3), over="places", how={}, knobs={}),
    Case(x=(3, 8, 9, 11), w=(16, 8, 3, 3), over="places", how={"padding": 1}, knobs={"kernel": "window"}),
    Case(x=(3, 8, 5, 7), w=(8, 16, 3, 3), over="places", how=STRIDED, knobs=TOGETHER | {"phases": "plane"}),
    Case(x=(2, 8, 40, 41), w=(64, 4, 3, 3), over="places", how={"groups": 2}, knobs={"columns": 16}),
    Case(x=(5, 8, 9, 11), w=(48, 8, 3, 3), over="places", op="max", how={}, knobs={"columns": 32}),
)  # fmt: skip


def reduction_of(case: Case, *, traced: bool = False) -> ConvReduction:
    """Of product + b, a channel's; with the results something is done. `traced`: by a kernel's own arithmetic."""
    add = (lambda x, y: m.add(x, y, "f32")) if traced else (lambda x, y: x + y)
    sub = (lambda x, y: m.sub(x, y, "f32")) if traced else (lambda x, y: x - y)
    names = ("r0", "r1") if case.op in ("softmax_stats", "moments") else ("r0",)
    spec = ReductionSpec(op=case.op, source="f32", dtype="f32", results=names)

    def elements(product: Any, b: Any) -> Any:
        return (add(product, b),)

    def rows(r0: Any, b: Any) -> Any:
        return {"y": add(r0, b)}

    def alone(r0: Any) -> Any:
        return {"y": add(r0, 3.0)}

    def final(product: Any, b: Any, r0: Any, r1: Any) -> Any:
        return sub(add(product, b), add(r0, r1))

    after = rows if case.over == "window" else alone
    sweep = Sweep(elements=elements, reductions=(spec,), rows=after if len(names) == 1 else None)
    many = {"final": final} if len(names) == 2 else {"row": "y"}
    return ConvReduction(over=case.over, sweeps=(sweep,), window=case.pool, **many)  # type: ignore[arg-type]


def spec_and_shape(case: Case, *, traced: bool = False) -> ConvSpec:
    """The Spec, with a channel's operand b."""
    shape = shape_of(case.x, case.w, **case.how)
    shape = replace(shape, out=tuple(n // p * p for n, p in zip(shape.out, case.pool, strict=True)))
    spec = spec_of(shape, case.x, case.w, case.how, case.dtype, case.last)
    out, spatial = spec.outputs[0], len(case.x) - 2
    channel = len(out.shape) - 1 if case.last else 1
    one = tuple(n if d == channel else 1 for d, n in enumerate(out.shape))
    if case.over == "channels" and case.op not in ("softmax_stats", "moments"):
        out = replace(out, shape=tuple(1 if d == channel else n for d, n in enumerate(out.shape)))
    if case.over == "window":
        pooled = tuple(n // p for n, p in zip(shape.out, case.pool, strict=True))[3 - spatial :]
        out = replace(out, shape=(case.x[0], shape.columns, *pooled, *(1,) * spatial))
        one = (*one, *(1,) * spatial)
    if case.over == "places":
        out = replace(out, dtype="f32", shape=(1, case.x[0], shape.groups * shape.columns, slots(shape), WARPS))
    if shape.groups > 1:
        one = (
            (1, *out.shape[1:3], *(1,) * spatial)
            if case.over != "places"
            else (1, shape.groups, shape.columns, *(1,) * spatial)
        )
    b = ArraySpec(name="b", dtype="f32", shape=one)
    return replace(spec, operands=(b,), outputs=(out,), reduction=reduction_of(case, traced=traced))


def expected(case: Case, spec: ConvSpec, y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What is written, but for places, whose states are joined first."""
    wide = b.view(1, -1, 1, 1, 1)
    t = y + wide
    if case.over == "places":
        return t.sum((2, 3, 4)) if case.op == "sum" else t.amax((2, 3, 4))
    if case.over == "window":
        p0, p1, p2 = case.pool
        n, c, *sizes = t.shape
        cut = t.view(n, c, sizes[0] // p0, p0, sizes[1] // p1, p1, sizes[2] // p2, p2)
        made = {"sum": cut.sum, "max": cut.amax, "min": cut.amin}[case.op]((3, 5, 7))
        return (made + wide).reshape(spec.outputs[0].shape)
    if case.op == "softmax_stats":
        best = t.amax(1, keepdim=True)
        made = t - (best + (t - best).exp().sum(1, keepdim=True))
    elif case.op == "moments":
        made = t - (t.mean(1, keepdim=True) + t.var(1, correction=0, keepdim=True) * t.shape[1])
    else:
        made = {"sum": t.sum, "max": t.amax, "min": t.amin}[case.op](1, keepdim=True) + 3
    return (made.movedim(1, -1) if case.last else made).reshape(spec.outputs[0].shape)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.over}-{c.op}-{'x'.join(map(str, c.w))}")
def test_what_warps_reduce_and_write_is_the_reduction(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_and_shape(case)
    points = make_points(spec.shape, DEFAULTS | case.knobs)
    assert unreduced(spec.shape, points, case.over, case.pool, operands=1) is None
    channels = spec.shape.groups * spec.shape.columns
    y = torch.randn(spec.shape.batch, channels, *spec.shape.out, dtype=torch.float64)
    b = torch.randn(channels, dtype=torch.float64)
    warp = on_lanes(monkeypatch, MODULES)
    made = torch.from_numpy(run_on_lanes(warp, spec, points, y.numpy(), [b.numpy()])[0])
    assert not made.isnan().any()
    if case.over == "places":
        made = made[0].sum((-2, -1)) if case.op == "sum" else made[0].amax((-2, -1))
    torch.testing.assert_close(made, expected(case, spec, y, b))


@pytest.mark.each(3)
@pytest.mark.parametrize(
    "case",
    [
        Case(x=(16, 16, 66, 66), w=(64, 16, 3, 3), over="channels", op="min", how={}, knobs={"precision": "tf32"},
             dtype="f32"),
        Case(x=(4, 64, 32, 32), w=(128, 64, 3, 3), over="channels", op="softmax_stats", how={}, dtype="f32",
             knobs={"precision": "fp16x3"}),
        Case(x=(4, 64, 32, 32), w=(64, 64, 4, 4), over="channels", op="softmax_stats", how=STRIDED, dtype="f32",
             knobs=TOGETHER | {"precision": "tf32", "phases": "plane"}),
        Case(x=(16, 64, 34, 34), w=(64, 64, 3, 3), over="channels", op="moments", how={}, knobs={}, last=True),
        Case(x=(16, 64, 66, 66), w=(128, 64, 3, 3), over="window", op="max", how={}, pool=(1, 2, 2), dtype="f32",
             knobs={"precision": "fp16x3"}),
        Case(x=(4, 3, 16, 16, 16), w=(3, 16, 2, 2, 2), over="window", op="max", how={"transposed": True, "stride": 2},
             knobs=TOGETHER | {"precision": "fp16x3"}, pool=(2, 2, 2), dtype="f32"),
        Case(x=(16, 8, 66, 66), w=(128, 8, 3, 3), over="places", how={}, dtype="f32",
             knobs={"precision": "fp16x3", "producers": 128}),
        Case(x=(16, 64, 66, 66), w=(64, 64, 3, 3), over="places", how={}, dtype="f32",
             knobs={"precision": "tf32", "kernel": "window", "pixels": 256}),
    ],
    ids=lambda c: f"{c.over}-{c.op}-{'x'.join(map(str, c.w))}",
)  # fmt: skip
def test_it_compiles_without_spills(case: Case, tmp_path: Path) -> None:
    fused = FusedConv(spec_and_shape(case, traced=True), case.knobs)
    launch = fused.compile([contiguous(o.shape) for o in fused.spec.read], f"--keep-cubin --dump-dir={tmp_path}")
    kernels = taken(launch.artifacts.CUBIN)  # type: ignore[attr-defined]
    assert len(kernels) == 2 * len(fused.points) and not any(k.local_bytes for k in kernels)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case(x=(2, 8, 9, 9), w=(64, 8, 3, 3), over="channels", how={}, knobs={"columns": 32}), "one tile does not"),
        (Case(x=(2, 8, 9, 9), w=(64, 4, 3, 3), over="channels", how={"groups": 2}, knobs={}), "one tile does not"),
        (Case(x=(2, 8, 9, 9), w=(128, 8, 3, 3), over="channels", how={}, knobs={"pixels": 256}), "registers"),
        (Case(x=(2, 8, 9, 9), w=(128, 8, 3, 3), over="places", how={}, knobs={"pixels": 256}), "registers"),
        (Case(x=(2, 8, 9, 9), w=(8, 16, 3, 3), over="places", how=STRIDED, knobs={}), "of one kernel"),
        (Case(x=(2, 8, 9, 9), w=(16, 8, 3, 3), over="window", how={}, knobs={}, pool=(1, 3, 3)), "2, 4, 8 or 16"),
        (Case(x=(2, 8, 9, 9), w=(16, 8, 3, 3), over="window", how={}, knobs={"kernel": "window"}, pool=(1, 2, 2)),
         "2, 4, 8 or 16"),
        (Case(x=(2, 8, 9, 9), w=(8, 16, 3, 3), over="window", how=STRIDED, knobs={}, pool=(1, 2, 2)), "its phases"),
        (Case(x=(2, 8, 9, 9), w=(8, 16, 4, 4), over="window", how=STRIDED, knobs=TOGETHER | {"phases": "plane"},
              pool=(1, 2, 2)), "its phases"),  # that begin ahead of the first output
    ],
)  # fmt: skip
def test_settings_that_can_not_reduce_are_refused(case: Case, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        FusedConv(spec_and_shape(case), case.knobs)


@pytest.mark.parametrize(("batch", "size"), [(1, 5), (300, 7), (3, 130), (128, 254), (2, 2000)])
def test_the_rows_of_a_sample_meet_no_more_chunks_than_it_has_slots(batch: int, size: int) -> None:
    """However a kernel numbers them: pixels, or places of a grid; and all chunks but the last are as long."""
    shape = shape_of((batch, 8, size + 2, size + 2), (8, 8, 3, 3))
    for pixels in (128, 256, 512):
        rows = max(chunk_rows(shape), pixels)
        for each in (size * size, (size + 2) * (size + 2)):
            met = [((n + 1) * each - 1) // rows - n * each // rows + 1 for n in range(batch)]
            assert max(met) <= slots(shape)
    assert rows % chunk_rows(shape) == 0 and chunk_rows(shape) <= 2048
