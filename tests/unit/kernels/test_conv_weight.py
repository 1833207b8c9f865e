"""The skeleton `conv_weight` without a GPU: what threads gather where, what wgmma makes of it, how splits are added up,
and what it compiles to."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cutlass import Float16, cute
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from fakes.convolutions import channels_last, contiguous
from tilewright.kernels.cuda.common.cubin import taken
from tilewright.kernels.cuda.common.spec import ArraySpec
from tilewright.kernels.cuda.conv import gather
from tilewright.kernels.cuda.conv.shape import GROUP
from tilewright.kernels.cuda.conv_weight import depthwise, filling, split_sums
from tilewright.kernels.cuda.conv_weight import kernel as kernels
from tilewright.kernels.cuda.conv_weight.fused import FusedDepthwiseWeight, FusedWeightGradient, WeightSpec, _Launched
from tilewright.kernels.cuda.conv_weight.kernel import WeightKernel
from tilewright.kernels.cuda.conv_weight.shape import CHUNK, DEPTH, LINE, Patches, WeightShape, chunk_at
from tilewright.kernels.cuda.conv_weight.tiles import DEFAULTS, KNOBS, MOST_STEPS, make_point

Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]
SHAPES: tuple[Case, ...] = (
    ((2, 3, 7, 9), (5, 3, 3, 3), {"padding": (1, 1)}),
    ((2, 20, 8, 9), (70, 20, 3, 2), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}),
    ((3, 12, 19), (9, 12, 4), {"stride": (3,), "padding": (2,)}),
    ((2, 16, 3, 4, 5), (6, 16, 2, 3, 1), {"padding": (0, 1, 0)}),
    ((2, 24, 6, 5), (10, 12, 3, 3), {"groups": 2}),
    ((1, 8, 12, 11), (4, 8, 1, 1), {}),
)


def numbers_of(case: Case) -> tuple[list[int], list[int], list[int], int]:
    """Stride, padding, dilation and groups."""
    x, _, how = case
    rank = len(x) - 2
    each = [list(how.get(name, (fill,) * rank)) for name, fill in (("stride", 1), ("padding", 0), ("dilation", 1))]
    return each[0], each[1], each[2], how.get("groups", 1)


def three(values: list[int] | tuple[int, ...], fill: int) -> Any:
    return (*(fill for _ in range(3 - len(values))), *values)


def spec_of(case: Case, dtype: str = "f32", *, last: bool = False) -> WeightSpec:
    x, w, _ = case
    stride, padding, dilation, groups = numbers_of(case)
    sides = zip(x[2:], w[2:], stride, padding, dilation, strict=True)
    out = [(n + 2 * p - d * (t - 1) - 1) // s + 1 for n, t, s, p, d in sides]
    shape = WeightShape(windowed=Patches(
        batch=x[0], groups=groups, channels=w[1], columns=w[0] // groups, image=three(x[2:], 1), out=three(out, 1),
        taps=three(w[2:], 1), stride=three(stride, 1), start=three([-p for p in padding], 0), step=three(dilation, 1),
    ))  # fmt: skip
    grouped = (groups,) if groups > 1 else ()
    shapes = [(x[0], *grouped, w[0] // groups, *out), (x[0], *grouped, w[1], *x[2:])]
    read = [ArraySpec(name=name, dtype=dtype, shape=own, strides=channels_last(own, groups) if last else ())
            for name, own in zip(("g", "x"), shapes, strict=True)]  # fmt: skip
    output = ArraySpec(name="w", dtype=dtype, shape=(*grouped, w[0] // groups, *w[1:]))
    return WeightSpec(name="weight", shape=shape, dense=read[0], windowed=read[1], output=output)


def strides_of(spec: WeightSpec) -> list[tuple[int, ...]]:
    return [o.strides or contiguous(o.shape) for o in spec.read]


class Number(float):
    def to(self, _: Any) -> Number:
        return self

    def __add__(self, other: float) -> Number:
        return Number(float(self) + other)


class Factors(dict[tuple[int, int], float]):
    """Of the rows and columns of a tile."""

    def __setitem__(self, at: tuple[int, int], value: float) -> None:
        assert at not in self, "written twice"
        super().__setitem__(at, value)


class Flat:
    """A tensor of one dimension, from a place on."""

    element_type = None

    def __init__(self, values: np.ndarray[Any, Any], at: int = 0) -> None:
        self.values, self.at, self.iterator = values, at, self

    def __add__(self, places: int) -> Flat:
        return Flat(self.values, self.at + places)

    def __getitem__(self, i: int) -> Number:
        assert i == 0 and self.at >= 0
        return Number(self.values[self.at])

    def __setitem__(self, i: int, value: float) -> None:
        assert i == 0 and np.isnan(self.values[self.at]), "written twice"
        self.values[self.at] = value


@pytest.fixture
def plain_numbers(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[float]]:
    """Addresses are reckoned with Python's integers; what is written to shared memory is found by its address."""
    stage: dict[int, list[float]] = {}

    def read(item: int, address: int, offsets: list[int | None], tests: list[int | None]) -> list[float]:
        return [
            0.0 if offset is None or test == 0 else ctypes.c_float.from_address(address + offset).value
            for offset, test in zip(offsets, tests, strict=True)
        ]

    def read_wide(item: int, address: int, offset: int, test: int | None) -> list[float]:
        assert (address + offset) % 16 == 0
        return read(item, address, [offset + item * j for j in range(GROUP)], [test] * GROUP)

    def write(address: int, words: list[float]) -> None:
        assert address % CHUNK == 0 and address not in stage, "written twice"
        stage[address] = list(words)

    nothing = SimpleNamespace(**dict.fromkeys(
        ("mbarrier_wait", "fence_view_async_shared", "sync_warp"), lambda *_: None))  # fmt: skip
    fake = SimpleNamespace(
        arch=nothing, make_tensor=lambda there, layout: there, make_layout=lambda shape: shape,
        make_rmem_tensor=lambda shape, kind: [0.0],
    )  # fmt: skip
    for module in (gather, kernels, filling, split_sums, depthwise):
        for name, plain in (("Int32", int), ("Int64", int), ("Float32", Number), ("Boolean", bool), ("cute", fake),
                            ("cutlass", SimpleNamespace(min=min, max=max))):  # fmt: skip
            if hasattr(module, name):
                monkeypatch.setattr(module, name, plain)
    monkeypatch.setattr(gather, "read_group", read)
    monkeypatch.setattr(gather, "read_wide", read_wide)
    monkeypatch.setattr(split_sums, "m", SimpleNamespace(select=lambda c, yes, no: yes if c else no))
    monkeypatch.setattr(filling, "arrive", lambda barrier: None)
    monkeypatch.setattr(filling, "scale_exponent", lambda bits: bits)
    monkeypatch.setattr(filling, "power_of_two", lambda exponent: 2.0**exponent)
    monkeypatch.setattr(filling, "m", SimpleNamespace(select=lambda c, yes, no: yes if c else no))
    monkeypatch.setattr(filling, "when", lambda condition, body: body() if condition else None)
    monkeypatch.setattr(filling, "planes_of", lambda values, scale, planes: [values])
    monkeypatch.setattr(filling, "write_chunk", write)
    monkeypatch.setattr(split_sums, "when", lambda condition, body: body() if condition else None)
    monkeypatch.setattr(split_sums, "loop", lambda low, high, body: [body(i) for i in range(low, high)])
    return stage


def memory(shape: tuple[int, ...], strides: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """A tensor at a multiple of 16 bytes; what is read outside shows."""
    flat = np.full(prod(shape) + 2000, np.nan, np.float32)
    begin = 1000 - flat.ctypes.data // 4 % 4
    made = np.lib.stride_tricks.as_strided(flat[begin:], shape, [4 * s for s in strides])
    made[...] = rng.standard_normal(shape)
    return made


def lanes_sums(kernel: WeightKernel, product: np.ndarray[Any, Any], thread: tuple[int, int, int]) -> Any:
    """What wgmma gives a thread (warpgroup, warp, lane) of a part's sums, (rows, columns)."""
    group, warp, lane = thread

    def one(part: int, r: int, phase: int, number: int) -> float:
        row = part * 128 + group * 64 + warp * 16 + lane // 4 + 8 * r
        return float(product[row, number // 2 * 8 + lane % 4 * 2 + number % 2])

    return one


@pytest.mark.usefixtures("plain_numbers")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", SHAPES)
def test_what_is_gathered_and_multiplied_and_added_up_is_the_gradient(
    case: Case, last: bool, plain_numbers: dict[int, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads of every tile and split, and of what adds the splits up. `last`: operands in channels-last, and
    nothing is scaled; else each channel is, by a power of two of its own."""
    spec, rng = spec_of(case, last=last), np.random.default_rng(0)
    point = make_point(spec.shape, DEFAULTS | {"precision": "tf32", "splits": 2, "columns": 64})
    launched = _Launched(spec, point, strides_of(spec))
    kernel, combine = launched.kernel, launched.sums
    kernel.scaled = kernel.filling.scaled = not last
    dense, windowed = (memory(o.shape, s, rng) for o, s in zip(spec.read, strides_of(spec), strict=True))
    tensors = tuple(
        SimpleNamespace(iterator=SimpleNamespace(toint=lambda x=x: x.ctypes.data)) for x in (windowed, dense)
    )
    splits, each = point.cut(spec.shape, 132)
    groups, sizes = spec.shape.windowed.groups, (point.rows, point.columns)
    matrix = [size * tiles for size, tiles in zip(sizes, point.tiles, strict=True)]
    results = np.full(splits * groups * matrix[0] * matrix[1], np.nan)
    bases = (0, 1 << 24)
    exponents = [int(e) for e in rng.integers(-9, 9, groups * (spec.shape.windowed.channels + point.columns * 2))]
    for split in range(splits):
        for place in np.ndindex(*point.tiles, groups):
            product, factors = np.zeros(sizes), Factors()
            for thread in range(0 if last else point.threads):
                kernel.filling.find_factors(factors, exponents, place, thread)
            for (number, which), factor in factors.items():
                channel = channel_of(spec.shape, sizes, place, number)
                assert channel is None or factor == 2.0 ** (-exponents[channel] if which else exponents[channel])
            for step in range(min(each, spec.shape.steps - split * each)):
                plain_numbers.clear()
                for thread in range(point.producers):
                    kernel.filling.fill(tensors, (bases, factors, 0), place, thread, (step, split * each))
                slot = step % point.stages
                read = [
                    stage_at(plain_numbers, base + slot * size * DEPTH * 2, size)
                    for base, size in zip(bases, sizes, strict=True)
                ]
                assert len(plain_numbers) == DEPTH * sum(sizes) // GROUP
                product += read[0].T @ read[1]
            for group, warp, lane in np.ndindex(2, 4, 32):
                monkeypatch.setattr(kernels.cute.arch, "lane_idx", lambda lane=lane: lane, raising=False)
                monkeypatch.setattr(kernels.cute.arch, "warp_idx", lambda warp=warp: warp, raising=False)
                kernel.sums = SimpleNamespace(one=lanes_sums(kernel, product, (group, warp, lane)))  # type: ignore[assignment]
                kernel._finish(list(range(point.parts)), factors, Flat(results), place, (split, group))
    assert not np.isnan(results).any()
    combine.rows = spec.shape.row_groups * GROUP
    out = np.full(prod(spec.output.shape), np.nan)
    for number in range(groups * spec.shape.windowed.columns * combine.rows):
        combine._one(Flat(results), Flat(out), splits, number)
    np.testing.assert_allclose(out, reference(case, windowed, dense).reshape(-1), rtol=1e-4, atol=1e-4)


def channel_of(
    shape: WeightShape, sizes: tuple[int, int], place: tuple[int, ...], number: int
) -> int | None:  # fmt: skip
    """Of a row, or a column behind them, of a tile: the windowed channels are counted first. None: behind the last."""
    s = shape.windowed
    if number < sizes[0]:
        own, _ = shape.row(place[0] * sizes[0] + number)
        return place[2] * s.channels + own if own < s.channels else None
    own = place[1] * sizes[1] + number - sizes[0]
    return s.groups * s.channels + place[2] * s.columns + own if own < s.columns else None


def stage_at(written: dict[int, list[float]], start: int, size: int) -> np.ndarray[Any, Any]:
    """A stage's operand as wgmma reads it: (pixels, rows)."""
    lines = [[written[start + chunk_at(k, q)] for q in range(size // GROUP)] for k in range(DEPTH)]
    return np.array(lines).reshape(DEPTH, size)


def reference(case: Case, x: np.ndarray[Any, Any], g: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    stride, padding, dilation, groups = numbers_of(case)
    given, upstream = (torch.from_numpy(t.astype(np.float64)) for t in (x, g))
    if groups > 1:
        given, upstream = given.flatten(1, 2), upstream.flatten(1, 2)
    made = torch.ops.aten.convolution_backward(
        upstream, given, torch.empty(case[1], dtype=torch.float64), None, stride, padding, dilation, False,
        [0] * len(stride), groups, [False, True, False],
    )  # fmt: skip
    return made[1].numpy()  # type: ignore[no-any-return]


TAPS: tuple[Case, ...] = (
    ((2, 5, 9, 8), (5, 1, 3, 3), {"padding": (1, 1)}),
    ((3, 4, 12, 9), (4, 1, 3, 2), {"stride": (2, 1), "padding": (0, 1), "dilation": (1, 2)}),
    ((2, 3, 31), (3, 1, 7), {"stride": (2,), "padding": (3,)}),
    ((1, 2, 5, 6, 4), (2, 1, 2, 3, 1), {"padding": (1, 0, 0)}),
)


@pytest.mark.usefixtures("plain_numbers")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", TAPS)
def test_products_of_each_tap_are_the_gradient_of_a_depthwise_weight(
    case: Case, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads of all parts: each pixel once, and nothing outside of the image."""
    case = case[0], case[1], case[2] | {"groups": case[0][1]}
    spec, rng, parts = spec_of(case, last=last), np.random.default_rng(0), 2
    windowed, dense = (memory(o.shape, s, rng) for o, s in zip(spec.read[::-1], strides_of(spec)[::-1], strict=True))

    def read(dtype: str, address: int, offsets: list[int], tests: list[int | None]) -> list[float]:
        return gather.read_group(4, address, offsets, tests)

    monkeypatch.setattr(depthwise, "read_widened", read)
    monkeypatch.setattr(depthwise, "_lib", SimpleNamespace(fma=lambda a, b, c: a * b + c))
    monkeypatch.setattr(depthwise, "Int32", int)
    kernel = FusedDepthwiseWeight(spec, {}).launched(strides_of(spec)).kernel
    tensors = tuple(
        SimpleNamespace(iterator=SimpleNamespace(toint=lambda x=x: x.ctypes.data)) for x in (windowed, dense)
    )
    s = spec.shape.windowed
    made = np.zeros((s.groups, s.all_taps))
    for channel, part, thread in np.ndindex(s.groups, parts, depthwise.THREADS):
        sums = [0.0] * s.all_taps
        for turn in range(-(-s.pixels // (parts * depthwise.THREADS))):
            kernel._pixel(tensors, channel, sums, (part, parts, thread), turn)
        made[channel] += sums
    np.testing.assert_allclose(made.reshape(-1), reference(case, windowed, dense).reshape(-1), rtol=1e-4, atol=1e-4)


def test_parts_fill_the_gpu_and_none_has_few_pixels() -> None:
    many = replace_pixels(TAPS[0], (64, 96, 56, 56))
    assert depthwise.parts_of(many, 132) * 96 >= 8 * 132
    assert depthwise.parts_of(spec_of((TAPS[0][0], TAPS[0][1], TAPS[0][2] | {"groups": 5})).shape, 132) == 1
    with pytest.raises(ValueError, match="no depthwise"):
        FusedDepthwiseWeight(spec_of(SHAPES[0]), {})
    with pytest.raises(ValueError, match="legal is parts"):
        FusedDepthwiseWeight(spec_of((TAPS[0][0], TAPS[0][1], TAPS[0][2] | {"groups": 5})), {"parts": 3})


def replace_pixels(case: Case, x: tuple[int, ...]) -> WeightShape:
    """The same convolution of a larger image."""
    return spec_of((x, (x[1], *case[1][1:]), case[2] | {"groups": x[1]})).shape


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "taps"), [("f32", 7), ("bf16", 3), ("f16", 5)])
def test_the_kernel_of_taps_compiles_and_spills_nothing(dtype: str, taps: int) -> None:
    spec = spec_of(((8, 24, 30, 29), (24, 1, taps, taps), {"padding": (1, 1), "groups": 24}), dtype)
    launch = FusedDepthwiseWeight(spec, {}).compile(strides_of(spec), "--keep-cubin")
    found = taken(launch.artifacts.CUBIN)  # type: ignore[attr-defined]
    assert len(found) == 2 and not any(k.local_bytes for k in found)


def test_stages_lie_as_wgmma_reads_them() -> None:
    """M and N contiguous, 64 of them a line of 128 bytes, then all pixels, then the next 64, then the next stage."""
    found: list[str] = []

    @cute.jit  # type: ignore[untyped-decorator]
    def ask() -> None:
        for rows, columns in ((128, 64), (256, 192)):
            tile = (rows, columns, DEPTH)
            for make in (hopper_helpers.make_smem_layout_a, hopper_helpers.make_smem_layout_b):
                made = make(LayoutEnum.COL_MAJOR, tile, Float16, 4)
                found.append(f"{made.inner} {made.outer}")

    ask()
    for size, text in zip((128, 64, 256, 192), found, strict=True):
        block = LINE // 2 * DEPTH
        apart = block if size > 64 else 0
        steps = f"((1,{apart}),({LINE // 2},{8 * LINE // 2}),(0,{size * DEPTH}))"
        assert text == f"S<3,4,3> (({LINE // 2},{size // 64}),(8,8),(1,4)):{steps}"
        assert chunk_at(3, 9) == 2 * block + 3 * LINE + (1 ^ 3) * CHUNK


def test_pixels_are_cut_into_splits_of_whole_steps() -> None:
    """All of them, a tile for each processor where pixels suffice, and no split that tensor cores add up for too
    long."""
    for case in (*SHAPES, ((64, 64, 56, 56), (64, 64, 3, 3), {"padding": (1, 1)})):
        shape = spec_of(case).shape
        for wanted in KNOBS["splits"]:
            point = make_point(shape, DEFAULTS | {"precision": "tf32", "splits": wanted})
            splits, each = point.cut(shape, 132)
            assert (splits - 1) * each < shape.steps <= splits * each and each <= MOST_STEPS
    tiles = point.tiles[0] * point.tiles[1]
    assert replace(point, splits="auto").cut(shape, 132)[0] >= 132 // tiles


def test_knobs_that_do_not_fit_are_refused() -> None:
    shape = spec_of(SHAPES[0]).shape
    for wrong in ({"rows": 64}, {"rows": 256, "columns": 256}, {"columns": 256, "producers": 256}, {"unknown": 1}):
        with pytest.raises(ValueError, match=r"knob|registers"):
            make_point(shape, DEFAULTS | {"precision": "fp16x3"} | wrong)
    with pytest.raises(ValueError, match="is not one of"):
        FusedWeightGradient(spec_of(SHAPES[0]), {"precision": "plain"})


COMPILED = (
    (SHAPES[0], "f32", {"precision": "fp16x3"}, False),
    (SHAPES[1], "f32", {"precision": "tf32", "rows": 256, "columns": 128, "producers": 128}, False),
    (SHAPES[4], "bf16", {"columns": 256, "producers": 128}, False),
    (((2, 64, 8, 8), (64, 64, 3, 3), {"padding": (1, 1)}), "f16", {"columns": 64}, True),
)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "dtype", "knobs", "last"), COMPILED)
def test_it_compiles_and_spills_nothing(
    case: Case, dtype: str, knobs: dict[str, Any], last: bool, tmp_path: Path
) -> None:
    spec = spec_of(case, dtype, last=last)
    made = FusedWeightGradient(spec, knobs)
    launch = made.compile(strides_of(spec), f"--keep-cubin --keep-ptx --dump-dir={tmp_path}")
    found = taken(launch.artifacts.CUBIN)  # type: ignore[attr-defined]
    assert len(found) == (4 if dtype == "f32" else 2) and not any(k.local_bytes for k in found)
    (text,) = (path.read_text() for path in tmp_path.glob("*.ptx"))
    assert ("ld.global.nc.v4" in text) == last and "wgmma.mma_async" in text
