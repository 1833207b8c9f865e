"""What a module gives gradients of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...facts.gradients import Gradients
from ..candidate_process import values
from ..candidate_process.load import CodeRaised, blaming
from ..candidate_process.step import tensors_of


def learn(
    module: torch.nn.Module, args_text: str, inputs: Sequence[Tensor], marked: Sequence[int]
) -> tuple[Gradients, tuple[Tensor, ...]]:
    """What a module gives gradients of, found by one forward call: of the inputs marked, else of all floating ones, and
    of its parameters; with empty tensors like the outputs that have one. Raises CodeRaised where nothing has."""
    wanted = tuple(marked) or tuple(i for i, t in enumerate(inputs) if t.is_floating_point() or t.is_complex())
    leaves = [t.detach().requires_grad_(i in wanted) for i, t in enumerate(inputs)]
    forward = values.bound(module, values.decode(args_text, leaves))
    with blaming("raised", "forward raised"), torch.enable_grad():
        found = tensors_of(forward())
    outputs = tuple(i for i, t in enumerate(found) if t.requires_grad)
    if not outputs:
        raise CodeRaised("bad_module", "nothing that forward returns has a gradient; judge it with --mode inference")
    parameters = tuple(n for n, p in module.named_parameters() if p.requires_grad)
    like = tuple(torch.empty(found[i].shape, dtype=found[i].dtype, device=found[i].device) for i in outputs)
    return Gradients(outputs=outputs, inputs=wanted, parameters=parameters), like
