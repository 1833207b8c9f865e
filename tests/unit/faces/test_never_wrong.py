"""What `optimize` gives computes what the user's module computes, whatever is done to it, or around it, afterwards."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from fakes import net
from fakes.net import example, made
from fakes.pairs import agree, outcome, since
from tilewright.faces.live import fallbacks, replacement

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return net.write_fused(tmp_path_factory.mktemp("fused"), made(), example())


@pytest.fixture
def pair(folder: Path) -> tuple[Any, Any]:
    """A replacement, and another module of its own, alike."""
    return replacement(copy.deepcopy(made()), folder), copy.deepcopy(made())


# ---- what is done to the module


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`reason` is a part of the one reason that is counted; "": the fused call stays right, and is made. `seen`: what
    goes wrong where nothing looks for it (a change that no result shows is told of all the same)."""

    name: str
    do: Callable[[Any], Any]
    reason: str
    seen: bool = True


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Parameter(torch.full((2, 16), 0.1)), nn.Parameter(torch.full((16, 2), 0.2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


class Squared(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 2


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def put(path: str, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Sets the attribute at the path to what is made of it."""

    def do(module: Any) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            module = getattr(module, parent)
        setattr(module, name, make(getattr(module, name, None)))

    return do


def data(path: str, make: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    def do(module: Any) -> None:
        parameter = module.get_parameter(path)
        parameter.data = make(parameter.data)

    return do


def untied(module: Any) -> None:
    module.second.weight = nn.Parameter(2 * module.first.weight.detach())


def hooked_anew(module: Any) -> None:
    module.fc._forward_hooks = type(module.fc._forward_hooks)()
    module.fc.register_forward_hook(lambda m, i, o: o**2)


def new(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach() * 1.5, requires_grad=parameter.requires_grad)


CHANGES = [
    Change(name="a layer for nothing", do=put("fc", lambda _: nn.Identity()), reason="fc is a Identity"),
    Change(name="LoRA", do=put("fc", LoRA), reason="fc is a LoRA"),
    Change(name="a subclass", do=put("fc.__class__", lambda _: Squared), reason="fc is a Squared"),
    Change(name="another activation", do=put("act", lambda _: nn.SiLU()), reason="act is a SiLU"),
    Change(name="its approximation", do=put("act.approximate", lambda _: "tanh"), reason="act.approximate", seen=False),
    Change(name="another pool", do=put("pool", lambda _: nn.MaxPool1d(2)), reason="pool is a MaxPool1d"),
    Change(name="its padding", do=put("pool.padding", lambda _: (1,)), reason="pool.padding"),
    Change(name="its width", do=put("pool.kernel_size", lambda _: (4,)), reason="pool.kernel_size"),
    Change(name="a layer gone", do=lambda m: delattr(m, "norm"), reason="norm is gone", seen=False),
    Change(name="an epsilon", do=put("norm.eps", lambda _: 0.5), reason="norm.eps"),
    Change(name="an attribute", do=put("scale", lambda _: 2.0), reason="scale"),
    Change(name="an integer for a float", do=put("scale", lambda _: torch.tensor(2.0)), reason="scale"),
    Change(name="a layer's attribute", do=put("gate.slope", lambda _: -0.4), reason="gate.slope"),
    Change(name="an attribute over the class's", do=put("gate.strength", lambda _: 3.0), reason="gate.strength"),
    Change(name="in a dict", do=lambda m: m.settings.update(gain=2.0), reason="settings"),
    Change(name="in a list", do=lambda m: m.settings["powers"].append(3), reason="settings"),
    Change(name="in an object", do=put("config.floor", lambda _: 0.1), reason="config"),
    Change(name="dropout alone in training", do=lambda m: m.drop.train(), reason="drop.training"),
    Change(name="a method of the instance", do=put("fc.forward", lambda f: lambda x: f(x) ** 2), reason="fc.forward"),
    Change(name="a method of the root", do=put("scaled", lambda f: lambda x: f(x) + 1), reason="scaled"),
    Change(name="a forward hook", do=lambda m: m.fc.register_forward_hook(lambda *a: a[-1] ** 2),
           reason="fc has a hook"),
    Change(name="a hook in a new dict", do=hooked_anew, reason="fc has a hook"),
    Change(name="a hook before", do=lambda m: m.act.register_forward_pre_hook(lambda _, a: (2 * a[0],)),
           reason="act has"),
    Change(name="parametrization", do=lambda m: parametrize.register_parametrization(m.fc, "weight", Halved()),
           reason="fc is a ParametrizedLinear", seen=False),
    Change(name="weight norm", do=lambda m: parametrizations.weight_norm(m.fc),
           reason="fc is a ParametrizedLinear", seen=False),
    Change(name="old weight norm", do=lambda m: nn.utils.weight_norm(m.fc), reason="fc", seen=False),
    Change(name="spectral norm", do=lambda m: parametrizations.spectral_norm(m.fc),
           reason="fc is a Parametrized", seen=False),
    Change(name="old spectral norm", do=lambda m: nn.utils.spectral_norm(m.fc), reason="fc"),
    Change(name="pruning", do=lambda m: prune.l1_unstructured(m.fc, "weight", 0.5), reason="fc", seen=False),
    Change(name="untied", do=untied, reason="second.weight"),
    Change(name="a bias gone", do=put("fc.bias", lambda _: None), reason="fc.bias"),
    Change(name="weights of another shape", do=put("fc.weight", lambda w: nn.Parameter(w[:8].detach())),
           reason="fc.weight"),
    Change(name="data of another shape", do=data("first.weight", lambda w: w[:4].clone()), reason="weight"),
    Change(name="data of another type", do=data("fc.weight", torch.Tensor.half), reason="fc.weight is float16"),
    Change(name="half", do=lambda m: m.half(), reason="float16"),
    Change(name="one layer in half", do=lambda m: m.fc.half(), reason="float16"),
    Change(name="bfloat16", do=lambda m: m.bfloat16(), reason="bfloat16"),
    Change(name="double", do=lambda m: m.to(torch.float64), reason="float64"),
    Change(name="meta", do=lambda m: m.to("meta"), reason="second.weight", seen=False),
    Change(name="training", do=lambda m: m.train(), reason="no case"),
    # What stays right, and fast.
    Change(name="nothing", do=lambda m: None, reason=""),
    Change(name="there and back", do=lambda m: m.half().float(), reason=""),
    Change(name="to where it is", do=lambda m: m.to("cpu").eval(), reason=""),
    Change(name="a state", do=lambda m: m.load_state_dict({k: v * 1.25 for k, v in m.state_dict().items()}), reason=""),
    Change(name="a state assigned",
           do=lambda m: m.load_state_dict({k: v * 1.25 for k, v in m.state_dict().items()}, assign=True),
           reason="second"),
    Change(name="a new weight", do=put("fc.weight", new), reason=""),
    Change(name="a weight in place", do=data("fc.weight", lambda w: w * 3), reason=""),
    Change(name="a new buffer", do=put("shift", lambda b: b * 2), reason=""),
    Change(name="a new tensor", do=put("table", lambda b: b * 2), reason=""),
    Change(name="an attribute that nobody reads", do=put("note", lambda _: "seen"), reason=""),
    Change(name="an equal attribute", do=put("scale", lambda s: float(str(s))), reason=""),
    Change(name="a hook of the root", do=lambda m: m.register_forward_hook(lambda *a: a[-1] + 1), reason=""),
]  # fmt: skip


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.name)
def test_what_is_done_to_the_module_is_followed(pair: tuple[Any, Any], change: Change, warm: bool) -> None:
    torch.manual_seed(1)
    mine, theirs = pair
    with torch.no_grad():
        if warm:
            mine(*example())
        before = fallbacks(mine)
        for module in (mine, theirs):
            torch.manual_seed(2)
            change.do(module)
        for _ in range(2):
            torch.manual_seed(3)
            got = outcome(lambda: mine(*example()))
            torch.manual_seed(3)
            assert agree(got, outcome(lambda: theirs(*example()))), got
    counted = since(before, mine)
    if change.reason:
        assert list(counted.values()) == [2] and change.reason in next(iter(counted)), counted
    else:
        assert not counted


@pytest.mark.parametrize("change", [c for c in CHANGES if c.reason and c.seen], ids=lambda c: c.name)
def test_unguarded_each_of_these_goes_wrong(
    pair: tuple[Any, Any], change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = pair
    if change.name in ("training", "a state assigned"):
        pytest.skip("a condition of the case; a tie that is right by chance")
    with torch.no_grad():
        for module in (mine, theirs):
            torch.manual_seed(2)
            change.do(module)
        monkeypatch.setattr(type(mine), "_tilewright_differs", lambda *_: "")
        monkeypatch.setattr(type(mine), "_case_0", inspect.unwrap(vars(type(mine))["_case_0"]))
        assert not agree(outcome(lambda: mine(*example())), outcome(lambda: theirs(*example())))
