"""Convolutions with a norm on the way out, by the skeleton `conv`: what is taken, what kernels compute, the files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import run_program
from fakes.realisers import cuda
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match, normed
from tilewright.ir.validation import validate
from tilewright.kernels.cuda.conv.reduction import WARPS, slots
from tilewright.realise import table
from tilewright.realise.conv.normed import normed as parts_of
from tilewright.realise.conv.renderer import shape_of

X, W, B = torch.randn(4, 16, 34, 34), torch.randn(64, 16, 3, 3) / 12, torch.rand(64)
X3, W3, B3 = torch.randn(4, 16, 5, 8, 9), torch.randn(16, 32, 3, 3, 3) / 20, torch.rand(32)
UP: dict[str, Any] = {"stride": 2, "padding": 1}


def batch(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(F.mish(F.conv2d(x, w, b)), None, None, b, b, training=True) * 2


def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(F.conv2d(x, w), None, None, b, b, training=True).relu()


def instance(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.instance_norm(F.conv2d(x, w, b)) / 2


def group(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(torch.sigmoid((F.conv2d(x, w) + b[:, None, None]) * 2), 8, b, b)


def volume(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.hardswish(F.group_norm(F.silu(F.conv_transpose3d(x, w, b, **UP)), 4, b, b))


def pooled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.max_pool2d(F.group_norm(F.conv2d(x, w, b), 8, b, b) * b[:, None, None], 4).clamp(0, 1)


def channels(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.conv2d(x, w, b)
    return torch.logsumexp(y + F.hardswish(torch.tanh(F.group_norm(y, 16, b, b))), 1, keepdim=True)


ALL: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "batch": (batch, (X, W, B)), "plain": (plain, (X, W, B)), "instance": (instance, (X, W, B)),
    "group": (group, (X, W, B)), "volume": (volume, (X3, W3, B3)), "pooled": (pooled, (X, W, B)),
    "channels": (channels, (X, W, B)), "half": (plain, (X.half(), W.half(), B.half())),
}  # fmt: skip


def proposed(name: str, monkeypatch: pytest.MonkeyPatch, *, twice: bool) -> list[Pattern]:
    """The convolutions but the one alone."""
    monkeypatch.setattr(table, "UNPROVEN", frozenset())
    monkeypatch.setattr(normed, "_FLOPS_A_BYTE", 10**9 if twice else 0)
    function, args = ALL[name]
    patterns = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space).patterns
    return [p for p in patterns if p.kind == "convolution"][1:]


def measured(value: Tensor, chunks: int) -> list[Tensor]:
    """Count, mean and squares over `chunks` parts, as even as can be, of the places of each (n, c); one is empty."""
    parts = [*value.flatten(2).tensor_split(chunks - 1, dim=-1), value.flatten(2)[..., :0]]
    count = torch.tensor([float(p.shape[-1]) for p in parts])
    mean = torch.stack([p.mean(-1) if p.shape[-1] else torch.zeros(p.shape[:2]) for p in parts], -1)
    squares = torch.stack([((p - p.mean(-1, keepdim=True)) ** 2).sum(-1) for p in parts], -1)
    return [count.expand(mean.shape), mean, squares.nan_to_num(0.0)]


@pytest.mark.parametrize("name", ["batch", "plain", "instance", "group", "volume", "half"])
def test_what_kernels_compute_in_turn_is_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The convolution measures by parts, these are joined, elements are normalised: as the whole Program gives it."""
    (found,) = proposed(name, monkeypatch, twice=False)
    program, (_, args) = found.program, ALL[name]
    read = shape_of(program)
    assert read is not None
    made = parts_of(program, read[0])
    assert made is not None and made.behind is not None
    validate(made.join)
    validate(made.behind)
    named = dict(zip(("x", "w", "b"), args, strict=True))
    nodes = [b.node for b in found.matches[0].operands]
    values = {o.name: named[_letter(n)].reshape(o.shape) for o, n in zip(program.operands, nodes, strict=True)}
    true = run_program(program, list(values.values()))
    assert program.product is not None
    alone = replace(program, reduced=(), body=(program.product,), outputs=(
        replace(program.outputs[0], name=program.product.result, shape=program.domain),))  # fmt: skip
    (product,) = run_program(alone, list(values.values()))
    values["product"] = product
    first = [values[o.name].float().reshape(o.shape) if o.name == "product" else values[o.name].reshape(o.shape)
             for o in made.ahead.operands]  # fmt: skip
    kept, own = run_program(made.ahead, first)
    states = measured(own.float().reshape(made.ahead.domain), slots(read[0]) * WARPS)
    values |= {o.name: s for o, s in zip(made.join.operands, states, strict=False)}
    rows = run_program(made.join, [values[o.name].reshape(o.shape) for o in made.join.operands])
    values |= {o.name: r for o, r in zip(made.join.outputs, rows, strict=True)}
    values[made.kept] = kept.reshape(program.domain)
    last = run_program(made.behind, [values[o.name].reshape(o.shape) for o in made.behind.operands])
    values |= {o.name: r for o, r in zip(made.behind.outputs, last, strict=True)}
    for output, whole in zip(program.outputs, true, strict=True):
        close = {"rtol": 2e-3, "atol": 2e-3} if name == "half" else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(values[output.name], whole, **close)


def _letter(node: str) -> str:
    return {"args_0": "x", "args_1": "w", "args_2": "b"}.get(node, node)


def test_none_is_proposed_before_a_gpu_has_shown_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proposed("batch", monkeypatch, twice=False)
    monkeypatch.setattr(table, "UNPROVEN", frozenset({"conv norms"}))
    function, args = ALL["batch"]
    patterns = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space).patterns
    assert [p.program.reduced for p in patterns if p.kind == "convolution"] == [()]


@pytest.mark.each(3)
@pytest.mark.parametrize("name", [n for n in ALL if n not in ("pooled", "channels")])
def test_a_norms_kernels_give_meta_tensors_of_its_outputs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = proposed(name, monkeypatch, twice=False)
    assert found.space.points
    compiled(found, tmp_path)


@pytest.mark.each(3)
@pytest.mark.parametrize("name", [*ALL])
def test_two_convolutions_give_meta_tensors_of_their_outputs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = proposed(name, monkeypatch, twice=True)
    assert len(both) == 2
    for found in both:
        compiled(found, tmp_path / found.id)


def compiled(found: Pattern, folder: Path) -> None:
    """The convolution, on meta tensors; the others fit what it makes."""
    fused = load_fused(found.program, folder)._FUSED
    kinds = {"f32": torch.float32, "f16": torch.float16}
    lead = getattr(fused, "lead", fused)
    made = lead(*(torch.empty(o.shape, dtype=kinds[o.dtype], device="meta") for o in lead.spec.read))
    assert [tuple(m.shape) for m in made] == [o.shape for o in lead.spec.outputs]
    if fused is not lead:
        for kernel, reads in fused.steps[1:]:
            assert [shape for _, shape in reads] == [o.shape for o in kernel.spec.operands]
        assert [shape for _, shape in fused.results] == [o.shape for o in found.program.outputs]
