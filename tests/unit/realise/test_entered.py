"""What makes a product's factors goes into the split of fp32: which of it, at which points, and that all of it compiles
for Hopper; the rest stays a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.entering import PROLOGUE, A, W, rand
from fakes.fused import load_fused
from fakes.matched import fused
from fakes.modules import Applies
from fakes.realisers import cuda, gpu
from tilewright.facts.codec import dumps, loads
from tilewright.facts.pattern import Choice, Pattern, without_idle
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.validation import validate
from tilewright.kernels.cuda.common.spec import ArraySpec
from tilewright.kernels.cuda.gemm.prologue import fused as entering
from tilewright.realise.gemm import prologues as entered

pytestmark = pytest.mark.one_in(4)


def patterns(function: Callable[..., Any], args: tuple[Tensor, ...]) -> list[Pattern]:
    return list(match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space).patterns)


def made(pattern: Pattern) -> dict[str, tuple[int, ...]]:
    """The factors that are made, with what their prologues reduce."""
    product = pattern.program.product
    assert product is not None
    sides = {product.left.operand: "left", product.right.operand: "right"}
    return {sides[p.factor]: p.program.reduced for p in product.prologues}


@pytest.mark.parametrize("name", PROLOGUE)
def test_what_makes_a_factor_goes_into_its_split(tmp_path: Path, name: str) -> None:
    """Beside the product without it, which stays for whoever makes the factor by a kernel of its own."""
    function, args, wanted = PROLOGUE[name]
    found = patterns(function, args)
    whole = found[-1]
    assert made(whole) == wanted, [p.title for p in found]
    validate(whole.program)
    assert loads(dumps(whole.program)) == whole.program
    every = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in found)
    assert without_idle([found], every) == every[-1:]
    assert any(p.kind == "product" and not made(p) for p in found)
    rows = any(wanted.values()) or whole.program.reduced
    for point in map(dict, whole.space.points):
        assert point["streamed"] not in wanted and not (rows and point["split_k"] != 1)


@pytest.mark.few(0, 4, 6, 7)
@pytest.mark.parametrize(
    "name", ["gate", "layer norm", "wide norm", "odd norm", "bytes across", "causal", "triangle", "columns reduced"]
)
def test_it_compiles_for_hopper(tmp_path: Path, name: str) -> None:
    function, args, wanted = PROLOGUE[name]
    pattern = patterns(function, args)[-1]
    module = load_fused(pattern.program, tmp_path)
    module._FUSED.prepare(gpu())
    assert len(module._FUSED.objects) >= 3  # two splits, the product
    demand = module._FUSED.demand(132)
    assert demand["local_bytes"] == 0
    assert pattern.same != next(p for p in patterns(function, args) if p.kind == "product").same
    module.configure(schedule="cooperative")
    for wrong, why in (({"streamed": next(iter(wanted)), "tile": "128x128", "cluster": "1x1"}, "streamed|as they lie"),
                       ({"split_k": 2}, "whole|reduced")):  # fmt: skip
        if "streamed" in wrong or any(wanted.values()):
            with pytest.raises(ValueError, match=why):
                module.configure(**wrong)


@pytest.mark.parametrize("name", [n for n in PROLOGUE if n not in ("wide norm", "root mean square")])
def test_the_module_is_what_is_computed(name: str) -> None:
    """Every pattern's Program, in float64 (see `fused`); not where the module itself rounds to fp32."""
    function, args, _ = PROLOGUE[name]
    assert any(p.kind == "product" and made(p) for p in fused(function, *args).patterns)


def test_operands_move_along_no_size_of_1_and_where_they_do_what_is_known_is_compiled_in() -> None:
    specs = tuple(ArraySpec(name=n, dtype="f32", shape=s) for n, s in (("x", (6, 8)), ("v", (1, 8)), ("r", (6, 1))))
    prologue = entering.PrologueSpec(side="left", operands=specs, final=lambda x: x)
    x = torch.empty(8, 12)[:6, 4:]
    made = (
        entering.PrologueFactor(prologue, [x, torch.empty(1, 8), torch.empty(6, 1)], (6, 8)).batched().permute(1, 2, 0)
    )
    assert made.shape == (6, 8, 1) and made.major == "k" and made.wide
    assert [t.stride() for t in made.tensors] == [(12, 1, 0), (0, 1, 0), (1, 0, 0)]
    assert made.walks() == (((None, 1, 0), True), ((0, 1, 0), True), ((None, 0, 0), False))
    turned = entering.PrologueFactor(prologue, [x.t().contiguous().t()] * 3, (6, 8)).batched().permute(1, 2, 0)
    assert turned.major == "r" and not turned.wide and turned.walks()[0][0] == (1, None, 0)


def test_the_longest_row_is_the_kernels() -> None:
    assert entered.LONGEST_ROW == entering.LONGEST_ROW


def test_other_factors_are_made_by_a_kernel_of_their_own() -> None:
    def twice(a: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.silu(a)
        return F.linear(y, w), y

    apart: list[tuple[Callable[..., Any], tuple[Tensor, ...]]] = [
        (lambda a, w: F.linear(F.silu(a), w), (A.half(), W.half())),  # nothing splits it
        (twice, (A, W)),  # it is wanted
        (lambda a, w, v: (lambda y: F.linear(y, w) + F.linear(y, v))(F.silu(a)), (A, W, W)),  # two read it
        (lambda a, w: F.linear(a.argsort(-1).float(), w), (A, W)),
        (lambda a, w: F.linear(a.cumsum(-1), w), (A, W)),
        (lambda a, w: F.linear(F.layer_norm(a, (33000,)), w), (rand(100, 33000), rand(72, 33000))),  # too long
        (lambda a, w: a.softmax(0).t() @ w, (rand(520, 304), rand(520, 328))),  # rows across memory
        (lambda a, w: F.linear(a.softmax(0), w), (A, W)),  # along the other dimension
        (lambda a, w: torch.triu(a).view(301 * 5, 104) @ w, (A, rand(104, 328))),  # positions along a part
    ]
    for function, args in apart:
        assert not any(made(p) for p in patterns(function, args) if p.kind == "product"), args[0].shape


def test_planes_of_bf16_and_factors_rounded_to_tf32_are_made_as_well(tmp_path: Path) -> None:
    function, args, _ = PROLOGUE["layer norm"]
    graph = trace(Applies(function), args, {})
    allow_tf32 = match(graph, unsupported=cuda.unsupported, space=cuda.space, allow_tf32=True).patterns[-1]
    assert (
        made(allow_tf32) == {"left": (1,)}
        and allow_tf32.program.product is not None
        and allow_tf32.program.product.allow_tf32
    )
    for number, (pattern, split) in enumerate(((allow_tf32, "fp16x3"), (patterns(function, args)[-1], "bf16x6"))):
        module = load_fused(pattern.program, tmp_path / str(number))
        module.configure(tile="128x128", cluster="1x1", split=split)
        module._FUSED.prepare(gpu())
        assert len(module._FUSED.objects) == 3
