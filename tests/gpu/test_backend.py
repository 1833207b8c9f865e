"""On a GPU: torch.compile(backend="tilewright") has our kernels and library calls beside Inductor's, in its CUDA graph,
for open batches and in a second process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import profile

import tilewright.faces.backend as backend
import tilewright.run.region_check as region_check
from tilewright.faces.backend import tilewright

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Block(nn.Module):
    """A transformer's, with attention as torch calls it, and an operator that no kernel of ours has."""

    def __init__(self, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).split(width, -1)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.after(x)))) + torch.special.i0e(x)


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(1024), nn.Linear(1024, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(torch.special.i0e(self.linear(self.norm(x * 2))) * 2 + 1, -1)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path_factory.getbasetemp() / "backend-cache"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(place))
    monkeypatch.setattr(backend, "_said", set())
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield place
    torch._dynamo.reset()


def ours(call: Callable[[], Any]) -> list[str]:
    """The operators of ours that a call runs."""
    with profile() as seen:
        call()
    return [event.key for event in seen.key_averages() for _ in range(event.count) if "tilewright::" in event.key]


def closer(got: Tensor, module: nn.Module, x: Tensor) -> None:
    """Twice as far from float64 as eager mode is, at most, but for a last bit."""
    truth = module.double()(x.double())
    module.to(x.dtype)
    own, mine = ((t.double() - truth).norm() / truth.norm() for t in (module(x), got))
    assert float(mine) <= max(2 * float(own), float(torch.finfo(x.dtype).eps))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_block(dtype: torch.dtype, mode: str) -> None:
    module, x = Block().cuda().to(dtype).eval(), torch.randn(4, 256, 512, device="cuda", dtype=dtype)
    with torch.no_grad():
        options = {"tilewright.ranked": True, "triton.cudagraphs": mode == "reduce-overhead"}
        fast = torch.compile(module, backend=tilewright, options=options, fullgraph=True)
        for _ in range(3):
            got = fast(x).clone()
        closer(got, module, x)
        if mode == "default":
            assert len(ours(lambda: fast(x))) >= 2


def test_any_batch_by_the_same_kernels() -> None:
    module = Rows().cuda().bfloat16().eval()
    with torch.no_grad():
        fast = torch.compile(module, backend=tilewright, options={"tilewright.ranked": True})
        for rows in (300, 1024, 77, 2048):
            x = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16)
            closer(fast(x), module, x)
            assert len(ours(lambda x=x: fast(x))) == 2


def test_attention_spelled_out_is_a_librarys() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v

    given = [torch.randn(2, 8, 512, 64, device="cuda", dtype=torch.float16) for _ in range(3)]
    with torch.no_grad():
        fast = torch.compile(attention, backend=tilewright, options={"tilewright.ranked": True})
        torch.testing.assert_close(fast(*given), attention(*given), atol=4e-3, rtol=4e-3)
        assert any("library" in name for name in ours(lambda: fast(*given)))


def test_a_wrong_kernel_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Rows().cuda().eval(), torch.randn(300, 1024, device="cuda")
    fused = region_check._fused

    def wrong(plan: Any, model: Any, choice: Any) -> Any:
        run = fused(plan, model, choice)
        return lambda *given: tuple(t * (1 + 1e-4) for t in run(*given))

    monkeypatch.setattr(region_check, "_fused", wrong)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="is left to Inductor: its error is"):
        fast = torch.compile(module, backend=tilewright, options={"tilewright.ranked": True})
        closer(fast(x), module, x)
    assert ours(lambda: fast(x)) == []


def test_training_is_inductors() -> None:
    module, x = Rows().cuda(), torch.randn(64, 1024, device="cuda")
    torch.compile(module, backend=tilewright, options={"tilewright.ranked": True})(x).square().sum().backward()
    assert module.linear.weight.grad is not None


SECOND = """
import torch, sys
sys.path.insert(0, {here!r})
from test_backend import Rows, ours
from tilewright.faces.backend import tilewright
import tilewright.faces.backend as backend
torch.manual_seed(0)
module, x = Rows().cuda().eval(), torch.randn(300, 1024, device="cuda")
{compiled}
with torch.no_grad():
    fast = torch.compile(module, backend=tilewright, options={{"tilewright.ranked": True}})
    fast(x)
    print(len(ours(lambda: fast(x))))
"""


def test_a_second_process_compiles_no_kernel(cache: Path) -> None:
    for compiled in ("", "backend.compiled_ahead = None"):
        script = SECOND.format(here=str(Path(__file__).parent), compiled=compiled)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "TILEWRIGHT_CACHE_DIR": str(cache)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.split()[-1] == "2"
