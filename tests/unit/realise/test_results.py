"""Products for CUDA that write several results, or other types than floats: their files, and that they compile."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.realisers import cuda
from fakes.results import masked, saved
from tilewright.facts.pattern import Pattern
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.kernels.cuda.common import math as m
from tilewright.kernels.cuda.gemm.epilogue.epilogue import EpilogueStore
from tilewright.kernels.cuda.gemm.host.compiling import compile_product
from tilewright.kernels.cuda.gemm.host.plan import Point
from tilewright.kernels.ops import DTYPES

pytestmark = pytest.mark.one_in(4)


def rand(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def eighth(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return (F.linear(x, w) * scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def rounded(x: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w)
    return torch.round(y.float() * scale).clamp(-127, 127).to(torch.int8), y.float()


def product_of(function: Callable[..., Any], *args: Tensor) -> Pattern:
    found = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space)
    return [p for p in found.patterns if p.kind == "product"][-1]


SPLIT = point(tile="128x128", cluster="1x1", stages="auto", split_k=2)
BULK = point(tile="128x128", cluster="1x1", stages="auto", split_k=1, store="bulk")
SMALL_M = point(tile="128x64", cluster="1x1", stages="auto", split_k=2, sum="cluster")
TURNED = point(tile="64x128", cluster="1x1", stages="auto", split_k=2, sum="cluster")


@pytest.mark.few(0, 1)
@pytest.mark.slow
@pytest.mark.parametrize(("function", "n", "dtype"), [
    (saved, 260, torch.float32), (masked, 256, torch.bfloat16), (eighth, 256, torch.bfloat16),
    (rounded, 260, torch.float32),
])  # fmt: skip
def test_every_way_out_writes_all_results(
    tmp_path: Path, function: Callable[..., Any], n: int, dtype: torch.dtype
) -> None:
    pattern = product_of(function, rand(512, 256, dtype=dtype), rand(n, 256, dtype=dtype), rand(n, dtype=dtype))
    wanted = [(o.shape, DTYPES[o.dtype]) for o in pattern.program.outputs]
    given = [torch.empty_strided(o.shape, o.strides, dtype=DTYPES[o.dtype], device="meta")
             for o in pattern.program.operands]  # fmt: skip
    module = load_fused(pattern.program, tmp_path)
    ways = (*pattern.space.points[:2], SPLIT, BULK, *((SMALL_M, TURNED) if dtype == torch.bfloat16 else ()))
    for setting in ways:
        module.configure(**{"sum": "kernel", "store": "direct", "schedule": "cooperative"} | dict(setting))
        made = module.run(*given)
        assert [(tuple(t.shape), t.dtype) for t in made] == wanted, dict(setting)
        assert module._FUSED.demand(132)["local_bytes"] == 0


@pytest.mark.slow
def test_bytes_leave_eight_at_a_time_and_two_where_rows_start_anywhere(tmp_path: Path) -> None:
    """128 x 128 of 128 threads: 128 masks each beside a staged result, in 16 stores of two words."""
    for vector, stores in ((8, ("st.global.v2.b32", 16)), (2, ("st.global.v2.b8", 64))):
        point = Point(tile_m=128, tile_n=128, pingpong=True, staged=vector == 8)
        finish = EpilogueStore("bf16", function=lambda product: (m.neg(product, "f32"), m.gt(product, 0.0, "bool")),
                        vector=vector, further=("bool",))  # fmt: skip
        keep = f"--keep-ptx --dump-dir={tmp_path}"
        ptx = compile_product(point, element="bf16", majors=("k", "k"), finish=finish, options=keep).artifacts.PTX  # type: ignore[attr-defined]
        found = Counter(re.findall(r"st\.global\S*", ptx))
        assert found.pop(stores[0]) == stores[1] and set(found) <= {"st.global.v2.b16"}, found


def test_a_file_says_what_it_writes(tmp_path: Path) -> None:
    pattern = product_of(saved, rand(512, 256), rand(256, 256), rand(256))
    module = load_fused(pattern.program, tmp_path)
    text = Path(str(module.__file__)).read_text()
    assert "further=(" in text and "(((512, 256), 'bf16'), ((512, 256), 'bf16'))" in text
    whole = 512 * 256 * 2
    assert module._FUSED._moved_bytes(1) == 256 * 256 * 2 + 256 * 2 + 3 * whole, "x, and both results"
    assert dict(pattern.space.points[0])["store"] == "staged", "the first leaves by way of shared memory"
    assert {dict(p)["store"] for p in product_of(eighth, rand(512, 256), rand(256, 256), rand(256)).space.points} <= {
        "direct", "bulk"
    }  # fmt: skip


def test_more_results_than_a_kernel_has_places_for_are_several_kernels() -> None:
    def many(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        y = F.linear(x, w, b)
        return [torch.relu(y * i) for i in range(1, 8)]

    pattern = product_of(many, rand(512, 256), rand(256, 256), rand(256))
    assert len(pattern.program.outputs) == 1 and pattern.title == "linear"


def test_a_mask_leaves_beside_other_results_and_by_itself() -> None:
    args = (rand(512, 256), rand(256, 256), rand(256))
    assert [o.dtype for o in product_of(masked, *args).program.outputs] == ["bf16", "bool"]
    alone = product_of(lambda x, w, b: F.linear(x, w, b) > 0, *args)
    assert [o.dtype for o in alone.program.outputs] == ["bool"]


@pytest.mark.slow
def test_a_mask_may_be_the_sum_of_parts(tmp_path: Path) -> None:
    pattern = product_of(lambda x, w, b: F.linear(x, w) > b, rand(512, 256), rand(130, 256), rand(130))
    module = load_fused(pattern.program, tmp_path)
    module.configure(**{"sum": "kernel", "store": "direct", "schedule": "cooperative"} | dict(SPLIT))
    given = [torch.empty_strided(o.shape, o.strides, dtype=DTYPES[o.dtype], device="meta")
             for o in pattern.program.operands]  # fmt: skip
    (made,) = module.run(*given)
    assert made.shape == (512, 130) and made.dtype == torch.bool and len(module._FUSED.objects) == 2
