"""Matrix products compile for sm_90a on a machine without a GPU: to wgmma, without spilling in its loop."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from tilewright.kernels.cuda.common import math as m
from tilewright.kernels.cuda.common.cubin import taken
from tilewright.kernels.cuda.gemm.epilogue.epilogue import EpilogueStore
from tilewright.kernels.cuda.gemm.fp32.split import Split, SplitPlan
from tilewright.kernels.cuda.gemm.host import compiling
from tilewright.kernels.cuda.gemm.host.compiling import (
    compile_ampere,
    compile_combine,
    compile_grouped,
    compile_product,
    compile_split,
    compile_streamed,
)
from tilewright.kernels.cuda.gemm.host.kernels import KernelStore
from tilewright.kernels.cuda.gemm.host.launch import Gemm
from tilewright.kernels.cuda.gemm.host.layouts import broadcast, walk_of
from tilewright.kernels.cuda.gemm.host.plan import Point
from tilewright.kernels.cuda.gemm.mainloop.ampere import Ampere

pytestmark = [pytest.mark.slow, pytest.mark.one_in(4)]  # half a second for each kernel, and dozens of them

SMALL_SPILL = 64  # bytes a thread: addresses kept over the loop, no sums


def biased_gelu(product, bias, residual):
    half = m.mul(product, 0.5, "f32")
    bell = m.add(m.erf(m.mul(product, 0.7071067811865476, "f32"), "f32"), 1.0, "f32")
    return m.add(m.add(m.mul(half, bell, "f32"), bias, "f32"), residual, "f32")


def compiled(folder, point, majors=("k", "k"), *, element="f16", vector=4, finish=None, operands=()):
    """What is known of the kernel: its PTX, and what its cubin says."""
    finish = finish or EpilogueStore("f32", vector=vector)
    keep = f"--keep-ptx --keep-cubin --dump-dir={folder}"
    launch = compile_product(point, element=element, majors=majors, finish=finish, operands=operands, options=keep)
    (kernel,) = taken(launch.artifacts.CUBIN)
    return launch.artifacts.PTX, kernel


READS = (("f32", ((0, 1, 0), False)), ("bf16", ((None, 1, None), False)))


def wgmma(ptx, n):
    return len(re.findall(rf"wgmma\.mma_async\.sync\.aligned\.m64n{n}k16\.f32", ptx))


def check_registers(point, kernel):
    """A CTA starts with as many as its warpgroups come to ask for; with fewer they would wait for ever."""
    loading, multiplying = point.registers
    assert kernel.registers * point.threads >= 128 * (loading + point.groups * point.turns * multiplying)


@pytest.mark.parametrize("majors", [("k", "r"), ("r", "k")])
def test_both_majors_of_both_operands_compile(tmp_path, majors):
    point = Point(tile_m=128, tile_n=64, cluster_m=1)
    ptx, kernel = compiled(tmp_path, point, majors, element="bf16")
    check_registers(point, kernel)
    assert wgmma(ptx, 64) == 4 and kernel.local_bytes == 0, "64 of K is four wgmma of 16"


@pytest.mark.parametrize(
    ("settings", "chain", "parts"),
    [
        ({"tile_m": 256, "tile_n": 128, "cluster_m": 1, "cluster_n": 2, "scheme": "fp16x3"}, 12, 2),
        ({"tile_m": 128, "tile_n": 128, "cluster_m": 2, "scheme": "fp16x3", "interval": 32}, 12, 1),
        ({"tile_m": 64, "tile_n": 128, "cluster_m": 1, "scheme": "fp16x3", "split_k": 4}, 12, 1),
        ({"tile_m": 128, "tile_n": 128, "cluster_m": 2, "scheme": "bf16x6"}, 24, 1),
    ],
)
def test_two_levels_keep_their_sums_in_registers(tmp_path, settings, chain, parts):
    """Three products (of bf16 six) for each step of K, in as many chains as there are parts (and scales), each sum
    followed by an addition of its own that ptxas may not move; before, what is scaled is scaled back."""
    point = Point(**settings)
    ptx, kernel = compiled(tmp_path, point, ("k", "r"), element=point.halves)
    assert wgmma(ptx, 128) == chain * parts
    check_registers(point, kernel)
    assert kernel.local_bytes <= SMALL_SPILL
    assert len(re.findall(r"add\.rn\.f32", ptx)) == 64 * parts * 64 // settings.get("interval", 64)
    assert len(re.findall(r"mul\.rn\.f32", ptx)) >= 64 * parts * (settings.get("scheme") == "fp16x3")


@pytest.mark.few(0, 3, 6)
@pytest.mark.parametrize(
    ("tile_m", "tile_n", "bulk", "pingpong"),
    [(256, 192, False, False), (256, 160, False, False), (128, 192, True, False), (256, 208, True, False),
     (256, 144, False, False), (128, 224, False, False), (128, 208, True, True), (128, 192, True, True)],
)  # fmt: skip
def test_tiles_of_columns_that_are_no_power_of_two_keep_their_sums(tmp_path, tile_m, tile_n, bulk, pingpong):
    point = Point(tile_m=tile_m, tile_n=tile_n, cluster_m=1, cluster_n=2, bulk=bulk, pingpong=pingpong)
    ptx, kernel = compiled(tmp_path, point, ("k", "k"), element="bf16", finish=EpilogueStore("bf16", vector=8))
    assert wgmma(ptx, tile_n) == 4 * tile_m // (64 if pingpong else 128) and kernel.local_bytes == 0
    check_registers(point, kernel)


def test_what_is_not_split_is_launched_early_and_waits_itself(tmp_path):
    """Before it reads or writes anything; what is split, and kernels that were not taught to wait, come in turn."""
    for point, element, early in (
        (Point(tile_m=128, tile_n=128, pingpong=True, staged=True), "bf16", True),
        (Point(tile_m=64, tile_n=16, cluster_m=1, small_m=True), "bf16", True),
        (Point(tile_m=128, tile_n=128, scheme="fp16x3"), "f16", False),
    ):
        ptx, _ = compiled(tmp_path, point, ("k", "k"), element=element)
        assert ptx.count("griddepcontrol.wait") == ptx.count("griddepcontrol.launch_dependents") == early
        body = ptx[: ptx.index("griddepcontrol.wait")] if early else ""
        assert not re.findall(r"cp\.async\.bulk\.tensor|ld\.global|st\.global", body)


def test_warpgroups_in_turns_pass_them_on_and_read_operands_in_pairs(tmp_path):
    """128 x 128 of one warpgroup: 64 pairs of a residual a thread, and the bias' once for both of its rows."""
    finish = EpilogueStore("bf16", function=biased_gelu, names=("bias", "residual"), vector=8)
    reads = (("bf16", ((0, 1, 0), True)), ("bf16", ((None, 1, 0), True)))
    point = Point(tile_m=128, tile_n=128, pingpong=True)
    ptx, kernel = compiled(tmp_path, point, element="bf16", finish=finish, operands=reads)
    assert wgmma(ptx, 128) == 8 and kernel.local_bytes == 0
    check_registers(point, kernel)
    assert len(re.findall(r"ld\.global\.v2\.b16", ptx)) == len(re.findall(r"ld\.global", ptx)) == 64 + 32
    assert len(re.findall(r"\tbar\.arrive", ptx)) == 2, "the first turn, and each that is passed on"


@pytest.mark.parametrize(("tile_m", "tile_n", "pingpong"), [(128, 128, True), (128, 256, False)])
def test_a_matrix_comes_where_its_tile_leaves(tmp_path, tile_m, tile_n, pingpong):
    """64 x 256 of a warpgroup: a residual's 64 words a thread in 16 ldmatrix, the result's in as many stmatrix; four
    lines come and leave by TMA, beside A and B; the bias alone is read from memory."""
    finish = EpilogueStore("bf16", function=biased_gelu, names=("bias", "residual"), vector=8)
    reads = (("bf16", ((0, 1, 0), True)), ("bf16", ((None, 1, 0), True)))
    point = Point(tile_m=tile_m, tile_n=tile_n, pingpong=pingpong, staged=True)
    ptx, kernel = compiled(tmp_path, point, element="bf16", finish=finish, operands=reads)
    assert kernel.local_bytes <= SMALL_SPILL
    check_registers(point, kernel)
    assert ptx.count("ldmatrix.sync") == ptx.count("stmatrix.sync") == 16
    words = [w for four in re.findall(r"ldmatrix\S* \{([^}]*)\}", ptx) for w in four.split(", ")]
    assert len(words) == 64 and all(len(re.findall(rf"{w}\b", ptx)) > 1 for w in words)
    halves = [re.findall(rf"mov\.b32 \t\{{(\S+), (\S+)\}}, {w};", ptx) for w in words]
    assert all({i for pair in found for i in (0, 1) if pair[i] != "_"} == {0, 1} for found in halves), "both of each"
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.3d\.shared", ptx)) == 4 + 2
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.3d\.global", ptx)) == 4
    assert "st.global" not in ptx and len(re.findall(r"ld\.global", ptx)) == 32


def test_one_warpgroup_with_a_wide_tile(tmp_path):
    point = Point(tile_m=64, tile_n=256, cluster_m=1)
    ptx, kernel = compiled(tmp_path, point, element="bf16")
    assert wgmma(ptx, 256) == 4 and kernel.local_bytes == 0
    check_registers(point, kernel)


def test_an_epilogue_reads_what_it_names(tmp_path):
    finish = EpilogueStore("bf16", function=biased_gelu, names=("bias", "residual"), vector=1)
    ptx, kernel = compiled(
        tmp_path, Point(tile_m=64, tile_n=64, cluster_m=1), element="bf16", finish=finish, operands=READS
    )
    assert wgmma(ptx, 64) == 4 and kernel.local_bytes == 0
    with pytest.raises(ValueError, match="reads residual"):
        EpilogueStore("f32", function=biased_gelu, names=("bias",), vector=4)
    assert callable(compile_combine(finish, operands=READS))


@pytest.mark.parametrize(
    ("settings", "element", "dtype", "vector", "lines"),
    [
        ({"tile_m": 256, "tile_n": 128, "cluster_m": 1, "cluster_n": 2, "scheme": "fp16x3"}, "f16", "f32", 4, 8),
        ({"tile_m": 128, "tile_n": 256, "cluster_m": 2}, "bf16", "bf16", 8, 4),
        ({"tile_m": 128, "tile_n": 256, "cluster_m": 2}, "bf16", "bf16", 4, 0),  # rows start at 8 bytes
    ],
)
def test_results_in_bulk_leave_by_tma(tmp_path, settings, element, dtype, vector, lines):
    point = Point(bulk=True, **settings)
    ptx, kernel = compiled(tmp_path, point, ("k", "r"), element=element, finish=EpilogueStore(dtype, vector=vector))
    check_registers(point, kernel)
    assert kernel.local_bytes <= SMALL_SPILL
    assert ptx.count("cp.async.bulk.tensor.3d.global.shared") == lines
    assert ("st.global" in ptx) == (lines == 0)


@pytest.mark.parametrize(("major", "turned"), [("k", True), ("r", False)])
def test_what_is_streamed_is_multiplied_out_of_registers(tmp_path, major, turned):
    point = Point(tile_m=128, tile_n=128, cluster_m=2, scheme="fp16x3", streamed=True)
    finish = EpilogueStore("f32", function=biased_gelu, names=("bias", "residual"), vector=1, swap_ab=turned)
    reads = (("f32", ((1, 0, 0), False)), ("f32", ((1, None, 0), False)))
    launch = compile_streamed(
        point, major=major, finish=finish, operands=reads, options=f"--keep-ptx --keep-cubin --dump-dir={tmp_path}"
    )
    (kernel,) = taken(launch.artifacts.CUBIN)
    check_registers(point, kernel)
    found = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\S* \{[^}]*\}, (\{|%)", launch.artifacts.PTX)
    assert len(found) == 24 and set(found) == {"{"}, "A is four registers, not a descriptor"
    assert kernel.local_bytes <= 256


@pytest.mark.few(0, 1, 3)
@pytest.mark.parametrize(
    ("settings", "turned", "together"),
    [
        ({"tile_m": 64, "tile_n": 16, "split_k": 4}, True, 2),
        ({"tile_m": 64, "tile_n": 32, "split_k": 1}, False, 0),
        ({"tile_m": 64, "tile_n": 16, "split_k": 1, "stages": 5}, True, 0),
        ({"tile_m": 128, "tile_n": 64, "split_k": 3}, True, 8),
        ({"tile_m": 128, "tile_n": 64, "split_k": 5}, False, 8),
    ],
)
def test_skinny_products_sum_in_the_cluster(tmp_path, settings, turned, together):
    """Four wgmma a step; sums go to the other CTAs' shared memory, four of a thread at a time, and nobody waits for
    memory as a whole; one store of C, none of partial sums."""
    point = Point(cluster_m=1, small_m=True, **settings)
    finish = EpilogueStore("bf16", function=biased_gelu, names=("bias", "residual"), vector=1, swap_ab=turned)
    ptx, kernel = compiled(tmp_path, point, element="bf16", finish=finish, operands=READS)
    assert wgmma(ptx, point.tile_n) == 4 and kernel.local_bytes <= SMALL_SPILL
    assert kernel.registers * point.threads * point.resident <= 65536
    assert len(re.findall(r"st\.async\S*v4\.b32", ptx)) == together
    assert ptx.count("barrier.cluster.arrive") == ptx.count("barrier.cluster.arrive.relaxed") == (together > 0)
    assert "st.global.f32" not in ptx and "setmaxnreg" not in ptx


def gate(product, product_1):
    return m.mul(m.sigmoid(product, "f32"), product_1, "f32")


@pytest.mark.few(1, 3, 5)
@pytest.mark.parametrize(
    ("tile_m", "tile_n", "splits", "major"),
    [(128, 16, 1, "k"), (128, 16, 3, "r"), (128, 64, 2, "k"), (112, 16, 2, "k"), (96, 16, 1, "k"), (80, 32, 3, "k")],
)
def test_gated_skinny_products_have_rows_of_both_matrices(tmp_path, tile_m, tile_n, splits, major):
    """Two chains of four wgmma a step, also where a tile has less than 64 rows of each; sums of both go through the
    cluster."""
    point = Point(tile_m=tile_m, tile_n=tile_n, cluster_m=1, small_m=True, dual=True, split_k=splits)
    finish = EpilogueStore("bf16", function=gate, vector=1, swap_ab=True)
    ptx, kernel = compiled(tmp_path, point, (major, "k"), element="bf16", finish=finish)
    assert wgmma(ptx, tile_n) == 8 and kernel.local_bytes <= SMALL_SPILL
    boxes = {128: 1, 112: 7, 96: 1, 80: 5}[tile_m]
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.3d\.shared", ptx)) == 2 * boxes + 1
    assert kernel.registers * point.threads * point.resident <= 65536 and point.threads == 160
    assert len(re.findall(r"st\.async\S*v4\.b32", ptx)) == (2 * tile_n // 8 if splits > 1 else 0)


def test_threads_that_call_a_product_first_compile_it_once():
    gemm = Gemm(Point(tile_m=64, tile_n=64, cluster_m=1, scheme="fp16x3"), "f32")
    a, b = torch.empty(100, 256, device="meta"), torch.empty(256, 72, device="meta")
    with ThreadPoolExecutor(4) as pool:
        shapes = list(pool.map(lambda _: gemm(a, b).shape, range(4)))
    assert shapes == [(100, 72)] * 4
    assert sorted(key[0] for key in gemm.kernels.store.known) == ["product", "split", "split"]


def test_triangles_compile_and_meta_tensors_of_what_is_streamed(tmp_path):
    finish = EpilogueStore("f32", vector=4, diagonals=(0, None))
    _, kernel = compiled(tmp_path, Point(tile_m=128, tile_n=64, cluster_m=1, scheme="fp16x3"), finish=finish)
    assert kernel.local_bytes <= SMALL_SPILL
    a, w = torch.empty(2, 100, 1024, device="meta"), torch.empty(2, 300, 1024, device="meta")
    point = Point(tile_m=128, tile_n=64, cluster_m=1, scheme="fp16x3", streamed=True, split_k=3)
    gemm = Gemm(point, "f32", swap_ab=True)
    assert gemm(a, w.mT).shape == (2, 100, 300)
    assert sorted(key[0] for key in gemm.kernels.store.known) == ["combine", "product", "split"]
    with pytest.raises(ValueError, match="multiple of 16"):
        gemm(a[:, :, :1000], w.mT[:, :1000])


@pytest.mark.few(0, 2, 4)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scheme": "fp16x3"},
        {"tile_m": 256, "tile_n": 128, "cluster_m": 1, "cluster_n": 2, "scheme": "fp16x3"},
        {"tile_n": 128, "scheme": "bf16x6"},
        {"tile_m": 64, "tile_n": 64, "cluster_m": 1, "scheme": "tf32"},
    ],
    ids=str,
)
def test_parts_of_tiles_leave_and_come_in_quads(tmp_path, settings):
    """Stream-K: all of a thread's sums are stored once more, and read once more, 16 bytes at a time; one flag is set,
    and one waited for."""
    point = Point(**settings, stream_k=True)
    ptx, kernel = compiled(tmp_path, point, element="bf16" if not point.scales else point.halves, vector=1)
    quads = point.tile_m * point.tile_n // (128 * point.groups) // 4
    assert len(re.findall(r"st\.global\.v4", ptx)) == len(re.findall(r"ld\.global\.v4", ptx)) == quads
    assert len(re.findall(r"st\.release\.gpu", ptx)) == 1 and len(re.findall(r"ld\.acquire\.gpu", ptx)) >= 1
    assert kernel.local_bytes <= SMALL_SPILL
    check_registers(point, kernel)


@pytest.mark.few(0, 3, 4)
@pytest.mark.parametrize(
    "settings",
    [
        {"tile_n": 128, "pingpong": True, "staged": True},
        {"tile_m": 256, "tile_n": 128, "cluster_m": 1, "cluster_n": 2},
        {"scheme": "fp16x3"},
        {"scheme": "fp16x3", "tile_n": 128, "streamed": True},
        {"tile_m": 64, "tile_n": 32, "cluster_m": 1, "small_m": True, "split_k": 3},
    ],
    ids=str,
)
def test_steps_that_are_left_out_cost_no_registers(tmp_path, settings):
    point, zeros = Point(**settings), ((None, 0), (3, None))
    finish = EpilogueStore("f32" if point.scales else "bf16", vector=8)
    more = {"finish": finish, "zeros": zeros, "options": f"--keep-cubin --dump-dir={tmp_path}"}
    if point.streamed:
        launch = compile_streamed(point, major="k", **more)
    else:
        launch = compile_product(point, element="f16" if point.scales else "bf16", majors=("k", "k"), **more)
    (kernel,) = taken(launch.artifacts.CUBIN)
    assert kernel.local_bytes <= SMALL_SPILL and kernel.registers * point.threads * point.resident <= 65536


def test_operands_whose_neighbours_are_known_take_few_registers(tmp_path):
    """A bias and a residual beside the largest tile: with strides of any kind their addresses alone spilled 1448 bytes
    (CuTe DSL 4.8.1, 2026-11-22)."""
    finish = EpilogueStore("f32", function=biased_gelu, names=("bias", "residual"), vector=4)
    point = Point(tile_m=256, tile_n=128, cluster_m=1, cluster_n=2, scheme="fp16x3")
    reads = (("f32", ((0, 1, 0), True)), ("f32", ((None, 1, 0), True)))
    _, kernel = compiled(tmp_path, point, finish=finish, operands=reads)
    assert kernel.local_bytes <= 256


def test_the_strides_of_an_operand_are_known_where_they_are_0_or_1():
    shape = (4, 128, 192)

    def walk(x):
        return walk_of(broadcast(x, shape))

    assert walk(torch.empty(192)) == ((0, 1, 0), True) and walk(torch.empty(128, 1)) == ((1, 0, 0), False)
    assert walk(torch.empty(4, 1, 192)) == ((0, 1, None), True) and walk(torch.empty(shape)) == ((None, 1, None), True)
    assert walk(torch.empty(4, 192, 128).transpose(1, 2)) == ((1, None, None), False)
    memory = torch.empty(129, 200)
    assert walk(memory[:128, 4:196])[1] and not walk(memory[:128, 1:193])[1] and walk(memory[0, :192])[1]
    assert not walk(torch.empty(128, 193)[:, :192])[1] and not walk(memory[0, 1:193])[1]
    seen = broadcast(torch.arange(24.0).reshape(1, 4, 6)[:, 1:2], (1, 5, 6))
    assert seen.shape == (5, 6, 1) and seen.stride() == (0, 1, 0) and seen[3, 2, 0] == 8


def test_meta_tensors_compile_what_a_call_needs():
    gemm = Gemm(Point(tile_m=64, tile_n=64, cluster_m=1, scheme="fp16x3", split_k=4), "f32")
    a = torch.empty(3, 100, 1000, device="meta")
    assert gemm(a, torch.empty(3, 1000, 50, device="meta")).shape == (3, 100, 50)
    assert sorted(key[0] for key in gemm.kernels.store.known) == ["combine", "product", "split", "split"]
    other = Gemm(replace(gemm.point, split_k=2), "f32", store=KernelStore(known=dict(gemm.kernels.store.known)))
    assert other(a, torch.empty(3, 1000, 50, device="meta")).shape == (3, 100, 50)
    kinds = [key[0] for key in other.kernels.store.known]
    assert kinds.count("product") == kinds.count("combine") == 1, "another number of splits is the same kernel"
    with pytest.raises(ValueError, match="no product"):
        gemm(a, a)
    with pytest.raises(ValueError, match="takes f32"):
        gemm(a.half(), a.half())


@pytest.mark.few
@pytest.mark.parametrize(("tile_m", "tile_n"), [(128, 128), (128, 64), (64, 64)])
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_without_tma_it_is_mma_out_of_shared_memory_that_cp_async_fills(tmp_path, tile_m, tile_n, element):
    """For sm_80: of 32 of K two steps of 16 for each 16 x 8 of a warp's quarter; four stages ahead, no spills."""
    point = Point(tile_m=tile_m, tile_n=tile_n, cluster_m=1)
    finish = EpilogueStore(element, function=biased_gelu, names=("bias", "residual"), vector=8)
    launch = compile_ampere(
        point, element=element, finish=finish, operands=READS, options=f"--keep-ptx --keep-cubin --dump-dir={tmp_path}"
    )
    ptx, (kernel,) = launch.artifacts.PTX, taken(launch.artifacts.CUBIN)
    assert ".target sm_80" in ptx and kernel.local_bytes == 0
    kind = f"m16n8k16.row.col.f32.{element}.{element}.f32"
    assert ptx.count(kind) == 2 * (tile_m // 32) * (tile_n // 16)
    assert len(re.findall("ldmatrix", ptx)) == 2 * (tile_m // 32 + tile_n // 32)
    assert len(re.findall("cp.async.cg", ptx)) == 4 * (tile_m + tile_n) * 4 // 128


@pytest.mark.parametrize(
    "make",
    [
        lambda: compile_ampere(
            Point(tile_m=64, tile_n=64, cluster_m=1), element="f16", finish=EpilogueStore("f32", vector=4)
        ),
        lambda: compile_product(Point(), element="f16", majors=("k", "k"), finish=EpilogueStore("f32", vector=4)),
    ],
)
def test_both_factors_have_strides_of_their_own(monkeypatch, make):
    """A batch of other sizes was refused where one stride stood for both."""
    monkeypatch.setattr(compiling.cute, "compile", lambda entry, kernel, *args, **options: args)
    a, b, *_ = make()
    for mine, theirs in zip(a.stride, b.stride, strict=True):
        assert mine is not theirs or isinstance(mine, int)


def test_planes_of_a_right_factor_lie_along_k_where_many_rows_meet_it():
    for rows, crossed in ((2048, True), (512, False)):
        gemm = Gemm(Point(tile_m=64, tile_n=64, cluster_m=1, scheme="fp16x3"), "f32")
        gemm(torch.empty(rows, 128, device="meta"), torch.empty(128, 72, device="meta"))
        (split,) = (key for key in gemm.kernels.store.known if key[0] == "split" and key[2].major == "r")
        (product,) = (key for key in gemm.kernels.store.known if key[0] == "product")
        assert split[2].crossed is crossed and product[2].majors == ("k", "k" if crossed else "r")


def test_products_without_tma_are_plain_and_copy_what_lies_across_k():
    gemm = Gemm(Point(tile_m=64, tile_n=64, cluster_m=1), "bf16", arch="sm_80")
    a = torch.empty(3, 100, 200, device="meta", dtype=torch.bfloat16)
    assert gemm(a, torch.empty(3, 200, 72, device="meta", dtype=torch.bfloat16)).shape == (3, 100, 72)
    assert [key[:2] for key in gemm.kernels.store.known] == [("product", "sm_80")]
    assert gemm.factors.loadable(torch.empty(72, 200, 1).transpose(0, 1).bfloat16()).stride() == (72, 1, 200 * 72)
    for point in (Point(scheme="fp16x3", tile_n=128), Point(tile_m=256, tile_n=128), Point(tile_n=128, split_k=2)):
        with pytest.raises(ValueError, match="without TMA"):
            Ampere(point, EpilogueStore("f32", vector=4))


@pytest.mark.few(0, 3)
@pytest.mark.parametrize(
    "shape",
    [(256, 128, 1, 2, False), (128, 256, 2, 1, False), (64, 64, 1, 1, False), (128, 192, 2, 1, True)], ids=str,
)  # fmt: skip
def test_experts_multiply_as_one_matrix_would(tmp_path, shape):
    tile_m, tile_n, cluster_m, cluster_n, turns = shape
    point = Point(tile_m=tile_m, tile_n=tile_n, cluster_m=cluster_m, cluster_n=cluster_n, pingpong=turns)
    finish = EpilogueStore("bf16", function=biased_gelu, names=("bias", "residual"), vector=8)
    launch = compile_grouped(
        point, element="bf16", majors=("k", "r"), finish=finish, operands=READS,
        options=f"--keep-ptx --keep-cubin --dump-dir={tmp_path}",
    )  # fmt: skip
    (kernel,) = taken(launch.artifacts.CUBIN)
    check_registers(point, kernel)
    assert kernel.local_bytes == 0
    assert wgmma(launch.artifacts.PTX, point.atom_n) == 4 * tile_m // (64 * point.groups)


@pytest.mark.few(0)
@pytest.mark.parametrize("shape", [(256, 128, 1, 2), (128, 256, 2, 1), (64, 64, 1, 1)], ids=str)
def test_float8_is_multiplied_in_steps_of_128_and_promoted(tmp_path, shape):
    tile_m, tile_n, cluster_m, cluster_n = shape
    point = Point(tile_m=tile_m, tile_n=tile_n, cluster_m=cluster_m, cluster_n=cluster_n, scheme="fp8")
    ptx, kernel = compiled(tmp_path, point, element="float8_e4m3fn", finish=EpilogueStore("bf16", vector=8))
    check_registers(point, kernel)
    parts = tile_m * tile_n // (64 * point.groups * point.atom_n)
    assert point.depth == 128 and kernel.local_bytes == 0
    assert len(re.findall(rf"m64n{point.atom_n}k32\.f32\.e4m3\.e4m3", ptx)) == 4 * parts
    assert len(re.findall(r"add\.rn\.f32", ptx)) == parts * point.atom_n // 2


def test_what_is_rounded_is_one_product_of_scaled_halves(tmp_path):
    """As many wgmma as fp16 takes, no promotion; exponents are undone at the end, and operands rounded by one plane."""
    point = Point(tile_m=256, tile_n=128, cluster_m=1, cluster_n=2, scheme="tf32")
    (tmp_path / "split").mkdir()
    ptx, kernel = compiled(tmp_path, point, ("k", "r"))
    check_registers(point, kernel)
    assert wgmma(ptx, 128) == 8 and kernel.local_bytes == 0 and "add.rn.f32" not in ptx
    split = Split(SplitPlan.for_chunk(major="r", wide=True, chunk=4096, planes=1))
    launch = compile_split(split, options=f"--keep-ptx --keep-cubin --dump-dir={tmp_path / 'split'}")
    (kernel,) = taken(launch.artifacts.CUBIN)
    stores = len(re.findall(r"st\.global", launch.artifacts.PTX))
    assert kernel.local_bytes <= 16, "as that of pairs"
    assert stores == split.plan.per + 4, "its half of each quad, and the exponents of four rows"
    with pytest.raises(ValueError, match="tf32"):
        Point(tile_m=128, tile_n=128, scheme="tf32", pingpong=True)


@pytest.mark.few
@pytest.mark.parametrize("planes", [2, 3])
@pytest.mark.parametrize(
    ("major", "wide", "chunk", "crossed"),
    [("k", True, 4096, False), ("k", False, 10**6, False), ("k", True, 64, False), ("r", True, 4096, False),
     ("r", True, 10**5, False), ("r", False, 77, False), ("r", True, 4096, True), ("r", True, 10**5, True)],
)  # fmt: skip
def test_splits_compile_with_hardly_a_spill(tmp_path, major, wide, chunk, crossed, planes):
    split = Split(SplitPlan.for_chunk(major=major, wide=wide, chunk=chunk, planes=planes, crossed=crossed))
    launch = compile_split(split, options=f"--keep-cubin --dump-dir={tmp_path}")
    (kernel,) = taken(launch.artifacts.CUBIN)
    assert kernel.local_bytes <= (16 if planes == 2 else 64) + (32 if crossed else 0)
    most = 64 if planes == 2 or major == "r" else 80
    assert kernel.registers <= most, "two CTAs across K, four along K (three of three planes), on each multiprocessor"


def test_a_long_chunk_across_k_stays_in_more_registers(tmp_path):
    split = Split(SplitPlan.for_chunk(major="r", wide=True, chunk=8192))
    launch = compile_split(split, options=f"--keep-cubin --dump-dir={tmp_path}")
    (kernel,) = taken(launch.artifacts.CUBIN)
    assert split.plan.per == 16 and kernel.local_bytes == 0 and kernel.registers <= 128


@pytest.mark.parametrize("major", ["k", "r"])
def test_a_chunk_stays_in_the_registers_of_as_few_threads_as_hold_it(major):
    for chunk in (1, 31, 64, 65, 256, 1000, 1024, 2949, 4096, 4097, 8192, 32768, 32769, 10**6):
        split = SplitPlan.for_chunk(major=major, wide=True, chunk=chunk)
        across = split.threads // 8 * split.cluster  # of K in one quad of each thread
        reach = split.per * (4 * split.group if major == "k" else across)
        assert split.held == (chunk <= (32768 if major == "k" else 8192))
        if split.held:
            assert split.per <= (
                8 if major == "k" or chunk <= 4096 else 16
            ) and reach >= chunk > reach - reach // split.per - (0 if split.per > 1 else reach)
            assert split.cluster <= 8 and split.threads <= 1024


def test_a_chunk_across_k_is_held_by_a_cluster():
    found = {k: (s.cluster, s.per) for k in (100, 512, 1024, 4096, 4100, 8192, 8193)
             for s in [SplitPlan.for_chunk(major="r", wide=True, chunk=k)]}  # fmt: skip
    assert found == {100: (1, 2), 512: (1, 8), 1024: (2, 8), 4096: (8, 8), 4100: (8, 9), 8192: (8, 16), 8193: (1, 4)}


def swiglu(product, product_1, bias):
    gate = m.add(product, bias, "f32")
    return m.mul(m.mul(gate, m.approx_sigmoid(gate, "f32"), "f32"), product_1, "f32")


@pytest.mark.few
@pytest.mark.parametrize("majors", [("k", "k"), ("k", "r"), ("r", "k")])
@pytest.mark.parametrize(
    ("settings", "columns", "chain"),
    [
        ({"tile_m": 128, "tile_n": 256, "cluster_m": 2, "staged": True}, 256, 4),
        ({"tile_m": 128, "tile_n": 256, "cluster_m": 1}, 256, 4),
        ({"tile_m": 256, "tile_n": 128, "cluster_m": 1, "cluster_n": 2, "staged": True}, 128, 8),
        ({"tile_m": 128, "tile_n": 128, "cluster_m": 2, "staged": True, "pingpong": True}, 128, 8),
        ({"tile_m": 64, "tile_n": 256, "cluster_m": 2, "staged": True, "pingpong": True}, 256, 4),
    ],
)
def test_a_gated_pair_is_one_wgmma_over_the_columns_of_both(tmp_path, majors, settings, columns, chain):
    """As many instructions as one product of twice the columns has, and no more registers."""
    point = Point(**settings, dual=True)
    finish = EpilogueStore("bf16", function=swiglu, names=("bias",), vector=8)
    ptx, kernel = compiled(
        tmp_path, point, majors, element="bf16", finish=finish, operands=(("bf16", ((0, 1, 0), False)),)
    )
    check_registers(point, kernel)
    assert wgmma(ptx, columns) == chain and kernel.local_bytes <= SMALL_SPILL
    loads = len(re.findall(r"cp\.async\.bulk\.tensor\.3d\.shared", ptx))
    assert loads >= 3, "of the left factor, and of each right one"


@pytest.mark.parametrize("shape", [(128, 2, 1, True), (256, 1, 2, False)])
def test_96_columns_of_each_product_leave_in_lines_of_32(tmp_path, shape):
    tile_m, cluster_m, cluster_n, pingpong = shape
    point = Point(tile_m=tile_m, tile_n=192, cluster_m=cluster_m, cluster_n=cluster_n, bulk=True, pingpong=pingpong,
                  dual=True)  # fmt: skip
    finish = EpilogueStore("bf16", function=swiglu, names=("bias",), vector=8)
    ptx, kernel = compiled(
        tmp_path, point, ("k", "k"), element="bf16", finish=finish, operands=(("bf16", ((0, 1, 0), False)),)
    )
    check_registers(point, kernel)
    assert wgmma(ptx, 192) == 8 and kernel.local_bytes <= SMALL_SPILL
    assert (point.columns, point.line_bytes, point.depth_stages) == (96, 64, 5 if pingpong else 3)


@pytest.mark.few(0, 2)
@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        ({"tile_m": 256, "tile_n": 128, "cluster_m": 1, "cluster_n": 2, "scheme": "fp16x3"}, 128),
        ({"tile_m": 128, "tile_n": 256, "cluster_m": 2, "scheme": "fp16x3"}, 128),
        ({"tile_m": 128, "tile_n": 128, "cluster_m": 1, "scheme": "bf16x6"}, 128),
    ],
)
def test_a_gated_pair_in_fp32_keeps_its_sums_in_registers(tmp_path, settings, columns):
    """Both halves of a fragment, or two of them, each with exponents of its own columns."""
    point = Point(**settings, dual=True)
    finish = EpilogueStore("f32", function=swiglu, names=("bias",), vector=4)
    operands = (("f32", ((0, 1, 0), False)),)
    ptx, kernel = compiled(tmp_path, point, ("k", "k"), element=point.halves, finish=finish, operands=operands)
    check_registers(point, kernel)
    assert wgmma(ptx, columns) and kernel.local_bytes <= SMALL_SPILL
