"""The statements that a replay runs: together they are the module, and none keeps what isn't needed any more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tilewright.frontend.trace import trace
from tilewright.ir.graph import refs
from tilewright.realise.case_code import plain_steps


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(8, 8)])
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, *, scale: float, bias: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        self.calls += 1
        left, right = self.layers[0](self.norm(x)).chunk(2, -1)
        y = torch.sigmoid(left) * right * scale + bias[0]
        values, _ = self.layers[1](y).cummax(-1)
        return values, torch.tensor([1.0, 2.0]) * y[..., ::4]


def test_they_compute_what_the_module_does_and_keep_its_results_alone() -> None:
    module, x, bias = Block().eval(), torch.randn(3, 8), (torch.randn(8),)
    graph = trace(module, (x,), {"scale": 0.5, "bias": bias})
    plain = plain_steps(graph, target="cpu")
    parameters, steps = plain.parameters, plain.steps
    given: dict[str, Any] = {"torch": torch, "self": module, parameters[0]: x, "scale": 0.5, "bias": bias}
    names = dict(given)
    with torch.no_grad():
        for step in steps:
            exec(step.text, names)
        wanted = module(x, scale=0.5, bias=bias)
    names.pop("__builtins__")
    left = {name: value for name, value in names.items() if name not in given and name != "_"}
    for result in wanted:
        assert any(isinstance(v, Tensor) and v.shape == result.shape and torch.equal(v, result) for v in left.values())
    kept = {*refs(graph.result), *(u.value for u in graph.updates)}
    constants = sum(n.op == "constant" for n in graph.nodes)
    assert len(left) == len(kept) + constants, "what nobody needs any more is let go"
    timed = [step.call for step in steps if step.call]
    assert set(timed) <= {c.name for c in graph.calls}
    assert {c.label for c in graph.calls if c.name in timed} >= {"linear", "sigmoid", "mul", "add", "cummax"}
    assert all(step.text.startswith("del ") or "=" in step.text for step in steps)
