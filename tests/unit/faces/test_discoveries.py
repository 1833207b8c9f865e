"""`tilewright discover`: one JSON object, and a drawing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sigmoid(x * 2).sum(1)
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(MODULE)
    command = [
        sys.executable,
        "-m",
        "tilewright",
        "discover",
        "small.py",
        "--target",
        "cpu",
        "--json",
        "--svg",
        "g.svg",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=True)
    found = json.loads(done.stdout)
    assert [c["operator"] for c in found["calls"]] == [
        "aten.mul.Tensor",
        "aten.sigmoid.default",
        "aten.sum.dim_IntList",
    ]
    assert [(p["pattern"], p["title"]) for p in found["parts"]] == [("fused_0", "scale -> sigmoid -> sum")]
    assert (tmp_path / "g.svg").read_text().startswith("<svg")
