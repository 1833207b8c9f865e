"""Training as users do it: autocast, checkpoints, DistributedDataParallel keep the fused path or run the original."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fakes import net
from fakes.trained import WIDTH, TrainedNet
from tilewright.faces.called import NOT_CAST
from tilewright.faces.live import fallbacks
from tilewright.kernels.guards import AUTOCAST

Call = Callable[[nn.Module, Tensor], Tensor]


def pair(folder: Path, way: str = "plain") -> tuple[nn.Module, nn.Module]:
    """What `optimize` gives in mode "training", and the module."""
    torch.manual_seed(0)
    module = TrainedNet(way).train()
    x = torch.randn(6, WIDTH, requires_grad=True)
    return net.fused_training(folder, copy.deepcopy(module), (x,)), module


def gradients(
    module: nn.Module, x: Tensor, call: Call = lambda module, x: module(x),
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[Tensor]:  # fmt: skip
    """The result, and the gradients of the input and of all parameters."""
    module.zero_grad()
    given = x.detach().requires_grad_()
    with around():
        result = call(module, given)
        loss = result.float().square().sum()
    loss.backward()
    found = [p.grad for p in (given, *module.parameters())]
    return [result.detach(), *(g for g in found if g is not None)]


def around() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_under_autocast_what_was_optimised_without_it_runs_the_original(tmp_path: Path) -> None:
    mine, module = pair(tmp_path)
    x = torch.randn(6, WIDTH)
    with pytest.warns(RuntimeWarning, match=AUTOCAST):
        found = gradients(mine, x, around=around)
    for one, other in zip(found, gradients(module, x, around=around), strict=True):
        assert torch.equal(one, other)
    assert fallbacks(mine) == {AUTOCAST: 1} and len(found) == 2 + len(list(module.parameters()))
    torch.testing.assert_close(gradients(mine, x), gradients(module, x))
    assert fallbacks(mine) == {AUTOCAST: 1}


def test_what_is_optimised_under_autocast_is_fused_under_it(tmp_path: Path) -> None:
    with around():
        mine, module = pair(tmp_path)
    x = torch.randn(6, WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gradients(mine, x, around=around)
    wanted = gradients(module, x, around=around)
    assert [t.dtype for t in found] == [t.dtype for t in wanted] and not fallbacks(mine)
    assert any(tmp_path.glob("candidate/fused_*.py"))
    exact = gradients(copy.deepcopy(module).double(), x.double())
    for one, other, truth in zip(found, wanted, exact, strict=True):
        assert (one - truth).norm() <= 2 * (other - truth).norm() + 1e-3 * truth.norm()
    with pytest.warns(RuntimeWarning, match=NOT_CAST):
        plain = gradients(mine, x)
    for one, other in zip(plain, gradients(module, x), strict=True):
        assert torch.equal(one, other)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        half = gradients(mine, x, around=lambda: torch.autocast("cpu", dtype=torch.float16))
    wanted = gradients(module, x, around=lambda: torch.autocast("cpu", dtype=torch.float16))
    assert all(torch.equal(one, other) for one, other in zip(half, wanted, strict=True))
    assert fallbacks(mine) == {NOT_CAST: 2}


@pytest.mark.parametrize(("way", "rtol", "atol"), [("autocast", 2**-5, 0.1), ("checkpoint", 1e-5, 1e-5)])
def test_what_forward_enters_itself_is_fused(way: str, rtol: float, atol: float, tmp_path: Path) -> None:
    mine, module = pair(tmp_path, way)
    x = torch.randn(6, WIDTH)
    torch.testing.assert_close(gradients(mine, x), gradients(module, x), rtol=rtol, atol=atol)
    assert not fallbacks(mine)
    assert any(tmp_path.glob("candidate/fused_*.py"))


def test_reentrant_checkpoints_inside_are_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"an autograd\.Function of the module's own"):
        pair(tmp_path, "reentrant")


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_fused_module_may_be_checkpointed(reentrant: bool, tmp_path: Path) -> None:
    mine, module = pair(tmp_path)
    x = torch.randn(6, WIDTH)

    def call(module: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(module, x, use_reentrant=reentrant)
        return result

    found = gradients(mine, x, call)
    torch.testing.assert_close(found, gradients(module, x, call))
    assert not fallbacks(mine) and len(found) == 2 + len(list(module.parameters()))


@pytest.mark.thorough
def test_processes_share_the_gradients_of_a_fused_module(tmp_path: Path) -> None:
    mine, module = pair(tmp_path)
    torch.save(mine, tmp_path / "fused.pt")
    torch.save(module, tmp_path / "plain.pt")
    command = [sys.executable, "-m", "fakes.trained"]
    where: dict[str, Any] = {
        "env": {**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")},
        "cwd": Path(__file__).parents[2],
    }
    started = [
        subprocess.Popen([*command, str(rank), "2", str(tmp_path)], text=True, stdout=subprocess.PIPE, **where)
        for rank in range(2)
    ]
    found = [json.loads(process.communicate(timeout=300)[0]) for process in started]
    for left in found:
        torch.testing.assert_close(
            [torch.tensor(t) for part in left["fused"] for t in part],
            [torch.tensor(t) for part in left["plain"] for t in part],
        )
        assert not left["fallbacks"]
    assert found[0]["fused"] == found[1]["fused"]
    assert found[0]["fused"][1] != [p.tolist() for p in module.parameters()]
