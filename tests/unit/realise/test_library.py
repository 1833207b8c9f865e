"""Attention is found in the ways in which modules write it, and what calls the library in its place gives the same."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.libraries import scope_of, values_of
from fakes.modules import Applies
from fakes.realisers import CPU, H200
from tilewright.facts.candidate import LIBRARY
from tilewright.facts.device import Device
from tilewright.facts.pattern import Recipe
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.ir.graph import Call, Graph, Ref
from tilewright.realise.library import flash_attn
from tilewright.realise.library.table import found

pytestmark = pytest.mark.each(3)

HEADS, LONG, DEEP = 3, 10, 8


def libraries(graph: Graph) -> Recipe:
    return found(graph, CPU).recipe


BLOCKED = torch.ones(LONG, LONG).triu(1).bool()


def of_heads(*, others: int = 1, batch: int = 2) -> tuple[Tensor, ...]:
    """Query, key, value as (batch, heads, position, depth), out of one product's result as modules cut it."""
    torch.manual_seed(0)
    whole = torch.randn(batch, LONG, 3, HEADS, DEEP)
    return tuple(whole[:, :, i].transpose(1, 2) for i in range(3))[: 2 + others]


def minimal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def as_in_gpt(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(DEEP))
    weights = torch.nn.functional.dropout(torch.softmax(scores.masked_fill(mask == 0, float("-inf")), -1), 0.1, False)
    return (weights @ v).transpose(1, 2).contiguous().view(len(q), LONG, -1)


def with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(bias + torch.matmul(q, k.transpose(-1, -2)) / 4.0, dim=3) @ v


def biased_and_masked(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    scores = (torch.matmul(q, k.mT) + bias).masked_fill(mask, -1e9)
    return torch.matmul(torch.softmax(scores, -1), v)


def without_heads(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.3 + bias, -1), v)


def replaced(graph: Graph, function: Callable[..., Any], args: tuple[Tensor, ...]) -> list[tuple[Tensor, Tensor]]:
    """What the module's values are where the library's call stands, and what that call gives for them."""
    seen = values_of(graph, args, target="cpu")
    found = []
    for choice in libraries(graph):
        assert choice.written is not None and choice.written.candidate.language == LIBRARY
        scope = scope_of(choice)
        for region in choice.written.regions:
            made = scope["ModelNew"]()(*(seen[name] for name in region.inputs))
            found.append((seen[region.outputs[0]], made))
    return found


BIAS = torch.linspace(-2, 2, LONG * LONG).view(LONG, LONG)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (minimal, of_heads()),
        (as_in_gpt, (*of_heads(), (~BLOCKED).float().view(1, 1, LONG, LONG))),
        (with_bias, (*of_heads(), BIAS.expand(HEADS, LONG, LONG))),
        (biased_and_masked, (*of_heads(), BIAS, BLOCKED)),
        (without_heads, (*(x.reshape(-1, LONG, DEEP) for x in of_heads()), BIAS.expand(2 * HEADS, LONG, LONG))),
    ],
)
def test_attention_is_found_and_gives_the_same(function: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    graph = trace(Applies(function), args, {})
    ((there, made),) = replaced(graph, function, args)
    assert made.shape == there.shape and made.stride() == there.stride()
    torch.testing.assert_close(made, there)
    ours = {n for c in libraries(graph) if c.written for r in c.written.regions for n in r.nodes}
    left = [c.label for c in graph.calls if not c.view and c.results[0] not in ours]
    assert left == [label for label in ("eq",) if function is as_in_gpt], "all but what makes the mask"


def test_equal_ones_are_one_at_several_places() -> None:
    def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return minimal(minimal(q, k, v), k, v)

    (choice,) = libraries(trace(Applies(twice), tuple(x.contiguous() for x in of_heads()), {}))
    assert choice.written is not None and len(choice.written.regions) == 2 and choice.pattern == "library_0"


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), 1) @ v,  # over the heads
        lambda q, k, v: (w := torch.softmax(q @ k.transpose(-2, -1), -1)) @ v + w.sum(),  # the weights are needed
        lambda q, k, v: torch.softmax((q @ k.transpose(-2, -1) + BIAS) * 2, -1) @ v,  # what is added is scaled
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), -1).relu() @ v,
        lambda q, k, v: v.transpose(-2, -1) @ torch.softmax(q @ k.transpose(-2, -1), -1),  # on the other side
        lambda q, k, v: torch.softmax(torch.relu(q @ k.transpose(-2, -1)), -1) @ v,
        lambda q, k, v: torch.softmax((q @ k.transpose(-2, -1)).half().float(), -1) @ v,
    ],
)
def test_what_only_looks_like_it_is_left_alone(function: Callable[..., Any]) -> None:
    graph = trace(Applies(function), of_heads(), {})
    assert any(isinstance(c, Call) and c.label == "softmax" and isinstance(c.args[0], Ref) for c in graph.calls)
    assert libraries(graph) == ()


# ---- a call of torch's own, and its backends


def own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def own_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.2)


def own_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)


@pytest.mark.parametrize(
    ("function", "args"), [(own, of_heads()), (own_masked, (*of_heads(), ~BLOCKED)), (own_grouped, of_heads())]
)
def test_the_librarys_own_call_is_found_too_with_the_other_backends(
    function: Callable[..., Any], args: tuple[Tensor, ...]
) -> None:
    graph = trace(Applies(function), args, {})
    ((there, made),) = replaced(graph, function, args)
    torch.testing.assert_close(made, there)
    (choice,) = libraries(graph)
    assert choice.written is not None and choice.point == point(backend="default")
    assert choice.written.points == (point(backend="default"), point(backend="math"))


def test_with_dropout_it_draws_and_is_left_alone() -> None:
    def dropping(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1)

    assert libraries(trace(Applies(dropping), of_heads(), {})) == ()


def test_the_backend_is_a_knob_and_an_unknown_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (choice,) = libraries(trace(Applies(minimal), of_heads(), {}))
    assert choice.written is not None
    scope = scope_of(choice)
    seen: list[tuple[Any, ...]] = []
    real = scope["sdpa_kernel"]
    scope["sdpa_kernel"] = lambda backend: (seen.append(backend), real(backend))[1]
    q, k, v = of_heads()
    k = k.transpose(-2, -1)
    module = scope["ModelNew"]()
    first = module(q, k, v)
    scope["configure"](backend="math")
    torch.testing.assert_close(module(q, k, v), first)
    scope["configure"](backend="default")
    module(q, k, v)
    assert seen == [torch.nn.attention.SDPBackend.MATH]
    with pytest.raises(ValueError, match="choose default or math"):
        scope["configure"](backend="cudnn")


HALF = tuple(x.to(torch.bfloat16) for x in of_heads())


@pytest.mark.parametrize(
    ("function", "args", "architecture", "backends"),
    [
        (minimal, HALF, "sm_90a", "default cudnn flash efficient math"),
        (own, HALF, "sm_90a", "default cudnn flash efficient math"),
        (own_masked, (*HALF, ~BLOCKED), "sm_90a", "default cudnn efficient math"),  # flash takes no mask
        (minimal, of_heads(), "sm_90a", "default efficient math"),
        (minimal, HALF, "sm_75", "default efficient math"),
        (minimal, tuple(x.double() for x in of_heads()), "sm_90a", "default math"),
    ],
)
def test_backends_are_those_of_the_device_and_the_dtype(
    function: Callable[..., Any], args: tuple[Tensor, ...], architecture: str, backends: str
) -> None:
    there = found(trace(Applies(function), args, {}), replace(H200, architecture=architecture))
    (choice, *_) = there.recipe
    assert choice.written is not None and "scaled_dot_product_attention" in choice.written.title
    assert [dict(p)["backend"] for p in choice.written.points] == backends.split()


# ---- flash-attn

HOPPER = H200


@pytest.mark.parametrize(
    ("function", "args", "device", "why"),
    [
        (minimal, of_heads(), HOPPER, "flash-attn-4: it computes in 16 bits, and the module's attention in f32"),
        (own_masked, (*HALF, ~BLOCKED), HOPPER, "flash-attn-4: it takes no mask but a causal one"),
        (minimal, HALF, replace(H200, architecture="sm_80"), "this device is sm_80"),
        (own, HALF, HOPPER, "is not installed (pip install flash-attn-4)"),
    ],
)
def test_flash_attn_says_why_it_is_not_used(
    function: Callable[..., Any], args: tuple[Tensor, ...], device: Device, why: str
) -> None:
    (line,) = found(trace(Applies(function), args, {}), device).refusals
    assert why in line


def test_a_module_without_attention_hears_nothing_of_it() -> None:
    there = found(trace(Applies(lambda x: x.relu()), (torch.ones(3),), {}), HOPPER)
    assert there.recipe == () and there.refusals == ()


@pytest.mark.parametrize(("function", "args"), [(minimal, of_heads()), (own, of_heads())])
def test_flash_attn_is_called_with_its_own_layout(
    function: Callable[..., Any], args: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes (batch, positions, heads, depth); a stand-in of that signature shows that the same comes out."""

    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None, causal: bool) -> Any:
        made = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), scale=softmax_scale, is_causal=causal
        )
        return made.transpose(1, 2), None

    module = ModuleType("flash_attn.cute")
    module.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", module)
    monkeypatch.setattr(flash_attn, "installed", lambda package: True)
    half = trace(Applies(function), tuple(x.bfloat16() for x in args), {})
    (choice,) = [c for c in found(half, HOPPER).recipe if c.written and c.written.title.endswith("flash-attn-4")]
    assert choice.written is not None and choice.written.points == ()
    scope = scope_of(choice)
    (region,) = choice.written.regions
    q, k, v = args
    operands = (q, k.transpose(-2, -1), v) if function is minimal else args
    made = scope["ModelNew"]()(*operands)
    assert len(region.inputs) == 3
    wanted = function(*args)
    torch.testing.assert_close(made if function is minimal else made.transpose(1, 2).flatten(2), wanted)
