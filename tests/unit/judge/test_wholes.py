"""Whole layers and models of well-known kinds, judged on the CPU: a candidate of torch's own operators is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tilewright
from fakes.transformer import Decoder, LlamaLayer, Output
from tilewright.faces.capture import write_problem
from tilewright.facts.candidate import Candidate, SourceFile

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ALIKE = """
from original import Model


class ModelNew(Model):
    pass
"""


def judged(tmp_path: Path, module: nn.Module, *given: Any) -> None:
    kwargs = given[1] if len(given) > 1 else None
    problem = write_problem(module, given[0], tmp_path / "problem", kwargs=kwargs)
    files = (SourceFile(path="model.py", text=ALIKE), SourceFile(path="original.py", text=problem.read_text()))
    found = tilewright.evaluate(
        module, Candidate(files=files), *given, target="cpu", out=tmp_path / "run", timing="0.2s", compiled=False
    )
    assert found.accepted, found.report


@pytest.mark.thorough
def test_a_llama_like_layer_with_grouped_heads(tmp_path: Path) -> None:
    judged(tmp_path, LlamaLayer().eval(), torch.randn(2, 12, 64))


def test_a_decoder_called_by_name_with_an_output_of_a_class(tmp_path: Path) -> None:
    ids = torch.randint(0, 50, (2, 12))
    model = Decoder().eval()
    assert type(model(ids)) is Output
    judged(tmp_path, model, {"input_ids": ids, "return_all": True})
