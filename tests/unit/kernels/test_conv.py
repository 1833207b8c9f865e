"""The skeleton `conv` without a GPU: its order along K, the addresses that it reads, and what it compiles to."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fakes.convolutions import channels_last, contiguous, shape_of, spec_of
from tilewright.kernels.cuda.common import math as m
from tilewright.kernels.cuda.common.cubin import taken
from tilewright.kernels.cuda.common.spec import ArraySpec
from tilewright.kernels.cuda.conv import epilogue, gather, window
from tilewright.kernels.cuda.conv import prepare as preparing
from tilewright.kernels.cuda.conv.fused import ConvSpec, FusedConv, _Launched
from tilewright.kernels.cuda.conv.implicit import row_of
from tilewright.kernels.cuda.conv.phases import MERGED, ConvPhase, phases
from tilewright.kernels.cuda.conv.prepare import Prepare
from tilewright.kernels.cuda.conv.shape import GROUP, ConvShape
from tilewright.kernels.cuda.conv.tiles import DEFAULTS, channel_of, make_point, make_points
from tilewright.kernels.cuda.conv.windows import Windows

pytestmark = pytest.mark.each(3)

TF32 = {"precision": "tf32", "producers": 128}
PLANE = {"phases": "plane", "producers": 128}

SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 3, 7, 9), (5, 3, 3, 3), {}),
    ((2, 3, 8, 9), (5, 3, 3, 2), {"stride": 2, "padding": 1, "dilation": 2}),
    ((1, 64, 6, 5), (3, 64, 3, 3), {"padding": 1}),
    ((2, 50, 6, 5), (3, 50, 3, 3), {"padding": 1}),
    ((1, 96, 6, 5), (4, 48, 3, 3), {"groups": 2, "stride": 2}),
    ((2, 3, 4, 5, 6), (2, 3, 2, 3, 3), {"padding": 1}),
    ((1, 12, 4, 5, 6), (2, 12, 3, 3, 4), {"padding": 2}),
    ((1, 4, 6, 5), (4, 3, 3, 3), {"transposed": True, "padding": 1, "dilation": 2}),
    ((1, 64, 6, 5), (64, 3, 3, 3), {"transposed": True}),
    ((2, 4, 6, 5), (4, 3, 3, 4), {"transposed": True, "padding": 1, "stride": 2}),
    ((1, 4, 3, 97), (4, 3, 3, 3), {"transposed": True, "stride": 2}),  # spare places of a line
    ((1, 64, 6, 5), (64, 3, 5, 4), {"transposed": True, "stride": 3}),
    ((1, 9, 4, 5), (9, 2, 3, 5), {"transposed": True, "stride": 4, "padding": 1}),
    ((1, 20, 3, 4, 5), (20, 2, 3, 3, 3), {"transposed": True, "stride": 2, "padding": 1}),
    ((1, 5, 7, 6), (5, 2, 4, 3), {"transposed": True, "stride": 2, "dilation": 3}),
    ((1, 5, 7, 6), (5, 2, 3, 3), {"transposed": True, "stride": 2, "dilation": 2, "padding": 1}),  # some meet no tap
    ((2, 9, 4, 5), (9, 2, 3, 3), {"transposed": True, "stride": 5, "dilation": 2, "padding": 1}),
)


def is_windowed(case: tuple[Any, Any, dict[str, Any]], merged: str) -> bool:
    """Whether a kernel of windows computes it, with its phases merged so."""
    shape = shape_of(case[0], case[1], **case[2])
    try:
        make_points(shape, DEFAULTS | {"kernel": "window", "precision": "tf32", "phases": merged})
    except ValueError:
        return False
    return True


def reference(x: np.ndarray[Any, Any], w: np.ndarray[Any, Any], how: dict[str, Any]) -> np.ndarray[Any, Any]:
    named = dict(how)
    kind = "conv_transpose" if named.pop("transposed", False) else "conv"
    made: torch.Tensor = getattr(F, f"{kind}{x.ndim - 2}d")(torch.from_numpy(x), torch.from_numpy(w), **named)
    return made.numpy()


@pytest.fixture
def plain_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses are reckoned with Python's integers, and memory is read as a thread reads it."""

    def read(item: int, address: int, offsets: list[int | None], tests: list[int | None]) -> list[float]:
        return [
            0.0 if offset is None or test == 0 else ctypes.c_float.from_address(address + offset).value
            for offset, test in zip(offsets, tests, strict=True)
        ]

    def read_wide(item: int, address: int, offset: int, test: int | None) -> list[float]:
        assert (address + offset) % 16 == 0
        return read(item, address, [offset + item * j for j in range(GROUP)], [test] * GROUP)

    monkeypatch.setattr(gather, "read_wide", read_wide)
    monkeypatch.setattr(epilogue, "Int32", int)
    monkeypatch.setattr(epilogue, "Int64", int)
    for module in (gather, window):
        monkeypatch.setattr(module, "Int32", int)
        monkeypatch.setattr(module, "Int64", int)
        monkeypatch.setattr(module, "cutlass", SimpleNamespace(min=min))
    monkeypatch.setattr(preparing, "cutlass", SimpleNamespace(min=min))
    monkeypatch.setattr(preparing, "Int32", int)
    monkeypatch.setattr(gather, "read_group", read)
    monkeypatch.setattr(window, "both", lambda one, other: one and other)
    monkeypatch.setattr(epilogue, "m", SimpleNamespace(both=lambda one, other: one and other))


LAST: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 16, 6, 5), (5, 16, 3, 3), {"padding": 1}),
    ((1, 56, 6, 7), (3, 56, 3, 3), {"padding": 1, "stride": 2}),
    ((2, 24, 4, 5), (6, 24, 1, 1), {"stride": 2}),
    ((1, 96, 6, 5), (4, 48, 3, 3), {"groups": 2}),
    ((1, 8, 3, 4, 5), (2, 8, 3, 3, 2), {"padding": 1}),
    ((1, 64, 6, 5), (64, 3, 3, 3), {"transposed": True, "stride": 2, "padding": 1}),
)


@pytest.mark.usefixtures("plain_numbers")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "how", "inside"),
    [(*case, inside) for case in (*SHAPES, *LAST) for inside in (False, True)
     if not inside or case[0][1] // case[2].get("groups", 1) % GROUP == 0],
)  # fmt: skip
def test_what_is_gathered_times_the_weights_in_their_order_is_the_convolution(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], how: dict[str, Any], last: bool, inside: bool
) -> None:
    """`last`: of x in channels-last; `inside`: with taps gone through outside of channels."""
    shape = replace(shape_of(x_shape, w_shape, **how), channels_inside=inside)
    rng = np.random.default_rng(0)
    x = image(x_shape, last=last)
    x[...] = rng.standard_normal(x_shape)
    w = rng.standard_normal(w_shape).astype(np.float64)
    start = SimpleNamespace(iterator=SimpleNamespace(toint=lambda: x.ctypes.data))
    made = np.full((shape.batch, shape.groups, shape.columns, *shape.out), np.nan)
    for phase, prepare, kernel in parts_of(shape, spec_of(shape, x_shape, w_shape, how), "gather", last=last):
        reader, own = kernel.gather, phase.shape
        assert reader.wide == (last and own.channels % GROUP == 0)
        for group in range(shape.groups):
            matrix = packed(prepare, w, group)
            for number in range(own.pixels):
                at = reader.pixel(number)
                pixel = (reader.origin(start, at, group), reader.bits(at))
                read = reader.natural if own.natural else reader.blocked
                row = np.concatenate([read(q, pixel) for q in range(own.depth // GROUP)])
                made[at[0], group, :, *place_of(phase, shape, at)] = matrix[:, : len(row)] @ row
    truth = reference(x.astype(np.float64), w, how).reshape(-1)
    np.testing.assert_allclose(made.reshape(-1), truth, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("plain_numbers")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "how", "merged"), [(*c, m) for c in (*SHAPES, *LAST) for m in MERGED if is_windowed(c, m)]
)
def test_windows_in_a_stage_times_the_weights_in_their_order_are_the_convolution(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], how: dict[str, Any], merged: str, last: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    shape = shape_of(x_shape, w_shape, **how)
    rng = np.random.default_rng(1)
    x = image(x_shape, last=last)
    x[...] = rng.standard_normal(x_shape)
    w = rng.standard_normal(w_shape).astype(np.float64)
    start = SimpleNamespace(iterator=SimpleNamespace(toint=lambda: x.ctypes.data))
    made = np.full((shape.batch, shape.groups, shape.columns, *shape.out), np.nan)
    launches = parts_of(shape, spec_of(shape, x_shape, w_shape, how), "window", merged=merged, last=last)
    for phase, prepare, kernel in launches:
        assert kernel.wide == (last and phase.shape.channels % GROUP == 0)
        kernel.scaled, kernel.point = False, replace(kernel.point, precision="plain")
        windows, pixels = kernel.windows, kernel.point.pixels
        stage = np.zeros((windows.groups * windows.held, GROUP))
        monkeypatch.setattr(window, "write_chunk", partial(write_to, stage))
        for group, first in product(range(shape.groups), range(0, windows.places, pixels)):
            matrix = packed(prepare, w, group)
            sums = np.zeros((max(len(phase.parts), 1), pixels, shape.columns))
            threads = [kernel._state(start, None, (first, group), thread) for thread in range(kernel.point.producers)]
            for step in range(windows.steps):
                for one in (one for state in threads for one in state if one[0] < windows.held):
                    kernel._write(0, one, kernel._read(one, step))
                weights = matrix[:, step * prepare.depth : (step + 1) * prepare.depth]
                for own in windows.plan.products:
                    for half, place in enumerate((own.first, own.second)):
                        for i, number in enumerate(windows.plan.blocks[own.block]):
                            at = (2 * own.weight + half * own.count + i) * GROUP
                            sums[number] += stage[place : place + pixels] @ weights[:, at : at + GROUP].T
            for number in range(pixels):
                at, inside = kernel._output(first + number)
                if inside:
                    put(made[at[0], group], kernel.finish, at, sums[:, number])
    truth = reference(x.astype(np.float64), w, how).reshape(-1)
    np.testing.assert_allclose(made.reshape(-1), truth, rtol=1e-5, atol=1e-5)


def image(shape: tuple[int, ...], *, last: bool) -> np.ndarray[Any, Any]:
    """Memory for x, row-major or in channels-last, at a multiple of 16 bytes; what is read outside shows."""
    memory = np.full(prod(shape) + 2000, np.nan, np.float32)
    begin = 1000 - memory.ctypes.data // 4 % 4
    lies = (shape[0], *shape[2:], shape[1]) if last else shape
    x = memory[begin : begin + prod(shape)].reshape(lies)
    return np.moveaxis(x, -1, 1) if last else x


def write_to(stage: np.ndarray[Any, Any], at: int, words: list[float]) -> None:
    stage[at // window.CHUNK] = words


def parts_of(
    shape: ConvShape, spec: ConvSpec, kernel: str, *, merged: str = "apart", last: bool = False
) -> list[tuple[ConvPhase, Prepare, Any]]:
    """Of each kernel its phase, or its phases, what comes first and itself, as a call launches them; `last`: of x in
    channels-last."""
    points = make_points(shape, DEFAULTS | {"kernel": kernel, "precision": "tf32", "phases": merged})
    strides = [contiguous(o.shape) for o in spec.read]
    launched = _Launched(
        spec, points, [channels_last(spec.x.shape, shape.groups) if last else strides[0], *strides[1:]]
    )
    return [(phase, *own) for phase, own in zip(phases(shape, merged), launched.phases, strict=True)]


def put(made: np.ndarray[Any, Any], finish: Any, at: tuple[int, ...], sums: Any) -> None:
    """A pixel's sums of each phase, where the epilogue has them."""
    for first, numbers in finish.vectors.items():
        if finish._there_is(at, first) is not False:
            start = finish._start((0, 0, 0, *made.strides[1:]), first, at, 0, 0)
            there = len(numbers) - (finish.loose and not finish._is_second(at, first))
            for v, number in enumerate(numbers[:there]):
                place = np.unravel_index((start + v * made.strides[-1]) // made.itemsize, made.shape)
                assert place[0] == 0 and np.isnan(made[(slice(None), *place[1:])]).all()
                made[(slice(None), *place[1:])] = sums[number]


def place_of(phase: ConvPhase, shape: ConvShape, at: tuple[int, ...]) -> tuple[int, ...]:
    """Where a pixel of a phase lies in the output."""
    return tuple(o * s + p for o, s, p in zip(at[1:], shape.spread, phase.first, strict=True))


def packed(prepare: Prepare, w: np.ndarray[Any, Any], group: int) -> np.ndarray[Any, Any]:
    """The weights of a group, (columns, K), as `prepare` finds them."""
    shape, walk, windows = prepare.shape, prepare.walk, prepare.windows
    flat = w.reshape(-1)[prepare.begin + group * walk[0] :]
    matrix = np.zeros((shape.columns, prepare.point.steps * prepare.depth))
    for k in range(matrix.shape[1]):
        channel, taps = prepare._place(k)
        if channel < shape.channels:
            inner = sum(i * step for i, step in zip((channel, *taps), walk[2:], strict=True))
            matrix[:, k] = [flat[column * walk[1] + inner] for column in range(shape.columns)]
        if windows is not None and windows.is_odd and prepare._is_twice(k % prepare.depth // GROUP):
            matrix[:, k] /= 2
    return matrix


@pytest.mark.parametrize(
    ("x", "w", "dtype", "how", "knobs"),
    [
        ((16, 8, 40, 40), (64, 8, 3, 3), "f32", {"padding": 1}, {"precision": "fp16x3"}),
        ((16, 8, 40, 40), (64, 8, 3, 3), "f32", {}, {"precision": "tf32", "pixels": 256}),
        ((16, 64, 40, 40), (128, 64, 3, 3), "f32", {"padding": 1}, {"precision": "tf32"}),
        ((16, 64, 40, 40), (128, 64, 3, 3), "f32", {}, {"precision": "tf32", "pixels": 256}),
        ((16, 64, 40, 40), (128, 64, 3, 3), "f32", {}, {"precision": "fp16x3", "producers": 128}),
        ((16, 64, 40, 40), (256, 64, 3, 3), "bf16", {}, {"producers": 128}),
        ((4, 50, 40, 40), (40, 25, 5, 5), "f16", {"groups": 2}, {"pixels": 256}),
        ((4, 3, 9, 20, 20), (16, 3, 3, 5, 7), "f32", {"padding": 1}, {"precision": "fp16x3"}),
        ((4, 64, 20, 20), (64, 32, 3, 3), "f32", {"transposed": True, "stride": 2}, {"precision": "tf32"}),
        (
            (4, 64, 64, 64),
            (128, 64, 3, 3),
            "f32",
            {"padding": 1},
            {"kernel": "window", "pixels": 256, "precision": "tf32"},
        ),
        ((4, 64, 64, 64), (128, 64, 3, 3), "f32", {}, {"kernel": "window", "precision": "fp16x3"}),
        ((4, 8, 64, 64), (64, 8, 3, 3), "f32", {}, {"kernel": "window", "pixels": 256, "precision": "fp16x3"}),
        ((4, 40, 64, 64), (80, 20, 5, 5), "bf16", {"groups": 2, "dilation": 2}, {"kernel": "window", "pixels": 512}),
        ((4, 64, 64, 64), (64, 64, 3, 3), "f32", {"transposed": True, "stride": 2, "padding": 1}, PLANE | TF32),
        (
            (4, 64, 64, 64),
            (64, 64, 4, 4),
            "f32",
            {"transposed": True, "stride": 2, "padding": 1},
            PLANE | {"precision": "fp16x3", "columns": 32},
        ),
        ((4, 32, 3000), (32, 64, 3), "f32", {"transposed": True, "stride": 2}, TF32 | {"phases": "last"}),
        (
            (4, 32, 16, 16, 16),
            (32, 64, 3, 3, 3),
            "bf16",
            {"transposed": True, "stride": 2},
            {"phases": "all", "producers": 128},
        ),
        (
            (4, 3, 16, 16, 16),
            (3, 16, 3, 3, 3),
            "f32",
            {"transposed": True, "stride": 2},
            {"phases": "all", "precision": "fp16x3"},
        ),
    ],
)
def test_it_compiles_without_spills(
    x: Any, w: Any, dtype: str, how: dict[str, Any], knobs: dict[str, Any], tmp_path: Any
) -> None:
    shape = shape_of(x, w, **how)
    merged = {"kernel": "window"} if "phases" in knobs else {}
    fused = FusedConv(spec_of(shape, x, w, how, dtype), merged | knobs)
    strides = [contiguous(o.shape) for o in fused.spec.read]
    launch = fused.compile(strides, f"--keep-cubin --keep-ptx --dump-dir={tmp_path}")
    kernels = taken(launch.artifacts.CUBIN)  # type: ignore[attr-defined]
    assert len(kernels) == 2 * len(fused.points) and not any(k.local_bytes for k in kernels)
    (text,) = (path.read_text() for path in tmp_path.glob("*.ptx"))
    assert "wgmma.mma_async" in text and text.count("setmaxnreg") == 2 * len(fused.points)
    if "phases" in knobs and shape.out[2] % 2 == 0:  # two phases that are neighbours in memory
        assert "st.global.v2.b32" in text or (dtype == "bf16" and "st.global.b32" in text)


STRIDED = {"transposed": True, "stride": 2, "padding": 1}


@pytest.mark.parametrize(
    ("x", "w", "merged", "windows", "blocks"),
    [
        ((4, 64, 64, 64), (64, 64, 3, 3), "plane", (1, 2, 2), [1, 1, 1, 1]),
        ((4, 64, 64, 64), (64, 64, 4, 4), "plane", (1, 2, 3), [2, 2]),
        ((4, 64, 64, 64), (64, 64, 4, 4), "last", (1, 2, 3), [1, 1]),
        ((4, 64, 9, 9, 9), (64, 64, 3, 3, 3), "all", (2, 2, 2), [1] * 8),
        ((4, 64, 9, 9, 9), (64, 64, 2, 2, 4), "all", (1, 1, 3), [4, 4]),
    ],
)
def test_phases_of_one_kernel_are_multiplied_as_often_as_there_are_taps_for_them(
    x: Any, w: Any, merged: str, windows: Any, blocks: list[int]
) -> None:
    """No product for a weight that is not there: an infinity would come out as NaN of another output."""
    found = phases(shape_of(x, w, **STRIDED), merged)
    own = Windows(shape=found[0].shape, pixels=128, parts=found[0].parts)
    assert found[0].shape.taps == windows and [len(block) for block in own.plan.blocks] == blocks
    assert sum(len(part.taps) for phase in found for part in phase.parts) == prod(w[2:])
    assert own.atoms == sum(len(part.taps) for part in found[0].parts)


@pytest.mark.parametrize(
    ("taps", "stride", "padding", "width"), [(4, 2, 1, 2), (3, 2, 1, 2), (4, 4, 0, 4), (4, 4, 1, 2), (3, 3, 0, 1)]
)
def test_outputs_of_neighbouring_phases_leave_as_vectors(taps: int, stride: int, padding: int, width: int) -> None:
    x, w = (4, 64, 64), (64, 16, taps)
    how = {"transposed": True, "stride": stride, "padding": padding}
    shape = shape_of(x, w, **how)
    ((_, _, kernel),) = parts_of(shape, spec_of(shape, x, w, how), "window", merged="last")
    assert {len(own) for own in kernel.finish.vectors.values()} == {width}, shape.out
    assert sorted(n for own in kernel.finish.vectors.values() for n in own) == list(range(stride))


@pytest.mark.parametrize(
    ("how", "knobs", "why"),
    [
        (STRIDED, {"kernel": "gather", "phases": "plane"}, "windows are in shared memory"),
        (STRIDED, {"phases": "all"}, "one phase alone"),
        ({"padding": 1}, {"phases": "last"}, "one phase alone"),
        (STRIDED | {"stride": 6}, {"phases": "plane"}, "more than 32 phases"),
        (STRIDED | {"stride": 5, "dilation": 5}, {"phases": "last"}, "without a tap"),
        (STRIDED, {"phases": "plane", "columns": 64, "precision": "fp16x3", "producers": 128}, "the registers"),
        (STRIDED, {"phases": "sometimes"}, "legal are"),
    ],
)
def test_phases_that_can_not_be_merged_so_are_refused(how: Any, knobs: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make_points(shape_of((4, 64, 20, 20), (64, 64, 3, 3), **how), DEFAULTS | {"kernel": "window"} | knobs)


def test_pairs_of_pixels_lie_where_a_thread_of_wgmma_has_its_two_rows() -> None:
    rows = {row_of(pixel): pixel for pixel in range(256)}
    assert sorted(rows) == list(range(256))
    for row in range(256):
        half, lane = row % 16 // 8, row % 8 * 4  # of a warp's 16 rows a thread has lane // 4 and 8 behind it
        assert rows[row] == row // 16 * 16 + lane // 4 * 2 + half


@pytest.mark.parametrize(
    ("knobs", "why"),
    [
        ({"pixels": 256, "producers": 128}, "one pixel at most"),
        ({"columns": 256, "producers": 256}, "registers of 128 threads"),
        ({"columns": 256, "pixels": 256}, "registers"),
        ({"columns": 100}, "legal are"),
        ({"stages": 6, "pixels": 256, "columns": 128, "weights": "streamed"}, "don't fit"),
    ],
)
def test_settings_that_do_not_fit_are_refused(knobs: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make_point(shape_of((16, 64, 40, 40), (512, 64, 3, 3)), DEFAULTS | knobs)


def test_a_tile_that_is_resident_leaves_room_for_stages() -> None:
    shape = shape_of((16, 64, 40, 40), (128, 64, 3, 3))
    made = make_point(shape, DEFAULTS | {"precision": "tf32"})
    assert made.resident and made.stages == 5
    assert not make_point(shape, DEFAULTS | {"precision": "tf32", "weights": "streamed"}).resident
    assert not make_point(shape_of((16, 256, 40, 40), (128, 256, 3, 3)), DEFAULTS | {"precision": "tf32"}).resident


@pytest.mark.parametrize("producers", [128, 256])
def test_registers_that_are_asked_for_are_those_that_others_give_back(producers: int) -> None:
    """Else the last warpgroup waits for ever."""
    made = make_point(shape_of((16, 64, 40, 40), (128, 64, 3, 3)), DEFAULTS | {"producers": producers})
    at_start = 65536 // made.threads // 8 * 8
    fewer, more = made.registers
    assert producers * fewer + (made.threads - producers) * more == at_start * made.threads


@pytest.mark.parametrize(
    ("x", "w", "dtype", "how", "knobs"),
    [
        ((16, 64, 40, 40), (64, 64, 3, 3), "f16", {"padding": 1}, {"kernel": "window"}),
        ((16, 128, 28, 28), (128, 128, 3, 3), "bf16", {"padding": 1},
         {"kernel": "window", "pixels": 256, "producers": 128}),
        ((16, 128, 28, 28), (128, 128, 3, 3), "f16", {"padding": 1, "stride": 2}, {}),
        ((16, 256, 28, 28), (512, 256, 1, 1), "f16", {"stride": 2}, {"producers": 128, "columns": 256}),
        ((16, 24, 28, 28), (40, 24, 3, 3), "f16", {"padding": 1, "stride": 2}, {}),
        ((16, 3, 56, 56), (64, 3, 7, 7), "f16", {"padding": 3, "stride": 2}, {}),
        ((16, 64, 40, 40), (64, 64, 3, 3), "f32", {"padding": 1}, {"kernel": "window", "precision": "tf32"}),
        ((16, 64, 40, 40), (48, 32, 3, 3), "f32", {"groups": 2}, {"precision": "fp16x3"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("after", [False, True])
def test_in_channels_last_it_compiles_without_spills_and_reads_and_writes_by_16_bytes(
    x: Any, w: Any, dtype: str, how: dict[str, Any], knobs: dict[str, Any], after: bool, tmp_path: Any
) -> None:
    """`after`: with a batch norm's four vectors and what is added."""
    shape = replace(shape_of(x, w, **how), channels_inside=x[1] // how.get("groups", 1) % GROUP == 0)
    spec = spec_of(shape, x, w, how, dtype, last=True)
    whole = spec.outputs[0].shape
    of_channels = (*(1 for _ in x[1:]), *whole[len(x) - 1 :])
    named = [ArraySpec(name=n, dtype=dtype, shape=of_channels) for n in "abcd"]
    if after:
        spec = replace(spec, operands=(*named, ArraySpec(name="e", dtype=dtype, shape=whole)), epilogue=normed)
    fused = FusedConv(spec, knobs)
    strides = [contiguous(o.shape) for o in fused.spec.read]
    strides[0] = channels_last(spec.x.shape, shape.groups)
    launch = fused.compile(strides, f"--keep-cubin --keep-ptx --dump-dir={tmp_path}")
    kernels = taken(launch.artifacts.CUBIN)  # type: ignore[attr-defined]
    assert len(kernels) == 2 and not any(k.local_bytes for k in kernels)
    (text,) = (path.read_text() for path in tmp_path.glob("*.ptx"))
    of_x = "ld.global.nc.v4.b32" if dtype != "f32" else "ld.global.nc.v4.f32"
    assert (of_x in text) == shape.channels_inside
    stores = {line.split()[0] for line in text.splitlines() if line.strip().startswith("st.global")}
    assert any("v4" in s or "v2.b64" in s for s in stores) or shape.columns % 32, stores


def normed(product: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return m.maximum((product - a) * m.rsqrt(b + 1e-5, "f32") * c + d + e, 0.0, "f32")


@pytest.mark.parametrize("run", [2, 4, 8])
def test_a_thread_has_neighbouring_channels_and_each_channel_one_column(run: int) -> None:
    columns = 8 * run
    assert sorted(channel_of(c, run) for c in range(columns)) == list(range(columns))
    for lane, block in product(range(4), range(2)):
        eights = range(block * run // 2, (block + 1) * run // 2)
        mine = [channel_of(8 * q + 2 * lane + e, run) for q in eights for e in range(2)]
        assert mine == [block * 4 * run + lane * run + j for j in range(run)]
