"""A candidate whose state has other names is given the reference's: by what each tensor held at first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.checked import Problem

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.gain = nn.Parameter(torch.ones(8))
        self.register_buffer("mask", torch.ones(8, 8).tril().bool())

    def forward(self, x):
        return (x @ (self.weight * self.mask)) * self.gain

def get_inputs():
    return [torch.randn(6, 8)]

def get_init_inputs():
    return []
"""
RENAMED = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(8, 8))
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("visible", torch.ones(8, 8).tril().bool())
        {packed}

    def forward(self, x):
        return {result}
"""
HONEST = "(x @ (self.kernel * self.visible)) * self.scale"


@pytest.mark.parametrize(
    ("packed", "result", "right"),
    [
        ("", HONEST, True),
        ("self.old = self.kernel.detach().clone()", HONEST.replace("self.kernel", "self.old"), False),
        ("self.old = self.visible.clone()", HONEST.replace("self.visible", "self.old"), False),
        ("", HONEST.replace(" * self.scale", ""), False),
    ],
    ids=["all of it", "packed weights", "a packed mask", "idle weights"],
)
def test_state_under_other_names_is_moved_with_the_references(
    packed: str, result: str, right: bool, tmp_path: Path
) -> None:
    problem = Problem(REFERENCE)
    said = problem.refused(RENAMED.format(packed=packed, result=result), tmp_path)
    assert (said == "") is right, said
    note = "case 0: the state's names or shapes differ; 3 of 3 tensors are re-drawn by what they held at first"
    assert any(n.startswith(note) for n in problem.findings.notes)
