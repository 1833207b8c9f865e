"""On a GPU: what `optimize` makes computes what the module computes, whatever changes; and what asking costs."""

from __future__ import annotations

import copy
import timeit
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from fakes import net
from fakes.net import example, made
from fakes.pairs import agree, since
from tilewright.faces.live import fallbacks, replacement
from tilewright.kernels.survey import GUARD

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module = copy.deepcopy(made()).cuda()
    module.table = module.table.cuda()
    inputs = tuple(t.cuda() for t in example())
    return net.write_fused(tmp_path_factory.mktemp("fused"), module, inputs, target="cuda")


@torch.no_grad()
def test_on_a_gpu_changes_are_followed(folder: Path) -> None:
    module = copy.deepcopy(made()).cuda()
    module.table = module.table.cuda()
    fast, inputs = replacement(module, folder), tuple(t.cuda() for t in example())
    theirs = copy.deepcopy(module)
    assert agree(fast(*inputs), theirs(*inputs)) and fallbacks(fast) == {}
    changes: tuple[tuple[Callable[[nn.Module], object], str], ...] = (
        (lambda m: m.half(), "no case has this signature"), (lambda m: m.float(), ""),
        (lambda m: m.bfloat16(), "no case has this signature"), (lambda m: m.float(), ""),
        (lambda m: m.fc.register_forward_hook(lambda *a: a[-1] ** 2), "fc has a hook"),
    )  # fmt: skip
    for change, reason in changes:
        before = fallbacks(fast)
        change(fast), change(theirs)
        given = inputs[0].to(fast.fc.weight.dtype), inputs[1]
        got, wanted = fast(*given), theirs(*given)
        assert got.dtype == wanted.dtype and torch.allclose(got.float(), wanted.float(), rtol=2e-2, atol=2e-2)
        assert all(reason in why for why in since(before, fast)) and bool(reason) == bool(since(before, fast))


@torch.no_grad()
def test_on_a_gpu_autocast_and_other_devices_run_the_original(folder: Path) -> None:
    module = copy.deepcopy(made()).cuda()
    module.table = module.table.cuda()
    fast, inputs = replacement(module, folder), tuple(t.cuda() for t in example())
    theirs = copy.deepcopy(module)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        before = fallbacks(fast)
        assert torch.equal(fast(*inputs), theirs(*inputs)) and since(before, fast) == {"torch.autocast is on": 1}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = fallbacks(fast)
        assert agree(fast(*inputs), theirs(*inputs)) and not since(before, fast)
    with pytest.raises(RuntimeError):
        fast.cpu()(*inputs)


@torch.no_grad()
def test_asking_costs_less_than_two_microseconds_a_call(folder: Path) -> None:
    module = copy.deepcopy(made()).cuda()
    module.table = module.table.cuda()
    fast, inputs = replacement(module, folder), tuple(t.cuda() for t in example())
    fast(*inputs)
    fits, state = fast.__dict__[GUARD].fits[0], fast.__dict__
    asked_s = min(timeit.repeat(lambda: fits(state, *inputs), number=1000, repeat=50)) / 1000
    print(f"{asked_s * 1e9:.0f} ns a call, of {len(list(fast.modules())) - 1} submodules")
    assert asked_s < 4e-6  # less than twice what it should take: other work runs beside
