"""Tiles of pointwise spaces: every element arrives once and at its place (in numpy), and they compile for sm_90a."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

from fakes import simt
from fakes.realisers import gpu
from tilewright.kernels.cuda.common import addresses
from tilewright.kernels.cuda.common.spec import ArraySpec, Spec
from tilewright.kernels.cuda.common.views import contiguous
from tilewright.kernels.cuda.rows import blocks, cta, cta_rows, tiles
from tilewright.kernels.cuda.rows.plan import DEFAULTS
from tilewright.kernels.cuda.rows.planning import make_plan

DTYPES = {"f32": np.float32, "f16": np.float16, "i64": np.int64, "u8": np.uint8, "bool": np.bool_}


def strides_of(shape, order):
    """Strides of a tensor whose dimensions lie in this order, outermost first; 0 where it is broadcast."""
    walk = dict(zip(order, contiguous([shape[d] for d in order]), strict=True))
    return tuple(walk[d] for d in range(len(shape)))


def spec_of(domain, operands):
    """A Spec that gives back its operands, (name, dtype, shape) each."""
    names = [name for name, _, _ in operands]
    final = eval(f"lambda {', '.join(names)}: ({', '.join(names)},)")
    tensors = tuple(ArraySpec(name=n, dtype=t, shape=s) for n, t, s in operands)
    outputs = tuple(ArraySpec(name=n, dtype=t, shape=domain) for n, t, _ in operands)
    return Spec(name="moved", domain=domain, reduced=(), operands=tensors, outputs=outputs, final=final,
                element_outputs=tuple(names))  # fmt: skip


def moved(monkeypatch, spec, orders, knobs=(), alignment=16):
    """The outputs that all CTAs of the plan write, the values that they should be, the plan, and shared memory used."""
    walks = [strides_of(o.shape, order) for o, order in zip(spec.operands, orders, strict=True)]
    device = gpu()
    plan = make_plan(spec, walks, [alignment] * len(walks), {**DEFAULTS, **dict(knobs)}, device)
    rng = np.random.default_rng(0)
    tensors, wanted = [], []
    for operand, walk in zip(spec.operands, walks, strict=True):
        kind = np.dtype(DTYPES[operand.dtype])
        most = {2: 2039, 1: 251}.get(kind.itemsize, 2**31)  # whole numbers that the dtype has
        values = (rng.permutation(prod(operand.shape)) % most).astype(kind)
        tensors.append(simt.Memory(values, walk))
        view = np.lib.stride_tricks.as_strided(values, operand.shape, [s * values.itemsize for s in walk])
        wanted.append(np.broadcast_to(view, spec.domain))
    outputs = [simt.Memory(np.zeros(prod(o.shape), DTYPES[o.dtype])) for o in spec.outputs]
    kernel = SimpleNamespace(spec=spec, plan=plan, reducers=[], workspaces=[], counters=0)
    shared = []
    for block in range(plan.chunks):
        with simt.patched(monkeypatch, (addresses, blocks, cta, cta_rows, tiles), plan.threads, block) as device_block:
            tiles.TileCta(kernel, [*tensors, *outputs], None, stage=0, chunks=plan.chunks).run()
        shared += device_block.shared
    assert all((o.written == 1).all() for o in outputs)
    return [o.values.reshape(spec.domain) for o in outputs], wanted, plan, shared


CASES = {
    "a transpose": ((96, 160), [("x", "f32", (96, 160))], [(1, 0)], {}, 16),
    "of odd sides": ((45, 67), [("x", "f32", (45, 67))], [(1, 0)], {}, 16),
    "at an odd address": ((64, 72), [("x", "f32", (64, 72))], [(1, 0)], {"tile": 32}, 4),
    "of half precision, in tiles that overhang": ((72, 200), [("x", "f16", (72, 200))], [(1, 0)], {"threads": 128}, 16),
    "more threads than micro blocks": ((40, 48), [("x", "f16", (40, 48))], [(1, 0)], {"unroll": 1}, 16),
    "beside a straight operand and a row": (
        (64, 96), [("x", "f32", (64, 96)), ("y", "f32", (64, 96)), ("b", "f32", (1, 96)), ("c", "f32", (64, 1))],
        [(1, 0), (0, 1), (0, 1), (0, 1)], {}, 16),
    "channels last": ((3, 6, 7, 16), [("x", "f32", (3, 6, 7, 16))], [(0, 3, 1, 2)], {}, 16),
    "three channels last": ((2, 16, 16, 3), [("x", "f32", (2, 16, 16, 3))], [(0, 3, 1, 2)], {}, 16),
    "channels first": ((2, 20, 6, 9), [("x", "f32", (2, 20, 6, 9))], [(0, 2, 3, 1)], {}, 16),
    "the outer of three": ((24, 5, 40), [("x", "f32", (24, 5, 40))], [(2, 1, 0)], {}, 16),
    "several dtypes": (
        (40, 64), [("a", "i64", (40, 64)), ("b", "u8", (40, 64)), ("c", "bool", (40, 64)), ("d", "f16", (40, 64))],
        [(1, 0), (1, 0), (1, 0), (0, 1)], {}, 16),
    "across two different modes": (
        (20, 24, 32), [("x", "f32", (20, 24, 32)), ("y", "f32", (20, 24, 32))], [(0, 2, 1), (2, 1, 0)], {}, 16),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_every_element_arrives(name, monkeypatch):
    domain, operands, orders, knobs, alignment = CASES[name]
    got, wanted, plan, _ = moved(monkeypatch, spec_of(domain, operands), orders, knobs.items(), alignment)
    assert plan.tile is not None
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["f32", "f16", "i64"])
def test_no_bank_is_asked_twice(dtype, monkeypatch):
    spec = spec_of((256, 256), [("x", dtype, (256, 256))])
    _, _, plan, shared = moved(monkeypatch, spec, [(1, 0)], {"unroll": 8}.items())
    assert plan.tile is not None and plan.tile.width >= 32 and plan.tile.rows >= 32
    assert sum(m.passes for m in shared) == sum(m.least for m in shared) > 0
