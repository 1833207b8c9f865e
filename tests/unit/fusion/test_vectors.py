"""Products that memory bounds: which patterns come out of each, and that these give what the module gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.matched import fused
from fakes.modules import Applies
from fakes.realisers import cpu, cuda
from tilewright.frontend.lowering import products as lower_products
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.graph import Graph

pytestmark = pytest.mark.each(3)


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def einsum(equation: str) -> Callable[..., Tensor]:
    return lambda *tensors: torch.einsum(equation, *tensors)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is too small to be lowered."""
    for name in ("LARGE", "LARGEST", "_FEW_DEPTH"):
        monkeypatch.setattr(lower_products, name, 1)


NAN = torch.full((1,), float("nan"))
ROWS, COLUMNS, WHOLE, POINTWISE = "row_reduce", "column_reduce", "whole_reduce", "pointwise"
ONE: dict[str, tuple[str, Callable[..., Any], tuple[Tensor, ...]]] = {
    "A @ v": (ROWS, torch.matmul, (rand(5, 70), rand(70))),
    "v @ A": (COLUMNS, torch.matmul, (rand(70), rand(70, 5))),
    "v @ A.T": (ROWS, lambda v, a: v @ a.t(), (rand(70), rand(5, 70))),
    "batch @ v": (ROWS, torch.matmul, (rand(2, 3, 5, 70), rand(70))),
    "v @ batch": (COLUMNS, torch.matmul, (rand(70), rand(2, 3, 70, 5))),
    "mv": (ROWS, torch.mv, (rand(5, 70), rand(70))),
    "addmv": (ROWS, lambda c, a, v: torch.addmv(c, a, v, beta=0.5, alpha=2), (rand(5), rand(5, 70), rand(70))),
    "addmv of nothing": (ROWS, lambda c, a, v: torch.addmv(c, a, v, beta=0), (NAN, rand(5, 70), rand(70))),
    "dot": (WHOLE, torch.dot, (rand(90), rand(90))),
    "vdot": (WHOLE, torch.vdot, (rand(90), rand(90))),
    "inner": (ROWS, torch.inner, (rand(90), rand(3, 2, 90))),
    "tensordot": (ROWS, lambda a, b: torch.tensordot(a, b, 2), (rand(3, 4, 5), rand(4, 5))),
    "outer": (POINTWISE, torch.outer, (rand(4), rand(6))),
    "ger": (POINTWISE, torch.ger, (rand(4), rand(6))),
    "addr": (POINTWISE, lambda c, a, b: torch.addr(c, a, b, beta=3), (rand(4, 6), rand(4), rand(6))),
    "linear of a vector": (ROWS, F.linear, (rand(90), rand(6, 90), rand(6))),
    "linear of a row": (ROWS, lambda x, w, b: F.gelu(F.linear(x, w, b)), (rand(1, 90), rand(6, 90), rand(6))),
    "linear of one feature": (ROWS, F.linear, (rand(2, 3, 90), rand(1, 90), rand(1))),
    "(1, K) @ (K, N)": (COLUMNS, torch.matmul, (rand(1, 90), rand(90, 6))),
    "addmm of a row": (COLUMNS, torch.addmm, (rand(6), rand(1, 90), rand(90, 6))),
    "bmm of columns": (ROWS, torch.bmm, (rand(4, 6, 90), rand(4, 90, 1))),
    "bmm of rows": (COLUMNS, torch.bmm, (rand(4, 1, 90), rand(4, 90, 6))),
    "baddbmm of rows": (COLUMNS, torch.baddbmm, (rand(4, 1, 6), rand(4, 1, 90), rand(4, 90, 6))),
    "addbmm of rows": (COLUMNS, torch.addbmm, (rand(1, 6), rand(3, 1, 90), rand(3, 90, 6))),
    "a query and keys": (ROWS, einsum("bhqd,bhkd->bhqk"), (rand(2, 3, 1, 90), rand(2, 3, 20, 90))),
    "scores and values": (COLUMNS, einsum("bhqk,bkhd->bqhd"), (rand(2, 3, 1, 20), rand(2, 20, 3, 50))),
    "bi,bi->b": (ROWS, einsum("bi,bi->b"), (rand(4, 90), rand(4, 90))),
    "bij,bj->bi": (ROWS, einsum("bij,bj->bi"), (rand(4, 6, 90), rand(4, 90))),
    "bij,bj->ib": (ROWS, einsum("bij,bj->ib"), (rand(4, 6, 90), rand(4, 90))),
    "...i,...i": (ROWS, einsum("...i,...i"), (rand(2, 4, 90), rand(4, 90))),
    "bi,bi->": (WHOLE, einsum("bi,bi->"), (rand(4, 90), rand(4, 90))),
    "i,j->ji": (POINTWISE, einsum("i,j->ji"), (rand(4), rand(5))),
    "bn,bnd->bnd": (POINTWISE, einsum("bn,bnd->bnd"), (rand(4, 5), rand(4, 5, 6))),
    "bii->b": (COLUMNS, einsum("bii->b"), (rand(4, 5, 5),)),
    "bii,bij->bj": (COLUMNS, einsum("bii,bij->bj"), (rand(4, 5, 5), rand(4, 5, 6))),
    "ijk->kj": (COLUMNS, einsum("ijk->kj"), (rand(4, 5, 6),)),
    "K of 3": (POINTWISE, lambda a, b: F.gelu(a @ b), (rand(60, 3), rand(3, 50))),
    "K of 2 and 3": (POINTWISE, einsum("mab,abn->mn"), (rand(60, 2, 3), rand(2, 3, 50))),
    "linear of 3 features": (POINTWISE, F.linear, (rand(5, 60, 3), rand(50, 3), rand(50))),
    "linear of 1": (POINTWISE, F.linear, (rand(60, 1), rand(50, 1), rand(50))),
    "bmm of K of 3": (POINTWISE, torch.matmul, (rand(2, 1, 60, 3), rand(3, 3, 50))),
}  # fmt: skip


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ONE)
def test_one_kernel_has_all_of_it(name: str) -> None:
    kind, function, args = ONE[name]
    matched = fused(function, *args)
    assert [p.kind for p in matched.patterns] == [kind] and not matched.unmatched
    assert {reason(p.program) for p in matched.patterns for reason in (cuda.unsupported, cpu.unsupported)} == {None}


FEW: dict[str, tuple[str, int, Callable[..., Any], tuple[Tensor, ...]]] = {
    "linear": (ROWS, 3, lambda x, w, b: F.gelu(F.linear(x, w, b)), (rand(3, 90), rand(20, 90), rand(20))),
    "linear of two batches": (ROWS, 4, F.linear, (rand(2, 2, 90), rand(20, 90), rand(20))),
    "linear of few features": (ROWS, 3, F.linear, (rand(20, 90), rand(3, 90), rand(3))),
    "matmul": (COLUMNS, 8, torch.matmul, (rand(8, 90), rand(90, 20))),
    "bmm": (COLUMNS, 3, torch.matmul, (rand(4, 3, 90), rand(4, 90, 20))),
    "addbmm": (COLUMNS, 4, torch.addbmm, (rand(4, 6), rand(3, 4, 50), rand(3, 50, 6))),
    "few queries": (COLUMNS, 4, einsum("bhqk,bkhd->bqhd"), (rand(2, 3, 4, 60), rand(2, 60, 3, 50))),
    "tensordot": (ROWS, 3, lambda a, b: torch.tensordot(a, b, ([1, 2], [0, 2])), (rand(3, 4, 5), rand(4, 6, 5))),
}  # fmt: skip


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", FEW)
def test_few_vectors_take_one_pass_and_are_laid_side_by_side(name: str) -> None:
    kind, count, function, args = FEW[name]
    matched = fused(function, *args)
    first, second = matched.patterns
    assert (first.kind, second.kind) == (kind, POINTWISE) and not matched.unmatched
    assert len(first.program.outputs) == count and first.title == second.title.split(" -> ")[0]


@pytest.mark.usefixtures("small")
def test_what_neither_other_has_is_summed_first() -> None:
    matched = fused(einsum("ij,jk->i"), rand(5, 70), rand(70, 6))
    assert [(p.kind, p.program.domain) for p in matched.patterns] == [(ROWS, (70, 6)), (ROWS, (5, 70))]


@pytest.mark.usefixtures("small")
def test_more_vectors_are_torchs_and_fewer_along_k_than_across() -> None:
    for count, function, matrix in ((4, F.linear, rand(20, 990)), (8, torch.matmul, rand(990, 20))):
        assert fused(function, rand(count, 990), matrix).patterns[0].kind != "product"
        assert fused(function, rand(count + 1, 990), matrix).patterns[0].kind == "product"


@pytest.mark.usefixtures("small")
def test_sums_along_what_lies_across_are_of_columns() -> None:
    """The order in memory counts, not that of the dimensions."""
    weight = rand(90, 20).t()
    assert fused(F.linear, rand(8, 90), weight).patterns[0].kind == COLUMNS
    assert fused(F.linear, rand(1, 90), weight).patterns[0].kind == COLUMNS


def graph(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Graph:
    return trace(Applies(function), tuple(torch.empty(s, dtype=dtype, device="meta") for s in shapes), {})


def kinds(given: Graph) -> list[str]:
    return [p.kind for p in match(given, unsupported=cuda.unsupported, space=cuda.space).patterns]


def test_where_little_is_read_torchs_operator_stays() -> None:
    for function, large, little in (
        (torch.matmul, [(2048, 512), (512,)], [(2047, 512), (512,)]),
        (F.linear, [(2, 4096), (4096, 4096)], [(2, 4096), (4095, 4096)]),
        (torch.matmul, [(32768, 4), (4, 512)], [(32767, 4), (4, 512)]),
        (F.linear, [(4, 256), (65536, 256)], [(4, 255), (65536 * 2, 255)]),
    ):
        assert kinds(graph(function, *large)) and not kinds(graph(function, *little)), (function, large)
    assert kinds(graph(torch.matmul, (32768, 4), (4, 512))) == [POINTWISE]
    assert "product" in kinds(graph(torch.matmul, (32768, 8), (8, 512)))


def test_a_row_or_a_batch_of_16_bits_is_what_tensor_cores_take() -> None:
    half = torch.bfloat16
    for shapes, kind in (
        ([(1, 1024), (1024, 1024)], "product"), ([(4, 1024), (1024, 4096)], "product"),
        ([(4, 1, 1024), (4, 1024, 1024)], "product"), ([(4, 1024, 1024), (4, 1024, 1)], "product"),
        ([(1024, 1024), (1024, 1)], ROWS), ([(1024, 1024), (1024,)], ROWS), ([(1024,), (1024, 1024)], COLUMNS),
        ([(64, 256, 128), (64, 128, 1)], ROWS), ([(65536, 4), (4, 512)], POINTWISE),
    ):  # fmt: skip
        assert kinds(graph(torch.matmul, *shapes, dtype=half)) == [kind], shapes


def test_products_of_another_dtype_are_torchs() -> None:
    """`mm` that gives fp32 of 16 bits: another overload."""
    given = graph(lambda a, b: torch.mm(a, b, out_dtype=torch.float32), (2048, 1024), (1024, 1), dtype=torch.bfloat16)
    assert [n.op for n in given.nodes] == ["input", "input", "call"]


def test_sums_that_torch_lays_in_another_order_are_copied_and_others_are_views() -> None:
    def last(given: Graph) -> str:
        return next(n for n in given.nodes if n.name == given.outputs[0]).op

    assert last(graph(einsum("bij,bj->ib"), (4, 1024, 512), (4, 512))) == "permute"
    assert last(graph(einsum("ijk,k->ji"), (4, 1024, 512), (512,))) == "to"


def test_a_diagonal_and_an_order_are_torchs_views() -> None:
    for equation, shape in (("bii->bi", (4, 5, 5)), ("ij->ji", (4, 5))):
        assert [n.op for n in graph(einsum(equation), shape).nodes] == ["input", "call"]
