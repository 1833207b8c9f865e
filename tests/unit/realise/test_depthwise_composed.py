"""Depthwise convolutions in a composed module, on a CPU: results as torch lays them out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fakes.composed import case, composed, load, matched, same

pytestmark = pytest.mark.filterwarnings("ignore")
__all__ = ["load"]  # a fixture

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.inner = nn.Conv2d(6, 6, 3, 2, 1, groups=6, bias=False)

    def forward(self, x):
        return F.relu6(self.after(self.inner(F.relu6(self.before(x)))))
"""


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_composed_module_is_one_kernel_between_its_batch_norms(order: torch.memory_format, load: Any) -> None:
    x = torch.randn(2, 6, 13, 16).to(memory_format=order)
    facts = case(SOURCE, (x,), training=False)
    (found,) = matched([facts])
    assert [p.title for p in found.patterns] == ["batch_norm -> relu6 -> conv2d -> batch_norm -> relu6"]
    candidate = composed(SOURCE, [facts], found=[found])
    module = load(candidate)
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    torch.manual_seed(0)
    theirs = names["Model"]().eval()
    ours = module.Model().eval()
    ours.load_state_dict(theirs.state_dict())
    got, wanted = ours(x), theirs(x)
    same(got, wanted)
    assert got.stride() == wanted.stride()
