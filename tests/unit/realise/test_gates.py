"""DualGemm pairs for CUDA: which are proposed, at which points, and what a candidate calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import view
from fakes.realisers import H200, cuda
from tilewright.facts.pattern import Bind, Choice, Pattern, without_idle
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts, Matched
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.kernels.cuda.gemm.host.plan import Point
from tilewright.realise.compose import compose
from tilewright.realise.torch_code import viewed

pytestmark = pytest.mark.one_in(4)


def rand(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def layer(x: Tensor, w: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.linear(x, w, bias)) * F.linear(x, v)


def halves(x: Tensor, w: Tensor) -> Tensor:
    gate, up = F.linear(x, w).chunk(2, -1)
    return F.gelu(gate) * up


def matched(function: Any, *args: Tensor) -> Matched:
    return match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space)


def gate_of(found: Matched) -> Pattern | None:
    return next((p for p in found.patterns if len(p.program.products) == 2), None)


def a_layer(m: int = 512, n: int = 256, k: int = 256, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, ...]:
    return tuple(rand(*shape, dtype=dtype) for shape in ((m, k), (n, k), (n + 8, k), (n,)))


def test_points_are_of_both_products_and_all_of_them_fit(tmp_path: Path) -> None:
    x, w, v, bias = a_layer()
    gate = gate_of(matched(layer, x, w, v[:256], bias))
    assert gate is not None and 4 <= len(gate.space.points) <= 8
    module = load_fused(gate.program, tmp_path)
    for setting in gate.space.points:
        module.configure(**dict(setting))
        chosen = module._FUSED.gemm.point
        assert chosen.dual and chosen.columns * 2 == chosen.tile_n
    with pytest.raises(ValueError, match="128, 192 or 256 columns"):
        module.configure(tile="128x160", store="direct")
    with pytest.raises(ValueError, match="whole sums"):
        module.configure(split_k=2)
    given = [torch.empty(o.shape, dtype=t.dtype, device="meta") for o, t in zip(
        gate.program.operands, (x, w, w, bias), strict=True)]  # fmt: skip
    given[1] = given[2] = torch.empty(256, 256, dtype=x.dtype, device="meta").t()
    module.configure(tile="128x256", store="staged", cluster="2x1", split_k=1)
    assert module.run(*given)[0].shape == (512, 256)
    assert len(module._FUSED._compiled) == 1, "one kernel: nothing is copied"
    given[2] = torch.empty(256, 256, dtype=x.dtype, device="meta")
    module.run(*given)
    assert len(module._FUSED._compiled) == 1, "a matrix that lies otherwise is copied to lie as the other"


def kept(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    gate, up = F.linear(x, w), F.linear(x, v)
    return F.silu(gate) * up, gate, up


@pytest.mark.few(0)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(512, 264, 256), (257, 330, 264)])
def test_all_points_write_both_products_too(tmp_path: Path, size: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = size
    gate = gate_of(matched(kept, rand(m, k, dtype=dtype), rand(n, k, dtype=dtype), rand(n, k, dtype=dtype)))
    assert gate is not None and len(gate.program.outputs) == 3
    module = load_fused(gate.program, tmp_path)
    w = torch.empty(n, k, dtype=dtype, device="meta").t()
    for setting in gate.space.points:
        module.configure(**dict(setting))
        results = module.run(torch.empty(m, k, dtype=dtype, device="meta"), w, w)
        assert [t.shape for t in results] == [(m, n)] * 3 and {t.dtype for t in results} == {dtype}


def test_a_tile_has_as_many_stages_as_that_of_one_product() -> None:
    dual = Point(tile_m=128, tile_n=256, staged=True, dual=True)
    alone = Point(tile_m=128, tile_n=256, staged=True)
    assert dual.stage_bytes == alone.stage_bytes and dual.depth_stages >= alone.depth_stages
    assert dual.smem_store_bytes * 2 == alone.smem_store_bytes, "half as much leaves"
    for wrong in ({"scheme": "fp8"}, {"split_k": 2}, {"bulk": True, "scheme": "fp16x3"}, {"tile_n": 64}):
        with pytest.raises(ValueError, match="dual"):
            Point(**{"tile_m": 128, "tile_n": 128, "dual": True} | wrong)


def test_a_candidate_hands_over_halves_of_the_weight_as_they_lie() -> None:
    x, w = rand(512, 256), rand(512, 256)
    found = matched(halves, x, w)
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in found.patterns)
    recipe = without_idle([found.patterns], recipe)
    assert len(recipe) == 1
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="bf16")
    graph = trace(Applies(halves), (x, w), {})
    facts = CaseFacts(inputs=(), outputs=(), work=work, graph=graph)
    files = compose("class Model: ...", (facts,), (found,), recipe, device=H200).files
    case = next(f.text for f in files if f.path == "model.py").split("def _case_0", 1)[1].split("def ", 1)[0]
    first, second = "args_1.narrow(0, 0, 256).permute((1, 0))", "args_1.narrow(0, 256, 256).permute((1, 0))"
    assert f"run(args_0, {first}, {second})" in case, case


@pytest.mark.parametrize("shape", [(6, 10), (10,), (1, 10)])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("part", [0, 1])
def test_a_part_is_written_as_what_it_is(shape: tuple[int, ...], interleaved: bool, part: int) -> None:
    """As `Bind` has it, whichever dimension is in halves."""
    value = torch.arange(torch.Size(shape).numel()).reshape(shape)
    for dim in range(len(shape)):
        if shape[dim] % 2:
            continue
        half = shape[dim] // 2
        split = (*shape[:dim], *((half, 2) if interleaved else (2, half)), *shape[dim + 1 :])
        which, kept = (dim + 1, dim) if interleaved else (dim, dim + 1)
        others = tuple(d for d in range(len(split)) if d not in (which, kept))
        bind = Bind(node="x", split=split, order=(which, *others, kept), part=part)
        wanted = view(value, bind, tuple(split[d] for d in (*others, kept)))
        assert torch.equal(eval(viewed("value", shape, bind, tuple(wanted.shape))), wanted)


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [(512, 256, 24, torch.float32), (4096, 16, 4096, torch.bfloat16), (512, 256, 260, torch.bfloat16)],
)
def test_others_stay_products_by_themselves(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    x, w, v, bias = a_layer(m, n, k, dtype)
    found = matched(layer, x, w, v[:n], bias)
    assert gate_of(found) is None


def test_matrices_that_lie_in_different_ways_are_two_kernels() -> None:
    x, w, v = rand(512, 256), rand(256, 256), rand(256, 256)
    assert gate_of(matched(lambda x, w, v: F.silu(x @ w) * F.linear(x, v), x, w, v)) is None
    assert gate_of(matched(lambda x, w, v: F.silu(x @ w) * (x @ v), x, w, v)) is not None


@pytest.mark.few
@pytest.mark.parametrize("m", [1, 16, 32, 64])
@pytest.mark.parametrize("across", [False, True])
def test_few_rows_meet_both_matrices_in_one_skinny_kernel(tmp_path: Path, m: int, across: bool) -> None:
    """Whose rows those matrices are: as many of each in a tile, as they lie."""
    x, w, v = rand(m, 1024), rand(2048, 1024), rand(2048, 1024)
    if across:
        w, v = w.t().contiguous(), v.t().contiguous()
        gate = gate_of(matched(lambda x, w, v: F.silu(x @ w) * (x @ v), x, w, v))
    else:
        gate = gate_of(matched(lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v), x, w, v))
    assert gate is not None
    tiles = {str(dict(p)["tile"]) for p in gate.space.points}
    assert all(tile.startswith(f"{max(m, 16)}x") for tile in tiles) and tiles <= set(gate.space.knobs[0].values)
    assert not across or tiles == {f"{max(m, 16)}x128"}, "what lies across K comes 64 rows at a time"
    module = load_fused(gate.program, tmp_path)
    strides = (2048, 1) if across else (1, 1024)
    given = [torch.empty_strided((m, 1024), (1024, 1), dtype=x.dtype, device="meta")]
    given += [torch.empty_strided((1024, 2048), strides, dtype=x.dtype, device="meta") for _ in range(2)]
    for setting in (gate.space.points[0], gate.space.points[-1]):
        module.configure(**dict(setting))
        assert module.run(*given)[0].shape == (m, 2048)
        point, demand = module._FUSED.gemm.point, module._FUSED.demand(132)
        assert point.dual and point.tile_m == 2 * point.rows and (point.columns, point.groups) == (max(m, 16), 1)
        assert point.depth_stages == dict(setting)["stages"], "they leave room for as many CTAs as were meant"
        tiles_of_c = -(-2048 // point.rows)
        assert demand["ctas"] == tiles_of_c * int(dict(setting)["split_k"]) and demand["local_bytes"] == 0


@pytest.mark.parametrize(
    ("m", "n", "k", "tile", "resident"),
    [(1, 14336, 4096, "16x112", 2), (16, 14336, 4096, "16x112", 2), (1, 18944, 3584, "16x96", 3),
     (64, 18944, 3584, "64x96", 3), (1, 28672, 8192, "16x112", 2)],
)  # fmt: skip
def test_few_rows_fill_whole_waves_first(m: int, n: int, k: int, tile: str, resident: int) -> None:
    """As measured, docs/measured.md: what is even is fastest."""
    x, w, v = torch.empty(m, k).bfloat16(), torch.empty(n, k).bfloat16(), torch.empty(n, k).bfloat16()
    gate = gate_of(matched(lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v), x, w, v))
    assert gate is not None
    first = dict(gate.space.points[0])
    rows, columns = map(int, tile.split("x"))
    own = Point(tile_m=columns, tile_n=rows, cluster_m=1, small_m=True, dual=True, stages=int(first["stages"]))
    assert (first["tile"], first["split_k"], own.resident) == (tile, 1, resident)


def test_every_other_column_of_one_row_is_a_pair() -> None:
    def interleaved(x: Tensor, w: Tensor) -> Tensor:
        y = F.linear(x, w)
        return F.silu(y[..., ::2]) * y[..., 1::2]

    for m in (1, 2):
        assert gate_of(matched(interleaved, rand(m, 1024), rand(2048, 1024))) is not None


def test_fp32_splits_the_left_factor_once(tmp_path: Path) -> None:
    x, w, v, bias = a_layer(dtype=torch.float32)
    gate = gate_of(matched(layer, x, w, v[:256], bias))
    assert gate is not None and {dict(p)["store"] for p in gate.space.points} == {"direct"}
    assert dict(gate.space.points[-1])["split"] == "bf16x6", "where three products of fp16 are not accurate enough"
    module = load_fused(gate.program, tmp_path)
    given = [torch.empty_strided(o.shape, o.strides, dtype=x.dtype, device="meta") for o in gate.program.operands]
    assert module.run(*given)[0].shape == (512, 256)
    assert len(module._FUSED._compiled) == 2, "one split for all three matrices, and the product"
    point = module._FUSED.gemm.point
    assert point.planes == 2 and point.dual and module._FUSED.demand(132)["local_bytes"] == 0
    given[2] = torch.empty(256, 256, dtype=x.dtype, device="meta")
    module.run(*given)
    assert len(module._FUSED._compiled) == 3, "planes of what lies otherwise are written along K"


def test_pairs_are_another_class_of_shapes() -> None:
    x, w, v, bias = a_layer()
    found = matched(layer, x, w, v[:256], bias)
    assert len({p.shape_class for p in found.patterns}) == len(found.patterns)
    setting = point(tile="128x256", cluster="2x1", stages="auto", split_k=1, store="staged")
    assert any(dict(setting).items() <= dict(p).items() for p in gate_of(found).space.points)  # type: ignore[union-attr]
