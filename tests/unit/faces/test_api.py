"""The Python interface on the CPU."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tilewright
from tilewright.faces import api

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
    block = Block()
    nn.init.normal_(block.norm.weight)
    x = torch.randn(64, 768)
    found = tilewright.optimize(
        block, [x], target="cpu", out=tmp_path / "run", budget="600s", timing="0.3s", compiled=False
    )
    assert found.status == "improved", found.report
    assert found.module is not block
    assert list(found.module.state_dict()) == list(block.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(found.module(x), block(x), rtol=1e-5, atol=1e-5)
    assert {p.name for p in (tmp_path / "run").glob("report.*")} == {"report.md", "report.html"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<h1>Block</h1>" in page and f"tilewright export {tmp_path / 'run'} --name fast_block" in page
    _is_exported(found, block, x, tmp_path)
    judged = tilewright.evaluate(
        block, tmp_path / "run" / "candidate", [x], target="cpu", out=tmp_path / "again", timing="0.3s", compiled=False
    )
    assert judged.accepted, judged.report


def _is_exported(found: tilewright.Optimized, block: Block, x: torch.Tensor, tmp_path: Path) -> None:
    """A live module's result as a package, used as a user does."""
    wheel = found.export(tmp_path / "wheels", name="fast_block")
    assert wheel.name.startswith("fast_block-0-py3-none-") and wheel.is_file()
    sys.path.insert(0, str(tmp_path / "wheels"))
    try:
        package = importlib.import_module("fast_block")
        made = package.load(block)
        assert isinstance(made, Block) and made.scale is block.scale
        with torch.no_grad():
            torch.testing.assert_close(made(x), block(x), rtol=1e-5, atol=1e-5)
        assert package.fallbacks() == {}
    finally:
        sys.path.remove(str(tmp_path / "wheels"))
        for name in [name for name in sys.modules if name.split(".")[0] == "fast_block"]:
            del sys.modules[name]


def test_nothing_is_exported_of_a_module_that_is_kept(tmp_path: Path) -> None:
    kept = tilewright.Optimized(module=Block(), status="no_improvement", summary={}, report="", folder=tmp_path)
    with pytest.raises(tilewright.UserError, match="nothing of ours to export: the run ended with 'no improvement'"):
        kept.export(tmp_path, name="fast_block")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_printed_where_somebody_looks(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(api, "progress", lambda quiet: told.append(quiet) or (lambda text: None))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with pytest.raises(tilewright.UserError):
        tilewright.optimize(Block(), 3, target="cpu", out=tmp_path)  # type: ignore[arg-type]
    assert told == [not terminal]
