"""Points of a matrix product: what fits, and how a problem is cut."""

from __future__ import annotations

from types import SimpleNamespace

import numpy
import pytest
import torch

from tilewright.kernels.cuda.gemm.epilogue.epilogue import EpilogueStore
from tilewright.kernels.cuda.gemm.epilogue.expression import ALL
from tilewright.kernels.cuda.gemm.host.kernels import GemmKernels
from tilewright.kernels.cuda.gemm.host.launch import Epilogue, Gemm
from tilewright.kernels.cuda.gemm.host.plan import DEPTH, SHARED_BYTES, Point, chains_of, make_grid
from tilewright.kernels.cuda.gemm.mainloop import k_range as reaching
from tilewright.kernels.cuda.gemm.mainloop import stream_k as streaming
from tilewright.kernels.cuda.gemm.mainloop import tile_order as banded
from tilewright.kernels.cuda.gemm.mainloop.stream_k import StreamK
from tilewright.kernels.cuda.gemm.mainloop.wgmma import WgmmaProduct


def test_stages_fill_shared_memory_and_no_more():
    for scheme in ("plain", "fp16x3"):
        for tile_m, tile_n in ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128)):
            point = Point(tile_m=tile_m, tile_n=tile_n, scheme=scheme)
            used = point.depth_stages * point.stage_bytes * point.resident
            assert used < SHARED_BYTES and point.depth_stages >= 2
            assert point.depth_stages == 8 or used + (point.stage_bytes + 4096) * point.resident > SHARED_BYTES
    assert Point(tile_m=256, tile_n=128, scheme="fp16x3").stage_bytes == 96 * 1024
    assert Point(tile_m=128, tile_n=128, scheme="bf16x6", bulk=True).depth_stages == 2


def test_registers_of_all_warpgroups_fit_the_file():
    for tile_m, tile_n in ((64, 64), (64, 128), (128, 128), (128, 256), (256, 128)):
        point = Point(tile_m=tile_m, tile_n=tile_n, scheme="fp16x3")
        loading, multiplying = point.registers
        assert 128 * (loading + multiplying * point.groups) * point.resident <= 65536
        sums = tile_m * tile_n // (128 * point.groups) + 64 * point.atom_n // 128
        assert sums + 32 <= multiplying, "sums of both levels, and what addresses take"


@pytest.mark.parametrize(
    "knobs",
    [
        {"streamed": True},
        {"streamed": True, "scheme": "fp16x3", "cluster_m": 1},
        {"streamed": True, "scheme": "fp16x3", "tile_n": 128, "cluster_n": 2},
        {"tile_m": 96},
        {"scheme": "fp8", "pingpong": True, "tile_n": 128},
        {"scheme": "fp8", "streamed": True, "tile_n": 128},
        {"scheme": "bf16x6"},  # of 128 x 256 one stage fits
        {"scheme": "bf16x6", "streamed": True, "tile_n": 128},
        {"scheme": "int4"},
        {"tile_m": 256, "tile_n": 256},
        {"split_k": 7},
        {"tile_m": 64, "tile_n": 16, "cluster_m": 1},
        {"tile_n": 192, "scheme": "fp16x3"},
        {"tile_n": 144, "staged": True},
        {"tile_m": 256, "tile_n": 224},
        {"tile_m": 128, "tile_n": 224, "pingpong": True},
        {"tile_m": 256, "tile_n": 256},
        {"tile_m": 64, "tile_n": 16, "small_m": True},  # in a cluster along M
        {"tile_m": 64, "tile_n": 16, "cluster_m": 1, "small_m": True, "split_k": 12},
        {"tile_m": 128, "tile_n": 64, "cluster_m": 1, "small_m": True, "split_k": 8, "stages": 2},
        {"tile_m": 64, "tile_n": 32, "cluster_m": 1, "small_m": True, "scheme": "fp16x3"},
        {"tile_m": 128, "tile_n": 128, "cluster_m": 1, "small_m": True},
        {"tile_m": 256, "tile_n": 128, "pingpong": True},
        {"tile_m": 128, "tile_n": 128, "pingpong": True, "scheme": "fp16x3"},
    ],
)
def test_what_can_not_be_is_refused(knobs):
    with pytest.raises(ValueError):
        Point(**knobs)


def test_short_sums_and_few_results_are_promoted_more_often():
    point = Point(scheme="fp16x3", tile_n=128)
    for k, results, interval in ((32, 1 << 30, 64), (33, 1 << 30, 32), (64, 1 << 30, 64), (32, 1 << 20, 16),
                                 (64, 1 << 20, 32), (10**6, 4096, 32)):  # fmt: skip
        assert point.settled(k=k, results=results).interval == interval
    assert Point(interval=64, scheme="fp16x3", tile_n=128).settled(k=32, results=1).interval == 64
    assert Point().settled(k=32, results=1).interval == DEPTH, "what is not split has nothing to promote"
    for interval in (64, 32, 16):
        chains = chains_of(Point(scheme="fp16x3", tile_n=128, interval=interval))
        taken = [(pair, block) for c in chains for pair in c.products for block in c.blocks]
        assert sorted(taken) == [(pair, b) for pair in ((0, 0), (0, 1), (1, 0)) for b in range(4)]
        assert len(chains) == 64 // interval + 1
    chains = chains_of(Point(scheme="bf16x6", tile_n=128, interval=32))
    six = [(0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 0)]
    assert [(list(c.products), c.shift, list(c.blocks)) for c in chains] == [(six, 0, [0, 1]), (six, 0, [2, 3])]


def test_two_warpgroups_that_take_turns_hold_a_tile_each():
    for tile_m, tile_n in ((64, 128), (64, 256), (128, 128), (128, 160), (128, 192), (128, 208)):
        point = Point(tile_m=tile_m, tile_n=tile_n, pingpong=True)
        loading, multiplying = point.registers
        assert (point.groups, point.turns, point.threads, point.resident) == (1, 2, 384, 1)
        assert 128 * (loading + 2 * multiplying) <= 65536 and tile_m * tile_n // 128 + 32 <= multiplying
        assert point.depth_stages * point.stage_bytes < SHARED_BYTES


def test_lines_of_the_result_are_as_long_as_leaves_room_for_the_stages():
    def lines(**knobs):
        point = Point(bulk=True, **knobs)
        assert point.depth_stages * point.stage_bytes + point.smem_store_bytes + 2048 <= SHARED_BYTES
        assert point.tile_n * 2 % point.line_bytes == 0
        return point.line_bytes, point.depth_stages

    assert lines(tile_m=128, tile_n=256) == (128, 4) and lines(tile_m=256, tile_n=128, cluster_m=1) == (128, 4)
    assert lines(tile_m=128, tile_n=192, pingpong=True) == (64, 5), "with lines of 128 bytes four would fit"
    assert lines(tile_m=128, tile_n=160) == (64, 5) and lines(tile_m=256, tile_n=144) == (32, 4)


def test_no_split_is_empty_and_none_overlaps():
    point = Point(split_k=8)
    for k in (1, 63, 64, 65, 500, 512, 513, 9 * 64, 524288):
        grid = make_grid(point, 256, 256, k, processors=132)
        assert 1 <= grid.splits <= 8 and grid.chunk % DEPTH == 0
        assert (grid.splits - 1) * grid.chunk < k <= grid.splits * grid.chunk


def test_of_float8_a_stage_is_as_many_bytes_and_twice_as_much_of_k():
    point, half = Point(scheme="fp8", split_k=4), Point(split_k=4)
    assert (point.depth, point.stage_bytes, point.two_levels, point.scales) == (128, half.stage_bytes, True, False)
    grid = make_grid(point, 256, 256, 1000, processors=132)
    assert grid.chunk == 256 and grid.splits == 4
    assert [len(c.blocks) for c in chains_of(point.settled(k=1000, results=1))] == [4]


def test_skinny_products_are_one_cluster_a_tile_and_many_to_a_multiprocessor():
    for tile_m, tile_n, dual in ((64, 16, False), (64, 32, False), (128, 64, False), (128, 16, True), (128, 64, True)):
        for splits in (1, 3, 8):
            point = Point(tile_m=tile_m, tile_n=tile_n, cluster_m=1, small_m=True, dual=dual, split_k=splits)
            assert point.cluster == splits and point.threads % 128 == 32
            used = point.resident * point.depth_stages * point.stage_bytes
            assert 140 * 1024 < used < SHARED_BYTES, "on their way at any time"
            assert point.resident * point.threads <= 2048
            sums = point.groups * 64 * tile_n * 4 * (2 if dual else 1)
            receivers = tile_n // point.share
            assert tile_n % point.share == 0 and receivers <= splits
            assert sums * splits == receivers * point.share_bytes, "each CTA sends all of its own"
            assert point.share_bytes <= point.depth_stages * point.stage_bytes, "they go where stages were"
            grid = make_grid(point, 4100, 20, 1000, batch=2, processors=132)
            assert grid.splits == 1 and grid.chunk % DEPTH == 0 and grid.chunk * splits >= 1000
            assert grid.clusters == -(-4100 // (64 if dual else tile_m)) * -(-20 // tile_n) * 2


def test_skinny_ctas_are_as_many_to_a_multiprocessor_as_their_stages_leave_room_for():
    cases = ((64, "auto", False, 3), (64, 5, False, 4), (64, 8, False, 2), (128, 4, True, 3), (112, 6, True, 2),
             (96, 5, True, 3), (128, 8, True, 1))  # fmt: skip
    for tile_m, stages, dual, resident in cases:
        point = Point(tile_m=tile_m, tile_n=16, cluster_m=1, small_m=True, dual=dual, stages=stages)
        assert point.resident == resident and point.depth_stages == (7 if stages == "auto" else stages)
    assert Point(tile_m=128, tile_n=64, cluster_m=1, small_m=True, stages=2).resident == 2, "of two warpgroups"


class RecordedKernels(GemmKernels):
    """Kernels that note what a product would launch."""

    def __post_init__(self):
        super().__post_init__()
        self.launched = []
        self.planned = 0

    def product(self, variant):
        self.planned += 1
        return lambda *given: self.launched.append(
            [(t.shape, t.stride(), t.data_ptr()) if isinstance(t, torch.Tensor) else t for t in given]
        )


class Recorded(Gemm):
    kernels_of = RecordedKernels


def add(product, bias, residual):
    return product + bias + residual


@pytest.mark.parametrize("turned", [False, True])
def test_a_layout_is_planned_once_and_the_second_call_launches_the_same(turned):
    """Over the tensors as they lie; what is copied is planned once, too, and copied each time."""
    point = Point(tile_m=64, tile_n=16, cluster_m=1, small_m=True, split_k=2)
    epilogue = Epilogue(function=add, names=("bias", "residual"), dtypes=("bf16", "bf16"), batched=True)
    gemm = Recorded(point, "bf16", epilogue, swap_ab=turned)
    kernels = gemm.kernels
    a, w = torch.empty(3, 24, 136).bfloat16(), torch.empty(3, 40, 136).bfloat16()
    bias, residual = torch.empty(40).bfloat16(), torch.empty(3, 24, 40).bfloat16()
    sets = [(a, w.mT, bias, residual), (a[0], w[0].t(), bias, residual[0]), (a[:, :8], w.mT, bias, residual[:, :1]),
            (w[1], a[1].t(), bias[:24], residual[2].t())]  # fmt: skip
    for known, given in enumerate(sets):
        results = [gemm(*given) for _ in range(3)]
        assert kernels.planned == known + 1 and len({(r.shape, r.stride()) for r in results}) == 1
        first, *others = [[t for i, t in enumerate(call) if i != 2] for call in kernels.launched[-3:]]
        assert first == others[0] == others[1], "all but C lie where they lay"
        assert [call[2][:2] for call in kernels.launched[-3:]] == [kernels.launched[-1][2][:2]] * 3
        assert results[2].data_ptr() == kernels.launched[-1][2][2]
    off = torch.empty(3 * 24 * 136 + 1).bfloat16()[1:].view(3, 24, 136)
    for value in (1.0, 2.0):
        off.fill_(value)
        gemm(off, w.mT, bias, residual)
    assert kernels.planned == len(sets) + 1
    copies = [call[1 if turned else 0][2] for call in kernels.launched[-2:]]
    assert off.data_ptr() not in copies, "what TMA can't read is copied"
    with pytest.raises(ValueError, match="takes"):
        gemm(a, w.mT, bias.float(), residual)


def test_clusters_are_as_many_as_are_resident_or_needed():
    assert make_grid(Point(), 4096, 4096, 64, processors=132).clusters == 66
    assert make_grid(Point(), 1, 1, 1, processors=132).clusters == 1
    assert make_grid(Point(cluster_m=1), 300, 300, 64, processors=132).clusters == 6


def test_every_tile_of_every_layer_has_its_turn_once_and_neighbours_share_columns(monkeypatch):
    for band in (1, 4, 8, 16):
        monkeypatch.setattr(banded, "BAND", band)
        for rows, columns, layers in ((1, 1, 1), (5, 3, 2), (16, 16, 1), (17, 9, 3), (8, 1, 4)):
            product = SimpleNamespace(point=Point(), band=None, reach=None)
            turns = range(rows * columns * layers)
            seen = [tuple(int(v) for v in WgmmaProduct._place(product, work, rows, columns)) for work in turns]
            assert sorted(seen) == [(r, c, y) for r in range(rows) for c in range(columns) for y in range(layers)]
            if rows >= band > 1:
                assert [at[:2] for at in seen[:band]] == [(r, 0) for r in range(band)]


def on_the_host(monkeypatch):
    """What `band` takes of the DSL, for plain integers."""

    def loop(lo, hi, body):
        for i in range(lo, hi):
            body(i)

    monkeypatch.setattr(banded, "Int32", int)
    monkeypatch.setattr(banded, "cutlass", SimpleNamespace(max=max, min=min))
    monkeypatch.setattr(banded, "cute", SimpleNamespace(make_rmem_tensor=lambda shape, dtype: [0] * shape[0]))
    monkeypatch.setattr(banded, "loop", loop)
    monkeypatch.setattr(banded, "when", lambda condition, body: body() if condition else None)
    monkeypatch.setattr(banded, "select", lambda condition, yes, no: yes if condition else no)
    monkeypatch.setattr(banded, "both", lambda a, b: a and b)


@pytest.mark.parametrize("diagonals", [(0, None), (None, 0), (-150, 40), (300, None), (None, -300), (5000, None)])
def test_tiles_with_a_kept_diagonal_have_their_turn_first(monkeypatch, diagonals):
    on_the_host(monkeypatch)
    point = Point(tile_m=128, tile_n=64, cluster_m=2, cluster_n=1)
    tall, wide = 256, 64
    low, high = (-(10**9) if diagonals[0] is None else diagonals[0]), (10**9 if diagonals[1] is None else diagonals[1])
    band = banded.Band(point, diagonals)
    for rows, columns in ((1, 1), (3, 12), (2, 9), (5, 4)):
        seen = [band.place(turn, rows, columns) for turn in range(rows * columns)]
        assert sorted(seen) == [(r, c) for r in range(rows) for c in range(columns)]
        kept = [c * wide + wide - 1 - r * tall >= low and c * wide - (r * tall + tall - 1) <= high for r, c in seen]
        assert kept == [bool(band.needs(r, c, columns)) for r, c in seen] == sorted(kept, reverse=True)


ZEROS = [
    ((None, 0), ALL), ((0, None), ALL), ((-70, 30), ALL), ((None, -200), ALL), ((900, None), ALL),
    (ALL, (None, 0)), (ALL, (0, None)), (ALL, (-5, 5)), ((None, 0), (0, None)), ((None, 3), (None, -3)),
    ((0, 0), (0, 0)),
]  # fmt: skip


@pytest.fixture
def reach_on_the_host(monkeypatch):
    """What `reach` takes of the DSL, for plain integers."""
    monkeypatch.setattr(reaching, "Int32", int)
    monkeypatch.setattr(reaching, "cutlass", SimpleNamespace(max=max, min=min))
    monkeypatch.setattr(reaching, "select", lambda condition, yes, no: yes if condition else no)


@pytest.mark.usefixtures("reach_on_the_host")
@pytest.mark.parametrize("zeros", ZEROS, ids=str)
def test_a_tile_takes_the_steps_in_which_both_factors_have_elements(zeros):
    """Against the elements themselves: no step is missing, and at the ends none is too much."""
    reach = reaching.KRange(Point(tile_m=64, tile_n=64, cluster_m=2), zeros)
    steps = numpy.arange(700)
    for m, n, begin, end in ((500, 700, 0, 11), (130, 65, 0, 11), (300, 300, 3, 7)):
        for row in range(-(-m // 128)):
            for column in range(-(-n // 64)):
                needed = numpy.ones(700, dtype=bool)
                for (low, high), first, size in zip(zeros, (row * 128, column * 64), (128, 64), strict=True):
                    off = steps[None] - numpy.arange(first, first + size)[:, None]
                    kept = (off >= (-(10**9) if low is None else low)) & (off <= (10**9 if high is None else high))
                    needed &= kept.any(0)
                wanted = [s for s in range(begin, end) if needed[s * 64 : s * 64 + 64].any()]
                found = range(*reach.steps(begin, end, row, column))
                assert list(found) == list(range(wanted[0], wanted[-1] + 1)) if wanted else len(found) <= 2


@pytest.mark.usefixtures("reach_on_the_host")
@pytest.mark.parametrize("zeros", ZEROS, ids=str)
def test_every_tile_has_its_turn_once_where_lengths_differ(zeros, monkeypatch):
    for band, stride in ((8, 5), (4, 132), (1, 7)):
        monkeypatch.setattr(banded, "BAND", band)
        point = Point(tile_m=64, tile_n=64, cluster_m=1)
        reach = reaching.KRange(point, zeros)
        product = SimpleNamespace(point=point, band=None, reach=reach)
        for rows, columns, layers in ((1, 1, 1), (5, 3, 2), (16, 16, 1), (17, 9, 3)):
            every = rows * columns * layers
            turns = [reach.turn(work, stride, every) for work in range(every)]
            seen = [tuple(int(v) for v in WgmmaProduct._place(product, turn, rows, columns)) for turn in turns]
            assert sorted(seen) == [(r, c, y) for r in range(rows) for c in range(columns) for y in range(layers)]


@pytest.mark.usefixtures("reach_on_the_host")
@pytest.mark.parametrize("zeros", [((None, 0), ALL), ((0, None), ALL), (ALL, (None, 0)), (ALL, (0, None))], ids=str)
@pytest.mark.parametrize("n", [2048, 4096, 8192])
def test_clusters_have_nearly_the_same_to_do(zeros, n):
    """Triangles: the busiest of 66 clusters has at most 4% more steps than all of them on average, or the longest tile;
    in the order of other products it is 3 to 60%."""
    point = Point(tile_m=128, tile_n=128, cluster_m=2, cluster_n=1)
    reach = reaching.KRange(point, zeros)
    product = SimpleNamespace(point=point, band=None, reach=reach)
    rows, columns, clusters = n // 256, n // 128, 66
    busy = [0] * clusters
    longest = 0
    for work in range(rows * columns):
        place = WgmmaProduct._place(product, reach.turn(work, clusters, rows * columns), rows, columns)
        row, column, _ = map(int, place)
        begin, end = reach.steps(0, n // 64, row, column)
        busy[work % clusters] += end - begin
        longest = max(longest, end - begin)
    assert max(busy) <= 1.04 * max(sum(busy) / clusters, longest), (max(busy), sum(busy) / clusters, longest)


def shares(monkeypatch, *, clusters, tiles, steps):
    """What each cluster of a product by stream-K goes through: tile, first and last step, and whose parts it takes."""
    here = SimpleNamespace(cluster=0)
    arch = SimpleNamespace(block_idx=lambda: (here.cluster, 0, 0), grid_dim=lambda: (clusters, 1, 1))
    monkeypatch.setattr(streaming, "cute", SimpleNamespace(arch=arch, ceil_div=lambda a, b: -(-a // b), size=len))
    monkeypatch.setattr(streaming, "Int32", int)
    monkeypatch.setattr(streaming, "cutlass", SimpleNamespace(max=max, min=min))
    monkeypatch.setattr(streaming, "select", lambda condition, yes, no: yes if condition else no)
    taken = []
    monkeypatch.setattr(streaming, "loop", lambda lo, hi, body: taken.extend(range(lo, hi)))
    found = []
    for here.cluster in range(clusters):
        product = StreamK(Point(tile_m=64, tile_n=64, cluster_m=1, stream_k=True), EpilogueStore("f32", vector=1))
        product._place = lambda tile, rows, columns: (tile, 0, 0)
        first, stride, items = product._rounds(tiles, steps)
        mine = []
        for item in range(first, items, stride):
            tile, _, _, begin, end = product._steps(item, 0, 0, 0, 0, steps)
            taken.clear()
            if end == steps and begin > 0:
                product._collect([()], None, None, 0)
            mine.append((tile, begin, end, tuple(taken)))
        found.append(mine)
    return found


@pytest.mark.parametrize("clusters", [1, 5, 66, 132])
@pytest.mark.parametrize("tiles", [1, 3, 32, 66, 96, 144, 200, 400])
@pytest.mark.parametrize("steps", [1, 7, 64])
def test_clusters_of_stream_k_have_equal_shares_and_who_ends_a_tile_takes_what_others_have(
    monkeypatch, clusters, tiles, steps
):
    """Every step of every tile once; a part is left before anything else, by clusters of lower numbers alone, and all
    parts of a tile are taken by whoever has its last step."""
    clusters = min(clusters, tiles * steps)
    found = shares(monkeypatch, clusters=clusters, tiles=tiles, steps=steps)
    done = sorted((tile, step) for mine in found for tile, begin, end, _ in mine for step in range(begin, end))
    assert done == [(tile, step) for tile in range(tiles) for step in range(steps)]
    busy = [sum(end - begin for _, begin, end, _ in mine) for mine in found]
    assert max(busy) <= -(-tiles * steps // clusters) + (1 if tiles % clusters else 0)
    left: dict[int, list[int]] = {}
    for cluster, mine in enumerate(found):
        assert all(begin < end for _, begin, end, _ in mine)
        assert all(end == steps for _, _, end, _ in mine[1:]), "the part comes first, and is one"
        if mine and mine[0][2] < steps:
            left.setdefault(mine[0][0], []).append(cluster)
    for cluster, mine in enumerate(found):
        for tile, _, _, taken in mine:
            assert not taken or (list(taken) == left.pop(tile) and max(taken) < cluster)
    assert not left


def test_stream_k_starts_all_clusters_that_have_a_few_steps():
    point = Point(tile_m=128, tile_n=128, cluster_m=1, stream_k=True)
    assert make_grid(point, 1024, 1024, 8192, processors=132).clusters == 132
    assert make_grid(point, 128, 128, 256, processors=132).clusters == 1
    with pytest.raises(ValueError, match="split_k=1"):
        Point(cluster_m=1, stream_k=True, split_k=2)
