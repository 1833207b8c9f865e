"""One compiled kernel for any number of rows: which numbers share one, and that it does the work of each (in numpy)."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

from fakes import kernel_programs as kp
from fakes import simt
from fakes.fused import load_fused
from fakes.realisers import gpu
from tilewright.kernels.cuda.common import addresses
from tilewright.kernels.cuda.common.views import contiguous
from tilewright.kernels.cuda.rows import blocks, cta, cta_rows, engine
from tilewright.kernels.cuda.rows.dynamic import at_rows, freed
from tilewright.kernels.cuda.rows.plan import DEFAULTS
from tilewright.kernels.cuda.rows.planning import make_plan

from .test_cuda_plan import H200
from .test_cuda_tiles import spec_of

pytestmark = pytest.mark.each(3)


class Shaped(simt.Memory):
    """A tensor that a kernel may ask for its shape."""

    def __init__(self, values, shape):
        super().__init__(values, contiguous(shape))
        self.shape = shape


@pytest.fixture
def fused(tmp_path):
    """What a Program is rendered to."""
    return lambda program: load_fused(program, tmp_path)._FUSED


def plans_of(fused, rows):
    """The freed plans of so many rows each, operands contiguous."""
    found = {}
    for n in rows:
        spec = at_rows(fused.spec, n)
        walks = [contiguous(o.shape) for o in spec.operands]
        found[n] = freed(spec, make_plan(spec, walks, [16] * len(walks), fused.knobs, H200))
    return found


# rows, and how many kernels serve them all
@pytest.mark.parametrize(
    ("program", "rows", "kernels"),
    [
        (kp.softmax((4096, 4096)), range(2, 9000, 311), 1),
        (kp.softmax((1000, 24), dtype="bf16"), range(2, 9000, 311), 2),  # CTAs of several rows, the last ragged or full
        (kp.softmax((4096, 65536)), (*range(132, 9000, 311), 70000), 2),  # from 2**31 elements on with 64-bit offsets
        (kp.chain((4096, 512), bias=(1, 512)), range(4, 9000, 311), 2),
        (kp.rms_norm((112, 64, 512, 512), 1), (2, 64, 100, 128), 2),  # offsets, again
        (kp.cumulative("cumsum", (640, 32768)), (132, 133, 640, 5000), 1),
        (kp.embedded(4096, 1024), (2, 1021, 4096, 70000), 2),
        (kp.pool("max", (256, 64, 112, 112), (3, 3), stride=2, padding=1), (64, 256, 1000), 1),
    ],
)
def test_one_kernel_serves_a_class_of_row_counts(program, rows, kernels, fused):
    found = plans_of(fused(program), rows)
    assert None not in found.values()
    assert len({repr(plan) for plan in found.values()}) == kernels


@pytest.mark.parametrize(
    ("program", "rows"),
    [
        (kp.softmax((4096, 65536)), 16),  # few rows are split over CTAs
        (kp.reduction("sum", (128, 4096, 4095), (1,)), 1),
        (kp.chain((1001, 333)), 1000),  # vectors across rows
    ],
)
def test_where_more_hangs_on_their_number_rows_are_not_free(program, rows, fused):
    assert plans_of(fused(program), [rows]) == {rows: None}


def test_a_module_asks_before_it_calls(fused, monkeypatch):
    facts = SimpleNamespace(
        major=9, minor=0, multi_processor_count=132, shared_memory_per_multiprocessor=228 << 10,
        max_threads_per_multi_processor=2048,
    )  # fmt: skip
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: facts)
    ours = fused(kp.softmax((4096, 65536)))
    assert [ours.takes(n) for n in (1, 2, 16, 132, 4096, 2**31)] == [False, False, False, True, True, False]
    assert fused(kp.chain((1001, 333))).takes(1001) and not fused(kp.chain((1001, 333))).takes(1000)


@pytest.mark.parametrize("rows", [2, 5, 64, 1021])
@pytest.mark.parametrize(("inner", "bias"), [((24, 16), (1, 24, 1)), ((512,), (1, 512))])
def test_a_chain_writes_each_element_once_however_many_rows(rows, inner, bias, monkeypatch):
    base = replace(spec_of((8, *inner), [("x", "f32", (8, *inner)), ("b", "f32", bias)]), free=True)
    spec = at_rows(base, rows)
    walks = [contiguous(o.shape) for o in spec.operands]
    plan = freed(spec, make_plan(spec, walks, [16, 16], {**DEFAULTS, "threads": 128}, gpu(processors=4)))
    assert plan is not None
    # The kernel knows of another number of rows; those at hand are its tensors'.
    kernel = SimpleNamespace(spec=at_rows(base, 3), plan=plan, reducers=[], workspaces=[], mailboxes=[])
    rng = np.random.default_rng(0)
    values = [rng.random(prod(o.shape), np.float32) for o in spec.operands]
    tensors = [Shaped(v, o.shape) for v, o in zip(values, spec.operands, strict=True)]
    outputs = [Shaped(np.zeros(prod(o.shape), np.float32), o.shape) for o in spec.outputs]
    for block in range(grid(kernel, tensors, monkeypatch)):
        with simt.patched(monkeypatch, (addresses, blocks, cta, cta_rows), plan.threads, block):
            cta.Cta(kernel, [*tensors, *outputs], None, stage=0, chunks=1).run()
    assert all((o.written == 1).all() for o in outputs)
    for o, v, s in zip(outputs, values, spec.operands, strict=True):
        np.testing.assert_array_equal(o.values.reshape(spec.domain), np.broadcast_to(v.reshape(s.shape), spec.domain))


def grid(kernel, tensors, monkeypatch):
    """CTAs that the engine launches."""
    with monkeypatch.context() as patch:
        for name in ("Int32", "Int64"):
            patch.setattr(engine, name, int)
        return engine.EngineKernel._ctas(kernel, tuple(tensors))


@pytest.mark.parametrize("rows", [2, 7, 640, 641])
def test_rows_of_several_a_cta_each_have_their_threads(rows, fused, monkeypatch):
    ours = fused(kp.softmax((1000, 24)))
    plan = plans_of(ours, [rows])[rows]
    kernel = SimpleNamespace(spec=ours.spec, plan=plan, reducers=[[]], workspaces=[], mailboxes=[])
    seen = []

    class Placed(cta.Cta):
        def _allocate(self):
            pass

        def _addresses(self):
            seen.append(self.group_index if self.alive is None else self.group_index[self.alive])

    tensors = [Shaped(np.zeros(1, np.float32), (rows, 24))] * 2
    for block in range(grid(kernel, tensors, monkeypatch)):
        with simt.patched(monkeypatch, (addresses, blocks, cta, cta_rows), plan.threads, block):
            Placed(kernel, tensors, None, stage=cta.ALL, chunks=1)
    assert (np.bincount(np.concatenate(seen)) == plan.group_threads).all() and max(map(max, seen)) == rows - 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("program", [kp.softmax, kp.chain])
def test_free_rows_cost_nothing(program, dtype, fused, tmp_path):
    ours = fused(program((4096, 1024), dtype=dtype))
    device = gpu()
    counts = {}
    for free in (True, False):
        spec = replace(ours.spec, free=free)
        one = type(ours)(spec, ours._entry, ours.knobs)
        walks = [contiguous(o.shape) for o in at_rows(spec, 8192).operands]
        options = f"--keep-ptx --dump-dir={tmp_path}"
        launch, kernel = one.compile(walks, [16] * len(walks), device, rows=8192, options=options)
        assert kernel.plan.rows == ("full" if free else "fixed")
        lines = [line.strip() for line in launch.artifacts.PTX.splitlines()]
        counts[free] = sum(line.endswith(";") and not line.startswith(".") for line in lines)
    assert counts[True] <= counts[False] + 2
