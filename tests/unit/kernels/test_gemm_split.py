"""The arithmetic of the split on the host, element by element, against the model that the numerics are proven on."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fakes import gemm_model as model
from fakes import scalars
from fakes.scalars import Float16, Float32, Int32
from tilewright.kernels.cuda.gemm.epilogue import epilogue as finish
from tilewright.kernels.cuda.gemm.fp32 import pair, split


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch):
    scalars.patch(monkeypatch, pair, finish)

    def packed(low, high):
        both = np.array([low.to(Float16).value, high.to(Float16).value], np.float16)
        return Int32(both.view(np.int32)[0])

    def mixed_input(both):
        return tuple(Float32(h) for h in np.array([both.value]).view(np.float16).astype(np.float32))

    def larger(most, x):
        return Float32(np.maximum(most.value, np.abs(x.value)))  # NaN if either is

    def packed_wide(low, high):
        both = torch.tensor([float(low.value), float(high.value)]).bfloat16()
        return Int32(both.view(torch.int32).item())

    monkeypatch.setattr(pair, "_packed_wide", packed_wide)
    monkeypatch.setattr(pair, "_packed", packed)
    monkeypatch.setattr(pair, "_unpacked", mixed_input)
    monkeypatch.setattr(pair, "_larger", larger)


def parts(row, *, planes=2):
    """The planes and the exponent of a row as one thread has it."""
    quads = [[Float32(v) for v in row[at : at + 4]] for at in range(0, len(row), 4)]
    seen = pair.SeenMagnitudes(1)
    seen.look(quads)
    exponent = pair.exponent_of(seen.most[0])
    scales = [pair.Scale(exponent, least=pair.LEAST if planes == 3 else pair.TINY)] * 4
    words = [pair.split_quad(quad, scales, seen.odd[0], planes=planes) for quad in quads]
    kind = torch.bfloat16 if planes == 3 else torch.float16
    found = [torch.tensor([w.value for quad in words for w in quad[p]], dtype=torch.int32) for p in range(planes)]
    return *(words.view(kind).double() for words in found), int(exponent.value)


def rows():
    draw = torch.Generator().manual_seed(0)
    wide = torch.randn(8, generator=draw) * torch.exp2(torch.randint(-40, 40, (8,), generator=draw).float())
    return {
        "normal": torch.randn(64, generator=draw),
        "wide": wide,
        "zeros": torch.zeros(8),
        "some zeros": torch.randn(64, generator=draw).relu(),
        "subnormal": torch.randn(16, generator=draw) * 2.0**-140,
        "least": torch.tensor([2.0**-149, 0.0, -(2.0**-149), 2.0**-148]),
        "greatest": torch.tensor([2.0**127, 1.0, -(2.0**-149), 3.4e38]),
        "a vanishing partner": torch.tensor([1e30, -1e-30, 2.0**-149, 0.0]),
        "a tie": torch.tensor([2.0**14, 2.0**-25, 2.0**-24, -(2.0**-25)]),
        "not finite": torch.tensor([1.0, inf, -inf, nan, 0.0, 2.0**-149, -3.0, 1e-30]),
        "nothing finite": torch.tensor([inf, nan, -inf, inf]),
        "infinite and zero": torch.tensor([0.0, -inf, 0.0, 0.0]),
    }


@pytest.mark.parametrize("kind", list(rows()))
def test_a_row_is_split_as_the_model_has_it(kind):
    row = rows()[kind]
    hi, lo, exponent = parts(row.numpy())
    wanted_hi, wanted_lo, wanted = model.split(row[None], model.SHIFT["fp16x3"])
    assert exponent == int(wanted[0])
    torch.testing.assert_close(hi, wanted_hi[0], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(lo, wanted_lo[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(hi == 0, row == 0), "hi is never zero but for zero"


@pytest.mark.parametrize("kind", list(rows()))
def test_three_planes_are_the_row_itself(kind):
    """As the model has them; their sum is every element, where it lies within 2^117 of the largest."""
    row = rows()[kind]
    *found, exponent = parts(row.numpy(), planes=3)
    *wanted, of_row = model.split_wide(row[None])
    assert exponent == int(of_row[0])
    for plane, same in zip(found, wanted, strict=True):
        torch.testing.assert_close(plane, same[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found[0] == 0, row == 0), "the first is never zero but for zero"
    largest = torch.where(row.isfinite(), row.abs(), 0.0).max()
    near = row.isfinite() & (row.double().abs() >= largest.double() * 2.0**-117)
    back = torch.ldexp(sum(found), torch.tensor(-exponent))
    assert torch.equal(back[near], row.double()[near])


def test_the_order_of_16_of_k_gives_each_lane_four_neighbours():
    """Lane t multiplies K = 2t, 2t + 1, 2t + 8 and 2t + 9 of what lies there."""
    places = [pair.permuted(k) for k in range(64)]
    assert sorted(places) == list(range(64)) and all(p // 16 == k // 16 for k, p in enumerate(places))
    for lane in range(4):
        own = [places[4 * lane + i] for i in range(4)]
        assert own == [2 * lane, 2 * lane + 1, 2 * lane + 8, 2 * lane + 9]


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize(("rows", "k", "begin", "end"), [(40, 70, 0, 70), (37, 1000, 0, 1000), (36, 20000, 0, 20000),
                                                         (64, 600, 256, 512), (33, 4100, 0, 4100)])  # fmt: skip
def test_who_lies_across_k_is_written_once_whole_and_under_its_rows_exponents(
    monkeypatch, rows, k, begin, end, crossed
):
    """By all threads of a CTA at once in numpy; crossed, in quads along K, of which lines hold whole multiples of 8."""
    x = np.random.default_rng(0).normal(size=(rows, k))
    written = np.zeros((rows + 3, k + 3), int)
    masks = [np.ones(split.ACROSS, bool)]

    def when(condition, body):
        masks.append(masks[-1] & np.broadcast_to(condition, masks[-1].shape))
        body()
        masks.pop()

    def read(self, chunk, x, row, step):
        return [x[np.minimum(row + e, rows - 1), np.minimum(step, end - 1)] for e in range(4)]

    def write(self, planes, at, quad, scales, odd):
        there, (row, step, _) = masks[-1], at
        for e in range(4):
            r, s = (row, step + e) if crossed else (row + e, step)
            inside = there & (r < rows) & (s < end)
            np.testing.assert_array_equal(quad[e][inside], x[r[inside], s[inside]])
            np.testing.assert_array_equal(scales[e].exponent[inside], r[inside] % split.STRIP)
            np.add.at(written, (r[there], s[there]), 1)

    monkeypatch.setattr(split, "when", when)
    monkeypatch.setattr(split, "loop", lambda first, last, body: [body(n) for n in range(first, last)])
    monkeypatch.setattr(split, "m", SimpleNamespace(both=np.logical_and))
    monkeypatch.setattr(split, "Int32", int)
    monkeypatch.setattr(split, "exponent_of", lambda highest: highest)
    monkeypatch.setattr(split, "Scale", lambda exponent, least: SimpleNamespace(exponent=exponent))
    monkeypatch.setattr(
        split, "SeenMagnitudes", lambda rows: SimpleNamespace(look=lambda quads: None, most=None, odd=[0])
    )
    monkeypatch.setattr(split, "cute", SimpleNamespace(
        ceil_div=lambda a, b: -(-a // b), make_rmem_tensor=lambda shape, kind: [None] * shape[0],
    ))  # fmt: skip
    monkeypatch.setattr(split.Split, "_read", read)
    monkeypatch.setattr(split.Split, "_write", write)
    monkeypatch.setattr(split, "SmemAllocator", lambda: None)
    monkeypatch.setattr(split, "_Others", lambda shared, cluster, thread: None)
    lane = np.arange(split.ACROSS) % (split.STRIP // 4)
    monkeypatch.setattr(split.Split, "_highest_of_strip", lambda self, *given: [lane * 4 + e for e in range(4)])
    made = split.Split(split.SplitPlan.for_chunk(major="r", wide=rows % 4 == 0, chunk=end - begin, crossed=crossed))
    for block in range(-(-rows // split.STRIP) * made.plan.cluster):
        chunk = SimpleNamespace(thread=np.arange(split.ACROSS), block=block, batch=0, rows=rows, begin=begin, end=end,
                                note=lambda row, exponent: None)  # fmt: skip
        made.rows_across(chunk, x, None)
    assert np.all(written[:rows, begin:end] == 1) and not written[:, :begin].any()
    beyond = written[:, end:] if crossed else written[rows:]
    assert beyond.max(initial=0) <= 1 and not (written[rows:] if crossed else written[:, end:]).any()
