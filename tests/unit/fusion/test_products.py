"""Products of matrices are found with what is computed of them on the way out, and give what the module gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.matched import fused
from fakes.modules import Applies
from tilewright.facts.pattern import Pattern
from tilewright.facts.space import Space
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.access import each_of
from tilewright.ir.graph import Graph
from tilewright.realise.gemm.shape import matrices

pytestmark = pytest.mark.each(3)


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def products(function: Callable[..., Any], *args: Tensor) -> list[Pattern]:
    """Those that are found, each held against the module in float64 (see `fused`)."""
    return [p for p in fused(function, *args).patterns if p.kind == "product"]


def only(function: Callable[..., Any], *args: Tensor) -> Pattern:
    found = products(function, *args)
    assert len(found) == 1, [p.title for p in found]
    return found[0]


A, W, BIAS = rand(6, 10), rand(4, 10), rand(4)
Q, KEYS = rand(2, 3, 5, 8), rand(2, 3, 7, 8)


@pytest.mark.parametrize(
    ("title", "domain", "function", "args"),
    [
        ("linear", (6, 4), F.linear, (A, W, BIAS)),
        ("linear -> gelu", (6, 4), lambda a, w, b: F.gelu(F.linear(a, w, b)), (A, W, BIAS)),
        ("linear -> relu -> add", (6, 4), lambda a, w, c: F.linear(a.view(2, 3, 10), w).relu() + c,
         (A, W, rand(2, 3, 4))),
        ("mm -> scale -> tanh", (6, 4), lambda a, w: (torch.mm(a, w.t()) * 0.5).tanh(), (A, W)),
        ("addmm", (6, 4), lambda a, w, b: torch.addmm(b, a, w.t(), beta=0.5, alpha=2), (A, W, BIAS)),
        ("bmm -> add", (2, 6, 4), lambda a, b, c: torch.bmm(a, b) + c, (rand(2, 6, 10), rand(2, 10, 4), BIAS)),
        ("baddbmm", (2, 6, 4), lambda a, b, c: torch.baddbmm(c, a, b), (rand(2, 6, 10), rand(2, 10, 4), rand(2, 1, 4))),
        ("matmul -> scale", (6, 5, 7), lambda q, k: (q @ k.transpose(-1, -2)) / 3, (Q, KEYS)),
        ("matmul -> scale -> relu", (12, 4), lambda a, w: (F.relu((a @ w) * 2)), (rand(3, 4, 10), rand(10, 4))),
        ("einsum", (6, 5, 7), lambda q, k: torch.einsum("bhik,bhjk->bhij", q, k), (Q, KEYS)),
        ("einsum -> sigmoid", (10, 6), lambda a, b: torch.einsum("kj,ik->ji", a, b).sigmoid(),
         (rand(9, 10), rand(6, 9))),
        ("matmul -> triu", (6, 4), lambda a, w: torch.triu(a @ w, 1), (A, rand(10, 4))),
        ("bmm -> tril -> relu", (2, 6, 4), lambda a, b: torch.bmm(a, b).tril().relu(),
         (rand(2, 6, 10), rand(2, 10, 4))),
        ("einsum", (6, 35), lambda a, b: torch.einsum("ki,kjl->ijl", a, b), (rand(9, 6), rand(9, 5, 7))),
    ],
)  # fmt: skip
def test_operators_and_what_follows_them(title: str, domain: tuple[int, ...], function: Any, args: Any) -> None:
    found = only(function, *args)
    assert (found.title, found.program.domain) == (title, domain)


def test_how_a_weight_lies_is_known() -> None:
    left, right, bias = only(F.linear, A, W, BIAS).program.operands
    assert (left.shape, left.order) == ((6, 10), ()) and left.indexed
    assert (right.shape, right.order) == ((10, 4), (1, 0)) and bias.shape == (1, 4)
    batched = only(lambda q, k: q @ k.transpose(-1, -2), Q, KEYS).program.operands[1]
    assert (batched.shape, batched.order) == ((6, 8, 7), (0, 2, 1))


def test_what_reads_it_stays_a_kernel_for_whoever_leaves_the_product_to_torch() -> None:
    def forward(a: Tensor, w: Tensor, c: Tensor) -> Tensor:
        return F.gelu(F.linear(a, w)) + c

    graph = trace(Applies(forward), (A, W, rand(6, 4)), {})
    kinds = {p.title: p.kind for p in fused(forward, A, W, rand(6, 4)).patterns}
    assert kinds == {"gelu -> add": "pointwise", "linear -> gelu -> add": "product"}
    torch_only = _matched(graph, lambda p: "no" if p.product else None)
    assert [p.kind for p in torch_only.patterns] == ["pointwise"]
    assert torch_only.unmatched == ("aten.linear.default: no",)
    bare = _matched(graph, lambda p: "not with that" if p.product and len(p.body) > 1 else None)
    assert [p.title for p in bare.patterns] == ["gelu -> add", "linear"], "then without what follows"


def _matched(graph: Graph, unsupported: Callable[..., str | None]) -> Any:
    return match(graph, unsupported=unsupported, space=lambda p: Space(knobs=(), points=((),)), tiny_bytes=0)


def test_a_gate_takes_the_second_product_along() -> None:
    w, v = rand(10, 4), rand(10, 4) * 2
    found = products(lambda a, w, v: F.silu(a @ w) * (a @ v), A, w, v)
    assert [p.title for p in found] == ["matmul", "silu -> matmul -> mul", "matmul -> silu -> matmul -> mul"]
    assert [len(p.program.products) for p in found] == [1, 1, 2], "or both are one kernel (see test_gates)"


def test_what_others_read_and_what_is_reduced_stay_apart() -> None:
    def twice(a: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.linear(a, w)
        return y, y.softmax(-1)

    assert only(twice, A, W).title == "linear"
    assert only(lambda a, w: F.linear(a, w).mul(2).softmax(0), A, W).title == "linear"
    assert only(lambda a, w: F.linear(a, w).tril().softmax(-1), A, W).title == "linear"
    apart = rand(2, 1, 2, 4)  # along the first and the last of three dimensions that are rows
    assert only(lambda a, w, c: F.linear(a.view(2, 3, 2, 10), w) + c, rand(12, 10), W, apart).title == "linear"


GROUPED = rand(2, 8, 5, 6), rand(2, 2, 7, 6)


@pytest.mark.parametrize(
    ("title", "domain", "partly", "function", "args"),
    [
        ("linear -> add", (6, 4), [((3, 4), (1, 1))], lambda a, w, c: F.linear(a.view(2, 3, 10), w) + c,
         (A, W, rand(3, 4))),
        ("linear -> add", (6, 4), [((2, 4), (3, 1))], lambda a, w, c: F.linear(a.view(2, 3, 10), w) + c,
         (A, W, rand(2, 1, 4))),
        ("linear -> mul -> add", (12, 4), [((3, 1), (2, 1)), ((1, 2), (1, 2))],
         lambda a, w, c, d: F.linear(a.view(2, 3, 2, 10), w).view(2, 3, 2, 2, 2) * c[:, None, None, None] + d[:, None],
         (rand(12, 10), W, rand(3), rand(2))),
        ("matmul -> scale -> add", (6, 5, 7), [((2, 5, 7), (3, 1, 1))],
         lambda q, k, m: (q @ k.mT) * 0.5 + m, (Q, KEYS, rand(2, 1, 5, 7))),
        ("matmul -> add", (6, 5, 7), [((3, 1, 7), (1, 1, 1))], lambda q, k, m: (q @ k.mT) + m,
         (Q, KEYS, rand(3, 1, 7))),
        ("matmul -> mask", (6, 5, 7), [((2, 1, 7), (3, 1, 1))],
         lambda q, k, m: (q @ k.mT).masked_fill(m, -1.0), (Q, KEYS, rand(2, 1, 1, 7).gt(0))),
        ("linear -> gelu -> mul", (6, 4), [((3, 4), (1, 1))],
         lambda a, w, c: F.gelu(F.linear(a.view(2, 3, 10), w)) * c.t(), (A, W, rand(4, 3))),
        ("matmul -> scale -> add", (4, 20, 7), [((2, 5, 7), (2, 1, 1))],
         lambda q, k, m: (q @ k.repeat_interleave(4, 1).mT) * 0.5 + m, (*GROUPED, rand(2, 1, 5, 7))),
        ("einsum -> add -> relu", (6, 21), [], lambda w, x, b: (torch.einsum("oc,bcs->bos", w, x) + b[:, None]).relu(),
         (rand(6, 10), rand(3, 10, 7), rand(6))),
    ],
)  # fmt: skip
def test_what_follows_may_be_broadcast_over_a_part_of_rows_of_columns_or_of_a_batch(
    title: str, domain: tuple[int, ...], partly: Any, function: Any, args: Any
) -> None:
    """Each is held against the module in float64 (see `fused`)."""
    by_title = {(p.title, p.program.domain): p.program for p in products(function, *args)}
    assert (title, domain) in by_title, list(by_title)
    assert [(o.shape, each_of(o.at)) for o in by_title[title, domain].operands if o.at] == partly


def test_it_is_tuned_by_itself() -> None:
    made = [only(lambda a, w, c: F.linear(a.view(2, 3, 10), w) + c, A, W, c) for c in (rand(3, 4), rand(2, 3, 4))]
    shared = [only(lambda a, b: a @ b, rand(4, n, 6, 10), rand(4, 2, 10, 4)) for n in (1, 2)]
    assert len({p.shape_class for p in (*made, *shared)}) == 4


def test_a_whole_row_of_which_elements_are_wanted_is_one_group() -> None:
    """Held against the module in float64 (see `fused`); the product stays possible alone."""
    alone, row = products(lambda a, w, x: F.linear(a.view(2, 3, 10), w).mul(2).softmax(-1) + x, A, W, rand(2, 3, 4))
    assert alone.title == "linear" and row.title == "linear -> scale -> softmax -> add"
    assert (row.program.domain, row.program.reduced) == ((6, 1, 4), (2,))
    assert row.program.outputs[0].shape == (6, 1, 4) and row.matches[0].spared == alone.nodes


@pytest.mark.parametrize(
    ("title", "domain", "function", "args"),
    [
        ("linear -> gelu -> sum", (4, 6), lambda a, w, b: F.gelu(F.linear(a, w, b)).sum(0), (A, W, BIAS)),
        ("linear -> add -> amax -> mul", (4, 6), lambda a, w, c, r: (F.linear(a, w) + c + r).amax(0) * c[0],
         (A, W, rand(6, 4), rand(6, 1))),
        ("addmm -> amin", (4, 6), lambda c, a, w: torch.addmm(c, a, w.t(), beta=0.5).amin(0), (rand(6, 4), A, W)),
        ("linear -> mean", (4, 6), lambda a, w: F.linear(a.view(2, 3, 10), w).mean((0, 1), keepdim=True), (A, W)),
        ("matmul -> triu -> sum", (4, 6), lambda a, w: torch.triu(a @ w, 1).sum(0), (A, rand(10, 4))),
        ("baddbmm -> amax", (2, 4, 6), lambda c, a, b: torch.baddbmm(c, a, b).amax(1),
         (rand(2, 1, 4), rand(2, 6, 10), rand(2, 10, 4))),
        ("matmul -> sum", (6, 7, 5), lambda q, k: (q @ k.transpose(-1, -2)).sum(2), (Q, KEYS)),
        ("einsum -> amax", (4, 6), lambda a, b: torch.einsum("kj,ik->ji", a, b).amax(1), (rand(9, 4), rand(6, 9))),
    ],
)  # fmt: skip
def test_columns_that_are_reduced_are_rows_of_the_transpose(
    title: str, domain: tuple[int, ...], function: Callable[..., Any], args: tuple[Tensor, ...]
) -> None:
    """Each is held against the module in float64 (see `fused`)."""
    by_domain = {(p.title, p.program.domain): p.program for p in products(function, *args)}
    assert by_domain[title, domain].reduced == (len(domain) - 1,), list(by_domain)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda a, b: torch.einsum("ij,jk->i", a, b), (A, rand(10, 4))),  # a letter that only one has is summed
        (lambda a: torch.einsum("ii,ij->ij", a, a), (rand(4, 4),)),
        (lambda a, b: torch.einsum("ij,kl->ijkl", a, b), (A, W)),
        (lambda a, b: a @ b, (rand(10), rand(10, 4))),
    ],
)
def test_other_contractions_are_left_to_torch(function: Any, args: Any) -> None:
    assert not products(function, *args)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda a, v: (a @ v) * 2, (rand(64, 16400), rand(16400, 1))),
        (lambda a, v: torch.mm(a, v).relu(), (rand(16, 65540), rand(65540, 1))),
        (lambda a, v: a @ v, (rand(4, 64, 4100), rand(4100, 1))),
        (torch.mv, (rand(1030, 1024), rand(1, 1024)[0])),
        (F.linear, (rand(1100, 1000), rand(1, 1000), rand(1))),
    ],
)
def test_a_large_matrix_times_a_vector_is_a_sum_of_rows(function: Any, args: Any) -> None:
    matched = fused(function, *args)
    assert [p.kind for p in matched.patterns] == ["row_reduce"] and not matched.unmatched


def test_a_small_one_is_a_product() -> None:
    assert only(lambda a, v: a @ v, A, rand(10, 1)).title == "matmul"


ALL = (None, None)
SQUARE, MORE = rand(8, 8), rand(8, 8) * 2


@pytest.mark.parametrize(
    ("function", "args", "zeros"),
    [
        (lambda a, b: a.tril() @ b, (SQUARE, MORE), ((None, 0), ALL)),
        (lambda a, b: a @ b.triu(1), (SQUARE, MORE), (ALL, (1, None))),
        (lambda a, b: F.linear(a, b.tril(2)), (SQUARE, MORE), (ALL, (-2, None))),
        (lambda a, b: torch.einsum("ki,kj->ij", a.tril(), b), (SQUARE, MORE), ((0, None), ALL)),
        (lambda a, b: torch.einsum("ik,kj->ji", a.tril(3), b).relu(), (SQUARE, MORE), (ALL, (-3, None))),
        (lambda a, b: torch.bmm(a.tril(2).triu(-1), b), (rand(2, 8, 8), rand(2, 8, 5)), ((-1, 2), ALL)),
        (lambda a, b: a.tril() @ b, (SQUARE, rand(3, 8, 4)), ((None, 0), ALL)),
        (lambda a, b: a.tril() @ b, (rand(3, 8, 8), MORE), (ALL, ALL)),  # rows and a batch are one dimension
        (lambda a, b: (a.tril() @ b.tril(-1)) + 1, (SQUARE, MORE), ((None, 0), (None, -1))),
        (lambda a, b: (a.tril() @ b).amax(0), (SQUARE, MORE), (ALL, (0, None))),
        (lambda a, b: (a.triu() @ b).softmax(-1), (SQUARE, MORE), ((0, None), ALL)),
        (lambda a, b: a @ b, (SQUARE, MORE), (ALL, ALL)),
    ],
)  # fmt: skip
def test_where_a_factor_has_zeros_is_known_where_algebra_leaves_them_out(function: Any, args: Any, zeros: Any) -> None:
    """The interpreter takes what lies outside of the diagonals for zero, and gives what the module gives."""
    found = [matrices(p.program) for p in fused(function, *args, sparing=True).patterns if p.program.product]
    assert zeros in {p.zeros for p in found} and len({p.zeros == (ALL, ALL) for p in found}) == 1
    plain = [matrices(p.program) for p in fused(function, *args).patterns if p.program.product]
    assert {p.zeros for p in plain} == {(ALL, ALL)}


def test_products_that_leave_zeros_out_are_tuned_by_themselves() -> None:
    plain, sparing = (
        [p for p in fused(lambda a, b: a.tril() @ b, SQUARE, MORE, sparing=s).patterns if p.kind == "product"]
        for s in (False, True)
    )
    assert [p.title for p in plain] == [p.title for p in sparing] == ["matmul", "tril -> matmul"]
    assert len({p.shape_class for p in (*plain, *sparing)}) == 4


MINUS = float("-inf")


@pytest.mark.parametrize(
    ("function", "args", "wanted"),
    [
        (lambda q, k: torch.softmax(((q @ k.mT) / 3).masked_fill(torch.ones(8, 8).triu(1).bool(), MINUS), -1),
         (rand(2, 8, 4), rand(2, 8, 4)), (None, 0)),
        (lambda q, k: torch.where(torch.ones(8, 8).tril(2).bool(), q @ k.mT, -1.0).softmax(-1),
         (SQUARE, MORE), (None, 2)),
        (lambda q, k: torch.where(torch.ones(8, 8).tril(2).bool(), -1.0, (q @ k.mT).mT).softmax(-1),
         (SQUARE, MORE), (None, -3)),
        (lambda q, k: (lambda s: (torch.tril(s).sum(0), torch.triu(s, -2).sum(1)))(q @ k.mT), (SQUARE, MORE), ALL),
        (lambda q, k: (lambda s: (torch.tril(s).sum(0), torch.tril(s * 2, 2).sum(1)))(q @ k.mT), (SQUARE, MORE),
         (None, 2)),
        (lambda q, k: (lambda s: (torch.tril(s).sum(0), s))(q @ k.mT), (SQUARE, MORE), ALL),
        (lambda q, k: ((q @ k.mT) + torch.full((8, 8), MINUS).triu(1)).softmax(-1), (SQUARE, MORE), ALL),
        (lambda q, k: torch.where((q @ k.mT) > torch.ones(8, 8).tril(), q, k).softmax(-1), (SQUARE, MORE), ALL),
    ],
)  # fmt: skip
def test_of_a_product_no_more_is_made_than_anybody_reads(function: Any, args: Any, wanted: Any) -> None:
    """The interpreter puts what is wrong elsewhere."""
    found = [p.program for p in fused(function, *args).patterns if p.program.product]
    alone = [p for p in found if len(p.operands) == 2 and not p.product.prologues]
    assert wanted in [matrices(p).wanted for p in alone]
