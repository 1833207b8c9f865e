"""The Python interface on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache", "haste")]


class Block(nn.Module):
    """Defined in a test module: captured by value."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(768)
        self.scale = nn.Parameter(torch.full((768,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        for _ in range(4):
            y = y - 0.1 * y * y.abs() + self.scale
        return x + nn.functional.mish(y)


@pytest.mark.measured
def test_the_python_api_gives_a_drop_in_module(tmp_path: Path) -> None:
    import tilewright

    block = Block()
    nn.init.normal_(block.norm.weight)
    x = torch.randn(256, 768)
    found = tilewright.optimize(
        block, [x], target="cpu", out=tmp_path / "run", budget="600s", timing="1s", compiled=False
    )
    assert found.status == "improved", found.report
    assert found.module is not block
    assert list(found.module.state_dict()) == list(block.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(found.module(x), block(x), rtol=1e-5, atol=1e-5)
    judged = tilewright.evaluate(
        block, tmp_path / "run" / "candidate", [x], target="cpu", out=tmp_path / "again", timing="1s", compiled=False
    )
    assert judged.accepted, judged.report
