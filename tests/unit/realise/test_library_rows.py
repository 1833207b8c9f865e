"""Rows by quack and by Liger: found in the ways in which modules write them, refused in a sentence, and called as these
packages' own signatures have it, of which stand-ins show that the same comes out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fakes.libraries import scope_of
from fakes.modules import Applies
from fakes.realisers import CPU, H200
from tilewright.facts.pattern import Recipe
from tilewright.frontend.trace import trace
from tilewright.realise.library import row_libraries
from tilewright.realise.library.row_calls import RowCall, row_calls
from tilewright.realise.library.table import found
from tilewright.realise.subproblem_code import arguments

pytestmark = pytest.mark.each(3)

KINDS = ("rms_norm", "layer_norm", "softmax", "cross_entropy", "swiglu", "geglu")
X, Y = torch.linspace(-2, 3, 3 * 5 * 16).view(3, 5, 16), torch.linspace(1, -1, 3 * 5 * 16).view(3, 5, 16)
CLASSES = torch.tensor([3, 0, -1, 7, 15])


class Llama(nn.Module):
    """RMS normalisation as Llama writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 16))

    def forward(self, x: Tensor) -> Tensor:
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


def layers(kind: Callable[..., nn.Module], **how: Any) -> nn.Module:
    module = kind(16, **how)
    for number, parameter in enumerate(module.parameters()):
        parameter.data = torch.linspace(0.5 - number, 2, 16).to(parameter.dtype)
    return module


def entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, ignore_index=-1)


ROWS: dict[str, tuple[nn.Module, tuple[Tensor, ...], str]] = {
    "rms": (layers(nn.RMSNorm, eps=1e-5), (X,), "rms_norm"),
    "llama": (Llama(), (X,), "rms_norm"),
    "llama bf16": (Llama().to(torch.bfloat16), (X.bfloat16(),), "rms_norm"),
    "layer": (layers(nn.LayerNorm), (X,), "layer_norm"),
    "softmax": (Applies(lambda x: torch.softmax(x, -1)), (X,), "softmax"),
    "entropy": (Applies(entropy), (X[0], CLASSES), "cross_entropy"),
    "silu": (Applies(lambda x, y: y * F.silu(x)), (X, Y), "swiglu"),
    "gelu": (Applies(lambda x, y: F.gelu(x, approximate="tanh") * y), (X, Y), "geglu"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_call_is_found_whole(name: str) -> None:
    module, args, kind = ROWS[name]
    graph = trace(module, args, {})
    (row,) = row_calls(graph, KINDS)
    assert row.kind == kind and row.width == 16 and row.dtype == ("bf16" if "bf16" in name else "f32")
    left = [c.label for c in graph.calls if not c.view and c.results[0] not in row.region.nodes]
    assert left == []
    assert set(row.parameters) == {
        "rms_norm": {"x", "weight"}, "layer_norm": {"x", "weight", "bias"}, "softmax": {"x"},
        "cross_entropy": {"x", "target"}, "swiglu": {"x", "y"}, "geglu": {"x", "y"},
    }[kind]  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x, 1),
        lambda x: F.gelu(x) * Y,  # by erf
        lambda x: F.silu(x) * x,
        lambda x: (s := F.silu(x)) * Y + s,  # the activation is needed
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),  # without a weight
        lambda x: X[0, 0] * (x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + 1e-6)),
        lambda x: X[0, 0] * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)),
        lambda x: F.layer_norm(x, (5, 16)),
        lambda x: torch.softmax(x.double(), -1),
    ],
)
def test_what_only_looks_like_it_is_left_alone(function: Callable[..., Any]) -> None:
    assert row_calls(trace(Applies(function), (X,), {}), KINDS) == ()


def stand_ins() -> dict[str, ModuleType]:
    """Modules of the packages' names, whose functions have their signatures and do the same by torch."""

    def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], None if weight is None else weight.float(), eps).to(x.dtype)

    def rmsnorm(
        x: Tensor, weight: Any = None, bias: Any = None, residual: Any = None, out_dtype: Any = None,
        residual_dtype: Any = None, eps: float = 1e-6, prenorm: bool = False, weight_offset: float = 0.0,
    ) -> Tensor:  # fmt: skip
        return rms(x, weight, eps)

    def layernorm_fwd(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-6) -> Tensor:
        assert x.dim() == 2 and weight.dtype == torch.float32
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def softmax(x: Tensor) -> Tensor:
        assert x.dim() == 2
        return torch.softmax(x, -1)

    def cross_entropy(x: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
        return F.cross_entropy(x.float(), target, ignore_index=ignore_index, reduction=reduction)

    def liger_rms_norm(
        x: Tensor, w: Tensor, eps: float, offset: float = 0.0, casting_mode: str = "llama", in_place: bool = True
    ) -> Tensor:
        assert not in_place and casting_mode == "gemma"
        return rms(x, w, eps)

    def liger_layer_norm(x: Tensor, w: Tensor, b: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, w.shape, w, b, eps)

    quack_package, of_rows, functional = map(
        ModuleType, ("quack", "quack.rmsnorm", "liger_kernel.transformers.functional")
    )
    vars(quack_package).update(rmsnorm=rmsnorm, softmax=softmax, cross_entropy=cross_entropy)
    vars(of_rows).update(layernorm_fwd=layernorm_fwd)
    vars(functional).update(
        liger_rms_norm=liger_rms_norm, liger_layer_norm=liger_layer_norm,
        liger_softmax=lambda x: torch.softmax(x, -1), liger_swiglu=lambda a, b: F.silu(a) * b,
        liger_geglu=lambda a, b: F.gelu(a, approximate="tanh") * b,
        liger_cross_entropy=lambda input, target, ignore_index=-100, reduction="mean": F.cross_entropy(
            input, target, ignore_index=ignore_index, reduction=reduction
        ),
    )  # fmt: skip
    return {
        "quack": quack_package, "quack.rmsnorm": of_rows, "liger_kernel": ModuleType("liger_kernel"),
        "liger_kernel.transformers": ModuleType("liger_kernel.transformers"), functional.__name__: functional,
    }  # fmt: skip


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in stand_ins().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(row_libraries, "installed", lambda package: True)


def by(recipe: Recipe, package: str) -> Recipe:
    return tuple(c for c in recipe if c.written is not None and c.written.title.endswith(package))


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("package", ["quack-kernels", "liger-kernel"])
@pytest.mark.parametrize("name", ROWS)
def test_the_call_gives_what_the_module_gives(name: str, package: str) -> None:
    module, args, kind = ROWS[name]
    graph = trace(module, args, {})
    choices = by(found(graph, H200).recipe, package)
    if kind in ("swiglu", "geglu") and package == "quack-kernels":
        assert choices == ()
        return
    ((choice,),) = (choices,)
    assert choice.written is not None
    scope = scope_of(choice)
    (region,) = choice.written.regions
    assert arguments(graph, region) == region.inputs
    nodes = {n.name: n for n in graph.nodes}
    inputs = dict(zip([n.name for n in graph.nodes if n.op == "input"], args, strict=True))
    values = [
        module.get_parameter(nodes[n].path) if nodes[n].op == "state" else inputs[n] for n in region.inputs
    ]  # fmt: skip
    made, wanted = scope["ModelNew"]()(*values), module(*args)
    assert made.shape == wanted.shape and made.dtype == wanted.dtype and made.is_contiguous()
    torch.testing.assert_close(made, wanted)


def test_where_they_are_not_installed_nothing_is_said_or_imported() -> None:
    module, args, _ = ROWS["rms"]
    there = found(trace(module, args, {}), H200)
    assert there.recipe == () and there.refusals == ()
    assert "quack" not in sys.modules and "liger_kernel" not in sys.modules


@pytest.mark.usefixtures("there")
def test_nor_on_a_cpu() -> None:
    module, args, _ = ROWS["softmax"]
    assert found(trace(module, args, {}), CPU).recipe == ()


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("module", "args", "architecture", "why"),
    [
        (layers(nn.LayerNorm, dtype=torch.bfloat16), (X.bfloat16(),), "sm_90a",
         "quack-kernels: its layernorm takes weights in f32, and the module's are in bf16"),
        (ROWS["softmax"][0], (X,), "sm_80", "quack-kernels: it has kernels for Hopper and Blackwell, and "),
        (ROWS["softmax"][0], (X,), "sm_75", "liger-kernel: Triton wants sm_80 or later for it, "),
        (ROWS["softmax"][0], (torch.zeros(2, 65537),), "sm_90a", "take rows of 65536 elements at most, and the "
         "module's softmax has 65537"),
        (nn.LayerNorm(16, bias=False), (X,), "sm_90a", "its layer normalisation takes a weight and a bias"),
        (nn.RMSNorm(16, elementwise_affine=False), (X,), "sm_90a", "and the module has none"),
    ],
)  # fmt: skip
def test_they_say_why_they_are_not_used(module: nn.Module, args: Any, architecture: str, why: str) -> None:
    device = replace(H200, architecture=architecture)
    assert any(why in line for line in found(trace(module, args, {}), device).refusals)


def test_equal_names_of_the_table_say_which_library_it_was() -> None:
    graph = trace(ROWS["softmax"][0], (X,), {})
    (row,) = row_calls(graph, ["softmax"])
    assert isinstance(row, RowCall) and row.called == "softmax" and row_calls(graph, ["rms_norm"]) == ()
