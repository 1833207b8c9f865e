"""A model taken apart: which layers are found, which are one, and the model afterwards; solving is a fake's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes import net
from fakes.transformer import WIDTH, Decoder
from tilewright.faces.api import Optimized
from tilewright.faces.examples import examples_of
from tilewright.faces.layers import OptimizedLayers, replaced, taken_apart
from tilewright.faces.recorded import recorded
from tilewright.facts.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore")


class Expert(nn.Module):
    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.up, self.down, self.power = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), power

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)) * self.power)


class Mixture(nn.Module):
    """Each row goes to one expert: how many go to which only values say."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.norm = nn.Linear(WIDTH, 3, bias=False), nn.LayerNorm(WIDTH)
        self.experts = nn.ModuleList([Expert(), Expert(), Expert(2.0)])

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).argmax(-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(-1)
            if len(rows):
                result[rows] = expert(self.norm(x[rows]))
        return result


def solved(model: nn.Module, given: Any, folder: Path, *, refuses: str = "", budget_s: float = 60.0) -> OptimizedLayers:
    def solve(module: nn.Module, examples: Any, budget_s: float, name: str) -> Optimized:
        if type(module).__name__ == refuses:
            raise UserError("refused by the judge")
        fused = net.fused_as_given(folder / name, module, list(examples))
        ratio = {"eager": {"low": 1.4, "mid": 1.5, "high": 1.6}}
        return Optimized(module=fused, status="improved", summary={"ratio": ratio}, report="", folder=folder / name)

    parts = taken_apart(model, recorded(model, examples_of(given, None)[0]))
    return replaced(model, parts, solve, budget_s=budget_s, say=lambda text: None)


def test_a_layer_is_solved_once_and_replaced_in_all_places(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, ids = Decoder(layers=3).eval(), torch.randint(0, 50, (2, 12))
    keys, wanted = list(model.state_dict()), model(ids).last.detach()
    found = solved(model, ids, tmp_path)
    first = found.layers[0]
    assert (first.name, first.replaced, first.ratio) == ("Block", ("layers.0", "layers.1", "layers.2"), 1.5)
    assert sum(layer.name == "Block" for layer in found.layers) == 1 and found.model is model
    assert list(model.state_dict()) == keys and type(model.layers[0]) is type(model.layers[2])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).last, wanted)
        assert not found.fallbacks()
        model.layers[1].first.weight.add_(1.0)  # each place reads its own parameters
        assert not torch.allclose(model(ids).last, wanted)
    assert "| Block (`layers.0`) | 3 | 3 | 1.50 | improved |" in found.report


def test_the_model_trains_as_before(tmp_path: Path) -> None:
    model, ids = Decoder(layers=2).eval(), torch.randint(0, 50, (2, 12))
    found = solved(model, ids, tmp_path)
    model.train()
    model(ids).last.sum().backward()
    assert all(p.grad is not None for layer in model.layers for p in layer.parameters())
    assert sum(found.fallbacks().values()) > 0


def test_of_a_mixture_the_router_stays_and_equal_experts_are_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Mixture().eval(), torch.randn(30, WIDTH)
    wanted = model(x).detach()
    before = {name: type(module) for name, module in model.named_modules()}
    found = solved(model, x, tmp_path)
    layers = {layer.paths: layer for layer in found.layers if layer.name == "Expert"}
    assert set(layers) == {("experts.0", "experts.1"), ("experts.2",)}
    assert type(model.experts[0]) is not before["experts.0"] and type(model) is Mixture
    with torch.no_grad():
        torch.testing.assert_close(model(x), wanted)


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if float(x.sum()) > -1e9 else x


def test_what_cannot_be_traced_is_named_with_the_reason_and_looked_into(tmp_path: Path) -> None:
    model = nn.Sequential(Decides(), Expert())
    found = solved(model, torch.randn(4, WIDTH), tmp_path, refuses="Expert")
    known = {layer.paths[0]: layer for layer in found.layers}
    assert known["0"].status == "not traced" and known["0"].why
    assert known["0.fc"].status == "improved" and known["1"].status == "refused"
    assert known["1"].why == "refused by the judge" and type(model[1]) is Expert


def test_without_time_nothing_is_tried(tmp_path: Path) -> None:
    found = solved(Decoder(layers=2).eval(), torch.randint(0, 50, (2, 12)), tmp_path, budget_s=-1.0)
    assert {layer.status for layer in found.layers} <= {"not tried", "not traced"}


def test_repeated_layers_share_their_examples() -> None:
    model = Decoder(layers=3).eval()
    calls = recorded(model, examples_of(torch.randint(0, 50, (2, 12)))[0])
    kept = {id(example) for block in model.layers for example in calls[block].examples.values()}
    assert len(kept) == 1 and calls[model.layers[2]].paths == ["layers.2"]


def test_recording_leaves_buffers_and_random_numbers_as_they_were() -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    example = examples_of(torch.randn(4, 8), None)[0]
    state = torch.get_rng_state()
    calls = recorded(model, example)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and len(calls) == 3
    with pytest.raises(UserError, match="Sequential does not take it: RuntimeError"):
        recorded(model, examples_of(torch.randn(4, 9), None)[0])
