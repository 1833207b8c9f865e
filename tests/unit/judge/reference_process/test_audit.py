"""The cell's side of an audit: operations as their author wrote them, each left out or drowned; state moved alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilewright.judge.reference_process.audit import Operations, perturb


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("order", torch.arange(6))
        self.register_buffer("mask", torch.zeros(64, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.lin(x).clone()).view(-1, 3, 2)
        y += 1.0
        low = torch.min(y, dim=2, keepdim=True).values
        y = F.gelu(y - low)
        y[:, 0] = 0.0
        return y.transpose(1, 2).contiguous().to(torch.float32).reshape(x.shape)


def run(x: Tensor, **ablation: object) -> tuple[Tensor, Operations]:
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad(), Operations(**ablation) as mode:  # type: ignore[arg-type]
        result = model(x)
    return result, mode


X = torch.linspace(-2, 2, 24).reshape(4, 6)


def test_operations_bear_the_names_that_the_module_uses() -> None:
    _, listing = run(X)
    found = {o.name: o.ways for o in listing.found}
    assert list(found) == ["linear", "add_", "min", "sub", "gelu", "__setitem__"]
    assert found["linear"] == ("skip 0", "cut") and found["min"] == ("cut",) and found["sub"] == ("skip 0", "cut")
    assert found["__setitem__"] == ("skip 0",)
    assert [o.name for o in listing.found if o.heavy] == ["linear"]


def test_an_operation_that_is_left_out_hands_on_its_operand() -> None:
    whole, _ = run(X)
    without, mode = run(X, target=0, way="skip 0")
    by_hand = (X.view(-1, 3, 2) + 1.0) - (X.view(-1, 3, 2) + 1.0).amin(2, keepdim=True)
    by_hand = F.gelu(by_hand)
    by_hand[:, 0] = 0.0
    assert mode.reached and not torch.equal(without, whole)
    torch.testing.assert_close(without, by_hand.transpose(1, 2).reshape(X.shape), rtol=0, atol=0)


def test_what_an_in_place_operation_did_is_undone() -> None:
    whole, _ = run(X)
    without, mode = run(X, target=1, way="skip 0")
    torch.testing.assert_close(without, whole, rtol=1e-5, atol=1e-6)  # less its minimum, a shift is nothing
    assert mode.reached and not run(X, target=9, way="cut")[1].reached


def test_a_result_that_is_drowned_keeps_its_size_and_moves_what_follows() -> None:
    x = torch.full((64, 64), 3.0)
    with torch.no_grad(), Operations(target=0, way="cut", seed=5):
        noise = torch.relu(x)
    assert float(noise.square().mean().sqrt()) == pytest.approx(1.5, rel=0.05)
    assert abs(float(noise.mean())) < 0.1
    whole, _ = run(X)
    for number in range(5):
        assert float((run(X, target=number, way="cut")[0] - whole).norm()) > (1e-3 if number != 1 else 0.0)


def test_noise_in_every_output_of_an_operation() -> None:
    lstm, x = nn.LSTM(4, 4), torch.rand(3, 2, 4)
    with torch.no_grad():
        whole = lstm(x)
        with Operations(target=0, way="cut"):
            drowned = lstm(x)
    assert not torch.equal(whole[0], drowned[0]) and not torch.equal(whole[1][1], drowned[1][1])


def test_state_is_moved_alone_and_counters_are_not() -> None:
    model = Model()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = model.state_dict(keep_vars=True)
    assert perturb(model, "lin.bias", state["lin.bias"], 1)
    assert perturb(model, "mask", state["mask"], 1)
    assert perturb(model, "order", state["order"], 1)
    assert not perturb(model, "steps", state["steps"], 1)
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {"lin.bias", "mask", "order"}
    assert sorted(model.order.tolist()) == list(range(6)), "an index stays in its range"


def test_a_guard_against_division_by_zero_is_not_left_out() -> None:
    with torch.no_grad(), Operations() as listing:
        _ = X / (X.abs() + 1e-6) + (1e-8 + X.square()).rsqrt() - X.exp().clamp(min=1e-9).log()
        _ = (X + 1e-6 * X) + X.clamp(min=0.0) + 0.5
    skipped = {(o.name, n) for n, o in enumerate(listing.found) if "skip 0" in o.ways}
    every = list(enumerate(o.name for o in listing.found))
    guards = [n for n, name in every if (name, n) not in skipped]
    assert [dict(every)[n] for n in guards] == ["add", "add", "clamp"]
    assert all(o.ways[-1] == "cut" for o in listing.found)
