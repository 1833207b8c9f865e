"""Sliding over windows: every result is its window's, however they lie (in numpy), and rows are read once a walk."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf, prod
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fakes import kernel_programs as kp
from fakes import simt
from fakes.realisers import gpu
from tilewright.kernels.cuda.common import addresses
from tilewright.kernels.cuda.common.spec import ArraySpec, ReductionSpec, Spec, Sweep
from tilewright.kernels.cuda.common.views import contiguous
from tilewright.kernels.cuda.rows import blocks, combine, cta, cta_rows, reducers, slides
from tilewright.kernels.cuda.rows.dynamic import at_rows, freed
from tilewright.kernels.cuda.rows.plan import DEFAULTS
from tilewright.kernels.cuda.rows.planning import make_plan
from tilewright.kernels.cuda.rows.reducers import Reducer
from tilewright.kernels.cuda.rows.sliding import slid

from .test_cuda_demand import of
from .test_cuda_free import Shaped, grid
from .test_cuda_instructions import compiled

pytestmark = pytest.mark.each(3)

MODULES = (addresses, blocks, combine, cta, cta_rows, reducers, slides)


def spec_of(op, shape, window, stride, padding, dilation, *, dtype="f32", bias=False):
    """Pools over the last dimensions; their windows' own lie ahead of the innermost that stays. `bias`: times the
    row, it is added to each result."""
    rank, lead = len(window), len(shape) - len(window)
    counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1
              for n, k, s, p, d in zip(shape[lead:], window, stride, padding, dilation, strict=True)]  # fmt: skip
    domain = (*shape[:lead], *counts[:-1], *window, counts[-1])
    reduced = tuple(range(lead + rank - 1, lead + 2 * rank - 1))
    kept = [*range(lead + rank - 1), len(domain) - 1]
    at = [(0, ((d, 1),)) for d in range(lead)]
    at += [(-padding[i], ((kept[lead + i], stride[i]), (reduced[i], dilation[i]))) for i in range(rank)]
    out = tuple(1 if d in reduced else n for d, n in enumerate(domain))
    fill = -inf if op == "max" else 0.0
    operands = [ArraySpec(name="x", dtype=dtype, shape=shape, indexed=True, at=tuple(at), fill=fill)]
    operands += [ArraySpec(name="b", dtype="f32", shape=out)] if bias else []
    names = ", ".join(f"index_{d}" for d in range(len(domain)))
    sweep = Sweep(
        elements=eval(f"lambda x, {names}: (x.load((), (0,), fill),)", {"fill": fill}),
        reductions=(ReductionSpec(op=op, source=dtype, dtype="f32", results=("y",)),),
        rows=eval(f"lambda y, b, index_{kept[-2]}: {{'y': y + b * index_{kept[-2]}}}") if bias else None,
    )
    return Spec(name="pool", domain=domain, reduced=reduced, operands=tuple(operands), sweeps=(sweep,), slides=True,
                outputs=(ArraySpec(name="y", dtype="f32", shape=out),))  # fmt: skip


def plan_of(spec, strides=None, alignment=16, processors=1, **knobs):
    walks = [strides or contiguous(spec.operands[0].shape), *(contiguous(o.shape) for o in spec.operands[1:])]
    device = gpu(processors=processors)
    return make_plan(spec, walks, [alignment] * len(walks), {**DEFAULTS, **knobs}, device)


def pooled(monkeypatch, spec, x, plan, strides=None, bias=None):
    """What all CTAs write, and how often they read each element of x."""
    held = np.ascontiguousarray(x).ravel() if strides is None else x
    source = simt.Memory(held, strides or contiguous(spec.operands[0].shape))
    out = simt.Memory(np.full(prod(spec.outputs[0].shape), np.nan, np.float32))
    tensors = [source, *([] if bias is None else [simt.Memory(bias, contiguous(spec.operands[1].shape))]), out]
    reducer = Reducer(op=spec.sweeps[0].reductions[0].op, source=spec.operands[0].dtype, dtype="f32")
    kernel = SimpleNamespace(spec=spec, plan=plan, reducers=[[reducer]], workspaces=[], mailboxes=[], lists=None)
    times = np.zeros(held.size, int)

    def touched(places, active, *, writes):
        np.add.at(times, places[active].ravel(), 1)
        simt.Memory.touched(source, places, active, writes=writes)

    source.touched = touched
    for block in range(plan.ctas_per_chunk):
        with simt.patched(monkeypatch, MODULES, plan.threads, block) as device:
            slides.SlideCta(kernel, tensors, None, stage=-1, chunks=1).run()
            assert sum(s.values.nbytes for s in device.shared) == plan.slide.shared_bytes
    assert out.written.min() >= 1
    return out.values.reshape(spec.outputs[0].shape), times


CASES = {  # op, shape, window, stride, padding, dilation, knobs
    "as KernelBench's 42": ("max", (5, 37, 36), (4, 4), (1, 1), (1, 1), (1, 1), {}),
    "as its 46": ("sum", (3, 12, 26, 64), (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1), {}),
    "as its 43": ("max", (3, 16, 34, 32), (3, 3, 3), (2, 2, 2), (1, 1, 1), (3, 3, 3), {"unroll": 2}),
    "of odd lines": ("max", (3, 29, 45), (3, 2), (1, 2), (1, 0), (2, 3), {"threads": 128}),
    "lines longer than a CTA": ("sum", (2, 20, 1200), (3, 5), (1, 3), (1, 2), (1, 2), {"threads": 128}),
    "odd lines longer than a CTA": ("max", (2, 17, 547), (2, 3), (1, 1), (1, 1), (1, 1), {"threads": 128}),
    "even lines longer than a CTA": ("max", (2, 16, 1200), (3, 3), (1, 1), (1, 1), (1, 1), {"threads": 128}),
    "windows of one column": ("sum", (6, 40, 36), (5, 1), (2, 1), (0, 0), (1, 1), {}),
    "inside": ("sum", (4, 41, 72), (3, 3), (2, 1), (0, 0), (1, 1), {}),
    "far outside": ("max", (9, 23, 40), (5, 7), (1, 1), (2, 3), (1, 1), {"unroll": 1}),
}  # fmt: skip
TOGETHER = {"as its 46": 4, "as its 43": 2, "even lines longer than a CTA": 4, "windows of one column": 4, "inside": 2,
            "far outside": 4}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_every_result_is_its_windows(name, monkeypatch):
    op, shape, window, stride, padding, dilation, knobs = CASES[name]
    spec = spec_of(op, shape, window, stride, padding, dilation, bias=True)
    plan = plan_of(spec, **knobs)
    assert plan.slide is not None and (plan.slide.tiles > 1) == ("longer" in name)
    assert plan.space.vector == TOGETHER.get(name, 1), "results of a thread, side by side"
    rng = np.random.default_rng(0)
    x = rng.integers(-50, 50, shape).astype(np.float32)  # whose sums are exact in any order
    x.ravel()[rng.integers(0, x.size, 5)] = inf if op == "max" else 7
    bias = rng.integers(0, 9, spec.outputs[0].shape).astype(np.float32)
    got, times = pooled(monkeypatch, spec, x, plan, bias=bias.ravel())
    pool = {2: F.max_pool2d, 3: F.max_pool3d}[len(window)]
    given = torch.from_numpy(x)[None]
    if op == "max":
        wanted = pool(given, window, stride, padding, dilation)
    else:
        kernel = torch.ones(1, 1, *window)
        conv = {2: F.conv2d, 3: F.conv3d}[len(window)]
        wanted = conv(given.transpose(0, 1), kernel, None, stride, padding, dilation)
    rows = np.arange(wanted.shape[-2], dtype=np.float32)[:, None]
    np.testing.assert_array_equal(got.ravel(), (wanted.numpy() + bias.reshape(wanted.shape) * rows).ravel())
    again = 1 + max(window[-2] - 1, 0) * dilation[-2] / (plan.slide.rows * stride[-2])  # rows that two walks read
    planes = 1 if len(window) == 2 else window[0] / stride[0]
    assert times.sum() <= 2.2 * again * planes * x.size, "what lies outside is asked for at the first element"


def test_lines_that_lie_apart_are_read_in_shorter_vectors(monkeypatch):
    spec = spec_of("max", (24, 30, 40), (3, 3), (2, 2), (1, 1), (1, 1), dtype="f16")
    memory = np.random.default_rng(1).integers(-99, 99, 24 * 30 * 42).astype(np.float16)
    strides = (30 * 42, 42, 1)
    plan = plan_of(spec, strides)
    assert plan.slide.vector == 2 and plan_of(spec, alignment=2).slide.vector == 1 and plan_of(spec).slide.vector == 8
    got, _ = pooled(monkeypatch, spec, memory, plan, strides)
    x = torch.from_numpy(memory.astype(np.float32)).reshape(24, 30, 42)[None, ..., :40]
    np.testing.assert_array_equal(got.reshape(-1), F.max_pool2d(x, 3, 2, 1).numpy().reshape(-1))


def test_a_nan_is_the_largest_of_its_windows_alone(monkeypatch):
    x = np.random.default_rng(2).random((4, 40, 40), np.float32)
    x[1, 7, 9] = np.nan
    spec = spec_of("max", x.shape, (4, 4), (1, 1), (1, 1), (1, 1))
    got, _ = pooled(monkeypatch, spec, x, plan_of(spec))
    wanted = F.max_pool2d(torch.from_numpy(x)[None], 4, 1, 1).numpy()
    assert np.isnan(wanted).sum() == 16
    np.testing.assert_array_equal(got.reshape(-1), wanted.reshape(-1))


@pytest.mark.parametrize(("home", "rows"), [(52, 60), (100, 75)])
def test_one_kernel_takes_any_number_of_rows(home, rows, monkeypatch):
    """Ragged CTAs, and full ones; the kernel was made for other rows, and reads their number from its tensors."""
    base = spec_of("max", (home, 2, 26, 40), (3, 3), (2, 2), (1, 1), (1, 1))
    operand = replace(base.operands[0], free=True)
    base = replace(base, free=True, operands=(operand,))
    spec = at_rows(base, rows)
    plan = freed(spec, plan_of(spec))
    assert plan == freed(base, plan_of(base)) and plan.slide.outer == 2 and (plan.rows == "full") == (home == 100)
    shape = spec.operands[0].shape
    x = np.random.default_rng(3).random(shape, np.float32)
    tensors = [Shaped(x.ravel(), shape), Shaped(np.full(prod(spec.outputs[0].shape), np.nan, np.float32), ())]
    reducer = Reducer(op="max", source="f32", dtype="f32")
    kernel = SimpleNamespace(spec=base, plan=plan, reducers=[[reducer]], workspaces=[], mailboxes=[], lists=None)
    for block in range(grid(kernel, tensors, monkeypatch)):
        with simt.patched(monkeypatch, MODULES, plan.threads, block):
            slides.SlideCta(kernel, tensors, None, stage=-1, chunks=1).run()
    np.testing.assert_array_equal(tensors[1].values, F.max_pool2d(torch.from_numpy(x), 3, 2, 1).numpy().ravel())


def test_what_comes_before_is_done_once_for_each_element(monkeypatch):
    """A channel's bias, and a root where an element is; what lies outside counts for nothing."""
    base = spec_of("max", (4, 6, 26, 40), (3, 3), (2, 2), (1, 1), (1, 1))
    bias = ArraySpec(name="c", dtype="f32", shape=(1, 6, *[1] * (len(base.domain) - 2)))

    def elements(x, c, index_0, index_1, index_2, index_3, index_4, index_5):
        return (np.where(x.inside((), (2, 3)), np.sqrt(x.load((), (2, 3), 0.0) + c + index_1), -inf),)

    sweep = replace(base.sweeps[0], elements=elements)
    spec = replace(base, operands=(*base.operands, bias), sweeps=(sweep,))
    rng = np.random.default_rng(4)
    x, c = rng.random((4, 6, 26, 40), np.float32), rng.random(6, np.float32)
    got, _ = pooled(monkeypatch, spec, x, plan_of(spec), bias=c)
    before = np.sqrt(x + c[:, None, None] + np.arange(6)[:, None, None])
    wanted = F.max_pool2d(torch.from_numpy(before), 3, 2, 1).numpy()
    np.testing.assert_allclose(got.ravel(), wanted.ravel(), rtol=1e-6)


def test_who_slides_is_the_one_whose_windows_overlap_downwards():
    pool = ("max", (64, 64, 112, 112), (3, 3), (2, 2), (1, 1), (1, 1))
    spec = spec_of(*pool)
    assert plan_of(spec, processors=132).slide is not None and slid(spec) is not None
    assert plan_of(spec, processors=132, row_storage="reread").slide is None
    others = {
        "side by side": spec_of(*pool[:2], (2, 2), *pool[3:]),
        "one axis": spec_of(*pool[:2], (1, 3), *pool[3:]),
    }
    assert {name: slid(other) for name, other in others.items()} == dict.fromkeys(others)
    few = spec_of("max", (1, 2, 60, 60), *pool[2:])
    assert plan_of(few, processors=132).slide is None, "too few for all multiprocessors"


@pytest.mark.slow
def test_a_step_is_one_read_of_16_bytes_and_fixed_reads_of_shared_memory(tmp_path):
    ptx, plan = compiled(kp.pool("max", (32, 64, 512, 512), (4, 4), padding=1), tmp_path)
    slide, found = plan.slide, Counter(line.split()[0] for line in ptx.splitlines() if line.strip())
    assert (slide.rows, slide.vector, slide.vectors, slide.whole, slide.turns) == (8, 4, 128, True, True)
    results = slide.rows * 4
    reads = sum(n for name, n in found.items() if name.startswith("ld.global"))
    assert (
        reads == slide.rows + 3 and sum(n for name, n in found.items() if ".v4." in name and "ld.glo" in name) == reads
    )
    assert found["max.NaN.f32"] <= 6 * results and found["bar.sync"] + found["barrier.sync"] == slide.rows + 1
    shared = sum(n * (2 if ".v2." in name else 1) for name, n in found.items() if name.startswith("ld.shared"))
    assert shared == 4 * results


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        lambda: kp.pool("sum", (16, 32, 128, 128, 256), (3, 3, 3), stride=2, padding=1),
        lambda: kp.pool("max", (16, 32, 128, 128, 128), (3, 3, 3), stride=2, padding=1, dilation=3),
        lambda: kp.pool("max", (64, 64, 112, 112), (3, 3), stride=2, padding=1, dtype="f16"),
        lambda: kp.pool("sum", (16, 8, 64, 3001), (3, 5), padding=1, fused=True, dtype="bf16"),
    ],
    ids=["46", "43", "f16", "tiles, and what comes before"],
)
def test_pools_compile_without_spilling(program, tmp_path):
    found = of(program(), tmp_path)
    assert found["local_bytes"] == 0 and found["registers"] <= 80 and 1024 < found["shared_bytes"] <= 45 * 1024
