"""Two modules side by side: what calls of them give, and whether that is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tilewright import fallbacks


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)[:80]


def agree(mine: Any, theirs: Any) -> bool:
    """Whether two results are equal, floats as far as other orders of sums may leave them."""
    ours, others = tree_leaves(mine), tree_leaves(theirs)
    return len(ours) == len(others) and all(_equal(a, b) for a, b in zip(ours, others, strict=True))


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and bool(a == b)
    first, second = ((type(t), t.shape, t.dtype, t.device, t.requires_grad) for t in (a, b))
    return first == second and (a.is_meta or torch.allclose(a, b, rtol=1e-4, atol=1e-5))


def since(before: dict[str, int], module: nn.Module) -> dict[str, int]:
    """What was counted after `before`."""
    return {reason: n - before.get(reason, 0) for reason, n in fallbacks(module).items() if n > before.get(reason, 0)}
