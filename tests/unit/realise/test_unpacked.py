"""Weights of eight bits go into small-M products as they are: which of them, at which points, and that all compiles for
Hopper; the rest stays a kernel of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.eight_bits import (
    behind,
    from_the_left,
    groups_from_the_left,
    in_fp32,
    in_groups,
    in_groups_beside_rows,
    rand,
    scaled,
    weight,
)
from fakes.fused import load_fused
from fakes.matched import fused
from fakes.modules import Applies
from fakes.realisers import cuda, gpu
from tilewright.facts.codec import dumps, loads
from tilewright.facts.pattern import Choice, Pattern, without_idle
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.program import Contraction
from tilewright.ir.validation import validate
from tilewright.kernels.cuda.gemm.epilogue.epilogue import EpilogueStore
from tilewright.kernels.cuda.gemm.host.plan import Point, make_grid
from tilewright.kernels.cuda.gemm.mainloop.mixed_input import EIGHT_BITS, LINE, MixedInputProduct
from tilewright.realise.gemm import small_m as small_m

pytestmark = pytest.mark.one_in(4)

HALF = rand(16, 1024, dtype=torch.bfloat16)
FUNCTIONS = (scaled, in_fp32, behind, from_the_left)


def made_of(m: int, n: int, k: int, kind: torch.dtype = torch.int8, dtype: torch.dtype = torch.bfloat16) -> Any:
    return rand(m, k, dtype=dtype), weight(n, k, kind), rand(n, dtype=dtype)


def patterns(function: Callable[..., Any], args: tuple[Tensor, ...]) -> list[Pattern]:
    return list(match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space).patterns)


def mixed_input(found: list[Pattern]) -> list[Pattern]:
    return [p for p in found if p.program.product is not None and p.program.product.prologues]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_weights_enter_beside_the_product_without_them(function: Callable[..., Any], kind: torch.dtype) -> None:
    found = patterns(function, made_of(4, 1030, 1024, kind, torch.float16))
    (whole,) = mixed_input(found)
    validate(whole.program)
    every = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in found)
    assert without_idle([found], every) == (every[found.index(whole)],)
    assert any(p.kind == "product" and p is not whole for p in found)
    tile = "128x16" if function is from_the_left else "16x128"
    assert {(dict(p)["tile"], dict(p)["sum"]) for p in whole.space.points} == {(tile, "cluster")}
    knobs = {knob.name: knob.values for knob in whole.space.knobs}
    assert all(dict(p)["tile"] in knobs["tile"] for p in whole.space.points)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_module_is_what_is_computed(function: Callable[..., Any]) -> None:
    """Every pattern's Program, in float64 (see `fused`)."""
    assert mixed_input(list(fused(function, *made_of(4, 1030, 1024)).patterns))


IN_GROUPS = (in_groups, in_groups_beside_rows, groups_from_the_left)


def with_groups(function: Callable[..., Any], group: int, k: int = 1024) -> tuple[Tensor, ...]:
    x, w, of_row = made_of(4, 1030, k)
    more = (of_row,) if function is in_groups_beside_rows else ()
    return x, w, rand(1030, k // group, dtype=torch.bfloat16), *more


@pytest.mark.parametrize("function", IN_GROUPS)
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_a_scale_for_every_group_of_k(function: Callable[..., Any], group: int) -> None:
    """In the Program, in float64 (see `fused`), and as it is written down."""
    found = fused(function, *with_groups(function, group)).patterns
    (whole,) = mixed_input(list(found))
    validate(whole.program)
    assert loads(dumps(whole.program)) == whole.program
    (prologue,) = whole.program.product.prologues if whole.program.product else ()
    assert len(prologue.program.domain) == 3 and len(prologue.made.shape) == 2
    wrong = replace(prologue, program=replace(prologue.program, domain=prologue.program.domain[::-1]))
    body = tuple(replace(i, prologues=(wrong,)) if isinstance(i, Contraction) else i for i in whole.program.body)
    with pytest.raises(ValueError, match=r"x\d"):
        validate(replace(whole.program, body=body))


def test_other_groups_and_fp32_are_left_to_kernels_of_their_own() -> None:
    assert not mixed_input(patterns(in_groups, with_groups(in_groups, 96, 1152)))
    x, w, scale = with_groups(in_groups, 128)
    assert not mixed_input(patterns(in_groups, (x.float().repeat(64, 1), w, scale.float())))


@pytest.mark.parametrize(("m", "tile"), [(2, "16x128"), (17, "32x128"), (64, "64x128")])
def test_the_smallest_tile_that_holds_all_rows(m: int, tile: str) -> None:
    (whole,) = mixed_input(patterns(scaled, made_of(m, 4096, 14336)))
    assert {dict(p)["tile"] for p in whole.space.points} == {tile}
    assert len(whole.space.points) == 4 and 8 in [dict(p)["split_k"] for p in whole.space.points]


def across(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return x @ (w.to(x.dtype) * scale[None, :])


def in_integers(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, (w - 3).to(x.dtype) * scale[:, None])


def along_k(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype) * scale)


@pytest.mark.parametrize(("function", "args"), [
    (scaled, made_of(65, 1030, 1024)), (scaled, made_of(4, 1030, 1040)), (in_integers, made_of(4, 1030, 1024)),
    (across, made_of(4, 1024, 1024)), (along_k, made_of(4, 1024, 1024)),
    (lambda x, w, s: F.linear(F.silu(x), w), (HALF, HALF.repeat(64, 1), HALF)),
    (lambda x, w, s: F.linear(w.to(torch.bfloat16), x.repeat(64, 1)), made_of(16, 4, 1024)),
])  # fmt: skip
def test_others_are_made_by_a_kernel_of_their_own(function: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    """Many rows, an odd K, arithmetic of bytes, weights across K, what changes along K, 16 bits, the small factor."""
    assert not mixed_input(patterns(function, args))


def test_what_rounds_for_nothing_is_left_out() -> None:
    (whole,) = mixed_input(patterns(scaled, made_of(4, 1030, 1024)))
    product = whole.program.product
    assert product is not None
    assert [i.dtype for i in product.prologues[0].program.body] == ["bf16", "bf16"]
    assert [i.dtype for i in small_m.in_fp32(product.prologues[0]).body] == ["f32", "f32"]
    assert tuple(EIGHT_BITS) == small_m.EIGHT_BITS


@pytest.mark.slow
@pytest.mark.parametrize(("function", "m", "kind", "dtype"), [
    (scaled, 4, torch.int8, torch.bfloat16), (in_fp32, 20, torch.uint8, torch.float16),
    (behind, 33, torch.float8_e4m3fn, torch.bfloat16), (from_the_left, 4, torch.int8, torch.bfloat16),
])  # fmt: skip
def test_it_compiles_for_hopper(
    tmp_path: Path, function: Callable[..., Any], m: int, kind: torch.dtype, dtype: torch.dtype
) -> None:
    (whole,) = mixed_input(patterns(function, made_of(m, 1030, 1024, kind, dtype)))
    module = load_fused(whole.program, tmp_path)
    small = {"tile": str(dict(whole.space.points[0])["tile"]).replace("128", "64")} if m <= 32 else {}
    for setting in (*map(dict, whole.space.points), small):
        module.configure(**setting)
        module._FUSED.prepare(gpu())
        demand = module._FUSED.demand(132)
        assert demand["local_bytes"] == 0 and demand["shared_bytes"] <= 227 * 1024 // 2
    other = "16x128" if function is from_the_left else "128x16"
    for wrong, why in (({"sum": "kernel", "tile": "128x128"}, "is a small-M one"), ({"tile": other}, "long side")):
        with pytest.raises(ValueError, match=why):
            module.configure(**wrong)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "group"), [(in_groups, 32), (in_groups_beside_rows, 256),
                                                 (groups_from_the_left, 128)])  # fmt: skip
def test_groups_compile_for_hopper(tmp_path: Path, function: Callable[..., Any], group: int) -> None:
    (whole,) = mixed_input(patterns(function, with_groups(function, group)))
    module = load_fused(whole.program, tmp_path)
    module._FUSED.prepare(gpu())
    assert module._FUSED.demand(132)["local_bytes"] == 0


@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_whole_numbers_are_exact_as_the_last_bits_of_2_to_the_23(kind: str) -> None:
    turn, less = re.findall(r"xor.b32 t, {\$r0}, (\w+);.*a, 0f(\w+); sub", EIGHT_BITS[kind])[0]
    every = torch.arange(256, dtype=torch.int32)
    held = (every ^ (int(turn, 16) & 0xFF)) | 0x4B000000
    made = held.view(torch.float32) - torch.tensor(int(less, 16), dtype=torch.int32).view(torch.float32)
    assert torch.equal(made, every.to(torch.uint8).view({"i8": torch.int8, "u8": torch.uint8}[kind]).float())


@pytest.mark.parametrize("function", [in_groups, groups_from_the_left])
def test_a_kernel_knows_how_long_groups_are(tmp_path: Path, function: Callable[..., Any]) -> None:
    (whole,) = mixed_input(patterns(function, with_groups(function, 256)))
    spec = load_fused(whole.program, tmp_path)._FUSED.spec
    (prologue,) = [p for p in spec.before if p]
    point = Point(tile_m=128, tile_n=16, cluster_m=1, scheme="mixed_input", small_m=True)
    kernel = MixedInputProduct(point, EpilogueStore("bf16", vector=1), prologue, "bf16")
    assert kernel._group() == 256 and [kernel._in_groups(o) for o in kernel._factors()] == [True]


def test_a_stage_is_a_line_of_bytes() -> None:
    point = Point(tile_m=128, tile_n=16, cluster_m=1, scheme="mixed_input", small_m=True, split_k=4)
    assert point.depth == LINE and point.stage_bytes == 128 * 128 + 16 * 256 and not point.scales
    grid = make_grid(point, 4096, 4, 14336, processors=132)
    assert (grid.clusters, grid.chunk) == (32, 28 * 128)
    with pytest.raises(ValueError, match="small-M"):
        Point(tile_m=128, tile_n=64, scheme="mixed_input")
