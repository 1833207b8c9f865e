"""Einsums of three tensors and more are products of two, in torch's own order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fakes.matched import fused
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun
from fakes.realisers import cuda
from tilewright.frontend.trace import trace
from tilewright.fusion import match

pytestmark = pytest.mark.each(3)


def along(equation: str, path: Sequence[int] | None = None) -> Callable[..., Any]:
    """As torch.einsum calls it, with opt_einsum's path or without."""
    return lambda *tensors: torch.ops.aten.einsum(equation, tensors, path=path)


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


class Products(TorchDispatchMode):
    """(batch, K, and both sides, the shorter first) of all batched products that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.bmm.default:
            (batch, m, k), n = args[0].shape, args[1].shape[2]
            self.sizes.append((batch, k, *sorted((m, n))))
        return func(*args, **(kwargs or {}))


def products_of(run: Callable[..., Any], args: Sequence[Tensor]) -> list[tuple[int, ...]]:
    with Products() as seen, torch.no_grad():
        run(*(t.double() for t in args))
    return seen.sizes


CHAIN = tuple(rand(a, b) for a, b in ((12, 13), (13, 14), (14, 15), (15, 16)))
MAMBA = (rand(2, 3, 9, 5, 16), rand(2, 3, 9, 5, 16), rand(2, 5, 3, 9, 9), rand(2, 3, 9, 5, 17))


@pytest.mark.parametrize(
    ("equation", "path", "args", "steps"),
    [
        ("ab,bc,cd,de->ae", None, CHAIN, ["ab,bc->ac", "ac,cd->ad", "ad,de->ae"]),
        ("ab,bc,cd,de->ae", [1, 2, 0, 2, 0, 1], CHAIN, ["bc,cd->bd", "ab,bd->ad", "de,ad->ae"]),
        ("ab,bc,cd,de->ae", [3, 2, 0, 1, 0, 1], CHAIN, ["cd,de->ce", "ab,bc->ac", "ce,ac->ae"]),
        ("bclhn,bcshn,bhcls,bcshp->bclhp", None, MAMBA,
         ["bclhn,bcshn->bchls", "bchls,bhcls->bchls", "bchls,bcshp->bclhp"]),
        ("...ij,...jk,kl", None, (rand(2, 9, 10), rand(10, 11), rand(11, 12)), ["aij,jk->aik", "aik,kl->ail"]),
    ],
)  # fmt: skip
def test_steps_are_those_of_torch(equation: str, path: Any, args: tuple[Tensor, ...], steps: list[str]) -> None:
    function = along(equation, path)
    graph = trace(Applies(function), args, {})
    assert [c.args[0] for c in graph.calls] == steps
    assert products_of(GraphRun(graph, Applies(function)), args) == products_of(function, args)
    assert not fused(function, *args).unmatched


def test_all_of_a_state_space_layers_products_are_kernels() -> None:
    """Mamba 2, within a chunk: two products, and the mask between them with the second one or as a kernel."""
    shapes = ((2, 16, 64, 8, 64), (2, 16, 64, 8, 64), (2, 8, 16, 64, 64), (2, 16, 64, 8, 64))
    args = tuple(torch.empty(shape, device="meta") for shape in shapes)
    graph = trace(Applies(along("bclhn,bcshn,bhcls,bcshp->bclhp")), args, {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    assert "product" in {p.kind for p in matched.patterns} and not matched.unmatched


def test_what_is_no_equation_stays_a_call() -> None:
    two = along("ij,jk->ik")
    graph = trace(Applies(two), (rand(9, 10), rand(10, 11)), {})
    assert [n.op for n in graph.nodes] == ["input", "input", "call"] and [c.args[0] for c in graph.calls] == [
        "ij,jk->ik"
    ]
