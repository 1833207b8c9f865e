"""Plans in pure Python: every element of every operand is visited once, whatever the shapes, strides and knobs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.realisers import gpu
from tilewright.kernels.cuda.common.spec import ArraySpec, RankSpec, ReductionSpec, ScanSpec, Spec, Sweep
from tilewright.kernels.cuda.common.views import collapse, contiguous, widest
from tilewright.kernels.cuda.rows.plan import DEFAULTS, KNOBS, Plan
from tilewright.kernels.cuda.rows.planning import make_plan

H200 = gpu()


def spec_of(domain, reduced=(), dtype="f32", operands=None):
    shapes = operands or {"x": domain}
    tensors = tuple(ArraySpec(name=n, dtype=dtype, shape=tuple(s)) for n, s in shapes.items())
    sweep = Sweep(
        elements=lambda x: (x,),
        reductions=(ReductionSpec(op="sum", source=dtype, dtype="f32", results=("s",)),),
    )
    return Spec(
        name="t", domain=tuple(domain), reduced=tuple(reduced), operands=tensors,
        outputs=(ArraySpec(name="y", dtype=dtype, shape=tuple(domain)),), sweeps=(sweep,) if reduced else (),
        final=(lambda x, s: (x,)) if reduced else (lambda x: (x,)), element_outputs=("y",),
    )  # fmt: skip


def digits(index, sizes):
    out = []
    for size in reversed(sizes):
        out.append(index % size)
        index //= size
    return out[::-1]


def visited(plan: Plan, name: str) -> Counter:
    """Offsets of a view that the kernel's loops reach, as `cta.py` walks them."""
    space, view, found = plan.space, plan.space.views[name], Counter()
    for group, chunk in product(range(space.groups), range(plan.chunks)):
        base = sum(c * s for c, s in zip(digits(group, space.group_sizes), view.group_strides, strict=True))
        first = chunk * plan.blocks_per_chunk
        for block in range(first, min(first + plan.blocks_per_chunk, plan.blocks)):
            for u, member in product(range(plan.unroll), range(plan.group_threads)):
                step = block * plan.block_steps + u * plan.group_threads + member
                if step >= space.steps:
                    continue
                at = base + sum(c * s for c, s in zip(digits(step, space.step_sizes), view.step_strides, strict=True))
                for lane in range(space.vector):
                    if space.tail and step * space.vector + lane >= space.inner:
                        continue
                    found[at + lane * view.lane_stride] += 1
    return found


@st.composite
def problems(draw):
    domain = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    if draw(st.booleans()):
        domain[-1] *= draw(st.sampled_from([16, 37, 64]))
    reduced = tuple(d for d in range(len(domain)) if draw(st.booleans()))
    order = draw(st.permutations(range(len(domain))))
    strides, step = [0] * len(domain), 1
    for d in order:
        strides[d] = step
        step *= domain[d] + draw(st.sampled_from([0, 0, 0, 1]))
    knobs = {name: draw(st.sampled_from(values)) for name, values in KNOBS.items()}
    return tuple(domain), reduced, tuple(strides), draw(st.sampled_from([4, 8, 16])), knobs


@given(problems())
def test_every_element_once(problem):
    domain, reduced, strides, alignment, knobs = problem
    spec = spec_of(domain, reduced)
    plan = make_plan(spec, [strides], [alignment], knobs, gpu(processors=4))
    want = Counter(
        sum(c * s for c, s in zip(place, strides, strict=True)) for place in product(*(range(n) for n in domain))
    )
    assert visited(plan, "x") == want
    assert visited(plan, "out_y") == Counter(range(prod(domain)))
    assert plan.threads <= 1024 and plan.group_threads & (plan.group_threads - 1) == 0


@given(problems())
def test_vectors_are_aligned(problem):
    domain, reduced, strides, alignment, knobs = problem
    plan = make_plan(spec_of(domain, reduced), [strides], [alignment], knobs, H200)
    view, vector = plan.space.views["x"], plan.space.vector
    if view.lane_stride == 1:
        assert alignment % (4 * vector) == 0
        assert all(s % vector == 0 for s in (*view.group_strides, *view.step_strides) if s)


def test_collapse_joins_what_all_views_walk_as_one():
    sizes, walks = collapse((4, 1, 5, 6), {"x": (30, 7, 6, 1), "y": (30, 0, 6, 1), "b": (0, 0, 0, 0)})
    assert sizes == (120,) and walks == {"x": (1,), "y": (1,), "b": (0,)}
    sizes, walks = collapse((4, 5, 6), {"x": (30, 6, 1), "bias": (0, 1, 0)})
    assert sizes == (4, 5, 6) and walks["bias"] == (0, 1, 0)


def test_widest_follows_alignment_and_strides():
    assert widest(16, (4096, 1), 1, 4) == 4
    assert widest(16, (4095, 1), 1, 4) == 1
    assert widest(8, (4096, 1), 1, 2) == 4
    assert widest(16, (0, 1), 1, 1) == 16


@pytest.mark.parametrize(("domain", "reduced", "expected"), [
    ((4096, 16384), (1,), ("row", 4, "none", "registers")),
    ((4096, 65536), (1,), ("row", 4, "cluster", "registers")),
    ((4096, 393216), (1,), ("row", 4, "cluster", "shared")),
    ((32768, 65535), (1,), ("row", 1, "cluster", "registers")),
    ((16, 64 * 256 * 256), (1,), ("row", 4, "split", "reread")),
    ((112, 64, 512, 512), (1,), ("column", 4, "none", "registers")),
    ((128, 4096, 4095), (1,), ("column", 1, "none", "reread")),
    ((64, 64, 512, 512), (0, 2, 3), ("row", 4, "split", "reread")),
    ((100000, 64), (0,), ("column", 4, "split", "reread")),
])  # fmt: skip
def test_fronts_of_known_shapes(domain, reduced, expected):
    plan = make_plan(spec_of(domain, reduced), [contiguous(domain)], [16], DEFAULTS | {"threads": 512}, H200)
    assert (plan.space.front, plan.space.vector, plan.cta_split, plan.row_storage) == expected


def test_offsets_are_wide_only_beyond_two_to_the_31():
    small, large = (2**15, 2**15), (2**16, 2**16)
    assert not make_plan(spec_of(small), [contiguous(small)], [16], DEFAULTS, H200).wide
    assert make_plan(spec_of(large), [contiguous(large)], [16], DEFAULTS, H200).wide


def test_shared_rows_fit_a_multiprocessor():
    for width in (40_000, 200_000, 393_216):
        spec = spec_of((1000, width), (1,))
        plan = make_plan(spec, [(width, 1)], [16], DEFAULTS | {"row_storage": "shared"}, H200)
        assert plan.row_storage == "shared"
        assert plan.blocks_per_chunk * plan.block_steps * plan.space.vector * 4 <= 220 * 1024


@pytest.mark.parametrize(("rows", "width", "teams", "chunks", "held"), [
    (300, 8192, 264, 1, 2), (300, 65536, 44, 6, 3), (4096, 393216, 8, 32, 3), (896, 2**21, 1, 256, 2),
    (16, 2**22, 1, 256, 4), (2, 65536, 2, 16, 1),  # few rows: as many CTAs each as there are
])  # fmt: skip
def test_teams_hold_a_row_and_leave_room_for_the_next(rows, width, teams, chunks, held):
    knobs = {**DEFAULTS, "threads": 512, "unroll": 2, "cta_split": "grid"}
    plan = make_plan(spec_of((rows, width), (1,)), [(width, 1)], [16], knobs, H200)
    assert (plan.teams, plan.chunks, plan.held, plan.slots) == (teams, chunks, held, 7)
    assert plan.cta_split == ("grid" if chunks > 1 else "none") and plan.row_storage == "shared"
    assert plan.ahead == (2 if chunks > 1 and held <= 3 else 1)
    assert plan.least_ctas == 2 and plan.teams * plan.chunks <= 2 * H200.processors
    assert plan.slots * plan.block_steps * 16 + 2 * 1024 <= 114 * 1024, "two CTAs, their boards and what each costs"


def test_what_no_ring_holds_of_a_row_stays_in_registers_as_far_as_they_reach():
    found = {}
    for threads in (256, 512, 1024):
        knobs = {**DEFAULTS, "threads": threads, "unroll": 2, "cta_split": "grid"}
        plan = make_plan(spec_of((64, 2**24), (1,)), [(2**24, 1)], [16], knobs, H200)
        found[threads] = (plan.chunks, plan.blocks_per_chunk, plan.slots, plan.held, plan.own, plan.least_ctas)
    assert found[512] == (128, 32, 14, 12, 7, 1) and found[256] == (256, 32, 14, 12, 7, 2)
    assert found[1024] == (128, 16, 7, 6, 0, 1), "64 registers a thread are needed for other things"


def test_teams_copy_only_what_cp_async_moves():
    def slots(dtype, alignment):
        knobs = {**DEFAULTS, "threads": 512, "cta_split": "grid"}
        return make_plan(spec_of((300, 65536), (1,), dtype), [(65536, 1)], [alignment], knobs, H200).slots

    assert slots("f32", 4) and slots("f16", 4) and slots("i8", 4)
    assert not slots("f16", 2) and not slots("i8", 2) and not slots("bool", 16)


def ranked_spec(domain, reduced, count, dtype="f32"):
    shape = tuple(count if d == reduced else n for d, n in enumerate(domain))
    rank = RankSpec(op="largest", elements=lambda x: (x,), source=dtype, results=("v", "p"), count=count)
    return Spec(
        name="t", domain=domain, reduced=(reduced,), operands=(ArraySpec(name="x", dtype=dtype, shape=domain),),
        outputs=(ArraySpec(name="v", dtype=dtype, shape=shape), ArraySpec(name="p", dtype="i64", shape=shape)),
        rank=rank,
    )  # fmt: skip


@pytest.mark.parametrize("cta_split", ["auto", "none", "split"])
@pytest.mark.parametrize(("domain", "reduced", "count"), [
    ((5, 1), 1, 1), ((9, 33), 1, 33), ((3, 1003), 1, 7), ((2, 40000), 1, 64), ((70001,), 0, 8), ((3, 700, 5), 1, 4),
])  # fmt: skip
def test_ranked_rows_belong_to_whole_warps_and_are_read_once(domain, reduced, count, cta_split):
    spec = ranked_spec(domain, reduced, count)
    plan = make_plan(spec, [contiguous(domain)], [16], DEFAULTS | {"cta_split": cta_split}, H200)
    assert plan.space.front == "row" and plan.group_threads % 32 == 0 and plan.cta_split in ("none", "split")
    assert visited(plan, "x") == Counter(range(prod(domain)))
    place = plan.space.views["out_v"].lane_stride
    assert place == (prod(domain[reduced + 1 :]) if count > 1 else 0), "where the next of a row is written"


def test_few_ranked_rows_are_split_where_a_warp_has_enough_to_look_at():
    def chunks(domain, count, **knobs):
        spec = ranked_spec(domain, len(domain) - 1, count)
        return make_plan(spec, [contiguous(domain)], [16], DEFAULTS | knobs, H200).chunks

    assert chunks((4096, 256), 8) == chunks((4096, 4096), 8) == chunks((128, 32768), 64) == 1
    assert 1 < chunks((1 << 20,), 64) < chunks((1 << 20,), 8) <= chunks((1 << 20,), 64, cta_split="split")


def test_a_row_in_shared_memory_is_cut_evenly_so_that_several_ctas_fit():
    two = spec_of((2048, 65536), (1,), operands={"x": (2048, 65536), "y": (2048, 65536)})
    sweep = Sweep(elements=lambda x, y: (x,), reductions=two.sweeps[0].reductions)
    spec = replace(two, sweeps=(sweep,), final=lambda x, y, s: (x,))
    knobs = DEFAULTS | {"threads": 512, "unroll": 8, "row_storage": "shared"}
    plan = make_plan(spec, [(65536, 1)] * 2, [16] * 2, knobs, H200)
    assert (plan.cta_split, plan.chunks, plan.blocks_per_chunk, plan.unroll) == ("cluster", 8, 1, 4)
    assert 2 * 4 * plan.space.vector * plan.block_steps == 64 * 1024, "of which a multiprocessor holds three"


def test_rows_in_registers_say_how_many_ctas_are_to_fit_beside_one_another():
    for width, threads, least in ((4096, 128, 0), (16384, 512, 2), (262144, 512, 1)):
        plan = make_plan(spec_of((4096, width), (1,)), [(width, 1)], [16], DEFAULTS | {"threads": 512}, H200)
        assert (plan.row_storage, plan.threads, plan.least_ctas) == ("registers", threads, least)
    assert make_plan(spec_of((4096, 4096)), [(4096, 1)], [16], DEFAULTS, H200).least_ctas == 0


def summed(rows, width, parts, dtype="f32"):
    """A norm's gradients: of its input, and beside it a sum over the rows."""
    names = {"x": (rows, width), "g": (rows, width), "w": (1, width)}
    sweep = Sweep(elements=lambda x, g, w: (x,), reductions=spec_of((1, 1), (1,)).sweeps[0].reductions)
    return Spec(
        name="t", domain=(rows, width), reduced=(1,),
        operands=tuple(ArraySpec(name=n, dtype=dtype, shape=s) for n, s in names.items()),
        outputs=(ArraySpec(name="y", dtype=dtype, shape=(rows, width)),
                 ArraySpec(name="t", dtype="f32", shape=(parts, width))),
        sweeps=(sweep,), final=lambda x, g, w, s: (x, g), element_outputs=("y",), sums=("t",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "width", "parts", "dtype", "shape"),  # threads, vectors a row, in the ring, CTAs beside one another
    [(32768, 4096, 528, "f32", (256, 4, 12, 2)), (131072, 1024, 2112, "f32", (64, 4, 12, 4)),
     (8192, 16384, 132, "f32", (512, 8, 14, 1)), (8192, 16384, 132, "bf16", (512, 4, 12, 1))],
)  # fmt: skip
def test_of_rows_whose_columns_are_summed_the_next_are_on_their_way(rows, width, parts, dtype, shape):
    spec = summed(rows, width, parts, dtype)
    walks = [(width, 1), (width, 1), (width, 1)]
    plan = make_plan(spec, walks, [16] * 3, DEFAULTS, H200)
    assert (plan.group_threads, plan.unroll, plan.slots, plan.least_ctas) == shape
    item = 4 if dtype == "f32" else 2
    assert plan.unroll <= plan.slots and plan.ring_steps * plan.threads * plan.space.vector * 2 * item <= 227 * 1024
    waves = -(-parts // (132 * plan.groups_per_cta * plan.least_ctas))
    assert waves * 132 * plan.groups_per_cta * plan.least_ctas < parts + 132 * plan.groups_per_cta, "of one size"
    kept = make_plan(spec, walks, [16] * 3, DEFAULTS | {"row_storage": "registers"}, H200) if width < 8192 else plan
    assert (kept.slots == 0) == (kept.row_storage == "registers") == (width < 8192)


@pytest.mark.parametrize(("width", "chunks"), [(8192, 2), (16384, 4), (65536, 16)])
def test_clusters_of_which_a_processor_holds_two_ctas_wait_in_turn(width, chunks):
    spec, walks = summed(2**27 // width, width, 128), [(width, 1)] * 3
    plan = make_plan(spec, walks, [16] * 3, DEFAULTS | {"cta_split": "cluster"}, H200)
    assert (plan.chunks, plan.unroll, plan.cta_split) == (chunks, 4, "cluster")
    assert plan.least_ctas >= 2 and plan.slots >= 2 * plan.unroll
    assert make_plan(spec, walks, [16] * 3, DEFAULTS, H200).least_ctas == 1


def test_rows_that_cp_async_can_not_bring_stay_in_registers():
    plan = make_plan(summed(4096, 1001, 528, "f16"), [(1001, 1)] * 3, [2] * 3, DEFAULTS, H200)
    assert (plan.row_storage, plan.slots, plan.parts) == ("registers", 0, 528)


def windows(lanes, at, *, steps=8, domain=(64, 16), fill=0.0, shape=None):
    """Sums over windows of `steps`, read where `at` says."""
    domain = (*domain, steps, lanes)
    x = ArraySpec(name="x", dtype="f32", shape=shape or (*domain[:-2], lanes + 60), indexed=True, at=at, fill=fill)
    sweep = Sweep(elements=lambda x, index_3, index_2: (x,), reductions=spec_of((1, 1), (1,)).sweeps[0].reductions)
    return Spec(
        name="t", domain=domain, reduced=(len(domain) - 2,), operands=(x,), sweeps=(sweep,),
        outputs=(ArraySpec(name="s", dtype="f32", shape=(*domain[:-2], 1, lanes)),),
    )  # fmt: skip


def planned(spec, knobs=DEFAULTS):
    return make_plan(spec, [contiguous(spec.operands[0].shape)], [16], knobs, H200)


def test_windows_that_overlap_along_the_lanes_come_from_shared_memory():
    first = ((0, ((0, 1),)), (0, ((1, 1),)))
    plan = planned(windows(4097, (*first, (-4, ((3, 1), (2, 3))))))
    assert (plan.windows, plan.threads, plan.space.vector) == (2048, 256, 1)
    assert plan.ctas_per_chunk == 64 * 16 * 3, "a line is 4097 long"
    others = {
        "a step too far apart": (*first, (-4, ((3, 8), (2, 1)))),
        "not along the lanes": (*first, (-4, ((2, 3),))),
        "of several lines": (first[0], (0, ((1, 1), (2, 1))), (0, ((3, 1),))),
        "of lines that may lie outside": (first[0], (-1, ((1, 1),)), (0, ((3, 1), (2, 1)))),
        "not told": (),
    }
    assert {name: planned(windows(4097, at)).windows for name, at in others.items()} == dict.fromkeys(others, 0)
    few = (0, ((0, 1),)), (0, ((1, 1),)), (0, ((3, 1), (2, 1)))
    assert planned(windows(4097, few, domain=(4, 4))).windows == 0, "too few for all multiprocessors"
    assert planned(windows(4097, few), DEFAULTS | {"row_storage": "reread"}).windows == 0


def test_many_columns_of_odd_rows_lie_side_by_side():
    """128 of them, 512 bytes; each element is read once all the same."""
    one = gpu(processors=1)
    spec = replace(spec_of((3, 37, 1031), (1,)), final=None, element_outputs=())
    spec = replace(spec, outputs=(ArraySpec(name="y", dtype="f32", shape=(3, 1, 1031)),))
    plan = make_plan(spec, [contiguous((3, 37, 1031))], [16], DEFAULTS, one)
    assert (plan.group_threads, plan.groups_per_cta, plan.unroll, plan.chunks) == (4, 128, 4, 1)
    assert visited(plan, "x") == Counter(range(3 * 37 * 1031))
    even = make_plan(spec_of((3, 37, 1032), (1,)), [contiguous((3, 37, 1032))], [16], DEFAULTS, one)
    few = make_plan(spec, [contiguous((3, 37, 1031))], [16], DEFAULTS, H200)
    assert even.groups_per_cta == few.groups_per_cta == 32


def test_rows_too_long_for_eight_ctas_get_a_cluster_of_sixteen():
    spec = spec_of((512, 262144), (1,), operands={"y": (512, 262144), "g": (512, 262144)})
    sweep = Sweep(elements=lambda y, g: (y,), reductions=spec.sweeps[0].reductions)
    spec = replace(spec, sweeps=(sweep,), final=lambda y, g, s: (y,))
    plan = make_plan(spec, [(262144, 1)] * 2, [16] * 2, DEFAULTS, H200)
    assert (plan.cta_split, plan.chunks, plan.row_storage) == ("cluster", 16, "shared")
    assert plan.block_steps * plan.blocks_per_chunk * 2 * 16 == 128 * 1024


def test_a_thread_has_fewer_columns_where_the_state_of_a_scan_is_large():
    """Two f64 of each of eight columns would spill; every element is read once all the same."""
    found = {}
    for op in ("cumsum", "cumprod", "recurrence"):
        scan = ScanSpec(op=op, elements=lambda x: (x,), sources=("f32",), dtype="f32", results=("h",), reverse=False,
                        exclusive=False)  # fmt: skip
        for domain in ((3, 20, 64), (3, 20, 60), (60, 64)):
            spec = replace(spec_of(domain, (1,), "bf16"), sweeps=(), scan=scan, final=lambda x, h: (h,))
            plan = make_plan(spec, [contiguous(domain)], [16], DEFAULTS, gpu(processors=1))
            assert visited(plan, "x") == visited(plan, "out_y") == Counter(range(prod(domain)))
            found[op, domain] = plan.space.vector
    assert [found[op, (3, 20, 64)] for op in ("cumsum", "cumprod", "recurrence")] == [8, 8, 4]
    assert found["recurrence", (3, 20, 60)] == 4 and found["recurrence", (60, 64)] == 8, "rows have a state a thread"
