"""Products that write several results, of any types: what is made of them, and the product itself where others read it.
`fused` holds each against the module in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fakes.matched import fused
from fakes.modules import Applies
from fakes.program_interpreter import run_program
from fakes.results import masked, saved
from tilewright.facts.pattern import Choice, Pattern, without_idle
from tilewright.facts.run import Matched
from tilewright.facts.space import Space
from tilewright.frontend.trace import trace
from tilewright.fusion import match


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


X, W, BIAS = rand(2, 3, 10), rand(8, 10), rand(8)


def chosen(matched: Matched) -> list[Pattern]:
    """Those that have something to do where all are chosen."""
    recipe = without_idle([matched.patterns], tuple(Choice(pattern=p.id, point=()) for p in matched.patterns))
    return [p for p in matched.patterns if p.id in {c.pattern for c in recipe}]


def quantised(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.gelu(F.linear(x, w))
    return torch.round(y * b).clamp(-127, 127).to(torch.int8), y


def gated(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = F.linear(x, w, b).chunk(2, -1)
    gate = F.silu(gate)
    return gate * up, gate


@pytest.mark.parametrize(
    ("function", "dtypes"),
    [(saved, ["f32", "f32"]), (masked, ["f32", "bool"]), (quantised, ["f32", "i8"]), (gated, ["f32", "f32"])],
)
def test_one_kernel_writes_all(function: Callable[..., Any], dtypes: list[str]) -> None:
    (product,) = chosen(fused(function, X, W, BIAS))
    program = product.program
    assert [o.dtype for o in program.outputs] == dtypes, "floats first"
    assert all(o.shape == program.domain for o in program.outputs) and len(product.matches[0].outputs) == 2


def test_a_product_that_others_read_is_written_beside_what_is_made_of_it() -> None:
    def forward(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = F.linear(x, w, b)
        return F.gelu(y) * 2, torch.mm(y.reshape(6, 8), w)

    matched = fused(forward, X, W, BIAS)
    first, _ = [p for p in chosen(matched) if p.kind == "product"]
    assert first.title == "linear -> gelu -> scale" and [b.node for b in first.matches[0].outputs][1] == "linear"
    alone = [p.title for p in matched.patterns if p not in chosen(matched)]
    assert sorted(alone) == ["gelu -> scale", "linear"], "they stay for whoever leaves it out"


def test_all_that_is_made_of_a_product_is_one_epilogue_and_the_product_then_nowhere() -> None:
    """Which it is not where one of them can't be: then it is written beside the first that can."""

    def forward(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = F.linear(x, w)
        return y > 0, torch.special.i0(torch.relu(y) * b), torch.sigmoid(y)

    (product,) = [p for p in chosen(fused(forward, X, W, BIAS)) if p.kind == "product"]
    assert [o.dtype for o in product.program.outputs] == ["f32", "f32", "bool"]
    assert "linear" not in [b.node for b in product.matches[0].outputs]


def test_what_waits_for_another_reader_is_made_by_a_kernel_of_its_own() -> None:
    """The product is needed in memory before all that the sum reads is there."""

    def forward(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        y = F.linear(x, w)
        return F.gelu(y) + torch.sin(F.linear(y, v))

    found = [p for p in fused(forward, X, W, rand(8, 8)).patterns if p.kind == "product"]
    assert [len(p.program.outputs) for p in found if p.matches[0].nodes[0] == "linear"] == [1]


def test_of_two_products_that_wait_for_one_another_one_is_written_alone() -> None:
    """Each sum reads what is made of the other's product by somebody else: as two kernels neither could be first."""

    def forward(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        p, q = F.linear(x, w), F.linear(x, v)
        return F.gelu(p) + torch.special.i0(q), F.relu(q) * torch.special.i0(p)

    matched = fused(forward, X, W, rand(8, 10) * 2)
    written = [len(p.program.outputs) for p in chosen(matched) if p.kind == "product"]
    assert sorted(written) == [1, 2]


def test_eight_bits_are_torchs_own() -> None:
    def forward(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        return (F.linear(x, w) * scale).clamp(-448, 448).to(torch.float8_e4m3fn)

    args = (X.to(torch.bfloat16) * 30, W.to(torch.bfloat16), torch.tensor([9.0], dtype=torch.bfloat16))
    args[0][0, 1, 2] = torch.nan
    graph = trace(Applies(forward), args, {})
    matched = match(graph, unsupported=lambda p: None, space=lambda p: Space(knobs=(), points=((),)), tiny_bytes=0)
    (product,) = [p for p in matched.patterns if p.kind == "product"]
    x, w, scale = args
    (made,) = run_program(product.program, [x.reshape(6, 10), w.t(), scale.reshape(1, 1)])
    wanted = forward(*args).reshape(6, 8)
    assert made.dtype == wanted.dtype
    torch.testing.assert_close(made.float(), wanted.float(), rtol=0, atol=0, equal_nan=True)
    assert made.float().isnan().any(1).tolist() == [False, True, *[False] * 4], "a row of NaN stays one"
    assert made.float().nan_to_num().abs().amax() == 448


@pytest.mark.few(0)
@pytest.mark.parametrize("examples", [9, 25])
def test_any_results(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(
        rows=st.integers(1, 5), n=st.integers(1, 6), k=st.integers(2, 8), kept=st.booleans(), read=st.booleans(),
        made=st.lists(st.sampled_from(["gelu", "mask", "int8", "relu", "bias"]), min_size=1, max_size=4, unique=True),
    )  # fmt: skip
    def holds(rows: int, n: int, k: int, kept: bool, read: bool, made: list[str]) -> None:
        ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "gelu": lambda y, b: F.gelu(y), "mask": lambda y, b: y > b, "bias": lambda y, b: y * 2 + b,
            "int8": lambda y, b: torch.round(y).clamp(-9, 9).to(torch.int8),
            "relu": lambda y, b: torch.relu(y - b),
        }  # fmt: skip

        def forward(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
            y = F.linear(x, w)
            results = [ways[name](y, b) for name in made]
            return results + ([y] if kept else []) + ([y.cumsum(-1)] if read else [])

        matched = fused(forward, rand(rows, k), rand(n, k), rand(n))
        products = [p for p in chosen(matched) if p.kind == "product"]
        assert len(products) == 1

    holds()
