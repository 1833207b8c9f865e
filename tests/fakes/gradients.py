"""Backward graphs held against torch's own gradients in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tilewright.facts.gradients import Gradients
from tilewright.facts.segment import Segment
from tilewright.frontend.autodiff import segments, with_depthwise
from tilewright.frontend.prune import early, pruned
from tilewright.frontend.trace import trace_training
from tilewright.ir.graph import Graph
from tilewright.judge.candidate_process.step import tensors_of
from tilewright.realise.case_code import case_code


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def traced(module: nn.Module, inputs: Sequence[Tensor]) -> Graph:
    count = sum(t.requires_grad for t in tensors_of(module(*inputs)))
    wanted = tuple(i for i, t in enumerate(inputs) if t.requires_grad)
    names = tuple(n for n, p in module.named_parameters() if p.requires_grad)
    asked = Gradients(outputs=tuple(range(count)), inputs=wanted, parameters=names)
    return trace_training(module, tuple(inputs), {}, list(inputs), asked)


def code(graph: Graph, *, by_need: bool = False) -> Callable[..., Any]:
    """A graph as Python, everything left to torch."""
    text = case_code(graph, (), target="cpu", by_need=by_need)
    names = ", ".join((*(("needs",) if by_need else ()), *text.parameters))
    space: dict[str, Any] = {"torch": torch}
    exec(f"def run({names}):\n" + "".join(f"    {line}\n" for line in text.body), space)
    return space["run"]  # type: ignore[no-any-return]


def _spelt(graph: Graph) -> Graph:
    return early(with_depthwise(graph))


def agree(function: Callable[..., Any], *inputs: Tensor) -> Segment:
    """That the one segment of this function gives its results, and torch's gradients."""
    return agree_all({"it": (function, inputs)})


def agree_all(functions: dict[str, tuple[Callable[..., Any], Sequence[Tensor]]]) -> Segment:
    """The same for many functions in one module, each with inputs of its own; in float64, and with slices moved."""
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for _, own in functions.values() for t in own]
    owners = [name for name, (_, own) in functions.items() for _ in own]
    calls = [(f, [i for i, owner in enumerate(owners) if owner == name]) for name, (f, _) in functions.items()]
    module = Of(lambda *args: tuple(f(*(args[i] for i in mine)) for f, mine in calls))
    (segment,) = segments(traced(module, inputs), products=True)
    graded = [t for t in tensors_of(module(*inputs)) if t.requires_grad]
    by_output = dict(zip(segment.graded, [torch.randn_like(t) for t in graded], strict=True))
    wanted = [i for i, t in enumerate(inputs) if t.requires_grad]
    true = torch.autograd.grad(graded, [inputs[i] for i in wanted], list(by_output.values()), allow_unused=True)
    order = [int(n.removeprefix("args_")) for n in segment.inputs]
    given = [inputs[i].detach() for i in order]
    for rewrite in (pruned, early, _spelt):
        made = dict(zip(segment.forward.outputs, code(rewrite(segment.forward))(*given), strict=True))
        known = dict(zip(segment.inputs, given, strict=True)) | made
        asked = [known[n] for n in (*segment.kept, *segment.saved)]
        needs = [inputs[i].requires_grad for i in order]
        found = code(rewrite(segment.backward), by_need=True)(needs, *asked, *by_output.values())
        by_input = dict(zip(order, found, strict=True))
        for i, value in zip(wanted, true, strict=True):
            mine = by_input.get(i)
            mine = torch.zeros_like(inputs[i]) if mine is None else mine
            value = torch.zeros_like(mine) if value is None else value
            torch.testing.assert_close(mine, value, rtol=1e-7, atol=1e-11, equal_nan=True,
                                       msg=lambda text, i=i: f"{owners[i]}: {text}")  # fmt: skip
    return segment


def leaf(*shape: int, low: float | None = None, high: float = 1.0) -> Tensor:
    made = torch.randn(shape) if low is None else torch.rand(shape) * (high - low) + low
    return made.double().requires_grad_()
