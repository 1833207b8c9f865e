"""Whole layers and models of well-known kinds, judged on the CPU: a candidate of torch's own operators is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tilewright
from fakes.transformer import Decoder, LlamaLayer, Output

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TRIVIAL = """
from original import Model
class ModelNew(Model):
    pass
"""


def judged(tmp_path: Path, module: nn.Module, *given: object) -> None:
    from tilewright import Candidate

    found = tilewright.evaluate(
        module, Candidate.of({"model.py": TRIVIAL}), *given, target="cpu", out=tmp_path / "run", timing="0.2s",
        compiled=False,
    )  # fmt: skip
    assert found.accepted, found.report


def test_a_llama_like_layer_with_grouped_heads(tmp_path: Path) -> None:
    judged(tmp_path, LlamaLayer().eval(), torch.randn(2, 12, 64))


def test_a_decoder_called_by_name_with_an_output_of_a_class(tmp_path: Path) -> None:
    ids = torch.randint(0, 50, (2, 12))
    model = Decoder().eval()
    assert type(model(ids)) is Output
    judged(tmp_path, model, {"input_ids": ids, "return_all": True})
