"""Gradients that the precision contract can't be applied to as they are: such as jump, and such as vanish.

Where a gradient jumps or cancels, the reference's cell says how far it moves with the last bits of what it is computed
from (judge.reference_process.jitter): the *slack*, which a difference must exceed before it counts. What is left:

- Inputs on which a gradient jumps in many places (ties in a maximum, relu at nought, on small integers) say little.
- A gradient that is nought by algebra (a bias before a batch norm) is 1e-17 in float64 and rounding noise in any other
  computation. All that can be asked is that it stays noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .metric import blocks, typical

JUMPS = 1e-3  # share of the elements, above which a family of inputs is left out
_JUMP = 0.01  # a slack of more than this share of the element's size, or of the typical size
_NOUGHT = 1e-9  # of the largest gradient's typical size
_NOISE = 64.0  # times the reference's own noise: sums in other orders differ by that much


def jumps(slack: Tensor, truth: Tensor) -> float:
    """The share of elements of a gradient that jump with the last bits of the inputs."""
    least = typical(truth)
    found = 0
    for here, exact in zip(blocks(slack), blocks(truth), strict=True):
        found += int((here > _JUMP * torch.nan_to_num(exact).abs().clamp_(min=least)).sum())
    return found / max(truth.numel(), 1)


def noise(own: Tensor, truth: Tensor, scale: float) -> float:
    """How large a gradient that is nought may be, beside gradients of which the largest is typically `scale`; 0.0 for
    one that is not nought."""
    if typical(truth) > _NOUGHT * scale:
        return 0.0
    return max(_NOISE * typical(own.double() - truth), float(torch.finfo(own.dtype).eps) * scale)
