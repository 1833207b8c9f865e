"""`tilewright serve` with the real judge on a GPU: a verdict with its reward, a refusal, and a process that dies."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.client import JudgeClient, RewardFormula, Submitted

for needed in ("starlette", "uvicorn", "pydantic"):
    pytest.importorskip(needed)

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return sum(torch.cos(x) for _ in range(24))


def get_inputs():
    return [torch.randn(2048, 4096)]


def get_init_inputs():
    return []
"""
RIGHT = """import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.cos(x) * 24
"""


def test_candidates_are_judged_on_the_gpu_over_http(tmp_path: Path) -> None:
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems" / "cosines.py").write_text(PROBLEM)
    command = [
        sys.executable, "-m", "tilewright", "serve", "--port", "0", "--root", "problems", "--target", "cuda",
        "--timing", "1s", "--no-compile",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stderr is not None
            urls = (re.search(r"http://\S+", line) for line in server.stderr)  # it may measure the machine first
            url = next(found[0] for found in urls if found)
            client = JudgeClient(url, rule=RewardFormula(formula="ratio", cap=100.0))
            texts = [RIGHT, RIGHT.replace("24", "25"), RIGHT + "\nimport os\nos.kill(os.getpid(), 9)\n"]
            sent = [client.submit(Submitted(problem="cosines", files={"model.py": text})) for text in texts]
            right, wrong, dead = (client.wait(ticket.id, timeout_s=600) for ticket in sent)
        finally:
            server.terminate()
            server.communicate(timeout=300)
    assert right.accepted and right.reward is not None and right.reward > 5.0, right.told
    assert right.reward == right.told["ratio"]["eager"]["low"]
    assert (wrong.accepted, wrong.reward, wrong.told["verdict"]["reason"]) == (False, 0.0, "wrong_values")
    assert (dead.accepted, dead.told["verdict"]["reason"]) == (False, "crashed")
