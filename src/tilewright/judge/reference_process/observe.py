"""What the values of a graph look like when its module runs on its own inputs: enough to draw others like them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..candidate_process.load import blaming
from ..candidate_process.subject import CandidateSubject
from ..memory.mapped import DTYPES, dtype_name
from ..wire.replays import InputStatistics, Named, Observe, Observed
from .replay import line_of, names_given


def observed(request: Observe, *, subject: CandidateSubject, inputs: Sequence[Tensor]) -> Observed:
    """Run the statements once. Raises CodeRaised where one of the module's operators does."""
    lines = [line_of(step) for step in request.steps]
    made_by_lines = {name for line in lines for name in line.writes}
    wanted = {v.text: v for v in request.values}
    found: dict[str, InputStatistics] = {}
    with subject.grad_mode():
        names = names_given(request, subject, inputs)
        for value in request.values:
            if value.text not in made_by_lines:
                _note(found, value, eval(value.text, names))
        for line in lines:
            with blaming("raised", f"{line.call} raised when it was run by itself"):
                exec(line.code, names)
            for name in line.writes:
                if name in wanted:
                    _note(found, wanted[name], names[name])
    return Observed(spreads=tuple(found.values()))


def _note(found: dict[str, InputStatistics], value: Named, seen: object) -> None:
    if isinstance(seen, Tensor) and seen.dtype in DTYPES.values() and seen.numel():
        found[value.node] = spread_of(value.node, seen.detach())


def spread_of(node: str, tensor: Tensor) -> InputStatistics:
    """See facts.discovery.Spread. A tensor of nothing but noughts and infinities spreads from 0 to 0."""
    numbers = tensor.double().flatten()
    plain = numbers[torch.isfinite(numbers) & (numbers != 0)]
    low, high, mean, deviation = 0.0, 0.0, 0.0, 0.0
    if plain.numel():
        low, high, mean = plain.min().item(), plain.max().item(), plain.mean().item()
        deviation = plain.std(correction=0).item()
    return InputStatistics(
        node=node, shape=tuple(tensor.shape), stride=tuple(tensor.stride()), dtype=dtype_name(tensor.dtype),
        low=low, high=high, mean=mean, deviation=deviation,
        zeros=(numbers == 0).double().mean().item(), infinite=(numbers == -math.inf).double().mean().item(),
    )  # fmt: skip
