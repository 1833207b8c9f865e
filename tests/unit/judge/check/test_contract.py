"""What a whole check says of results on appeal: honest ones pass, what spends another's allowance does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.checked import Problem
from tilewright.facts.outcome import OutputError
from tilewright.judge.check.check import Findings
from tilewright.judge.wire import messages as wire

pytestmark = pytest.mark.each(3)

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn

def rounded(t, bits):
    half = 1 << (22 - bits)
    return ((t.contiguous().view(torch.int32) + half) & -(2 * half)).view(torch.float32)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48) / 8)
        self.scale = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x):
        h = x @ self.weight
        return {result}

def get_inputs():
    return [torch.randn({rows}, 64)]

def get_init_inputs():
    return []
"""
NORM = "F.layer_norm(x + 1e4, (64,))"
LONG = "(x.square() * self.scale).repeat(1, 256).sum(1, keepdim=True)"
BESIDE = [f"torch.cat([{NORM}, h], 1)", f"torch.cat([{LONG}, h], 1)", f"h + {NORM}[:, :48]"]
INT8 = "(F.rms_norm(x, (64,)) * self.scale * 40).round().clamp(-127, 127).to(torch.int8)"
ROUTED = (
    "torch.zeros_like(h).scatter(-1, (t := h.softmax(-1).topk(4)).indices, t.values / t.values.sum(-1, keepdim=True))"
)
JUMPS = ["F.layer_norm(x, (64,)) > 0.5", "(h > 0).float()", "h ** 2 > 1e-6", INT8, ROUTED]
REVERSED = ("x @ self.weight", "x.flip(1) @ self.weight.flip(0)")
TWO_PASSES = "(lambda y: (y - y.flip(1).mean(1, True)) * (y.var(1, correction=0, keepdim=True) + 1e-5).rsqrt())"
HONEST = (
    REVERSED, ("F.layer_norm(x + 1e4, (64,))", f"{TWO_PASSES}(x + 1e4)"),
    ("F.layer_norm(x, (64,))", f"{TWO_PASSES}(x)"),
    (INT8, "((x * (self.scale * 40)) * (x.square().mean(1, True) + 2**-23).rsqrt()).round().clamp(-127, 127).char()"),
    ("t.values / t.values.sum(-1, keepdim=True)", "t.values * (1 / t.values.flip(1).sum(-1, keepdim=True))"),
)  # fmt: skip


def _said(result: str, old: str, new: str, folder: Path, *, rows: int = 256) -> str:
    """What is said against a module of which a part was replaced."""
    source = SOURCE.format(result=result, rows=rows)
    assert old in source
    return Problem(source).refused(source.replace("class Model(", "class ModelNew(").replace(old, new), folder)


@pytest.mark.parametrize("result", [*BESIDE, *JUMPS])
def test_honest_ways_to_the_same_result(result: str, tmp_path: Path) -> None:
    source = SOURCE.format(result=result, rows=256)
    candidate = source.replace("class Model(", "class ModelNew(")
    for old, new in HONEST:
        candidate = candidate.replace(old, new)
    assert candidate.count("flip") + candidate.count("2**-23") > 0
    assert Problem(source).refused(candidate, tmp_path) == ""


@pytest.mark.parametrize("bits", [10, 14])
@pytest.mark.parametrize("result", BESIDE)
def test_what_another_part_has_earned(result: str, bits: int, tmp_path: Path) -> None:
    lower = f"rounded(x, {bits}) @ rounded(self.weight, {bits})"
    assert "roundings make" in _said(result, "x @ self.weight", lower, tmp_path, rows=64)


@pytest.mark.parametrize("result", ["(h > 0).float()", "h ** 2 > 1e-6", ROUTED])
def test_a_lower_class_under_a_jump(result: str, tmp_path: Path) -> None:
    assert _said(result, "x @ self.weight", "rounded(x, 10) @ rounded(self.weight, 10)", tmp_path, rows=2048)


@pytest.mark.parametrize("share", [1e-2, 1e-4])
def test_a_little_noise_that_is_left_out(share: float, tmp_path: Path) -> None:
    noisy = f"h + {share} * torch.randn_like(h)"
    assert _said(noisy, noisy, "h", tmp_path)
    assert not _said(noisy, *REVERSED, tmp_path)
    assert not _said("h + 0.0", *REVERSED, tmp_path)


def test_results_within_the_plain_contract_cost_nothing(tmp_path: Path) -> None:
    source = SOURCE.format(result="F.gelu(h)", rows=64)
    problem = Problem(source)
    candidate = source.replace("class Model(", "class ModelNew(").replace(*REVERSED)
    assert problem.refused(candidate, tmp_path) == ""
    assert not any(isinstance(asked, wire.Appeal) for asked in problem.cell.asked)


MASKED = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def forward(self, q, k, v, mask):
        return {result}

def get_inputs():
    return [*(torch.randn(2, 4, 32, 16) for _ in range(3)), torch.ones(32, 32, dtype=torch.bool).tril({diagonal})]

def get_init_inputs():
    return []
"""
FILLED = "(q @ k.mT / 4).masked_fill(~mask, float('-inf')).softmax(-1) @ v"
ADDED = "(q @ k.mT / 4 + torch.zeros(32, 32).masked_fill(~mask, float('-inf'))).softmax(-1) @ v"
FUSED = "F.scaled_dot_product_attention(q, k, v, attn_mask=mask)"
FUSED_ADDED = "F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(32, 32).masked_fill(~mask, float('-inf')))"


def _masked(result: str, other: str, folder: Path, *, diagonal: int) -> str:
    source = MASKED.format(result=result, diagonal=diagonal)
    return Problem(source).refused(source.replace("class Model(", "class ModelNew(").replace(result, other), folder)


@pytest.mark.parametrize("other", [ADDED, FUSED, FUSED_ADDED])
@pytest.mark.parametrize("diagonal", [0, -1])
def test_masked_attention_by_any_of_torchs_ways(other: str, diagonal: int, tmp_path: Path) -> None:
    assert _masked(FILLED, other, tmp_path, diagonal=diagonal) == ""
    if diagonal == 0:
        assert _masked(other, FILLED, tmp_path, diagonal=diagonal) == ""


def test_nan_for_numbers_and_other_numbers_for_nan(tmp_path: Path) -> None:
    assert _masked(FUSED, FILLED, tmp_path, diagonal=-1)
    assert _masked(FILLED, f"({FILLED}).nan_to_num(1.0)", tmp_path, diagonal=-1)
    assert _masked(FILLED, f"({FILLED}) * torch.nan", tmp_path, diagonal=0)


@pytest.mark.parametrize(
    ("used", "said"), [(0.5, ()), (0.945, ("within 6% of the allowance",)), (0.999, ("within 1%",))]
)
def test_a_verdict_near_its_bound_says_so(used: float, said: tuple[str, ...]) -> None:
    errors = [OutputError(case=0, family="own", output=0, norm=n, worst=0.0, allowed_norm=1.0, allowed_worst=1.0)
              for n in (0.1, used)]  # fmt: skip
    findings = Findings(errors=errors)
    findings.note_nearest()
    assert len(findings.notes) == len(said) and all(text in findings.notes[0] for text in said)
