"""Rows of a product, or its columns, that are only reduced: what its kernel reduces in blocks and what joins them is
what the module gives; both kernels compile for Hopper; where it does not pay, or can't be, the product stays alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import run_program
from fakes.realisers import cuda, gpu
from tilewright.facts.pattern import Choice, Pattern, Recipe, without_idle
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.program import Program
from tilewright.ir.validation import validate
from tilewright.kernels.cuda.gemm.epilogue.row_blocks import STATES as OF_THE_KERNEL
from tilewright.kernels.cuda.gemm.epilogue.row_blocks import WIDTH
from tilewright.realise.gemm.reduced import BLOCK, STATES, blocked
from tilewright.realise.gemm.shape import factors

pytestmark = pytest.mark.each(3)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


M, N, K = 200, 328, 520  # of N the last block has 8 columns
A, W, BIAS, LABELS = rand(M, K) / 20, rand(N, K), rand(N), torch.arange(M) * 7 % N


def losses(a: Tensor, w: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(a, w, b), labels, reduction="none")


REDUCED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "logsumexp": (lambda a, w, b: F.gelu(F.linear(a, w, b).logsumexp(1, keepdim=True)), (A, W, BIAS)),
    "max": (lambda a, w: (a @ w.T).amax(-1) - 1, (A, W)),
    "sigmoid": (lambda a, w, b: torch.sigmoid(F.linear(a, w, b)).sum(1) * 2, (A, W, BIAS)),
    "variance": (lambda a, w: (a @ w.T).var(1, correction=0), (A, W)),
    "greedy": (lambda a, w: (a @ w.T).argmax(1), (A, W)),
    "loss": (losses, (A, W, BIAS, LABELS)),
    "batches": (lambda q, k: (q @ k.transpose(1, 2)).amax(2), (rand(8, 136, 64), rand(8, 264, 64))),
    "tokens": (lambda a, w: F.linear(a.view(4, 50, K), w).amin(-1), (A, W)),
    "both": (lambda a, w: (lambda y: (y.amax(1), y.sum(1)))((a @ w.T).relu()), (A, W)),
    "columns": (lambda a, w, b: F.linear(a, w, b).amax(0, keepdim=True).tanh(), (A, W, BIAS)),
    "columns beside rows": (lambda a, w, r: (torch.sigmoid(a @ w.T) * r).sum(0) / M, (A, W, rand(M, 1))),
    "columns of two": (lambda a, w, c: (F.linear(a, w) + c).logsumexp(0), (A, W, rand(M, N))),
    "columns of batches": (lambda q, k: (q @ k.transpose(1, 2)).var(1, correction=0),
                           (rand(8, 136, 64), rand(8, 264, 64))),
    "columns of tokens": (lambda a, w: F.linear(a.view(4, 50, K), w).amax((0, 1)), (A, W)),
    "added columns": (lambda c, a, w: torch.addmm(c, a, w.T).argmax(0), (rand(M, N), A, W)),
}  # fmt: skip


def products(function: Callable[..., Any], *args: Tensor) -> list[Pattern]:
    matched = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space)
    return [p for p in matched.patterns if p.kind == "product"]


def found(name: str) -> Program:
    alone, pattern = products(*(lambda f, args: (f, *args))(*REDUCED[name]))
    assert not alone.program.reduced and without_idle([[alone, pattern]], both := chosen(pattern, alone)) == both[:1]
    assert without_idle([[alone, pattern]], both[1:]) == both[1:]  # for whoever reduces with a kernel of its own
    assert pattern.program.reduced == (len(pattern.program.domain) - 1,), name
    validate(pattern.program)
    return pattern.program


def chosen(*patterns: Pattern) -> Recipe:
    return tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in patterns)


def states(op: str, values: Tensor) -> list[Tensor]:
    """Of blocks of the last dimension, as the kernel makes them."""
    blocks = values.split(BLOCK, -1)
    if op in ("sum", "max", "min"):
        one = {"sum": Tensor.sum, "max": Tensor.amax, "min": Tensor.amin}[op]
        return [torch.stack([one(b, -1) for b in blocks], -1)]
    if op == "softmax_stats":
        made = [(b.amax(-1), (b - b.amax(-1, keepdim=True)).exp().sum(-1)) for b in blocks]
    elif op == "argmax":
        made = [(b.amax(-1), (b.argmax(-1) + i * BLOCK).double()) for i, b in enumerate(blocks)]
    else:
        counts = [torch.full(b.shape[:-1], float(b.shape[-1]), dtype=b.dtype) for b in blocks]
        three = [(c, b.mean(-1), b.var(-1, correction=0) * b.shape[-1]) for c, b in zip(counts, blocks, strict=True)]
        return [torch.stack(s, -1) for s in zip(*three, strict=True)]
    return [torch.stack(s, -1) for s in zip(*made, strict=True)]


@pytest.mark.parametrize("name", REDUCED)
def test_states_of_blocks_joined_are_what_the_program_gives(name: str) -> None:
    program = found(name)
    cut = blocked(program)
    assert cut is not None
    validate(cut.ahead)
    validate(cut.behind)
    given = {o.name: rand(*o.shape).double() if o.dtype == "f32" else LABELS.reshape(o.shape) for o in program.operands}
    left, right = factors(program)
    given["product"] = given[left.name] @ given[right.name] / 20
    values = run_program(cut.ahead, [given[o.name] for o in cut.ahead.operands], exact=True)
    parts = [s for r, v in zip(cut.reductions, values, strict=True) for s in states(r.op, v.expand(program.domain))]
    made = run_program(cut.behind, [*parts, *(given[o.name] for o in cut.behind.operands[len(parts) :])], exact=True)
    given[left.name] = given[left.name] / 20
    whole = run_program(program, [given[o.name] for o in program.operands], exact=True)
    for mine, right_one in zip(made, whole, strict=True):
        torch.testing.assert_close(mine, right_one)


def test_the_kernel_has_the_same_blocks_and_states() -> None:
    assert WIDTH == BLOCK and {op: len(names) for op, names in STATES.items()} == OF_THE_KERNEL


def test_what_is_read_again_or_does_not_pay_stays_apart() -> None:
    apart: list[tuple[Callable[..., Any], tuple[Tensor, ...]]] = [
        (lambda a, w: F.linear(a, w).softmax(-1), (A, W)),  # elements are wanted, of longer rows than a tile's
        (lambda a, w: (lambda y: ((y - y.mean(1, keepdim=True)).abs()).amax(1))(F.linear(a, w)), (A, W)),  # two sweeps
        (lambda a, w: F.linear(a, w).softmax(0), (A, W)),
        (lambda a, w: F.linear(a.view(4, 50, K), w).amax(1), (A, W)),  # stretches of columns
        (lambda a, w: F.linear(a, w).amax(0), (A[:100], W)),
        (lambda a, w: F.linear(a, w).amax(1), (rand(520, K), W[:100])),  # short
        (lambda a, w: F.linear(a, w).amax(1), (rand(64, 65536), rand(128, 65536))),  # K must be split
        (lambda a, w: F.linear(a, w).amax(1), (rand(16, 4096).half(), rand(8192, 4096).half())),  # small-M
    ]
    for function, args in apart:
        assert [p.program.reduced for p in products(function, *args)] == [()], args[0].shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_points_are_those_at_which_whole_rows_of_sums_are_at_hand(dtype: torch.dtype) -> None:
    args = (rand(4096, 1024).to(dtype), rand(4096, 1024).to(dtype))
    _, pattern = products(lambda a, w: F.linear(a, w).float().logsumexp(1), *args)
    points = [dict(p) for p in pattern.space.points]
    assert all((p["split_k"], p["store"]) == (1, "direct") and p["streamed"] != "right" for p in points)
    assert all(int(str(p["tile"]).split("x")[1]) % BLOCK == 0 for p in points)
    turns = [p["schedule"] == "pingpong" for p in points]
    assert turns[:5] == [False, True, False, True, False] if dtype == torch.bfloat16 else not any(turns)


def test_both_kernels_compile_for_hopper_and_settings_that_can_not_be_are_refused(tmp_path: Path) -> None:
    module = load_fused(found("loss"), tmp_path)
    load_fused(found("columns of two"), tmp_path / "columns")._FUSED.prepare(gpu())
    module._FUSED.prepare(gpu())
    assert len(module._FUSED.objects) >= 3  # a split, the product, the rows
    spilled = module._FUSED.demand(132)["local_bytes"]
    assert spilled == 0
    for wrong in ({"split_k": 2}, {"store": "bulk"}, {"streamed": "right", "tile": "128x128", "cluster": "1x2"}):
        with pytest.raises(ValueError, match="rows are reduced"):
            module.configure(**wrong)
