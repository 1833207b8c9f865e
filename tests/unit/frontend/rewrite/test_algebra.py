"""frontend.rewrite.algebra: the same values with less work, against the module in float64; what must stay stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import avg_pool1d, linear

from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, widened
from tilewright.facts.space import Space
from tilewright.frontend.rewrite import algebra
from tilewright.frontend.rewrite.algebra import rewritten
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.realise.case_code import case_code
from tilewright.realise.gemm.kept_diagonals import kept_diagonals

# x (M, K) of a product with w (N, K), b and v (N,), a batch of both, and a thin third matrix.
M, N, K = 24, 48, 32
X, W, B, V = torch.randn(M, K), torch.randn(N, K), torch.randn(N), torch.randn(N)
TOKENS, XS, WS = torch.randn(3, 8, K), torch.randn(2, M, K), torch.randn(2, K, N)
A, THIN = torch.randn(N, M), torch.randn(N, 4)
OVER = M * K * N * 2  # flops of the product
NO_KNOBS = Space(knobs=(), points=((),))

SUMMED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "columns": (lambda x, w: (x @ w.T / 2).sum(1, keepdim=True) * 1.5, (X, W)),
    "rows": (lambda x, w, b: linear(x, w, b).sum(0), (X, W, B)),
    "both": (lambda x, w, b: linear(x, w, b).mean(), (X, W, B)),
    "weighted": (lambda x, w, b, v: (linear(x, w, b) * v).sum(1), (X, W, B, V)),
    "divided": (lambda x, w, b, v: ((3 - linear(x, w, b)) / (1 + v * v)).sum(-1), (X, W, B, V)),
    "shifted": (lambda x, w, b, v: torch.relu(-(linear(x, w, b) - v + 2).mean(1)), (X, W, B, V)),
    "tokens": (lambda x, w, b: linear(x, w, b).mean(1), (TOKENS, W, B)),
    "features": (lambda x, w, b: linear(x, w, b).mean(-1), (TOKENS, W, B)),
    "merged": (lambda x, w, b: linear(x, w, b).reshape(-1, N).sum(0), (TOKENS, W, B)),
    "batches": (lambda x, w: torch.bmm(x, w).sum(2), (XS, WS)),
    "added": (lambda a, x, w: torch.addmm(a, x, w, alpha=0.5, beta=2).sum(1), (THIN[:M, :1], X, WS[0])),
    "pooled": (lambda x, w, b: avg_pool1d(linear(x, w, b)[:, None], 8).relu(), (X, W, B)),
    "overlapping": (lambda x, w, b: avg_pool1d(linear(x, w, b)[:, None], 8, 4), (X, W, B)),
    "groups": (lambda x, w, b: linear(x, w, b).view(M, 8, N // 8).sum(2), (X, W, B)),
    "turned": (lambda x, w: (x @ w.T).T.sum(0).exp(), (X, W)),
    "thin": (lambda a, x, w, t: (a @ (x @ w.T) / 2).mul(3) @ t, (A, X, W, THIN)),
    "linear attention": (lambda q, k, v: (q @ k.transpose(-1, -2) / 3) @ v, tuple(torch.randn(3, 2, 3, 40, 8))),
    "thin, biased": (lambda x, w, t, b: linear(x @ w.T, t.T, b[:4]), (X, W, THIN, B)),
    "thin, both biased": (lambda x, w, t, b: linear(linear(x, w, b) / 2 + 3, t.T, b[:4]), (X, W, THIN, B)),
    "thin, of a batch": (
        lambda x, w, b, t, v: torch.baddbmm(v[:4], torch.baddbmm(b, x, w), t, alpha=2, beta=0.5),
        (XS, WS, torch.randn(2, 1, N), torch.randn(2, N, 4), V),
    ),
    "with itself": (lambda x: torch.relu(x @ x.T * 0.5), (W,)),
    "with itself, transposed": (lambda x: x.T @ x, (WS[0],)),
    "batches with themselves": (lambda x: torch.bmm(x, x.transpose(1, 2)).softmax(-1), (XS,)),
    "diagonal": (lambda v, x: torch.diag(v) @ x, (B, A)),
    "diagonal, on the right": (lambda v, x, w: (x @ w.T) @ torch.diag(v).T * 2, (V, X, W)),
    "diagonals of a batch": (lambda v, x: torch.bmm(torch.diag_embed(v), x), (XS[:, :, 0], XS)),
}  # fmt: skip

LEFT: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "no longer linear": (lambda x, w: torch.sigmoid(x @ w.T).sum(1), (X, W)),
    "no sum": (lambda x, w: (x @ w.T).amax(1), (X, W)),
    "read twice": (lambda x, w: (p := x @ w.T).sum(1, keepdim=True) + p, (X, W)),
    "returned": (lambda x, w: (p := x @ w.T, p.sum(1)), (X, W)),
    "with itself": (lambda x, w: (lambda p: (p * p).sum(1))(x @ w.T), (X, W)),
    "padded": (lambda x, w: avg_pool1d((x @ w.T)[:, None], 4, 4, 1), (X, W)),
    "by whole matrices": (lambda x, w, v: ((x @ w.T) * v).sum(1), (X, W, torch.randn(M, N))),
    "no less": (lambda x, w: x @ w.T @ w, (X, W)),
    "a whole matrix is added": (lambda a, x, w, t: (x @ w.T + a.T) @ t, (A, X, W, THIN)),
}

# In 16 bits on a GPU; x of many rows, so that the weights are the smaller factor.
ROWS = torch.randn(8 * N, K)
HEADS = torch.randn(2, 6, 8, 16)
FOLDED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "scaled": (lambda x, v, w: (x * v) @ w, (ROWS, V[:K], WS[0])),
    "scaled on the right": (lambda x, v, w: w.T @ (x * v).T * 2, (ROWS, V[:K], WS[0])),
    "a norm by what is known": (
        lambda x, m, r, g, b, w, c: linear((x - m) * torch.rsqrt(r * r + 1) * g + b, w, c),
        (ROWS, W[0], W[1], W[2], W[3], W, B),
    ),
    "turned round": (lambda x, v, w: linear(3 - (2 - x) / (1 + v * v), w), (ROWS, V[:K], W)),
    "moved twice": (lambda x, a, v, w: (-((x + a) * v - a) + 1.5) @ w, (ROWS, W[0], V[:K], WS[0])),
    "tokens": (lambda x, v, w, b: linear(x * v + b[:K], w, b), (ROWS.view(4, 2 * N, K), V[:K], W, B)),
    "queries by a number": (
        lambda q, k: (q / 4).transpose(1, 2) @ (k.transpose(1, 2) * 0.5).transpose(-1, -2), (HEADS, HEADS + 1)
    ),
    "heads": (
        lambda q, k: (q.reshape(2, 6, 8, 16).transpose(1, 2) / 4) @ k.transpose(1, 2).transpose(-1, -2),
        (HEADS.flatten(2), HEADS + 1),
    ),
    "a batch's own": (lambda x, v, w: torch.bmm(x * v, w), (ROWS.view(2, 4 * N, K), XS[:, :1], WS)),
}  # fmt: skip
UNFOLDED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "rows' own": (lambda x, w, v: (x * v) @ w, (ROWS, WS[0], ROWS[:, :1])),
    "few rows": (lambda x, v, w: (x * v) @ w, (X, V[:K], WS[0])),
    "read elsewhere": (lambda x, v, w: (p := x * v) @ w + p.sum(), (ROWS, V[:K], WS[0])),
    "made on the way": (lambda x, v, w: (x.sigmoid() * v) @ w, (ROWS, V[:K], WS[0])),
    "by nothing": (lambda x, w: (x * 0.0) @ w, (ROWS, WS[0])),
}


def _all(cases: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]) -> tuple[Applies, list[torch.Tensor]]:
    """One module that does all of them, and its arguments: tracing takes the time."""
    sizes = [len(args) for _, args in cases.values()]

    def function(*given: torch.Tensor) -> list[Any]:
        it = iter(given)
        return [f(*(next(it) for _ in range(n))) for (f, _), n in zip(cases.values(), sizes, strict=True)]

    return Applies(function), [a for _, args in cases.values() for a in args]


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if small products were worth it."""
    monkeypatch.setattr(algebra, "LEAST_FLOPS", 1 << 14)
    monkeypatch.setattr(algebra, "LEAST_DEPTH", 16)


@pytest.mark.usefixtures("any_size")
def test_weights_are_summed_before_the_product() -> None:
    module, args = _all(SUMMED)
    less = rewritten(trace(module, tuple(args), {}))
    assert less is not None and len(less.steps) == len(SUMMED) + 1, less and less.steps  # one needs two steps
    assert less.spared_flops > 0.7 * OVER * len(SUMMED)
    matched = match(less.graph, unsupported=lambda program: None, space=lambda program: NO_KNOBS, tiny_bytes=0)
    truth = module(*widened(args))
    for patterns in ((), matched.patterns):
        case_code(less.graph, patterns, target="cpu")
        made = GraphRun(less.graph, module, patterns=patterns)(*widened(args))
        for name, mine, right in zip(SUMMED, made, truth, strict=True):
            torch.testing.assert_close(mine, right, msg=lambda told, name=name: f"{name}: {told}")  # type: ignore[misc]


def test_small_products_stay() -> None:
    assert rewritten(trace(Applies(lambda x, w: (x @ w.T).sum(1)), (X, W), {})) is None


@pytest.mark.usefixtures("any_size")
def test_what_is_not_linear_or_is_needed_as_it_is_stays() -> None:
    module, args = _all(LEFT)
    assert rewritten(trace(module, tuple(args), {})) is None


@pytest.mark.usefixtures("any_size")
def test_what_was_done_is_said_and_counted() -> None:
    graph = trace(Applies(lambda x, w: (x @ w.T).mean(1)), (X, W), {})
    less = rewritten(graph)
    assert less is not None and less.steps == ("mean of matmul: weights summed",)
    assert less.spared_flops == OVER - 2 * M * K
    assert graph.outputs == less.graph.outputs and not any(n.op == "call" for n in less.graph.nodes)


@pytest.mark.usefixtures("any_size")
def test_16_bits_are_summed_in_32() -> None:
    x, w = X.bfloat16(), W.bfloat16()
    less = rewritten(trace(Applies(lambda x, w: (x @ w.T).float().mean(1)), (x, w), {}))
    assert less is not None
    sums = [n for n in less.graph.nodes if n.op == "sum"]
    assert len(sums) == 2 and {n.dtype for n in sums} == {"f32"}


@pytest.mark.usefixtures("any_size")
def test_zeros_of_a_factor_are_spared_where_the_graph_shows_them() -> None:
    """Half of a triangle, most of a band, none of what is not seen; nothing else of the graph changes."""
    square, triangle = torch.randn(K, K), N * K * (K - 1)
    for name, function, args, spared in (
        ("tril", lambda x, w: x.tril() @ w.T, (square, W), triangle),
        ("relu", lambda x, w: w @ x.triu().relu(), (square, W), triangle),
        ("triu", lambda x, w: torch.bmm(x.tril(2).triu(-1)[None].expand(2, K, K), w), (square, WS),
         4 * N * (K * K - (4 * K - 4))),
        ("tril", lambda x, w: x.tril() @ w.tril(), (square, square), 2 * K**3 - K * (K + 1) * (K + 2) // 3),
    ):  # fmt: skip
        graph = trace(Applies(function), args, {})
        less = rewritten(graph)
        assert less is not None and less.graph == replace(graph, sparing=True)
        assert less.spared_flops == spared, name
        assert [s.split(":")[1] for s in less.steps] == [f" zeros of {name} not multiplied"]
    for other in (lambda x, w: x.tril(K - 4) @ w.T, lambda x, w: x @ w.T, lambda x, w: (x.tril() + x.triu()) @ w.T):
        assert rewritten(trace(Applies(other), (square, W), {})) is None


@pytest.mark.usefixtures("any_size")
def test_a_product_with_itself_is_half_of_one_where_kernels_make_half() -> None:
    """Its other half is its mirror image, of which the product's own pattern has no part."""
    graph = trace(Applies(lambda x: (x @ x.T).relu()), (W,), {})
    less = rewritten(graph)
    assert less is not None and less.spared_flops == N * N * K and rewritten(graph, in_part=False) is None
    assert less.steps == ("matmul with itself: half, and mirrored",)
    matched = match(less.graph, unsupported=lambda program: None, space=lambda program: NO_KNOBS, tiny_bytes=0)
    (product,) = (p.program for p in matched.patterns if p.program.product)
    assert kept_diagonals(product) == (None, 0)
    assert rewritten(trace(Applies(lambda x, y: x @ y.T), (W, W.clone()), {})) is None


@pytest.mark.usefixtures("any_size")
def test_what_scales_and_shifts_a_factor_is_folded_into_the_other_in_16_bits() -> None:
    module, args = _all(FOLDED)
    graph = trace(module, tuple(a.bfloat16() for a in args), {})
    assert rewritten(graph, in_part=False) is None and rewritten(trace(module, tuple(args), {})) is None
    less = rewritten(graph)
    assert less is not None and less.spared_flops == 0
    assert all("folded into the other" in s for s in less.steps), less.steps
    assert len(less.steps) == len(FOLDED) + 1, less.steps  # queries and keys: one after the other
    assert sum(c.target == "aten.einsum.default" for c in less.graph.calls) == len(FOLDED)
    truth = module(*widened(args))
    made = GraphRun(less.graph, module, patterns=())(*widened(args))
    for name, mine, right in zip(FOLDED, made, truth, strict=True):
        torch.testing.assert_close(mine, right, msg=lambda told, name=name: f"{name}: {told}")  # type: ignore[misc]


@pytest.mark.usefixtures("any_size")
def test_a_factor_stays_where_folding_it_would_spare_nothing() -> None:
    module, args = _all(UNFOLDED)
    assert rewritten(trace(module, tuple(a.bfloat16() for a in args), {})) is None


@pytest.mark.usefixtures("any_size")
def test_a_mean_that_is_taken_off_meets_weights_as_they_were_rounded() -> None:
    """Far from zero: what the mean's share is off by is what the factor's is, so both go."""
    x, scale, mean = torch.randn(8 * N, K) + 300, torch.rand(K) + 0.5, torch.full((K,), 300.0)
    given = tuple(t.bfloat16() for t in (x, mean, scale, W))
    function = lambda x, m, s, w: linear((x - m) * s, w)  # noqa: E731
    graph = trace(Applies(function), given, {})
    less = rewritten(graph)
    assert less is not None
    run = GraphRun(less.graph, Applies(function), exact=False)
    run(*given)
    (call,) = (c for c in less.graph.calls if c.target == "aten.einsum.default")
    rows, weights = (run.values[name].double() for name in call.sources)
    (shift,) = (run.values[n.name].double() for n in less.graph.nodes if n.op == "sum")
    right = function(*(t.double() for t in given))
    off = [
        float((made - right).norm() / right.norm()) for made in (rows @ weights.T + shift, function(*given).double())
    ]
    assert off[0] < 2 * off[1] < 1e-2, off
