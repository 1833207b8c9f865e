"""h W_hh^T of a CTA's rows: the weights that a thread keeps, and what it does with h."""

from __future__ import annotations

from typing import Any

import cutlass.cute.math as libdevice
from cutlass import Float32, cute

from .memory import LayerMemory
from .plan import FOUR, RecurrentPlan


class KeptWeights:
    """Of a thread. `kept`: where in shared memory those are that its registers do not hold."""

    def __init__(self, plan: RecurrentPlan, kept: Any) -> None:
        self.plan, self.kept = plan, kept
        self.thread = cute.arch.thread_idx()[0]
        self.group, self.part = self.thread % plan.groups, self.thread // plan.groups
        self.own = cute.make_rmem_tensor((max(FOUR * plan.each * plan.held, 1),), Float32)

    def take(self, memory: LayerMemory) -> None:
        p = self.plan
        for i in range(p.each):
            for j in range(p.fours):
                taken = cute.make_rmem_tensor((FOUR,), Float32)
                taken.fill(0.0)
                for c in range(FOUR):
                    memory.weight(p.row(self.group, i), p.four(self.part, j) * FOUR + c, taken, c)
                if j < p.held:
                    for c in range(FOUR):
                        self.own[(j * p.each + i) * FOUR + c] = taken[c]
                else:
                    cute.autovec_copy(taken, four_of(self.kept, p.weight(self.thread, i, j - p.held)))

    def multiply(self, h: Any, buffer: Any, totals: Any) -> None:
        """The sums of this thread's slice of K, into `totals`."""
        p = self.plan
        sums = [[Float32(0.0)] * p.chains for _ in range(p.each * p.batch)]
        begin = p.state(buffer, 0, self.part * FOUR)
        for j in range(p.fours):
            weights = [self._of(i, j) for i in range(p.each)]
            for b in range(p.batch):
                x = cute.make_rmem_tensor((FOUR,), Float32)
                cute.autovec_copy(four_of(h, begin + p.state(0, b, FOUR * p.slices * j)), x)
                for i in range(p.each):
                    for c in range(FOUR):
                        own = sums[i * p.batch + b]
                        own[c % p.chains] = libdevice.fma(weights[i][c], x[c], own[c % p.chains])
        for i in range(p.each):
            for b in range(p.batch):
                total, *others = sums[i * p.batch + b]
                for own in others:
                    total = total + own
                totals[p.total(self.part, b, p.row(self.group, i))] = total

    def _of(self, i: int, j: int) -> list[Any]:
        """Four of row i, the thread's j-th."""
        p = self.plan
        if j < p.held:
            return [self.own[(j * p.each + i) * FOUR + c] for c in range(FOUR)]
        taken = cute.make_rmem_tensor((FOUR,), Float32)
        cute.autovec_copy(four_of(self.kept, p.weight(self.thread, i, j - p.held)), taken)
        return [taken[c] for c in range(FOUR)]


def four_of(shared: Any, at: Any) -> Any:
    """Four neighbours, which begin at a multiple of 16 bytes."""
    return cute.make_tensor((shared.iterator + at).align(16), cute.make_layout((FOUR,)))
