"""Pointwise spaces by CTAs that stay on the chip: every element arrives once (in numpy); they compile for sm_90a."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

from fakes import kernel_programs as kp
from fakes import simt
from fakes.fused import load_fused
from fakes.realisers import gpu
from tilewright.kernels.cuda.common import addresses
from tilewright.kernels.cuda.common.cubin import taken
from tilewright.kernels.cuda.common.views import contiguous
from tilewright.kernels.cuda.rows import blocks, cta, cta_rows
from tilewright.kernels.cuda.rows.plan import DEFAULTS
from tilewright.kernels.cuda.rows.planning import make_plan

from .test_cuda_tiles import spec_of


@pytest.mark.parametrize("shape", [(64, 512), (61, 512), (37, 333), (5, 96)])
def test_every_element_arrives_once(shape, monkeypatch):
    spec = spec_of(shape, [("x", "f32", shape), ("b", "f32", (1, shape[1]))])
    walks = [contiguous(o.shape) for o in spec.operands]
    knobs = {**DEFAULTS, "threads": 128, "unroll": 2, "cta_split": "grid"}
    plan = make_plan(spec, walks, [16, 16], knobs, gpu(processors=1))
    assert plan.chunks == min(8, plan.blocks)
    kernel = SimpleNamespace(spec=spec, plan=plan, reducers=[], workspaces=[], mailboxes=[])
    rng = np.random.default_rng(0)
    values = [rng.random(prod(o.shape), np.float32) for o in spec.operands]
    tensors = [simt.Memory(v, w) for v, w in zip(values, walks, strict=True)]
    outputs = [simt.Memory(np.zeros(prod(o.shape), np.float32)) for o in spec.outputs]
    monkeypatch.setattr(blocks, "loop", lambda lo, hi, body: [body(np.asarray(i)) for i in range(int(lo), int(hi))])
    for block in range(plan.chunks):
        with simt.patched(monkeypatch, (addresses, blocks, cta, cta_rows), plan.threads, block):
            cta.Cta(kernel, [*tensors, *outputs], None, stage=0, chunks=plan.chunks).run()
    assert all((o.written == 1).all() for o in outputs)
    for o, v, s in zip(outputs, values, spec.operands, strict=True):
        np.testing.assert_array_equal(o.values.reshape(shape), np.broadcast_to(v.reshape(s.shape), shape))


@pytest.mark.slow
def test_it_compiles_without_spilling(tmp_path):
    module = load_fused(kp.chain((16384, 16385)), tmp_path)
    module.configure(cta_split="grid")
    device = gpu()
    options = f"--keep-cubin --dump-dir={tmp_path}"
    launch, kernel = module._FUSED.compile([contiguous((16384, 16385))], [16], device, options=options)
    assert kernel.plan.chunks == 132 * 1024 // 128
    assert [k.local_bytes for k in taken(launch.artifacts.CUBIN)] == [0]
