"""Who waits for whom in a cluster, step by step: as the kernel traces it, and as a test runs it.

    barrier     arrivals of a phase    said by it
    h[t % 2]    1 + bytes              all CTAs of the cluster have sent their part of h of step t into buffer t % 2

h of step 0 is read from memory by every CTA; the barriers serve the steps from 1 on, each every second one, so that
step t waits for the parity of (t - 1) // 2. The barrier is told of the next phase's bytes as soon as one is over.

A CTA sends its part of step t + 1 when all of its threads have read h of step t. So whoever holds all of step t + 1
knows that every CTA has read step t, whose buffer is the one that step t + 2 is sent into: nothing is overwritten
before it is read, and nobody waits for more. Nothing is sent after the last step. A CTA leaves when it has what was
sent to it: nothing is on its way to a CTA that is gone.

Within a CTA, threads meet once a step, between the sums of slices and what is made of them. What a thread reads of the
sums it has read before it sends, and it sends before its CTA holds all of the next step: so sums are not overwritten
either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

BARRIERS = 2
Loop = Callable[[Any, Any, Callable[[Any], None]], None]
When = Callable[[Any, Callable[[], None]], None]


class StepRole(Protocol):
    """What the threads of a CTA do."""

    def fetch(self, step: Any) -> None:
        """Begin to read what the step after this one takes from memory."""

    def wait(self, barrier: Any, parity: Any) -> None: ...
    def expect(self, barrier: Any) -> None:
        """Tell the barrier of the bytes of its next phase."""

    def multiply(self, buffer: Any) -> None:
        """h times the weights, as sums of slices in shared memory."""

    def meet(self) -> None:
        """Wait for the threads of this CTA."""

    def finish(self, step: Any) -> None:
        """Gates and states of the step, and what the sequence has of it."""

    def send(self, buffer: Any, barrier: Any) -> None:
        """This CTA's part of h to all of the cluster."""


@dataclass(frozen=True, slots=True)
class StepProtocol:
    """Of a layer of so many steps."""

    steps: int

    def run(self, role: StepRole, loop: Loop, when: When) -> None:
        def step(t: Any) -> None:
            def receive() -> None:
                role.wait(t % 2, (t - 1) // 2 % 2)
                role.expect(t % 2)

            role.fetch(t)
            when(t > 0, receive)
            role.multiply(t % 2)
            role.meet()
            role.finish(t)
            when(t + 1 < self.steps, lambda: role.send((t + 1) % 2, (t + 1) % 2))

        loop(0, self.steps, step)
