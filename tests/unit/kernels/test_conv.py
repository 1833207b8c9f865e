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

from tilewright.kernels.cuda.common.cubin import taken
from tilewright.kernels.cuda.common.spec import ArraySpec
from tilewright.kernels.cuda.conv import gather, window
from tilewright.kernels.cuda.conv import prepare as preparing
from tilewright.kernels.cuda.conv.fused import ConvSpec, FusedConv, _Launched
from tilewright.kernels.cuda.conv.prepare import Prepare
from tilewright.kernels.cuda.conv.shape import GROUP, ConvPhase, ConvShape, phases
from tilewright.kernels.cuda.conv.tiles import DEFAULTS, make_point, make_points

pytestmark = pytest.mark.each(3)


def shape_of(
    x: tuple[int, ...], w: tuple[int, ...], *, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1,
    transposed: bool = False,
) -> ConvShape:  # fmt: skip
    """Of a convolution of two dimensions, or three; the same along all of them."""
    rank, taps = len(x) - 2, w[2:]
    reach = [dilation * (t - 1) for t in taps]
    out = [(n - 1) * stride + 1 + r - 2 * padding if transposed else (n + 2 * padding - r - 1) // stride + 1
           for n, r in zip(x[2:], reach, strict=True)]  # fmt: skip

    def three(values: Any, fill: int) -> Any:
        return (*(fill for _ in range(3 - rank)), *values)

    sign = -1 if transposed else 1
    return ConvShape(
        batch=x[0], groups=groups, channels=x[1] // groups, columns=w[1] if transposed else w[0] // groups,
        image=three(x[2:], 1), out=three(out, 1), taps=three(taps, 1),
        stride=three([1 if transposed else stride] * rank, 1), spread=three([stride if transposed else 1] * rank, 1),
        start=three([-sign * padding] * rank, 0), step=three([sign * dilation] * rank, 1),
    )  # fmt: skip


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
    ((1, 64, 6, 5), (64, 3, 5, 4), {"transposed": True, "stride": 3}),
    ((1, 20, 3, 4, 5), (20, 2, 3, 3, 3), {"transposed": True, "stride": 2, "padding": 1}),
    ((1, 5, 7, 6), (5, 2, 4, 3), {"transposed": True, "stride": 2, "dilation": 3}),
    ((1, 5, 7, 6), (5, 2, 3, 3), {"transposed": True, "stride": 2, "dilation": 2, "padding": 1}),  # some meet no tap
    ((2, 9, 4, 5), (9, 2, 3, 3), {"transposed": True, "stride": 5, "dilation": 2, "padding": 1}),
)


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

    for module in (gather, window):
        monkeypatch.setattr(module, "Int32", int)
        monkeypatch.setattr(module, "Int64", int)
        monkeypatch.setattr(module, "cutlass", SimpleNamespace(min=min))
    monkeypatch.setattr(preparing, "cutlass", SimpleNamespace(min=min))
    monkeypatch.setattr(preparing, "Int32", int)
    monkeypatch.setattr(gather, "read_group", read)
    monkeypatch.setattr(window, "both", lambda one, other: one and other)


@pytest.mark.usefixtures("plain_numbers")
@pytest.mark.parametrize(("x_shape", "w_shape", "how"), SHAPES)
def test_what_is_gathered_times_the_weights_in_their_order_is_the_convolution(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], how: dict[str, Any]
) -> None:
    shape = shape_of(x_shape, w_shape, **how)
    rng = np.random.default_rng(0)
    memory = np.full(prod(x_shape) + 2000, np.nan, np.float32)  # what is read outside shows
    x = memory[1000 : 1000 + prod(x_shape)].reshape(x_shape)
    x[...] = rng.standard_normal(x_shape)
    w = rng.standard_normal(w_shape).astype(np.float64)
    start = SimpleNamespace(iterator=SimpleNamespace(toint=lambda: x.ctypes.data))
    made = np.full((shape.batch, shape.groups, shape.columns, *shape.out), np.nan)
    for phase, prepare, kernel in parts_of(shape, spec_of(shape, x_shape, w_shape, how), "gather"):
        reader, own = kernel.gather, phase.shape
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
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "how"), [c for c in SHAPES if c[2].get("stride", 1) == 1 or "transposed" in c[2]]
)
def test_windows_in_a_stage_times_the_weights_in_their_order_are_the_convolution(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = shape_of(x_shape, w_shape, **how)
    rng = np.random.default_rng(1)
    memory = np.full(prod(x_shape) + 2000, np.nan, np.float32)
    x = memory[1000 : 1000 + prod(x_shape)].reshape(x_shape)
    x[...] = rng.standard_normal(x_shape)
    w = rng.standard_normal(w_shape).astype(np.float64)
    start = SimpleNamespace(iterator=SimpleNamespace(toint=lambda: x.ctypes.data))
    made = np.full((shape.batch, shape.groups, shape.columns, *shape.out), np.nan)
    for phase, prepare, kernel in parts_of(shape, spec_of(shape, x_shape, w_shape, how), "window"):
        kernel.scaled, kernel.point = False, replace(kernel.point, precision="plain")
        windows, pixels = kernel.windows, kernel.point.pixels
        stage = np.zeros((windows.groups * windows.held, GROUP))
        monkeypatch.setattr(window, "write_chunk", partial(write_to, stage))
        for group, first in product(range(shape.groups), range(0, windows.places, pixels)):
            matrix, sums = packed(prepare, w, group), np.zeros((pixels, shape.columns))
            threads = [kernel._state(start, None, (first, group), thread) for thread in range(kernel.point.producers)]
            for step in range(windows.steps):
                for one in (one for state in threads for one in state if one[0] < windows.held):
                    kernel._write(0, one, kernel._read(one, step))
                halves = [place for number in range(windows.atoms) for place in windows.atom(number)]
                rows = np.concatenate([stage[place : place + pixels] for place in halves], 1)
                sums += rows @ matrix[:, step * rows.shape[1] : (step + 1) * rows.shape[1]].T
            for number in range(pixels):
                at, inside = kernel._output(first + number)
                if inside:
                    made[at[0], group, :, *place_of(phase, shape, at)] = sums[number]
    truth = reference(x.astype(np.float64), w, how).reshape(-1)
    np.testing.assert_allclose(made.reshape(-1), truth, rtol=1e-5, atol=1e-5)


def write_to(stage: np.ndarray[Any, Any], at: int, words: list[float]) -> None:
    stage[at // window.CHUNK] = words


def parts_of(shape: ConvShape, spec: ConvSpec, kernel: str) -> list[tuple[ConvPhase, Prepare, Any]]:
    """Of each phase what comes first and its kernel, as a call launches them."""
    points = make_points(shape, DEFAULTS | {"kernel": kernel, "precision": "tf32"})
    launched = _Launched(spec, points, [contiguous(o.shape) for o in spec.read])
    return [(phase, *own) for phase, own in zip(phases(shape), launched.phases, strict=True)]


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
        if windows is not None and windows.is_odd and windows.is_twice(k % prepare.depth // GROUP):
            matrix[:, k] /= 2
    return matrix


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def spec_of(
    shape: ConvShape, x: tuple[int, ...], w: tuple[int, ...], how: dict[str, Any], dtype: str = "f32"
) -> ConvSpec:  # fmt: skip
    rank, groups = len(x) - 2, shape.groups
    grouped = (groups,) if groups > 1 else ()
    out = shape.out[3 - rank :]
    return ConvSpec(
        name="conv", shape=shape, x=ArraySpec(name="x", dtype=dtype, shape=(x[0], *grouped, shape.channels, *x[2:])),
        weight=ArraySpec(name="w", dtype=dtype, shape=(*grouped, w[0] // groups, *w[1:])), operands=(),
        outputs=(ArraySpec(name="y", dtype=dtype, shape=(x[0], *grouped, shape.columns, *out)),),
        transposed=how.get("transposed", False),
    )  # fmt: skip


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
    ],
)
def test_it_compiles_without_spills(
    x: Any, w: Any, dtype: str, how: dict[str, Any], knobs: dict[str, Any], tmp_path: Any
) -> None:
    shape = shape_of(x, w, **how)
    fused = FusedConv(spec_of(shape, x, w, how, dtype), knobs)
    strides = [contiguous(o.shape) for o in fused.spec.read]
    launch = fused.compile(strides, f"--keep-cubin --keep-ptx --dump-dir={tmp_path}")
    kernels = taken(launch.artifacts.CUBIN)  # type: ignore[attr-defined]
    assert len(kernels) == 2 * len(fused.points) and not any(k.local_bytes for k in kernels)
    (text,) = (path.read_text() for path in tmp_path.glob("*.ptx"))
    assert "wgmma.mma_async" in text and text.count("setmaxnreg") == 2 * len(fused.points)


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
