"""How many results were brought beside where they turn (judge.reference_process.boundary), and when that is enough."""

from __future__ import annotations

from ..memory.case_memory import CaseMemory
from .plan import is_stepped

_ENOUGH = 64  # groups: a lower class is wrong in about half of them
_IN_VAIN = 4  # trials for each output, after which it is given up that anything turns; of floating ones, one


class FlippedElements:
    """The trials of the boundary family on one case."""

    def __init__(self, memory: CaseMemory) -> None:
        self._memory = memory
        self._trials = self._turned = 0

    @property
    def enough(self) -> bool:
        """Whether each output was followed and enough was turned, or nothing turns at all."""
        outputs = len(self._memory.described.outputs)
        if self._turned == 0:
            return self._trials >= outputs * (_IN_VAIN if is_stepped(self._memory.described.outputs) else 1)
        return self._trials >= outputs and self._turned >= _ENOUGH

    def approach(self, seed: int, *, state: bool) -> bool:
        """Move pool set 0, an own draw, or (where `state` says that the candidate is given it) the reference's state
        to where results turn; False where none does."""
        found = self._memory.appeals.approach(0, seed=seed, number=self._trials, state=state)
        self._trials += 1
        turned = found.turned if found is not None else 0
        self._turned += turned
        return turned > 0
