"""AppealEffort: how long runs of a module in float64 take on a nominal machine, counted from its operations.

What is given up for taking too long hangs on this alone, so that the answer is the same on any machine of a kind,
however busy it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from .flops import flops_of, is_counted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """Seconds for each operation, and for each element and flop of it, in float64 with errors put in."""

    operation_s: float
    element_s: float
    flop_s: float


_MACHINES: Mapping[str, _Machine] = {
    "cpu": _Machine(operation_s=1e-4, element_s=1e-8, flop_s=1e-10),
    "cuda": _Machine(operation_s=2e-4, element_s=1e-10, flop_s=1e-12),
}


@dataclass(slots=True)
class AppealEffort:
    """Of one run: how many operations it has, the elements that they read and write, and the flops of products."""

    operations: int = 0
    elements: int = 0
    flops: int = 0
    on: str = "cpu"

    def add(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count one operation in; views are none."""
        if getattr(func, "is_view", False):
            return
        tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        self.operations += 1
        self.elements += sum(t.numel() for t in tensors)
        if any(t.is_cuda for t in tensors):
            self.on = "cuda"
        packet = getattr(func, "overloadpacket", None)
        if is_counted(packet):
            self.flops += flops_of(packet, args, kwargs, result)

    def seconds(self) -> float:
        """What one run takes."""
        machine = _MACHINES[self.on]
        elements_s, flops_s = self.elements * machine.element_s, self.flops * machine.flop_s
        return self.operations * machine.operation_s + elements_s + flops_s
