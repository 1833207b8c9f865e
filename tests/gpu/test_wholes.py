"""Layers and models of well-known kinds on a GPU: masks, grouped heads, outputs of classes, in 16 bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tilewright
from fakes import net
from fakes.transformer import Decoder, LlamaLayer, Output
from tilewright.faces.examples import examples_of
from tilewright.faces.layers import taken_apart
from tilewright.faces.recorded import recorded
from tilewright.judge.candidate_process.step import tensors_of
from tilewright.judge.reference_process.work import measure

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_grouped_attention_is_counted(dtype: torch.dtype) -> None:
    q = torch.randn(2, 8, 128, 64, device="cuda", dtype=dtype)
    k = torch.randn(2, 2, 128, 64, device="cuda", dtype=dtype)
    seen = measure(lambda: F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True), [q, k], tensors_of)
    assert seen.work.matmul_flops == 2 * (2 * 8 * 128 * 128) * 128


def test_constants_are_made_once_on_the_device(tmp_path: Path) -> None:
    model, ids = Decoder().eval().cuda(), torch.randint(0, 50, (2, 12), device="cuda")
    mine = net.fused_as_given(tmp_path, model, examples_of({"input_ids": ids}), target="cuda")
    with torch.no_grad():
        for _ in range(2):
            found = mine(input_ids=ids)
            assert type(found) is Output
            torch.testing.assert_close(found.last, model(ids).last, rtol=1e-3, atol=1e-3)


def test_a_decoders_layers_are_one() -> None:
    model, ids = Decoder(layers=3).eval().cuda().bfloat16(), torch.randint(0, 50, (2, 12), device="cuda")
    units = taken_apart(model, recorded(model, examples_of(ids)[0])).units
    assert sorted(len(unit.modules) for unit in units if type(unit.first).__name__ == "Block") == [3]


@pytest.mark.slow
def test_a_llama_like_layer_is_accepted(tmp_path: Path) -> None:
    layer, x = LlamaLayer().eval().cuda().bfloat16(), torch.randn(4, 256, 64, device="cuda", dtype=torch.bfloat16)
    found = tilewright.optimize(layer, x, target="cuda", out=tmp_path / "run", budget=60, timing="1s", compiled=False)
    assert found.status in ("improved", "no_improvement"), found.report
    with torch.no_grad():
        torch.testing.assert_close(found.module(x), layer(x), rtol=2e-2, atol=2e-2)
