"""The trials of a check on one case: a built candidate against the reference, until all agree or one does not."""

from __future__ import annotations

from collections.abc import Sequence

from ..client import CellFault
from ..memory.case_memory import CaseMemory
from ..memory.sameness import same_bits
from ..wire import messages as wire
from .check import Check
from .findings import RefusedByCheck
from .plan import BOUNDARY, BRIEF, OWN, TIES, Trial, is_stepped

# Kinds of upstream gradients, in turn over the trials (training), and those that come in another layout.
_UPSTREAM = ("normal", "ones", "alone", "sparse")
_UNLIKE = ("ones", "alone")


def run(check: Check, trials: Sequence[Trial]) -> None:
    """Carry out all trials on one case; raises RefusedByCheck at the first that fails, CellFault when the cell does."""
    first: wire.Called | None = None  # whose results are held until the end
    turns = FlippedElements(check.memory)
    for number, trial in enumerate(trials):
        upstream = _UPSTREAM[number % len(_UPSTREAM)]
        if not _draw(check, turns, trial, upstream):
            continue
        check.memory.state.take()
        if not _prepare(check, trial):
            check.findings.note(f"case {check.case}: {trial.family} inputs say nothing here")
            continue
        slot = 0 if number < 2 else number % check.memory.slots
        check.memory.sets.place(0, slot)
        check.state.load()
        place = 1 if first else 0
        unlike = bool(check.memory.described.gradients.outputs) and upstream in _UNLIKE
        called = check.call(tag=min(number, 1), slot=slot, place=place, seed=trial.draws, unlike=unlike)
        _after_call(check, trial, slot, place=place)
        if number == 0:
            _repeat(check, trial, slot)
            first = called if check.memory.places > 1 else None
        check.cell.do(wire.Drop(keep_first=first is not None))
    if first:
        _unchanged(check, first)
        check.cell.do(wire.Drop())


def _draw(check: Check, turns: FlippedElements, trial: Trial, upstream: str) -> bool:
    """Fill pool set 0, and move the state; False where the trial would say nothing new."""
    if (beside := trial.family == BOUNDARY) and turns.enough:
        return False
    check.memory.sets.draw(0, family=OWN if beside else trial.family, seed=trial.seed, upstream=upstream)
    if trial.redraw:
        check.state.redraw(trial.redraw, context=trial.family == BRIEF)
        if trial.family == TIES:  # with the state as it is now
            check.memory.sets.draw(0, family=TIES, seed=trial.seed, upstream=upstream)
    return not beside or turns.approach(trial.seed, state=check.state.shares)


def _prepare(check: Check, trial: Trial) -> bool:
    """Have the reference's result and the truth; False where the family says nothing, or the reference itself
    does not take it."""
    try:
        facts = check.memory.truths.run(0, seed=trial.draws)
    except CellFault as fault:
        if trial.family == OWN or not (fault.by_code and check.memory.truths.reference_lives):
            raise
        return False
    if not facts.exact:
        check.findings.note(f"case {check.case}: no float64 truth ({facts.why_not}); the reference's own result stands")
    if facts.no_slack:
        check.findings.note(f"case {check.case}: where gradients jump could not be found ({facts.no_slack})")
    return check.usable(trial, facts.exact)


def _after_call(check: Check, trial: Trial, slot: int, *, place: int) -> None:
    changed = check.memory.sets.changed_input(0, slot)
    if changed >= 0:
        raise RefusedByCheck("input_modified", f"case {check.case}: it changes tensor input {changed} in place")
    check.compare(trial, place)
    check.compare_state(trial)


def _repeat(check: Check, trial: Trial, slot: int) -> None:
    """A second call on the same values, at another address where there is one, must be right too."""
    other = (slot + 1) % check.memory.slots
    place = check.memory.places - 1
    check.memory.sets.place(0, other)
    check.state.load()
    if place == 0:
        check.findings.note(f"case {check.case}: too large to hold an early result beside later ones")
        check.cell.do(wire.Drop())
    check.call(tag=-1, slot=other, place=place, seed=trial.draws)
    check.compare(trial, place, " of a second call")
    if place and not all(
        same_bits(a, b) for a, b in zip(check.memory.results(0), check.memory.results(1), strict=True)
    ):
        check.findings.note(f"case {check.case}: two calls on the same values differ in their last bits")


def _unchanged(check: Check, first: wire.Called) -> None:
    """What the first trial returned must still be what it was, though all other trials came since. What shares
    memory with an input, as the reference's does too, is now what the judge has put there."""
    check.fetch(tag=0, place=1)
    for i, (then, now) in enumerate(zip(check.memory.results(0), check.memory.results(1), strict=True)):
        if first.outputs[i].aliases_input < 0 and not same_bits(then, now):
            raise RefusedByCheck(
                "result_changes", f"case {check.case}: output {i} of an earlier call changed when it was called again"
            )


# ---- How many results were brought beside where they turn (judge.reference_process.boundary), and when that is
# enough.

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
