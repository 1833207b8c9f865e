"""What branches of the fork server import leaves the GPU alone, so that cells and compilers are forked of them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tilewright.edges.sandbox.environment import common_environment
from tilewright.edges.sandbox.forkserver import Branch, compile_server, left_aside, server_for
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Built
from tilewright.judge.build.build import build
from tilewright.judge.client import Cell, CellPlan

MODEL = """
import sys
assert {names} <= set(sys.modules)
import torch

assert torch.ones(3, device="cuda").sum().item() == 3.0
class ModelNew: pass
"""
PACKAGES = ("transformers.models.bert.modeling_bert", "torchvision.models", "timm")


def test_compilers_are_forked_of_what_has_imported_the_dsl() -> None:
    assert isinstance(compile_server(), Branch), left_aside()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_candidate_runs_on_what_was_imported_before(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed")
    environment = common_environment(threads=0, outer=os.environ, device="cuda")
    assert isinstance(server_for(environment, imports=(name,)), Branch), left_aside()
    plan = CellPlan(name="candidate", device="cuda", folder=tmp_path / "cell", memory_bytes=16 << 30, imports=(name,))
    with Cell(plan) as cell:
        candidate = Candidate(files=(SourceFile(path="model.py", text=MODEL.format(names={name})),))
        built = build(candidate, cell, limit_s=120.0)
        assert isinstance(built, Built) and built.build_s < 5.0, built
