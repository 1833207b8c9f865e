"""A step of training with an attention in it, cut into segments and matched; and what it gives beside float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, widened
from fakes.renderer import InterpretingRenderer
from tilewright.facts.gradients import Gradients
from tilewright.facts.pattern import Pattern
from tilewright.facts.segment import Segment
from tilewright.frontend.trace import trace_training
from tilewright.ir.program import Program
from tilewright.ir.validation import validate
from tilewright.run.training import match_training


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`segment` is that of the attention, or the last of those found. Gradients are of all arguments of floats."""

    function: Callable[..., Any]
    args: tuple[Tensor, ...]
    segment: Segment
    patterns: tuple[Pattern, ...]

    def truth(self) -> Sequence[Tensor]:
        """In float64, by torch."""
        given = [x.detach().requires_grad_(x.is_floating_point()) for x in widened(self.args)]
        made = self.function(*given)
        return torch.autograd.grad(made, [x for x in given if x.requires_grad], self.upstream(made.shape).double())

    def own(self) -> Sequence[Tensor]:
        """In the arguments' types, by torch."""
        given = [x.detach().requires_grad_(x.is_floating_point()) for x in self.args]
        made = self.function(*given)
        return torch.autograd.grad(made, [x for x in given if x.requires_grad], self.upstream(made.shape).to(made))

    def upstream(self, shape: Sequence[int]) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(7)).to(self.args[0].dtype)

    def gradients(
        self, execute: Callable[..., Sequence[Tensor]] | None = None, only: Sequence[Pattern] | None = None
    ) -> Sequence[Tensor]:
        """By the Programs of `only` (None: all): interpreted in float64, or by `execute` in the arguments' types."""
        exact, segment = execute is None, self.segment
        given: tuple[Tensor, ...] = widened(self.args) if exact else self.args
        values = {f"args_{i}": x for i, x in enumerate(given)}
        patterns = self.patterns if only is None else only
        how: dict[str, Any] = {"patterns": patterns, "exact": exact, "execute": execute}
        with torch.no_grad():
            made = GraphRun(segment.forward, Applies(self.function), **how)(*(values[n] for n in segment.inputs))
            values |= dict(zip(segment.forward.outputs, made, strict=True))
            (graded,) = segment.graded
            upstream = self.upstream(values[graded].shape).to(values[graded])
            given = (*(values[n] for n in (*segment.kept, *segment.saved)), upstream)
            found = GraphRun(segment.backward, Applies(self.function), **how)(*given)
        return [x for x in found if x is not None]


def step(
    function: Callable[..., Any], *args: Tensor, unsupported: Callable[[Program], str | None] | None = None,
    space: Callable[[Program], Any] | None = None,
) -> Step:  # fmt: skip
    """Trace, cut and match; every Program is checked."""
    make = InterpretingRenderer()
    asked = tuple(i for i, x in enumerate(args) if x.is_floating_point())
    graph = trace_training(Applies(function), args, {}, list(args), Gradients(outputs=(0,), inputs=asked))
    found = match_training(
        graph, unsupported=unsupported or make.unsupported, space=space or make.space, first_id=0, first_segment=0,
        case=0,
    )  # fmt: skip
    for pattern in found.patterns:
        validate(pattern.program)
    made = {b.node for p in found.patterns if p.kind == "attention_backward" for m in p.matches for b in m.outputs}
    mine = [s for s in found.segments if made & {n.name for n in s.backward.nodes}]
    return Step(function=function, args=args, segment=(mine or list(found.segments))[-1], patterns=found.patterns)
