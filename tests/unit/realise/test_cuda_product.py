"""Products for CUDA: what the skeleton is asked for, in which order its points stand, and that candidates compile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.realisers import H200, cpu, cuda
from tilewright.facts.gradients import Gradients
from tilewright.facts.pattern import Choice, Pattern, without_idle
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts, Matched
from tilewright.facts.space import point
from tilewright.frontend.trace import trace, trace_training
from tilewright.fusion import match
from tilewright.ir.graph import Graph
from tilewright.ir.program import Program
from tilewright.kernels.cuda.gemm.host.fused import make_point
from tilewright.realise.compose import compose
from tilewright.realise.gemm import renderer as cuda_product
from tilewright.realise.gemm.kept_diagonals import NO_ZEROS, kept_diagonals, share, steps_of
from tilewright.realise.gemm.shape import matrices
from tilewright.realise.gemm.time import GemmWork, work_ns
from tilewright.run import training
from tilewright.run.matching import found_patterns

pytestmark = pytest.mark.one_in(4)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (kp.product(4096, 4096, 4096), None),
        (kp.product(4096, 4096, 64), None),
        (kp.product(4096, 4096, 32), None),
        (kp.product(4096, 4096, 8), None),
        (kp.product(4096, 4096, 7), "too short for fp32's accuracy"),
        (kp.product(4096, 4096, 31, "bf16"), "bound by memory"),
        (kp.product(4096, 16, 4096), "bound by memory"),
        (kp.product(4096, 16, 4096, "bf16"), None),
        (kp.product(1, 4096, 4096, "f16"), None),
        (kp.product(1, 512, 512, "bf16"), "all launch"),
        (kp.product(128, 128, 128), "all launch"),
        (kp.product(1024, 1024, 1001), None),  # fp32 is split, whatever its strides
        (kp.product(1024, 1024, 1001, "bf16"), None),  # both are copied to lines
        (kp.product(1024, 1001, 1024, "bf16"), None),  # N of a weight that lies K by K is nobody's line
        (kp.product(1024, 1001, 1024, "bf16", order=()), None),
        (kp.product(1021, 1031, 1033, "f16", order=()), None),
        (kp.product(1024, 50257, 768, "bf16", order=()), None),
        (kp.product(8, 50257, 768, "bf16"), None),
        (kp.product(8, 50257, 768, "bf16", order=()), "copy costs more"),  # than to read the weight once
        (kp.product(16, 4096, 4097, "bf16"), "copy costs more"),
        (kp.product(1, 4096, 4097, "bf16", order=()), None),  # one row is one line
        (kp.product(4096, 64, 1001, "f16"), "copy costs more"),
        (kp.product(4097, 16, 4096, "bf16"), None),
        (kp.product(1024, 1024, 1032, "float8_e4m3fn", out="bf16"), None),
        (kp.product(65536, 65536, 64, "bf16"), None),  # 2^32 results
        (kp.product(64, 1 << 20, 8192), None),  # 2^33 weights
        (kp.product(64, 1 << 31, 32), "2^31"),
        (kp.product(4096, 31, 4096), "bound by memory"),
        (kp.product(4096, 32, 4096), None),  # the large one is streamed
        (kp.product(48, 4096, 4096), None),
        (kp.product(48, 4096, 4096, order=()), "isn't streamed"),  # it does not lie along K
        (kp.product(4096, 48, 4100), "isn't streamed"),
        (kp.product(1024, 1024, 1024, "f64"), "f64"),
        (kp.product(1024, 1024, 1024, "bf16", out="i32"), None),
        (kp.product(1024, 1024, 1024, "bf16", out="i16"), "16-bit integers"),
    ],
)
def test_what_is_taken_and_what_is_torchs(program: Program, why: str | None) -> None:
    found = cuda.unsupported(program)
    assert (found is None) if why is None else (found is not None and why in found)
    assert cpu.unsupported(program) == "no skeleton"


def test_factors_of_a_batch_are_copied_where_they_start_anywhere_and_those_of_experts_and_pairs_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What each copy moves; a factor without a batch is copied once."""
    seen: list[list[float]] = []
    monkeypatch.setattr(cuda_product, "copies_ns", lambda sides, device: seen.append(list(sides)) or 0.0)
    x, w, both = meta(8, 512, 1001), meta(1001, 1024), meta(1024, 1001)

    def gate(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.silu(F.linear(x[0], w)) * F.linear(x[0], v)

    for function, args, sizes in (
        (torch.matmul, (x, w), [8 * 512 * 1001]),
        (torch.bmm, (x, meta(8, 1001, 1023)), [8 * 512 * 1001, 8 * 1001 * 1023]),
        (gate, (x, both, both), [512 * 1001, *[1024 * 1001] * 2]),
        (torch.matmul, (x[..., :1000].contiguous(), meta(1000, 1024)), []),
    ):  # fmt: skip
        seen.clear()
        args = tuple(a.bfloat16() for a in args)
        matched = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space)
        assert [p.kind for p in matched.patterns].count("product") >= 1
        assert (sorted(2.0 * s for s in sizes) in map(sorted, seen)) if sizes else not seen


def test_a_thin_matrix_of_fp32_is_proposed_where_it_is_streamed_alone(tmp_path: Path) -> None:
    """Planes of the large one would be written and read beside; half of the tile is empty."""
    for sides, tile, streamed in (((4096, 40, 4096), "128x64", "left"), ((40, 4096, 4096), "64x128", "right")):
        space = cuda.space(kp.product(*sides))
        assert space.points and all(space.holds(p) for p in space.points)
        assert {(dict(p)["tile"], dict(p)["streamed"]) for p in space.points} == {(tile, streamed)}
        for p in space.points:
            make_point(dict(p), scheme="fp16x3")
    rows = match(
        trace(Applies(lambda a, b: (a @ b).amax(-1)), (meta(48, 4096), meta(4096, 4096)), {}),
        unsupported=cuda.unsupported, space=cuda.space,
    )  # fmt: skip
    assert all(p.kind != "product" for p in rows.patterns)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_points_are_left_out_that_the_model_has_far_behind(dtype: torch.dtype) -> None:
    """Tiles that are not cut along K leave most of the GPU idle where K is long, bare or with more behind them; what is
    small is bound by what all have."""

    def bare(a: Tensor, b: Tensor, row: Tensor) -> Tensor:
        return a @ b

    def fused(a: Tensor, b: Tensor, row: Tensor) -> Tensor:
        return F.gelu(a @ b + row)

    for function, m, n, k, whole in ((bare, 256, 256, 65536, 0), (fused, 256, 256, 65536, 0), (bare, 256, 768, 768, 4),
                                     (fused, 256, 768, 768, 2), (bare, 8192, 3072, 768, 8)):  # fmt: skip
        args = (meta(m, k).to(dtype), meta(n, k).to(dtype).t(), meta(n).to(dtype))
        matched = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space)
        pattern = [p for p in matched.patterns if p.kind == "product"][-1]
        assert pattern.title == ("matmul" if function is bare else "matmul -> add -> gelu")
        knobs = [dict(p) for p in pattern.space.points]
        assert len(knobs) == len({*pattern.space.points}) == 8
        times = [
            work_ns(
                GemmWork(m=m, n=n, k=k, fp32=False),
                tile=str(p["tile"]),
                cluster=str(p["cluster"]),
                parts=int(p["split_k"]),
                device=H200,
            )
            for p in knobs
        ]
        assert max(times) + 3000 <= 1.5 * (min(times) + 3000) or k == 768
        assert sum(p["schedule"] == "pingpong" or p["store"] == "staged" for p in knobs) >= whole // 2
        assert (min(int(p["split_k"]) for p in knobs) >= 8) == (k == 65536)


def first(program: Program) -> dict[str, Any]:
    return dict(cuda.space(program).points[0])


def test_large_products_get_large_tiles_and_small_ones_are_split() -> None:
    assert first(kp.product(4096, 4096, 4096))["tile"] in ("256x128", "128x256")
    assert first(kp.product(4096, 4096, 4096))["split_k"] == 1
    assert first(kp.product(256, 256, 65536))["split_k"] > 8
    for program in (kp.product(4096, 4096, 4096), kp.product(256, 256, 4096, "bf16")):
        space = cuda.space(program)
        assert len(space.points) == 8 and all(space.holds(p) for p in space.points)


def test_the_interval_of_promotion_is_turned_where_several_are_proven(tmp_path: Path) -> None:
    """Of fp32 alone; a point outside of the proof is refused, as one of a product that is not promoted is."""

    def values(*args: Any) -> tuple[Any, ...]:
        return next((k.values for k in cuda.space(kp.product(*args)).knobs if k.name == "interval"), ())

    assert values(512, 512, 1024) == values(4096, 4096, 54) == ("auto", 64, 32, 16)
    assert values(4096, 4096, 53) == ("auto", 32, 16) and values(4096, 4096, 33) == ()
    assert values(512, 512, 1024, "bf16") == values(4096, 4096, 8) == ()
    program = kp.product(1024, 1024, 40)
    module = load_fused(program, tmp_path)
    assert module.KNOBS["interval"] == "auto" and cuda.space(program).holds(point(**module.KNOBS))
    module.configure(interval=32)
    assert module._FUSED.gemm.point.settled(k=40, results=1 << 20).interval == 32
    with pytest.raises(ValueError, match="not proven"):
        module.configure(interval=64)
    with pytest.raises(ValueError, match="not proven"):
        load_fused(kp.product(512, 512, 1024, "bf16"), tmp_path).configure(interval=64)


def test_stream_k_is_proposed_where_whole_waves_leave_much_idle(tmp_path: Path) -> None:
    """Of fp32 with long sums; where tiles make whole waves, or results are triangles, it gains nothing."""

    def schedules(program: Program) -> list[Any]:
        return [dict(p)["schedule"] for p in cuda.space(program).points]

    for m, n, k in ((1536, 2048, 8192), (2048, 2304, 8192), (1024, 3072, 4096)):
        assert schedules(kp.product(m, n, k))[:3] == ["stream_k", "stream_k", "cooperative"]
    for m, n, k in ((1536, 2816, 8192), (4096, 4096, 4096), (512, 512, 65536), (1536, 2048, 1024)):
        assert set(schedules(kp.product(m, n, k))) == {"cooperative"}
    assert "stream_k" not in schedules(kp.product(1536, 2048, 8192, "bf16"))
    a, b = meta(1536, 8192), meta(8192, 2048)
    for function in (lambda a, b: torch.triu(a @ b), lambda a, b: a.tril() @ b):
        assert all("stream_k" not in schedules(program) for program in _sparing(function, a, b))
    program = kp.product(1536, 2048, 8192)
    module = load_fused(program, tmp_path)
    assert module.KNOBS["schedule"] == "stream_k" and module._FUSED.gemm.point.stream_k
    with pytest.raises(ValueError, match="share a tile"):
        module.configure(store="bulk")
    with pytest.raises(ValueError, match="split_k=1"):
        module.configure(split_k=2)


def test_every_point_that_is_proposed_can_be_made() -> None:
    for dtype, scheme, out in (("f32", "fp16x3", ""), ("bf16", "plain", ""), ("float8_e4m3fn", "fp8", "bf16")):
        for sides in ((4096, 4096, 4096), (64, 4096, 4096), (256, 256, 65536), (100, 1000, 1024), (4096, 4096, 32)):
            program = kp.product(*sides, dtype, out=out)
            for found in cuda.space(program).points if cuda.unsupported(program) is None else ():
                knobs = dict(found)
                make_point(knobs, scheme="bf16x6" if knobs["split"] == "bf16x6" else scheme)
    for knobs in map(dict, cuda.space(kp.product(2000, 4096, 8)).points):
        make_point(knobs, scheme="bf16x6")


def test_short_sums_of_fp32_are_six_products_of_bf16() -> None:
    """Three of fp16 are farther off than fp32's own there; and elsewhere six come last, for who needs them."""
    for k, count in ((8, None), (31, None), (32, 1), (4096, 1)):
        space = cuda.space(kp.product(4096, 4096, k))
        exact = [("split", "bf16x6") in p for p in space.points]
        assert all(space.holds(p) for p in space.points) and exact[-1]
        assert (all(exact) and len(exact) > 3) if count is None else sum(exact) == count
    assert not any(("split", "bf16x6") in p for p in cuda.space(kp.product(4096, 4096, 4096, "bf16")).points)


def test_skinny_products_of_16_bits_are_summed_on_the_chip() -> None:
    for sides, tiles in (
        ((1, 4096), "16x64 16x128"), ((4096, 16), "64x16 128x16"), ((20, 768), "32x64 32x128"),
        ((3000, 60), "32x64 64x64 128x64"),
    ):  # fmt: skip
        space = cuda.space(kp.product(*sides, 4096, "bf16"))
        assert all(space.holds(p) for p in space.points) and len(set(space.points)) > 3
        assert {dict(p)["tile"] for p in space.points} <= set(tiles.split())
        assert {dict(p)["sum"] for p in space.points} == {"cluster"}
        for p in space.points:
            assert make_point(dict(p), scheme="plain").depth_stages == dict(p)["stages"], "as many as were meant"
    both = cuda.space(kp.product(64, 4096, 4096, "f16"))
    assert {dict(p)["sum"] for p in both.points} == {"cluster", "kernel"}


@pytest.mark.parametrize(("m", "n", "k", "firsts"), [
    (1, 4096, 4096, [("16x64", 2, 8)]), (8, 6144, 4096, [("16x64", 2, 7)]), (1, 4096, 14336, [("16x64", 3, 7)]),
    (32, 10240, 8192, [("32x64", 1, 8)]), (64, 4096, 4096, [("64x64", 2, 8)]), (64, 6144, 4096, [("64x64", 1, 8)]),
    (64, 4096, 14336, [("64x64", 2, 8)]), (1, 28672, 4096, [("16x128", 1, 6), ("16x64", 1, 5), ("16x128", 1, 5)]),
])  # fmt: skip
def test_the_first_of_few_rows_were_within_three_percent_of_the_fastest(
    m: int, n: int, k: int, firsts: list[tuple[str, int, int]]
) -> None:
    """Or lie between two that were (H200, 2026-11-24; small-M-settings.json of the results)."""
    assert settings_of(kp.product(m, n, k, "bf16"))[0] in firsts
    turned = [(f"{wide}x{small}", *more) for (small, wide), *more in ((t.split("x"), *rest) for t, *rest in firsts)]
    assert settings_of(kp.product(n, m, k, "bf16"))[0] in turned, "whichever side has few rows"


def settings_of(program: Program) -> list[tuple[str, int, int]]:
    found = [dict(p) for p in cuda.space(program).points]
    return [(str(p["tile"]), int(p["split_k"]), p["stages"]) for p in found]


def test_tiles_come_first_that_leave_few_processors_idle() -> None:
    """As they were measured (H200, 2026-11-23)."""
    for m, n, k, tiles in (
        (512, 6144, 4096, "128x192"), (1024, 4608, 3584, "256x144"), (1024, 3584, 18944, "128x224"),
        (4096, 4096, 4096, "128x256 256x128"), (4096, 6144, 4096, "256x192"), (8192, 2304, 768, "128x192"),
    ):  # fmt: skip
        space = cuda.space(kp.product(m, n, k, "bf16"))
        assert dict(space.points[0])["tile"] in tiles.split()
        assert len(set(space.points)) == 8 and all(space.holds(p) for p in space.points)
        for p in space.points:
            make_point(dict(p), scheme="plain")
    assert "128x192" not in {dict(p)["tile"] for p in cuda.space(kp.product(512, 6144, 4096)).points}, "fp32 is split"
    across = cuda.space(kp.product(1024, 4608, 3584, "bf16", order=(0, 1))).points
    assert all(int(str(dict(p)["tile"]).split("x")[1]) % 64 == 0 for p in across), "whole swizzled lines of B"
    assert dict(cuda.space(kp.product(256, 768, 768, "bf16")).points[0])["tile"] == "128x64", "few tiles are small ones"


def test_warpgroups_take_turns_where_a_tile_ends_soon() -> None:
    for program, first in (
        (kp.product(8192, 3072, 768, "bf16"), True), (kp.product(8192, 4096, 8192, "bf16"), False),
        (kp.product(512, 6144, 512), False),
    ):  # fmt: skip
        schedules = [dict(p)["schedule"] for p in cuda.space(program).points]
        assert (schedules[0] == "pingpong") == first


def test_the_model_counts_three_products_for_fp32() -> None:
    def time(*, fp32: bool) -> float:
        work = GemmWork(m=8192, n=8192, k=8192, fp32=fp32)
        return work_ns(work, tile="256x128", cluster="1x2", parts=1, device=H200)

    assert 3.0 < time(fp32=True) / time(fp32=False) < 3.5, "and what splits them"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(256, 512)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.inner(x))


ORIGINAL = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 512)
    def forward(self, x):
        return torch.nn.functional.gelu(self.inner(x))
"""


def stepped(layer: nn.Module, *, rows: tuple[int, ...] = (2, 512), allow_tf32: bool = False) -> tuple[Graph, Matched]:
    x = torch.randn(*rows, 256, requires_grad=True)
    asked = Gradients(outputs=(0,), inputs=(0,), parameters=tuple(n for n, _ in layer.named_parameters()))
    graph = trace_training(layer, (x,), {}, [x], asked)
    return graph, training.match_training(
        graph,
        unsupported=cuda.unsupported,
        space=cuda.space,
        first_id=0,
        first_segment=0,
        case=0,
        allow_tf32=allow_tf32,
    )


def every(found: Matched) -> tuple[Choice, ...]:
    chosen = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in found.patterns)
    return without_idle([found.patterns], chosen)


def busy(found: Matched) -> list[Pattern]:
    """The patterns that are run where all are chosen."""
    return [p for p in found.patterns if p.id in {c.pattern for c in every(found)}]


def test_a_step_of_training_is_three_products_and_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """GELU on the way out of the first, beside what it read; the sum on the way of what the other two read."""
    monkeypatch.setattr(training, "PRODUCTS", True)
    graph, matched = stepped(Layer())
    assert not matched.unmatched and [s.title for s in matched.segments] == ["linear -> gelu"]
    ran = busy(matched)
    assert [(p.kind, p.title) for p in ran] == [
        ("product", "linear -> gelu"), ("row_column_reduce", "gelu_backward -> linear_backward"),
        ("product", "einsum"), ("product", "einsum"),
    ]  # fmt: skip
    products = [[(o.shape, o.order) for o in p.program.operands] for p in ran if p.kind == "product"]
    assert products == [
        [((1024, 256), ()), ((256, 512), (1, 0)), ((1, 512), ())],
        [((1024, 512), ()), ((512, 256), ())],
        [((512, 1024), (1, 0)), ((1024, 256), ())],
    ], "x W^T + b, dY W, dY^T x: each as its operands lie"
    assert [len(p.program.outputs) for p in ran] == [2, 2, 1, 1] and len(ran[1].program.sums) == 1
    facts = CaseFacts(inputs=(), outputs=(), graph=graph,
                      work=Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32"))  # fmt: skip
    files = {f.path: f.text for f in compose(ORIGINAL, (facts,), (matched,), every(matched), device=H200).files}
    assert "torch.ops" not in files["segment_0.py"], "nothing of the layer is left to torch"
    assert files["segment_0.py"].count(".run(") == 4, "a kernel, and what it writes, once each"
    forward_alone = tuple(c for c in every(matched) if c.pattern not in [p.id for p in ran[2:]])
    files = {f.path: f.text for f in compose(ORIGINAL, (facts,), (matched,), forward_alone, device=H200).files}
    assert files["segment_0.py"].count("torch.ops.aten.einsum.default") == 2


def test_where_sums_are_refused_what_is_rounded_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias of bf16 is the sum of what its layer's products read, and no copy in fp32 is made for it."""
    monkeypatch.setattr(training, "PRODUCTS", True)
    layer, x = Layer().bfloat16(), torch.randn(1024, 256, dtype=torch.bfloat16, requires_grad=True)
    asked = Gradients(outputs=(0,), inputs=(0,), parameters=("inner.weight", "inner.bias"))
    graph = trace_training(layer, (x,), {}, [x], asked)
    found = training.match_training(
        graph, unsupported=lambda p: "no" if p.sums else cuda.unsupported(p), space=cuda.space, first_id=0,
        first_segment=0, case=0,
    )  # fmt: skip
    back = [p for p in busy(found) if p.kind != "product"]
    assert [(p.kind, [o.dtype for o in p.program.outputs]) for p in back] == [
        ("pointwise", ["bf16"]), ("column_reduce", ["bf16"])
    ]  # fmt: skip
    assert {o.dtype for p in back for o in p.program.operands} == {"bf16"}


def test_products_that_no_kernel_makes_stay_autograds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed of them is a segment without them, as all is on a target without products."""
    monkeypatch.setattr(training, "PRODUCTS", True)
    thin = stepped(Layer(), rows=(1, 8))[1]
    assert [s.title for s in thin.segments] == ["gelu"] and not [p for p in thin.patterns if p.kind == "product"]
    assert any(line.startswith("aten.linear") for line in thin.unmatched)


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(256, 512, bias=False), nn.Linear(256, 512, bias=False)
        self.down = nn.Linear(512, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x)) + x


def test_a_step_of_a_gated_layer_is_one_pair_and_seven_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """x's gradient is that by the gate, which the product that makes the other one adds on its way out."""
    monkeypatch.setattr(training, "PRODUCTS", True)
    _, matched = stepped(Gate())
    ran = busy(matched)
    assert not matched.unmatched and len(matched.segments) == 2
    assert sum(len(p.matches) for p in ran if p.kind == "product") == 8
    (pair,) = [p for p in ran if len(p.program.products) == 2]
    assert [o.shape for o in pair.program.outputs] == [(1024, 512)] * 3, (
        "the gate's result, and both that backward reads"
    )
    (added,) = [p for p in ran if p.title == "linear_backward -> einsum"]
    assert [o.shape for o in added.program.operands] == [(1024, 512), (512, 256), (1024, 256)]
    assert {p.title for p in ran if p.kind == "pointwise"} == {"mul_backward -> silu_backward -> linear_backward"}
    without = tuple(c for c in every(matched) if c.pattern != pair.id)
    both = [p for p in matched.patterns if p.kind == "product" and {b.node for b in p.matches[0].outputs}
            & {b.node for b in pair.matches[0].outputs} and p != pair]  # fmt: skip
    assert len(both) == 2 and not {p.id for p in both} & {c.pattern for c in without}, "and both stay possible"


def test_products_of_training_may_be_rounded_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "PRODUCTS", True)
    for allow_tf32 in (False, True):
        products = [q for p in stepped(Gate(), allow_tf32=allow_tf32)[1].patterns for q in p.program.products]
        assert products and {q.allow_tf32 for q in products} == {allow_tf32}
    x = torch.randn(1024, 256, requires_grad=True)
    asked = Gradients(outputs=(0,), inputs=(0,), parameters=("inner.weight", "inner.bias"))
    facts = CaseFacts(inputs=(), outputs=(), graph=trace_training(Layer(), (x,), {}, [x], asked),
                      work=Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32"))  # fmt: skip
    (found,) = found_patterns((facts,), H200, allow_tf32=True)
    assert {q.allow_tf32 for p in found.patterns for q in p.program.products} == {True}, "as the evaluator asks"


def test_a_linear_layer_and_gelu_become_one_kernel_that_compiles_for_hopper(tmp_path: Path) -> None:
    graph = trace(Layer(), (torch.randn(2, 128, 256),), {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    assert [(p.title, p.kind) for p in matched.patterns] == [("gelu", "pointwise"), ("linear -> gelu", "product")]
    small = point(tile="64x64", cluster="1x1", stages="auto", split_k=1)
    recipe = (Choice(pattern="fused_0", point=matched.patterns[0].space.points[0]),
              Choice(pattern="fused_1", point=small))  # fmt: skip
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    facts = CaseFacts(inputs=(), outputs=(), work=work, graph=graph)
    whole = compose(ORIGINAL, (facts,), (matched,), recipe, device=H200)
    model = next(f.text for f in whole.files if f.path == "model.py")
    assert (
        "fused_1.run(x.reshape((256, 256)), self.inner.weight.permute((1, 0)), self.inner.bias.reshape((1, 512)))"
        in model
    )
    assert "fused_0" not in model, "what the product does on its way out needs no kernel of its own"
    without = compose(ORIGINAL, (facts,), (matched,), recipe[:1], device=H200)
    assert "torch.ops.aten.linear.default" in next(f.text for f in without.files if f.path == "model.py")

    fused = load_fused(matched.patterns[1].program, tmp_path, small)
    x, w, bias = (torch.empty(shape, device="meta") for shape in ((256, 256), (512, 256), (1, 512)))
    (made,) = fused.run(x, w.t(), bias)
    assert made.shape == (256, 512) and made.dtype == torch.float32
    assert len(fused._FUSED._compiled) == 2, "one split for both operands, and the product"
    assert len(list((tmp_path / "build").glob("*.o"))) == 2, "and another process finds both"
    fused._FUSED._compiled.clear()
    assert fused.run(x, w.t(), bias)[0].shape == made.shape and len(list((tmp_path / "build").glob("*.o"))) == 2
    told = fused._FUSED.demand(132)
    assert told["ctas"] == 32 and told["local_bytes"] == 0 and told["threads"] == 256
    with pytest.raises(ValueError, match="is wanted"):
        fused.run(x, w, bias)
    with pytest.raises(ValueError, match="can't be '96x96'"):
        fused.configure(tile="96x96")
    assert fused.KNOBS["tile"] == "64x64"
    with pytest.raises(ValueError, match="does not fit the registers"):
        fused.configure(tile="64x256", cluster="1x1")


def test_batches_and_operands_of_an_epilogue_compile(tmp_path: Path) -> None:
    def forward(a: Tensor, b: Tensor, row: Tensor, column: Tensor, whole: Tensor) -> Tensor:
        return torch.tanh(torch.bmm(a, b.transpose(1, 2)) * row + column) + whole

    a, b = torch.randn(4, 128, 256).bfloat16(), torch.randn(4, 192, 256).bfloat16()
    others = (torch.randn(192).bfloat16(), torch.randn(128, 1).bfloat16(), torch.randn(4, 128, 192).bfloat16())
    matched = match(trace(Applies(forward), (a, b, *others), {}), unsupported=cuda.unsupported, space=cuda.space)
    (found,) = [p for p in matched.patterns if p.kind == "product"]
    assert [o.shape for o in found.program.operands[2:]] == [(1, 1, 192), (1, 128, 1), (4, 128, 192)]
    split = point(tile="64x64", cluster="1x1", stages="auto", split_k=2)
    module = load_fused(found.program, tmp_path, split)
    given = [torch.empty(o.shape, dtype=torch.bfloat16, device="meta") for o in found.program.operands]
    assert module.run(*given)[0].shape == (4, 128, 192)
    assert sorted(key[0] for key in module._FUSED._compiled) == ["combine", "product"]
    module.configure(split_k=1)
    assert module.run(*given)[0].shape == (4, 128, 192)
    assert len(module._FUSED._compiled) == 3, "the last product has the epilogue"


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (lambda a, b: torch.triu(a @ b), (0, None)),
        (lambda a, b: torch.tril(a @ b, 3).relu(), (None, 3)),
        (lambda a, b: torch.triu(torch.tril((a @ b) * 2, 5), -4), (-4, 5)),
        (lambda a, b: torch.triu(a @ b, 1) + 1, (1, None)),
        (lambda a, b: (lambda c: torch.triu(c, 3) + torch.tril(c))(a @ b), (None, None)),
        (lambda a, b: torch.cos(torch.triu(a @ b, -7)), (-7, None)),
        (lambda a, b: (a @ b).sigmoid(), (None, None)),
    ],
)
def test_on_which_diagonals_a_result_depends_on_its_product(function: Any, kept: Any) -> None:
    matched = match(
        trace(Applies(function), (torch.randn(512, 256), torch.randn(256, 512)), {}), unsupported=cuda.unsupported,
        space=cuda.space,
    )  # fmt: skip
    program = [p for p in matched.patterns if p.kind == "product"][-1].program
    assert kept_diagonals(program) == kept
    text = cuda.render(program, "fused", cuda.space(program).points[0])[0].text
    assert ("diagonals" in text) == (kept != (None, None))


def test_of_what_a_mask_hides_nothing_is_multiplied() -> None:
    """Scores of causal attention, which the softmax reads through a mask: the product leaves the other half out."""

    def scores(q: Tensor, k: Tensor) -> Tensor:
        return torch.softmax((q @ k.mT / 8).masked_fill(torch.ones(512, 512).triu(1).bool(), float("-inf")), -1)

    matched = match(
        trace(Applies(scores), (torch.randn(16, 512, 64), torch.randn(16, 512, 64)), {}), unsupported=cuda.unsupported,
        space=cuda.space,
    )  # fmt: skip
    (program,) = (p.program for p in matched.patterns if p.kind == "product")
    assert matrices(program).wanted == kept_diagonals(program) == (None, 0)
    assert "diagonals=(None, 0)" in cuda.render(program, "fused", cuda.space(program).points[0])[0].text


def test_half_of_a_triangle_is_half_the_work() -> None:
    assert share((0, None), 4096, 4096, tall=128, wide=128) == 528 / 1024
    assert share((None, 0), 4096, 4096, tall=128, wide=128) == 528 / 1024
    assert (
        share((None, None), 100, 100, tall=64, wide=64) == 1 and share((-1, 1), 256, 256, tall=64, wide=64) == 10 / 16
    )
    works = [GemmWork(m=4096, n=4096, k=4096, fp32=True, kept=kept) for kept in ((None, None), (0, None))]
    times = [work_ns(work, tile="128x128", cluster="1x1", parts=1, device=H200) for work in works]
    assert 1.5 < times[0] / times[1] < 2.1


def _sparing(function: Any, *args: Tensor) -> list[Program]:
    """The products of a function as algebra has it."""
    graph = replace(trace(Applies(function), args, {}), sparing=True)
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    return [p.program for p in matched.patterns if p.kind == "product"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_of_a_factor_are_told_to_the_kernel_and_halve_the_work(dtype: torch.dtype) -> None:
    square = meta(4096, 4096).to(dtype)
    for function, told in (
        (lambda a, b: a.tril() @ b, "zeros=((None, 0), (None, None)),"),
        (lambda a, b: (a @ b.triu(3)).amax(1), "zeros=((None, None), (3, None)),"),
        (lambda a, b: (a.triu() @ b).relu(), "zeros=((0, None), (None, None)),"),
    ):
        for program in _sparing(function, square, square):
            space = cuda.space(program)
            assert all(dict(p)["split_k"] == 1 for p in space.points)
            texts = [f.text for f in cuda.render(program, "fused", space.points[0])]
            assert sum(told in text for text in texts) == 1
    zeros = (NO_ZEROS, ((None, 0), (None, None)))
    works = [GemmWork(m=4096, n=4096, k=4096, fp32=True, zeros=told) for told in zeros]
    whole, half = (work_ns(work, tile="128x256", cluster="2x1", parts=1, device=H200) for work in works)
    assert 1.6 < whole / half < 2.0


@pytest.mark.parametrize("zeros", [((None, 0), (None, None)), ((None, None), (-5, 9)), ((None, 3), (0, None))])
def test_steps_of_a_factor_with_zeros(zeros: Any) -> None:
    """Tile by tile, against the elements."""
    left = torch.ones(1000, 700).tril(10**6 if zeros[0][1] is None else zeros[0][1])
    right = torch.ones(700, 900)
    right = right if zeros[1][1] is None else right.tril(zeros[1][1])
    right = right if zeros[1][0] is None else right.triu(zeros[1][0])
    wanted = []
    for r in range(0, 1000, 128):
        for c in range(0, 900, 64):
            steps = torch.nonzero(left[r : r + 128].amax(0) * right[:, c : c + 64].amax(1)).flatten() // 64
            wanted.append(int(steps[-1] - steps[0] + 1) if len(steps) else 0)
    mean, most = steps_of(zeros, 1000, 700, 900, tall=128, wide=64, depth=64)
    assert most == max(wanted) and abs(mean - sum(wanted) / len(wanted)) < 0.35


@pytest.mark.slow
def test_a_triangle_and_a_mask_on_its_way_in_compile(tmp_path: Path) -> None:
    """fp32: the mask is computed by the split, and both products leave steps out."""
    a = meta(512, 512)
    programs = _sparing(lambda a, b: a.tril() @ b, a, a)
    assert [len(p.product.prologues) for p in programs if p.product] == [0, 1]
    for number, program in enumerate(programs):
        module = load_fused(program, tmp_path, name=f"fused_{number}")
        assert module._FUSED.gemm.kernels.zeros == ((None, 0), (None, None))
        assert module.run(*(meta(*o.shape) for o in program.operands))[0].shape == (512, 512)


def meta(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


SQUARE, WIDE, DEEP = meta(4096, 4096), meta(8192, 4096), meta(2048, 8192)


@pytest.mark.parametrize(
    ("title", "function", "args", "wanted"),
    [  # KernelBench, level 1
        ("matmul", lambda a, b: a @ b, (SQUARE, SQUARE), {"tile": "128x256", "store": "bulk"}),  # 1, 13
        ("matmul", lambda a, b: a @ b, (DEEP, WIDE), {"tile": "128x256", "split_k": 1}),  # 2
        ("bmm", torch.bmm, (meta(128, 512, 1024), meta(128, 1024, 2048)), {"split_k": 1}),  # 3
        ("matmul", lambda a, b: a @ b, (meta(2048, 2**20), meta(2**20, 1)), None),  # 4: a sum of rows
        ("matmul", lambda a, b: a @ b, (meta(256, 2**19), meta(2**19, 256)), {"split_k": 64, "streamed": "left"}),  # 6
        ("matmul", lambda a, b: a @ b, (meta(32768, 64), meta(64, 32768)), {"tile": "256x128", "split_k": 1}),  # 7
        ("matmul", lambda a, b: a @ b, (meta(8205, 2949), meta(2949, 5921)), {"split_k": 1}),  # 8
        ("matmul", lambda a, b: a @ b, (meta(32768, 32), meta(32, 32768)), {"split_k": 1}),  # 9
        ("matmul", lambda a, b: a @ b, (meta(16, 1024, 2048), meta(2048, 768)), {"split_k": 1}),  # 10
        ("einsum", lambda a, b: torch.einsum("bijl,lk->bijk", a, b), (meta(8, 256, 512, 256), meta(256, 768)),
         {"split_k": 1}),  # 11
        ("matmul -> triu", lambda a, b: torch.triu(a @ b), (SQUARE, SQUARE), {"tile": "128x128"}),  # 14
        ("matmul -> tril", lambda a, b: torch.tril(a @ b), (SQUARE, SQUARE), {"tile": "128x128"}),  # 15
        ("matmul", lambda a, b: a.T @ b, (meta(8192, 2048), WIDE), {"tile": "128x256"}),  # 16
        ("matmul", lambda a, b: a @ b.T, (DEEP, meta(4096, 8192)), {"tile": "128x256"}),  # 17
        ("matmul", lambda a, b: a.T @ b.T, (meta(8192, 2048), meta(4096, 8192)), {"tile": "128x256"}),  # 18
        # level 2: 55, 56, 59; 66, 68: weights that are read once
        ("linear -> sigmoid", lambda x, w, b: F.linear(x, w, b).sigmoid(), (meta(128, 32768), meta(32768, 32768),
         meta(32768)), {"tile": "128x128", "streamed": "right"}),
        ("linear", F.linear, (meta(128, 16384), meta(16384, 16384), meta(16384)), {"streamed": "right"}),
        ("linear -> relu", lambda x, w: F.linear(x, w).relu(), (meta(1024, 8192), meta(8192, 8192)),
         {"tile": "128x256", "streamed": "none"}),
    ],
)  # fmt: skip
def test_what_is_proposed_for_known_tasks(title: str, function: Any, args: Any, wanted: Any) -> None:
    matched = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space)
    assert not matched.unmatched
    pattern = matched.patterns[-1]
    assert (pattern.title, pattern.kind) == (title, "row_reduce" if wanted is None else "product")
    if wanted is not None:
        first = dict(pattern.space.points[0])
        assert {name: first[name] for name in wanted} == wanted
        assert any(dict(p)["streamed"] == "none" for p in pattern.space.points)


@pytest.mark.slow
def test_what_is_kept_takes_what_the_same_takes_that_is_compiled_for_this_alone(tmp_path: Path) -> None:
    for dtype, knobs in (
        ("f32", {"tile": "64x128", "split_k": 2}),
        ("f32", {"tile": "128x64", "streamed": "left", "split_k": 1}),
        ("bf16", {"tile": "64x64", "split_k": 1, "streamed": "none"}),
    ):
        fused = load_fused(kp.product(256, 256, 512, dtype), tmp_path)._FUSED
        fused.configure(**knobs)
        alone = fused.demand(132)
        fused.prepare(None)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(fused.gemm.kernels), "compile", lambda *a, **k: pytest.fail("it compiles again"))
            assert fused.demand(132) == alone


def test_a_looser_class_gets_products_that_are_rounded() -> None:
    """fp32's alone; they are tuned and remembered by themselves, and never streamed."""
    a, b = torch.empty(256, 65536, device="meta"), torch.empty(65536, 256, device="meta")
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        for allow_tf32 in (False, True):
            graph = trace(Applies(lambda x, y: x @ y), (a.to(dtype), b.to(dtype)), {})
            matched = match(graph, unsupported=cuda.unsupported, space=cuda.space, allow_tf32=allow_tf32)
            found[dtype, allow_tf32] = matched.patterns[0]
    exact, rounded = found[torch.float32, False], found[torch.float32, True]
    assert exact.shape_class != rounded.shape_class
    assert found[torch.bfloat16, False] == found[torch.bfloat16, True]
    assert dict(exact.space.points[0])["streamed"] == "left"
    assert {dict(p)["streamed"] for p in rounded.space.points} == {"none"}
    assert all(65536 // int(dict(p)["split_k"]) <= 8192 for p in rounded.space.points), "parts that stay in registers"
    texts = [cuda.render(p.program, "fused_0", p.space.points[0])[0].text for p in (exact, rounded)]
    assert ["rounded=True" in text for text in texts] == [False, True]


def test_a_library_may_be_faster_than_products_of_16_bits() -> None:
    guesses = []
    for dtype in (torch.float32, torch.bfloat16):
        args = torch.empty(512, 256, dtype=dtype), torch.empty(256, 384, dtype=dtype)
        graph = trace(Applies(lambda x, w: (x @ w).relu()), args, {})
        found = match(graph, unsupported=cuda.unsupported, space=cuda.space).patterns
        guesses += [p.space.guess for p in found if p.kind == "product"]
    assert guesses == [False, True]
