"""Tiles of depthwise convolutions: every result is its window's, in numpy, and each element is read about once."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fakes import simt
from fakes.realisers import gpu
from tilewright.kernels.cuda.common import addresses
from tilewright.kernels.cuda.common.spec import ArraySpec, ReductionSpec, Spec, Sweep
from tilewright.kernels.cuda.common.views import contiguous
from tilewright.kernels.cuda.depthwise import last, launch, staged
from tilewright.kernels.cuda.depthwise import results as tiles
from tilewright.kernels.cuda.depthwise.launch import Depthwise, DepthwiseKernel, without_images
from tilewright.kernels.cuda.depthwise.plan import DepthwisePlan, DepthwiseSpec, windows_of
from tilewright.kernels.cuda.rows import blocks, combine, cta, cta_rows, reducers, slides
from tilewright.kernels.cuda.rows.dynamic import at_rows
from tilewright.kernels.cuda.rows.reducers import Reducer

from .test_cuda_free import Shaped

pytestmark = pytest.mark.each(3)

MODULES = (addresses, blocks, combine, cta, cta_rows, reducers, slides, staged, tiles, last)
SUBTRACTED = 3


def spec_of(shape, window, stride=1, padding=0, dilation=1, each=1, dtype="f32", beside=False):
    """The convolution of `shape`; `beside`: a channel's bias and what is as large as the result are added to it, and
    SUBTRACTED times the channel's scale is taken from what is convolved."""
    rank, (images, channels, *sizes) = len(window), shape
    stride, padding, dilation = ((v,) * rank if isinstance(v, int) else v for v in (stride, padding, dilation))
    counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1
              for n, k, s, p, d in zip(sizes, window, stride, padding, dilation, strict=True)]  # fmt: skip
    domain = (images, channels, each, *counts[:-1], *window, counts[-1])
    reduced = tuple(range(2 + rank, 2 + 2 * rank))
    kept = [*range(3, 2 + rank), len(domain) - 1]
    at = [(0, ((0, 1),)), (0, ((1, 1),))]
    at += [(-padding[i], ((kept[i], stride[i]), (reduced[i], dilation[i]))) for i in range(rank)]
    out = tuple(1 if d in reduced else n for d, n in enumerate(domain))
    of_channel = tuple(n if d == 1 else 1 for d, n in enumerate(domain))
    of_weight = tuple(n if d in (1, 2, *reduced) else 1 for d, n in enumerate(domain))
    operands = [ArraySpec(name="x", dtype=dtype, shape=shape, indexed=True, at=tuple(at), fill=0.0),
                ArraySpec(name="w", dtype="f32", shape=of_weight)]  # fmt: skip
    rows, prologue = None, "lambda x: x.load((), (0,), 0.0)"
    if beside:
        operands += [ArraySpec(name="s", dtype="f32", shape=of_channel), ArraySpec(name="r", dtype="f32", shape=out)]
        prologue = f"lambda x, s: x.load((), (0,), 0.0) - {SUBTRACTED} * s"
        rows = eval("lambda y, s, r: {'y': y + s + r}")
    names = ", ".join(f"index_{d}" for d in range(len(domain)) if d != 2)
    sweep = Sweep(
        elements=eval(f"lambda x, w, {names}: (x.load((), (0,), 0.0) * w,)"), rows=rows,
        reductions=(ReductionSpec(op="sum", source="f32", dtype="f32", results=("y",)),),
    )  # fmt: skip
    spec = Spec(name="convolution", domain=domain, reduced=reduced, operands=tuple(operands), sweeps=(sweep,),
                outputs=(ArraySpec(name="y", dtype="f32", shape=out),))  # fmt: skip
    return spec, DepthwiseSpec(source="x", weights="w", prologue=eval(prologue), factor=eval("lambda w: w"))


def plan_of(spec, depthwise, strides=None, alignment=16, processors=1, **knobs):
    walks = [strides or contiguous(spec.operands[0].shape), *(contiguous(o.shape) for o in spec.operands[1:])]
    kernels = Depthwise(spec, depthwise, None, knobs)
    return kernels.plan(walks, [alignment, *(16 for _ in walks[1:])], gpu(processors=processors))


def patch_fma(patch):
    for module in (tiles, last):
        patch.setattr(module, "_lib", SimpleNamespace(fma=lambda a, b, c: a * b + c))


def convolved(monkeypatch, spec, depthwise, plan, *, given, strides=None):
    """What all CTAs write, how many of them read each element of x, and what the banks of shared memory lost."""
    walks = [strides or contiguous(spec.operands[0].shape), *(contiguous(o.shape) for o in spec.operands[1:])]
    sources = [simt.Memory(np.ascontiguousarray(v).ravel(), w) for v, w in zip(given, walks, strict=True)]
    out = simt.Memory(np.full(prod(spec.outputs[0].shape), np.nan, np.float32))
    reducer = Reducer(op="sum", source="f32", dtype="f32")
    kernel = SimpleNamespace(spec=spec, plan=plan, reducers=[[reducer]], workspaces=[], mailboxes=[], lists=None,
                             depthwise=depthwise)  # fmt: skip
    times = np.zeros(given[0].size, int)

    def touched(places, active, *, writes):
        seen.update(places[active].ravel().tolist())
        simt.Memory.touched(sources[0], places, active, writes=writes)

    sources[0].touched = touched
    seen, passes, least = set(), 0, 0
    with monkeypatch.context() as patch:
        patch_fma(patch)
        for block in range(plan.ctas_per_chunk):
            seen.clear()
            with simt.patched(patch, MODULES, plan.threads, block) as device:
                cached = last.LastCta if plan.part.channels else tiles.CachedCta
                kind = cached if plan.part.cached else tiles.DepthwiseCta
                kind(kernel, [*sources, out], None, stage=-1, chunks=1).run()
                passes += device.shared[0].passes
                least += device.shared[0].least
            times[list(seen)] += 1
    assert out.written.min() >= 1
    return out.values.reshape(spec.outputs[0].shape), times, passes / max(least, 1)


def drawn(spec, *, seed=0):
    """Whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(seed)
    types = {"f32": np.float32, "f16": np.float16, "bf16": np.float16}
    return [rng.integers(-9, 10, o.shape).astype(types[o.dtype]) for o in spec.operands]


def wanted(spec, given, **steps):
    return wanted_of(given[0].shape, [spec.domain[d] for d in spec.reduced], given, **steps).ravel()


def wanted_of(shape, window, given, *, stride=1, padding=0, dilation=1):
    x, w, *beside = (torch.from_numpy(v.astype(np.float64)) for v in given)
    conv, rank = (F.conv2d, 2) if x.dim() == 4 else (F.conv1d, 1)
    if beside:
        x = x - SUBTRACTED * beside[0].reshape(-1, *[1] * rank)
    y = conv(x, w.reshape(-1, 1, *window), None, stride, padding, dilation, groups=x.shape[1])
    if beside:
        scale = (
            beside[0].reshape(-1, 1).repeat(1, len(w.reshape(-1)) // (prod(window) * shape[1])).reshape(-1, *[1] * rank)
        )
        y = y + scale + beside[1].reshape(y.shape)
    return y.numpy()


CASES = {  # shape, window, settings, knobs
    "3x3": ((2, 3, 20, 32), (3, 3), {"padding": 1}, {}),
    "3x3 of halves": ((2, 3, 20, 32), (3, 3), {"padding": 1, "dtype": "f16"}, {"along": 8}),
    "strided": ((2, 3, 20, 32), (3, 3), {"padding": 1, "stride": 2}, {}),
    "dilated": ((1, 3, 20, 32), (3, 5), {"padding": (2, 4), "dilation": 2}, {"down": 8}),
    "7x7": ((2, 3, 28, 28), (7, 7), {"padding": 3}, {}),
    "11x11 of halves": ((1, 2, 24, 40), (11, 11), {"padding": 5, "dtype": "f16"}, {}),
    "inside": ((1, 4, 33, 40), (5, 5), {}, {}),
    "a column": ((2, 4, 24, 32), (3, 1), {}, {}),
    "a line": ((2, 4, 24, 32), (1, 7), {"padding": (0, 3)}, {}),
    "odd lines as one stretch": ((8, 3, 7, 7), (3, 3), {"padding": 1}, {}),
    "odd lines of halves as one stretch": ((4, 4, 9, 13), (5, 5), {"padding": 2, "stride": 2, "dtype": "f16"}, {}),
    "odd lines of large planes": ((1, 2, 129, 131), (3, 3), {"padding": 1}, {"threads": 64}),
    "rows that no window reads, as one stretch": ((1, 4, 10, 11), (3, 3), {"stride": 4}, {}),
    "one column a thread, as one stretch": ((1, 2, 21, 33), (3, 5), {"padding": 1}, {"along": 1}),
    "a pair a thread, as one stretch": ((1, 2, 20, 34), (3, 3), {}, {"along": 2, "down": 8}),
    "tiles of rows": ((1, 2, 100, 64), (3, 3), {"padding": 1}, {"threads": 64}),
    "tiles of columns": ((1, 2, 5, 1200), (3, 3), {"padding": 1}, {"threads": 64}),
    "tiles of strided columns": ((1, 2, 5, 1200), (3, 3), {"padding": 1, "stride": 2}, {"threads": 64}),
    "many planes a tile": ((3, 7, 8, 8), (3, 3), {"padding": 1}, {}),
    "multiplied channels": ((2, 3, 12, 16), (3, 3), {"padding": 1, "each": 3}, {}),
    "with what is beside": ((2, 5, 12, 16), (3, 3), {"padding": 1, "beside": True}, {}),
    "one stretch with what is beside": ((4, 5, 7, 9), (3, 3), {"padding": 1, "beside": True}, {}),
    "columns of one-dimensional": ((2, 3, 400), (5,), {"padding": 2}, {"threads": 64, "down": 1}),
    "columns of one-dimensional, strided": ((2, 3, 1024), (4,), {"stride": 2, "each": 2}, {"threads": 64}),
    "columns of one-dimensional, odd": ((1, 3, 999), (4,), {"padding": 1, "stride": 2}, {"threads": 64, "down": 1}),
    "one image as one stretch": ((1, 8, 14, 14), (5, 5), {"padding": 2}, {"down": 2}),
}  # fmt: skip


def spec_of_last(shape, window, stride=1, padding=0, dilation=1, dtype="f32", beside=False):
    """As `spec_of`, of an image in which the channels of a pixel lie side by side, and so in the result."""
    spec, depthwise = spec_of(shape, window, stride, padding, dilation, dtype=dtype, beside=beside)
    rank = len(window)
    order = [0, *range(3, 2 + rank), 2 + 2 * rank, *range(2 + rank, 2 + 2 * rank), 1]  # of the old dimensions
    new = {old: number for number, old in enumerate(order)}

    def moved(array):
        at = tuple((start, tuple((new[d], step) for d, step in steps)) for start, steps in array.at)
        return replace(array, at=at, **({} if array.indexed else {"shape": tuple(array.shape[d] for d in order)}))

    names = ", ".join(f"index_{d}" for d in range(len(order)))
    sweep = replace(spec.sweeps[0], elements=eval(f"lambda x, w, {names}: (x.load((), (0,), 0.0) * w,)"))
    spec = replace(
        spec, domain=tuple(spec.domain[d] for d in order), reduced=tuple(new[d] for d in spec.reduced), sweeps=(sweep,),
        operands=tuple(map(moved, spec.operands)), outputs=tuple(map(moved, spec.outputs)),
    )  # fmt: skip
    return spec, depthwise


LAST = {
    "3x3": ((2, 32, 9, 10), (3, 3), {"padding": 1}, {}),
    "3x3 of halves": ((2, 64, 9, 10), (3, 3), {"padding": 1, "dtype": "f16"}, {"down": 2}),
    "strided": ((3, 24, 11, 12), (5, 5), {"padding": 2, "stride": 2, "dtype": "f16"}, {"down": 4, "along": 2}),
    "small images": ((9, 40, 7, 7), (3, 3), {"padding": 1, "dtype": "f16"}, {"down": 2}),
    "tiles": ((1, 200, 30, 40), (3, 5), {"padding": (1, 2), "dilation": 2}, {"threads": 64, "down": 2}),
    "with what is beside": ((2, 16, 9, 10), (3, 3), {"padding": 1, "beside": True}, {"threads": 64}),
    "odd channels": ((2, 7, 9, 10), (3, 3), {"padding": 1}, {"threads": 128}),
    "one-dimensional": ((3, 16, 50), (5,), {"padding": 2}, {"down": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LAST))
def test_channels_side_by_side(name, monkeypatch):
    shape, window, settings, knobs = LAST[name]
    spec, depthwise = spec_of_last(shape, window, **settings)
    walk = contiguous((shape[0], *shape[2:], shape[1]))
    strides = (walk[0], walk[-1], *walk[1:-1])
    plan = plan_of(spec, depthwise, strides, **knobs)
    assert Depthwise(spec, depthwise, None, knobs)._walks(spec)[0] == strides
    assert plan.part.channels and (plan.part.channel_tiles > 1 or plan.part.row_tiles > 1) == ("tiles" in name)
    assert plan.part.vector == (1 if "odd" in name else 4), "results are of four bytes"
    given = drawn(spec, seed=2)
    held = [np.moveaxis(given[0], 1, -1), *given[1:]]
    got, times, _ = convolved(monkeypatch, spec, depthwise, plan, given=held, strides=strides)
    steps = {n: settings.get(n, default) for n, default in (("stride", 1), ("padding", 0), ("dilation", 1))}
    flat = [given[0], np.moveaxis(given[1], -1, 0), *given[2:]]
    if "beside" in settings:
        flat[3] = np.moveaxis(given[3].reshape(shape[0], *shape[2:], shape[1]), -1, 1)
    result = wanted_of(shape, window, flat, **steps)
    np.testing.assert_array_equal(np.moveaxis(got.reshape(shape[0], *result.shape[2:], shape[1]), -1, 1), result)
    assert times[4:].max() <= 6, "what lies outside is asked for at the first vector"


@pytest.mark.parametrize("name", list(CASES))
def test_what_threads_read_through_the_cache_is_their_windows(name, monkeypatch):
    shape, window, settings, knobs = CASES[name]
    spec, depthwise = spec_of(shape, window, **settings)
    plan = plan_of(spec, depthwise, **knobs, through="cache")
    assert plan.part.cached and not plan.part.flat
    given = drawn(spec, seed=1)
    got, _, _ = convolved(monkeypatch, spec, depthwise, plan, given=given)
    steps = {n: settings.get(n, default) for n, default in (("stride", 1), ("padding", 0), ("dilation", 1))}
    np.testing.assert_array_equal(got.ravel(), wanted(spec, given, **steps))


@pytest.mark.parametrize("name", list(CASES))
def test_every_result_is_its_windows(name, monkeypatch):
    shape, window, settings, knobs = CASES[name]
    spec, depthwise = spec_of(shape, window, **settings)
    plan = plan_of(spec, depthwise, **knobs)
    assert isinstance(plan, DepthwisePlan) and plan.part.flat == ("one stretch" in name)
    assert (plan.part.column_tiles > 1) == ("columns" in name)
    given = drawn(spec)
    got, times, lost = convolved(monkeypatch, spec, depthwise, plan, given=given)
    steps = {n: settings.get(n, default) for n, default in (("stride", 1), ("padding", 0), ("dilation", 1))}
    np.testing.assert_array_equal(got.ravel(), wanted(spec, given, **steps))
    windows = windows_of(spec, spec.operands[0])
    again = max(1, plan.part.lines / min(windows.down.length, plan.part.rows * windows.down.apart))
    assert np.delete(times, 0).mean() <= 1.1 * again * (1 + 0.1 * (plan.part.column_tiles > 1))
    assert lost < 2, "trips through the banks for each that is needed"


@pytest.mark.parametrize(("along", "sectors"), [(2, 1), (4, 2)])
def test_a_warp_writes_whole_lines_where_its_threads_store_all_they_have_at_once(along, sectors, monkeypatch):
    """Of 62 columns 8 bytes are stored at once. Of four columns a thread, a warp's store leaves gaps, and touches
    each 32 bytes as often as there are stores (KernelBench 1/82: 0.76 of the floor; 1/83, with whole lines: 0.97)."""
    spec, depthwise = spec_of((1, 2, 34, 64), (3, 3))
    plan = plan_of(spec, depthwise, along=along)
    assert plan.space.vector == 2
    touched, usual = [0], simt.Memory.touched

    def count(memory, places, active, *, writes):
        if writes and not memory.shared:
            for warp in range(0, len(places), 32):
                lanes = places[warp : warp + 32][active[warp : warp + 32]]
                touched[0] += len(np.unique(lanes // 8))
        usual(memory, places, active, writes=writes)

    monkeypatch.setattr(simt.Memory, "touched", count)
    convolved(monkeypatch, spec, depthwise, plan, given=drawn(spec))
    least = prod(spec.outputs[0].shape) / 8
    assert (sectors - 0.1) * least <= touched[0] <= 1.3 * sectors * least


def test_lines_that_lie_apart_are_read_in_shorter_vectors(monkeypatch):
    spec, depthwise = spec_of((2, 3, 12, 16), (3, 3), padding=1, dtype="f16")
    x, w = drawn(spec)
    held = np.zeros((2, 3, 12, 18), np.float16)
    held[..., :16] = x
    strides = (3 * 12 * 18, 12 * 18, 18, 1)
    plan = plan_of(spec, depthwise, strides)
    assert plan.part.vector == 2 and plan_of(spec, depthwise, alignment=2).part.vector == 1
    got, _, _ = convolved(monkeypatch, spec, depthwise, plan, given=(held, w), strides=strides)
    np.testing.assert_array_equal(got.ravel(), wanted(spec, (x, w), padding=1))


def test_what_lies_otherwise_is_left_to_rows():
    spec, depthwise = spec_of((2, 3, 12, 16), (3, 3), padding=1)
    last = (12 * 16 * 3, 1, 16 * 3, 3)
    assert not isinstance(plan_of(spec, depthwise, last), DepthwisePlan)
    with pytest.raises(ValueError, match="no knob 'unroll'"):
        plan_of(spec, depthwise, unroll=4)
    assert gcd(plan_of(spec, depthwise).space.vector, 4) == 4


def test_few_planes_are_spread_over_all_multiprocessors():
    spec, depthwise = spec_of((8, 64, 14, 14), (3, 3), padding=1)
    assert plan_of(spec, depthwise).part.planes == 16
    assert plan_of(spec, depthwise, processors=132).part.planes == 1


@pytest.mark.parametrize(("home", "images", "way"), [(12, 11, "shared"), (12, 16, "cache")])
def test_one_kernel_takes_any_number_of_images(home, images, way, monkeypatch):
    """Ragged CTAs, and full ones; the kernel was made for other images, and reads their number from its tensors."""
    shape, window = (home, 3, 14, 16), (3, 3)
    base, depthwise = spec_of(shape, window, padding=1)
    base = replace(base, free=True, operands=(replace(base.operands[0], free=True), base.operands[1]))
    spec = at_rows(base, images)
    plan, usual = (without_images(s, plan_of(s, depthwise, through=way)) for s in (spec, base))
    assert replace(plan, rows=usual.rows) == usual and plan.windows_at.planes == 3 and plan.part.planes > 1
    given = drawn(spec, seed=3)
    out = Shaped(np.full(prod(spec.outputs[0].shape), np.nan, np.float32), spec.outputs[0].shape)
    tensors = [*(Shaped(v.ravel(), v.shape) for v in given), out]
    kernel = DepthwiseKernel(base, depthwise, plan)
    with monkeypatch.context() as patch:
        for name in ("Int32", "Int64"):
            patch.setattr(launch, name, int)
        ctas = kernel._ctas(tuple(tensors))
    assert ctas == -(-3 * images // plan.part.planes)
    patch_fma(monkeypatch)
    for block in range(ctas):
        with simt.patched(monkeypatch, MODULES, plan.threads, block):
            kernel._cta(-1)(kernel, tensors, None, stage=-1, chunks=1).run()
    np.testing.assert_array_equal(out.values, wanted(spec, given, padding=1))
