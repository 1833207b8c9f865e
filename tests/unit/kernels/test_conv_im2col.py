"""Im2col products without a GPU: which addresses are copied where, what TMA's boxes hold, who waits for whom, and what
they compile to."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes.channels_last import Case, convolved, spec_last
from fakes.convolutions import channels_last, contiguous
from tilewright.kernels.cuda.common.cubin import taken
from tilewright.kernels.cuda.common.spec import ArraySpec
from tilewright.kernels.cuda.conv import im2col, im2col_addresses
from tilewright.kernels.cuda.conv.fused import ConvSpec, FusedConv
from tilewright.kernels.cuda.conv.im2col import CHUNKS, LINE, LOADERS, ROWS_APART, pixel_rows
from tilewright.kernels.cuda.conv.im2col_addresses import Im2col
from tilewright.kernels.cuda.conv.im2col_host import Im2colConv
from tilewright.kernels.cuda.conv.shape import GROUP, ConvShape
from tilewright.kernels.cuda.gemm.epilogue.batch_map import placed

pytestmark = pytest.mark.each(5)

SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 16, 6, 5), (5, 16, 3, 3), {"padding": 1}),
    ((3, 64, 7, 5), (8, 64, 3, 3), {"padding": 1, "stride": 2}),
    ((1, 56, 6, 7), (3, 56, 3, 3), {"padding": 1, "stride": 2}),
    ((2, 24, 4, 5), (6, 24, 1, 1), {"stride": 2}),
    ((1, 72, 9, 8), (4, 72, 3, 2), {"dilation": 2, "padding": 2}),
    ((1, 96, 6, 5), (4, 48, 3, 3), {"groups": 2, "padding": 1}),
    ((2, 8, 3, 4, 5), (2, 8, 3, 3, 2), {"padding": 1}),
    ((1, 64, 4, 5, 6), (3, 64, 2, 3, 3), {"padding": 1, "stride": 2}),
    ((3, 64, 41), (5, 64, 5), {"padding": 2, "stride": 3}),
    ((1, 64, 6, 5), (64, 3, 3, 3), {"transposed": True, "padding": 1}),
    ((2, 128, 5, 6), (3, 128, 3, 3), {}),
)


def last(case: tuple[Any, Any, dict[str, Any]]) -> ConvShape:
    return spec_last(*case).shape


def walk_of(spec: ConvSpec) -> tuple[int, ...]:
    return spec.walk(channels_last(spec.x.shape, spec.shape.groups), spec.x.shape)


@pytest.fixture
def plain_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses are reckoned with Python's integers."""
    monkeypatch.setattr(im2col_addresses, "Int32", int)
    monkeypatch.setattr(im2col_addresses, "cutlass", SimpleNamespace(min=min))


def stages(windows: Im2col, memory: np.ndarray[Any, Any], tile: int, tile_m: int, group: int) -> list[Any]:
    """A tile's stages as the threads that copy fill them, read as wgmma reads them: (rows, 64)."""
    found = []
    rows = {t: [windows.row(tile * tile_m + windows.target(t)[1] + i, group) for i in range(0, tile_m, ROWS_APART)]
            for t in range(LOADERS)}  # fmt: skip
    for step in range(windows.steps):
        stage = np.full((tile_m * LINE // 16, GROUP), np.nan)
        for thread, mine in rows.items():
            chunk, _, byte = windows.target(thread)
            tap = windows.tap(step, chunk)
            for i, row in enumerate(mine):
                offset, size = windows.source(row, tap)
                assert size in (0, 16) and 0 <= offset < len(memory)
                at = (byte + i * ROWS_APART * LINE) // 16
                assert np.isnan(stage[at]).all()
                stage[at] = memory[offset] if size else 0.0
        swizzled = stage.reshape(tile_m, CHUNKS, GROUP)
        found.append(np.stack([swizzled[r, [q ^ (r % 8) for q in range(CHUNKS)]].ravel() for r in range(tile_m)]))
    return found


@pytest.mark.usefixtures("plain_numbers")
@pytest.mark.parametrize("tile_m", [64, 128])
@pytest.mark.parametrize("case", SHAPES)
def test_what_threads_copy_times_the_weights_is_the_convolution(case: Any, tile_m: int) -> None:
    x_shape, w_shape, how = case
    shape, spec = last(case), spec_last(*case)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(x_shape), torch.from_numpy(rng.standard_normal(w_shape))
    memory = np.moveaxis(x, 1, -1).reshape(-1, GROUP)  # (samples, places, groups, channels)
    windows = Im2col(shape, walk_of(spec))
    k = windows.steps * 64
    of_groups = spec.weight_walk(contiguous(spec.weight.shape))
    sides = (shape.groups, shape.columns, *shape.taps, shape.channels)
    weights = w.as_strided(sides, (*of_groups[:2], *of_groups[3:], of_groups[2])).reshape(*sides[:2], -1).numpy()
    made = np.full((shape.groups, shape.columns, shape.pixels), np.nan)
    for group, tile in product(range(shape.groups), range(-(-shape.pixels // tile_m))):
        a = np.concatenate(stages(windows, memory, tile, tile_m, group), 1)
        assert a.shape == (tile_m, k) and not a[:, windows.depth :].any()
        there = min(tile_m, shape.pixels - tile * tile_m)
        own = a[:there, : windows.depth] @ weights[group].T
        made[group, :, tile * tile_m : tile * tile_m + there] = own.T
    truth = convolved(torch.from_numpy(x), w, how).numpy()
    truth = truth.reshape(shape.batch, shape.groups, shape.columns, -1).transpose(1, 2, 0, 3).reshape(made.shape)
    np.testing.assert_allclose(made, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tile_m", [64, 128, 256])
def test_threads_that_copy_have_each_chunk_once_and_meet_in_no_bank(tile_m: int) -> None:
    all_bytes = []
    for thread in range(LOADERS):
        chunk, row, byte = Im2col.target(thread)
        assert byte == row * LINE + (chunk ^ row % 8) * 16
        all_bytes += [byte + i * LINE for i in range(0, tile_m, ROWS_APART)]
        assert ROWS_APART % 8 == 0  # so that all of a thread's rows are swizzled alike
    assert sorted(all_bytes) == list(range(0, tile_m * LINE, 16))
    for first in range(0, LOADERS, 8):  # eight threads write 128 bytes at once
        banks = {Im2col.target(t)[2] // 16 % 8 for t in range(first, first + 8)}
        assert len(banks) == 8


@pytest.mark.parametrize("case", SHAPES)
def test_the_boxes_that_tma_is_told_have_the_windows_of_the_pixels(case: Any) -> None:
    """An im2col load, as the PTX ISA has it: from the first pixel's place on through a box from the lower corner to the
    upper one, `stride` apart, the last dimension first; an element lies a tap's offset behind its pixel's place."""
    shape = last(case)
    why = im2col.no_tma(shape)
    if why is not None:
        assert shape.channels % 64 or shape.groups > 1 or shape.step[2] < 0
        return
    dims = im2col.spatial(shape)
    assert len(dims) == len(case[0]) - 2
    boxes = [range(shape.start[d], shape.image[d] + im2col.upper_corner(shape, d), shape.stride[d])
             for d in reversed(dims)]  # fmt: skip
    places = list(product(range(shape.batch), *boxes))
    assert len(places) == shape.pixels and [len(box) for box in boxes] == [shape.out[d] for d in reversed(dims)]
    x = torch.randn(case[0], dtype=torch.float64)
    w = torch.randn(case[1], dtype=torch.float64)
    made = torch.zeros(shape.pixels, shape.columns, dtype=torch.float64)
    for taps in product(*(range(shape.taps[d]) for d in reversed(dims))):
        offsets = [t * shape.step[d] for t, d in zip(taps, reversed(dims), strict=True)]
        for number, (n, *place) in enumerate(places):
            at = tuple(p + o for p, o in zip(place, offsets, strict=True))
            if all(0 <= a < shape.image[d] for a, d in zip(at, reversed(dims), strict=True)):
                made[number] += w[(slice(None), slice(None), *taps)] @ x[(n, slice(None), *at)]
    truth = convolved(x, w, case[2]).movedim(1, -1).reshape(made.shape)
    torch.testing.assert_close(made, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "w", "how", "why"),
    [
        ((2, 48, 9, 9), (8, 48, 3, 3), {"padding": 1}, "64 channels of one tap"),
        ((2, 128, 9, 9), (8, 64, 3, 3), {"groups": 2}, "of one group"),
        ((2, 64, 9, 9), (64, 8, 3, 3), {"transposed": True}, "bits for a corner"),
        ((2, 64, 9, 60, 9), (8, 64, 1, 19, 3), {"padding": 1}, "bits for a corner"),
        ((2, 64, 300, 9), (8, 64, 3, 3), {"dilation": 3, "stride": 9, "padding": 1}, "a tap's offset or a stride"),
    ],
)
def test_what_tma_can_not_bring_is_refused_with_the_reason(x: Any, w: Any, how: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        FusedConv(spec_last(x, w, how), {"kernel": "im2col_tma"})


@pytest.mark.parametrize(
    ("change", "knobs", "why"),
    [
        ({"channels_last": False}, {}, "in channels-last"),
        ({"shape": replace(spec_last((2, 64, 9, 9), (256, 64, 3, 3), {}).shape, batch=1 << 18)}, {}, "2.31 results"),
        ({}, {"pixels": 256, "columns": 256}, "registers"),
        ({}, {"pixels": 128, "columns": 256, "schedule": "pingpong"}, "in turns"),
        ({}, {"pixels": 64, "columns": 256}, "at most 128 columns"),
        ({}, {"columns": 96}, "tiles of"),
        ({}, {"pixels": 512}, "tile_m"),
    ],
)
def test_what_is_no_im2col_is_refused_with_the_reason(change: Any, knobs: Any, why: str) -> None:
    spec = replace(spec_last((2, 64, 9, 9), (256, 64, 3, 3), {"padding": 1}), **change)
    with pytest.raises(ValueError, match=why):
        FusedConv(spec, {"kernel": "im2col"} | knobs)


# ---- operands as matrices


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        ((3, 4, 5, 8), None), ((1, 1, 1, 8), None), ((3, 1, 1, 8), (20, 0)), ((1, 4, 5, 8), (1, 20)),
        ((1, 4, 1, 1), (5, 4)), ((3, 4, 1, 8), (5, 0)), ((1, 1, 5, 8), (1, 5)),
    ],
)  # fmt: skip
def test_an_operand_of_pixels_has_the_rows_that_they_read(shape: tuple[int, ...], part: Any) -> None:
    conv = last(((3, 8, 4, 5), (8, 8, 1, 1), {}))
    o = torch.arange(prod(shape)).reshape(shape)
    walk = tuple(0 if n == 1 else s for n, s in zip(shape, o.stride(), strict=True))
    found = pixel_rows(conv, (walk[0], 0, walk[3], 0, walk[1], walk[2]))
    assert found is not None and found.part == part
    whole = o.expand(3, 4, 5, 8).reshape(60, 8)
    rows = o.as_strided((found.size or 60, 8), (found.stride, walk[3]))
    each, count = part or (1, 0)
    read = [p // each % count if count else p // each for p in range(60)]
    assert torch.equal(rows[read], whole)


def test_an_operand_that_skips_rows_is_none() -> None:
    conv = last(((3, 8, 4, 5), (8, 8, 1, 1), {}))
    assert pixel_rows(conv, (40, 0, 1, 0, 0, 8)) is None  # of samples and columns, not of lines
    assert pixel_rows(conv, (160, 0, 1, 0, 48, 8)) is None  # lines with a gap


# ---- a call


def epilogue(product: Any, bias: Any, gate: Any, added: Any) -> Any:
    return (product + bias) * gate + added


def multiplied(conv: Im2colConv, strides: Any) -> Any:
    """A launch that reads and writes the same matrices on the CPU."""
    shape, spec = conv.spec.shape, conv.spec
    windows = Im2col(shape, spec.walk(strides[0], spec.x.shape))
    parts = [conv.rows(o, walk).part for o, walk in zip(spec.operands, strides[1:], strict=True)]

    def launch(x: Tensor, w: Tensor, c: Tensor, *rest: Any) -> None:
        memory = x.as_strided((x.numel() // GROUP, GROUP), (GROUP, 1), 0).double()
        for group, pixel in product(range(shape.groups), range(shape.pixels)):
            row = windows.row(pixel, group)
            found = [windows.source(row, windows.tap(q // CHUNKS, q % CHUNKS)) for q in range(windows.count)]
            a = torch.cat([memory[at] * (size == 16) for at, size in found])
            read = [o[placed(pixel, part), :, group].double() for o, part in zip(rest, parts, strict=False)]
            c[pixel, :, group] = epilogue(w[:, :, group].double() @ a, *read).to(c.dtype)
        assert rest[len(parts) :] == (conv.grid(1).clusters, 1, windows.steps * 64)

    return launch


@pytest.mark.usefixtures("plain_numbers")
@pytest.mark.parametrize("memory", ["last", "first"])
@pytest.mark.parametrize("case", SHAPES)
def test_a_call_hands_the_kernel_matrices_of_the_convolution(
    case: Any, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`memory`: of x, weights and what is added. What is launched is done in torch, of these matrices."""
    spec = spec_last(*case)
    whole = spec.outputs[0].shape
    behind = 2 if spec.shape.groups > 1 else 1
    ones = (1,) * (len(whole) - behind - 1)
    named = {"bias": (1, *ones, *whole[-behind:]), "gate": (whole[0], *ones, *whole[-behind:]), "added": whole}
    read = tuple(ArraySpec(name=n, dtype="f16", shape=s) for n, s in named.items())
    spec = replace(spec, operands=read, epilogue=epilogue)
    torch.manual_seed(0)
    x, w, *rest = (torch.randn(o.shape).half() for o in spec.read)
    of_x = channels_last(spec.x.shape, spec.shape.groups)
    if memory == "last":
        x = torch.empty_strided(spec.x.shape, of_x, dtype=x.dtype).copy_(x)
    else:
        rest[2] = rest[2].transpose(0, -1).contiguous().transpose(0, -1)
    monkeypatch.setattr(Im2colConv, "launch", multiplied)
    (made,) = FusedConv(spec, {"kernel": "im2col", "pixels": 64, "columns": 64})(x, w, *rest)
    truth = convolved(x.reshape(case[0]).double(), w.reshape(case[1]).double(), case[2])
    truth = truth.movedim(1, -1).reshape(whole)
    truth = epilogue(truth, *(o.double() for o in rest))
    torch.testing.assert_close(made.double(), truth, rtol=2e-3, atol=2e-3)


# ---- barriers


class Barrier:
    """An mbarrier: a phase ends with the last of its arrivals, once all bytes that were expected have come."""

    def __init__(self, arrivals: int) -> None:
        self.arrivals, self.pending, self.bytes, self.done = arrivals, arrivals, 0, 0

    def arrive(self, count: int = 1, *, expected: int = 0, came: int = 0) -> None:
        self.pending, self.bytes = self.pending - count, self.bytes + expected - came
        assert self.pending >= 0, "more arrivals than a phase has"
        if self.pending == self.bytes == 0:
            self.pending, self.done = self.arrivals, self.done + 1

    def passes(self, parity: int) -> bool:
        """Whether the phase of this parity is complete: that before the current one."""
        return self.done % 2 != parity


class Cta:
    """One of a cluster that shares B: its barriers, and of each stage who filled it for which step, and who reads."""

    def __init__(self, cluster: list[Cta], count: int, *, tiles: int, steps: int, turns: int, together: int) -> None:
        self.full = [Barrier(1 + LOADERS) for _ in range(count)]
        self.empty = [Barrier(4 * (2 // turns) * together) for _ in range(count)]
        self.cluster, self.count, self.tiles, self.steps, self.turns = cluster, count, tiles, steps, turns
        self.held: list[dict[Any, Any]] = [{} for _ in range(count)]
        self.readers: list[set[int]] = [set() for _ in range(count)]
        self.named = [0, 0]  # arrivals at the barriers of turns
        self.read: list[Any] = []

    def put(self, stage: int, source: Any, step: Any) -> None:
        assert not self.readers[stage], "over what is read"
        self.held[stage][source] = step

    def loader(self, warp: int) -> Any:
        """A warp that copies; warp 0 fetches its share of B for all."""
        for number, at in enumerate(product(range(self.tiles), range(self.steps))):
            stage, turn = number % self.count, number // self.count
            while not self.empty[stage].passes(turn % 2 ^ 1):
                yield
            if warp == 0:
                self.full[stage].arrive(expected=len(self.cluster))
                for other in self.cluster:
                    yield
                    other.put(stage, self, at)
                    other.full[stage].arrive(0, came=1)
            self.put(stage, warp, at)
            yield
            self.full[stage].arrive(32)
            yield

    def consumer(self, group: int) -> Any:
        """A warpgroup that multiplies, all tiles or every other one."""
        if self.turns == 2 and group == 1:
            self.named[0] += 1
        for tile in range(group if self.turns == 2 else 0, self.tiles, self.turns):
            if self.turns == 2:
                while not self.named[group]:
                    yield
                self.named[group] -= 1
            waiting: list[int] = []
            for step in range(self.steps):
                number = tile * self.steps + step
                stage, turn = number % self.count, number // self.count
                while not self.full[stage].passes(turn % 2):
                    yield
                assert self.held[stage] == dict.fromkeys([*range(4), *self.cluster], (tile, step))
                self.readers[stage].add(group)
                self.read.append((tile, step))
                yield
                while waiting:
                    yield from self.free(waiting.pop(), group)
                waiting.append(stage)
            if self.turns == 2:
                self.named[1 - group] += 1
            yield
            yield from self.free(waiting.pop(), group)

    def free(self, stage: int, group: int) -> Any:
        """The 4 warps of a warpgroup arrive, in one CTA after the other."""
        self.readers[stage].remove(group)
        for other in self.cluster:
            other.empty[stage].arrive(4)
            yield


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize(("count", "steps"), [(2, 1), (2, 9), (3, 2), (4, 9), (5, 4), (8, 3)])
@pytest.mark.parametrize("tiles", [1, 2, 7])
def test_who_copies_and_who_multiplies_never_wait_for_one_another(
    together: int, turns: int, count: int, steps: int, tiles: int
) -> None:
    """In any order in which they run: nobody overwrites what is read, and all tiles are multiplied. `together`: CTAs
    of a cluster; `turns`: of warpgroups."""
    for seed in range(4):
        rng = random.Random(seed)
        ctas: list[Cta] = []
        named = {"tiles": tiles, "steps": steps, "turns": turns, "together": together}
        ctas += [Cta(ctas, count, **named) for _ in range(together)]
        running = [c.loader(warp) for c in ctas for warp in range(4)] + [c.consumer(g) for c in ctas for g in range(2)]
        slow = [rng.random() ** 3 + 0.01 for _ in running]
        budget = 400 * tiles * steps * len(running)
        while running and budget:
            budget -= 1
            (at,) = rng.choices(range(len(running)), slow)
            try:
                next(running[at])
            except StopIteration:
                del running[at], slow[at]
        assert not running, "somebody waits for ever"
        for cta in ctas:
            assert sorted(cta.read) == sorted([*product(range(tiles), range(steps))] * (2 // turns))


# ---- what is compiled


STRIDED = (("padding", 1), ("stride", 2))
POINTS = (
    {"pixels": 128, "columns": 64, "schedule": "pingpong", "cluster": "2x1"},
    {"pixels": 128, "columns": 128, "schedule": "pingpong"},
    {"pixels": 128, "columns": 128, "schedule": "pingpong", "cluster": "2x1"},
    {"pixels": 256, "columns": 128, "cluster": "2x1"},
    {"pixels": 128, "columns": 256},
    {"pixels": 64, "columns": 64},
)
MOST_SPILLED = 128  # bytes of a thread, once a tile: of an epilogue with five operands


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("knobs", POINTS)
@pytest.mark.parametrize("kernel", ["im2col", "im2col_tma"])
def test_it_compiles_and_copies_past_the_registers(
    kernel: str, knobs: dict[str, Any], after: bool, tmp_path: Any
) -> None:
    case = Case(x=(16, 64, 41, 40), w=(256, 64, 3, 3), how=STRIDED, after="normed" if after else "")
    knobs = {"kernel": kernel, "store": "staged" if after else "bulk"} | knobs
    text, local = compiled(case.spec, knobs, tmp_path)
    assert local <= (MOST_SPILLED if after else 0)
    own = text.count("cp.async.cg.shared.global.L2::128B [")
    assert own == (knobs["pixels"] // ROWS_APART if kernel == "im2col" else 0)
    assert (".im2col.mbarrier::complete_tx" in text) == (kernel == "im2col_tma")
    assert ("cp.async.mbarrier.arrive.noinc" in text) == (kernel == "im2col")
    assert text.count("setmaxnreg") == 2 and "st.global" not in text and "wgmma.mma_async" in text


@pytest.mark.parametrize(
    ("x", "w", "how", "dtype", "kernel"),
    [
        ((4, 24, 21, 23), (40, 24, 3, 3), {"padding": 1}, "f16", "im2col"),
        ((4, 64, 21, 23), (33, 64, 3, 3), {"padding": 1}, "bf16", "im2col"),
        ((4, 96, 21, 23), (96, 48, 3, 3), {"groups": 2}, "f16", "im2col"),
        ((4, 64, 9, 21, 23), (64, 64, 3, 3, 3), {"padding": 1}, "bf16", "im2col_tma"),
        ((4, 64, 901), (64, 64, 5), {"padding": 2, "stride": 2}, "f16", "im2col_tma"),
        ((4, 32, 9, 21, 23), (64, 32, 3, 3, 3), {"padding": 1}, "bf16", "im2col"),
        ((4, 64, 21, 23), (64, 64, 3, 3), {"transposed": True}, "bf16", "im2col"),
    ],
)
def test_other_shapes_compile(x: Any, w: Any, how: Any, dtype: str, kernel: str, tmp_path: Any) -> None:
    case = Case(x=x, w=w, how=tuple(how.items()), dtype=dtype, after="normed")
    _, local = compiled(case.spec, {"kernel": kernel}, tmp_path)
    assert local <= MOST_SPILLED


def compiled(spec: ConvSpec, knobs: dict[str, Any], folder: Any) -> tuple[str, int]:
    """The PTX, and the bytes that a thread spills."""
    strides = [contiguous(o.shape) for o in spec.read]
    strides[0] = channels_last(spec.x.shape, spec.shape.groups)
    launch = FusedConv(spec, knobs).compile(strides, f"--keep-cubin --keep-ptx --dump-dir={folder}")
    (kernel,) = taken(launch.artifacts.CUBIN)  # type: ignore[attr-defined]
    (path,) = folder.glob("*.ptx")
    return path.read_text(), kernel.local_bytes
