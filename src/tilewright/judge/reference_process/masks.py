"""What masks make of infinities and NaN, where one honest implementation gives a number and another does not.

A softmax over a row that is masked as a whole gives NaN in plain arithmetic, and noughts in fused attention. An
infinity or NaN at a masked place is replaced where a mask is filled in, and becomes NaN where one of minus infinities
is added; fused attention makes NaN of one beside a mask, too. Either mode runs a module as the other implementation
would.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .noise import name_of


class Unmasked(TorchDispatchMode):
    """While it is entered a softmax over nothing but minus infinities gives noughts, as fused attention does, and not
    NaN."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if name_of(func) == "_softmax":
            result.masked_fill_((args[0] == -math.inf).all(args[1], keepdim=True), 0.0)
        return result


class Leaking(TorchDispatchMode):
    """While it is entered an infinity or NaN that meets a mask, masked or not, comes through as NaN."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        hidden: Tensor | None = None
        name = name_of(func)
        if name == "masked_fill":
            hidden = ~torch.isfinite(args[0])
        elif name == "where" and len(args) == 3:
            hidden = _strange(args[1]) | _strange(args[2])
        result = func(*args, **(kwargs or {}))
        return result if hidden is None or not result.is_floating_point() else result.masked_fill_(hidden, math.nan)


def _strange(operand: Tensor) -> Tensor:
    """Where an operand is no number; nowhere where it is one value throughout, as a filling is."""
    strange = ~torch.isfinite(operand)
    filling = operand.numel() == 1 or bool((operand == operand.reshape(-1)[:1]).all())
    return torch.zeros_like(strange) if filling else strange
