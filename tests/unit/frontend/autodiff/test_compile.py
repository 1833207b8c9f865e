"""Backward kernels compile for sm_90a on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fakes.fused import load_fused
from fakes.realisers import cuda, gpu
from tilewright.facts.gradients import Gradients
from tilewright.frontend.trace import trace_training
from tilewright.run.training import match_training

pytestmark = [pytest.mark.each(3), pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any], width: int) -> None:
        super().__init__()
        self.function = function
        self.weight, self.bias = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


KINDS: dict[str, Callable[..., Any]] = {
    "softmax": lambda m, x: F.softmax(x * m.weight, -1),
    "layer norm": lambda m, x: F.layer_norm(x, x.shape[-1:], m.weight, m.bias),
    "rms norm": lambda m, x: F.rms_norm(x, x.shape[-1:], m.weight),
    "cross entropy": lambda m, x: F.cross_entropy(x + m.bias, torch.arange(x.shape[0]), label_smoothing=0.1),
    "swiglu": lambda m, x: F.silu((x + m.bias).chunk(2, -1)[0]) * (x + m.bias).chunk(2, -1)[1],
    "batch norm": lambda m, x: F.batch_norm(x, None, None, m.weight, m.bias, training=True),
}


@pytest.mark.few(0, 1)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_of_a_step_compiles(kind: str, tmp_path: Path) -> None:
    from tilewright.kernels.cuda.common.views import contiguous

    module, x = Of(KINDS[kind], 1024).bfloat16(), torch.randn(512, 1024, dtype=torch.bfloat16)
    asked = Gradients(outputs=(0,), inputs=(0,), parameters=("weight", "bias"))
    graph = trace_training(module, (x,), {}, [x], asked)
    found = match_training(graph, unsupported=cuda.unsupported, space=cuda.space, first_id=0, first_segment=0, case=0)
    assert not found.unmatched and len(found.patterns) >= 2
    for pattern in found.patterns:
        fused = load_fused(pattern.program, tmp_path)._FUSED
        walks = [o.strides or contiguous(o.shape) for o in fused.spec.operands]
        fused.compile(walks, [16] * len(walks), gpu())
