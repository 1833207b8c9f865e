"""The judge's guards by name, and how to take each away: one named step of the judge is replaced by one that does
nothing. Only the adversarial corpus does this; the judge itself has no switches.

A cheat names the guards without which it gets through. Several may stand in the way of one cheat: all of them go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tilewright.judge import judgement, time_case
from tilewright.judge.cells import Cells
from tilewright.judge.check import check, counterparts, draws, metric, plan, state, trials
from tilewright.judge.check.plan import Trial
from tilewright.judge.client import Cell
from tilewright.judge.judgement import Judging
from tilewright.judge.memory.appeals import Appeals
from tilewright.judge.memory.case_memory import CaseMemory
from tilewright.judge.memory.evictor import Evictor
from tilewright.judge.memory.input_sets import InputSets
from tilewright.judge.memory.mapped import contiguous
from tilewright.judge.memory.moved import CaseState
from tilewright.judge.memory.places import Refs
from tilewright.judge.memory.stirring import Stirring
from tilewright.judge.timing import measure
from tilewright.judge.timing.calls import Caller, TimedSubject
from tilewright.judge.verified_calls import VerifiedCalls
from tilewright.judge.wire import messages as wire

Step = tuple[object, str, Any]
_accept = check.Check.accept
_plan = plan.plan
_draw = InputSets.draw
_result_refs = CaseMemory.result_refs
_start = Cells._start
_check_case = Judging._check_case


def _nothing(*args: object, **named: object) -> None:
    return None


def _no_verdict(*args: object, **named: object) -> wire.Judgement:
    return wire.Judgement(judged=(), note="switched off")


def _none(*args: object, **named: object) -> tuple[str, ...]:
    return ()


def _whole(*args: object, **named: object) -> str:
    return "whole"


def _nowhere(*args: object, **named: object) -> int:
    return -1


def _no_bytes(*args: object, **named: object) -> int:
    return 0


def _hundredth(*args: object, **named: object) -> tuple[float, float]:
    """The tolerance that is usual elsewhere."""
    return 1e-2, 1e-1


# ---- what is accepted of an output before its values are read ------------------------------------------------------

_returned: dict[int, tuple[tuple[int, ...], ...]] = {}


def _accept_any(field: str, unsaid: object) -> Any:
    """Check.accept, blind to one field of what is said of an output."""

    def accept(self: check.Check, called: wire.Called) -> None:
        _accept(self, replace(called, outputs=tuple(replace(o, **{field: unsaid}) for o in called.outputs)))

    return accept


def _accept_any_input(self: check.Check, called: wire.Called) -> None:
    _accept(self, replace(called, moved_input=-1))


def _accept_any_dtype(self: check.Check, called: wire.Called) -> None:
    wanted = self.memory.described.outputs
    seen = tuple(
        replace(o, spec=replace(o.spec, dtype=w.spec.dtype)) for o, w in zip(called.outputs, wanted, strict=True)
    )
    _accept(self, replace(called, outputs=seen))


def _accept_any_shape(self: check.Check, called: wire.Called) -> None:
    wanted = self.memory.described.outputs
    _returned[id(self.memory)] = tuple(o.spec.shape for o in called.outputs)
    seen = tuple(
        replace(o, spec=replace(w.spec, dtype=o.spec.dtype)) for o, w in zip(called.outputs, wanted, strict=True)
    )
    _accept(self, replace(called, outputs=seen))


def _refs_as_returned(self: CaseMemory, place: int) -> Refs:
    """Places of the shapes that came, over the places that were meant."""
    refs = _result_refs(self, place)
    shapes = _returned.get(id(self), tuple(r.spec.shape for r in refs))
    return tuple(replace(r, spec=contiguous(s, r.spec.dtype)) for r, s in zip(refs, shapes, strict=True))


def _accept_any_structure(self: check.Check, called: wire.Called) -> None:
    _accept(self, replace(called, outputs_tree=self.memory.described.outputs_tree))


# ---- which inputs and weights a candidate sees ---------------------------------------------------------------------


def _plan_own_alone(*args: Any, **named: Any) -> tuple[Trial, ...]:
    return tuple(t for t in _plan(*args, **named) if t.family == "own")


def _plan_away_from_turns(*args: Any, **named: Any) -> tuple[Trial, ...]:
    return tuple(t for t in _plan(*args, **named) if t.family != plan.BOUNDARY)


def _plan_without_ties(*args: Any, **named: Any) -> tuple[Trial, ...]:
    return tuple(t for t in _plan(*args, **named) if t.family not in (plan.TIES, plan.BOUNDARY))


def _draw_the_same(self: InputSets, k: int, **named: Any) -> None:
    _draw(self, k, **(named | {"family": "own", "seed": 1}))


def _draw_ones(self: InputSets, k: int, **named: Any) -> None:
    _draw(self, k, **(named | {"upstream": "ones"}))


def _rearranges_nothing(self: CaseState, seed: int, keys: tuple[str, ...] = ()) -> wire.Rearranged:
    return wire.Rearranged()


def _stirs_nothing(self: Stirring, slot: int) -> tuple[wire.Swap, ...]:
    return ()


def _check_first_case(self: Judging, case: Any, *rest: Any) -> None:
    if case.number == 0:
        _check_case(self, case, *rest)


def _start_open(self: Cells, name: str, **_: object) -> Cell:
    return _start(self, name, isolate=False)


def _shows_early(
    self: Caller, subject: TimedSubject, request: wire.TimedCall, number: int, *, cold: bool
) -> tuple[wire.Tick, float]:
    """Caller._ask_showing, with contents that lie in the slot while the cell lets go of the last result."""
    image = self._show((number,), request.slot)
    if image is not None:
        early = wire.Lay(offset=image.offset, size_bytes=image.size_bytes)
        subject.cell.ask(early, wire.Done, limit_s=60.0, descriptor=image.descriptor)
    elif self.memory.device == "cuda":
        self.memory.sets.place(number, request.slot)
        request = self.evictor.before(request) if cold and self.evictor is not None else request
    self._clear(subject, cold=cold)
    return self._timed(subject.cell, request, wire.Tick)


GUARDS: Mapping[str, tuple[Step, ...]] = {
    "truth": ((check.Check, "compare", _nothing),),
    "precision": ((metric, "floors", _hundredth), (Appeals, "appeal", _no_verdict)),
    "budget": ((Appeals, "appeal", _no_verdict),),
    "families": ((plan, "plan", _plan_own_alone),),
    "turns": ((plan, "plan", _plan_away_from_turns),),
    "ties": ((plan, "plan", _plan_without_ties),),
    "further cases": ((Judging, "_check_case", _check_first_case),),
    "redraw": ((state.CandidateState, "redraw", _nothing), (VerifiedCalls, "redraw", _nothing)),
    "masks and indices": ((CaseState, "rearrange", _rearranges_nothing),),
    "contents": ((InputSets, "draw", _draw_the_same), (Stirring, "swaps", _stirs_nothing)),
    "counterparts": ((counterparts, "moved", _none),),
    "upstream": ((InputSets, "draw", _draw_ones),),
    "unlike steps": ((trials, "_UNLIKE", ()),),
    "stir": ((Stirring, "swaps", _stirs_nothing),),
    "timed calls": ((VerifiedCalls, "_verify_timed", _nothing), (VerifiedCalls, "verify_row", _nothing)),
    "inputs compared": ((InputSets, "changed_input", _nowhere),),
    "moved state": ((check.Check, "hold_state", _nothing), (draws, "_compare_states", _nothing)),
    "kept state": ((state.CandidateState, "require_kept", _nothing),),
    "moved inputs": ((check.Check, "accept", _accept_any_input),),
    "sparse redraws": ((state, "spread_of", _whole),),
    "aliasing": ((check.Check, "accept", _accept_any("aliases_input", -1)),),
    "shared outputs": ((check.Check, "accept", _accept_any("aliases_output", -1)),),
    "strides": ((check.Check, "accept", _accept_any("overlaps", False)),),
    "exact type": ((check.Check, "accept", _accept_any("type_name", "torch.Tensor")),),
    "exact dtype": ((check.Check, "accept", _accept_any_dtype),),
    "exact shape": ((check.Check, "accept", _accept_any_shape), (CaseMemory, "result_refs", _refs_as_returned)),
    "exact structure": ((check.Check, "accept", _accept_any_structure),),
    "held results": ((trials, "_unchanged", _nothing),),
    "walks": ((Evictor, "require_walked", _nothing),),
    "new contents": ((time_case, "check_fresh", _nothing),),
    "judge's clock": ((measure, "check_clock", _nothing), (time_case, "check_slope", _nothing)),
    "late contents": ((Caller, "_ask_showing", _shows_early),),
    "whole turns": ((time_case, "check_turns", _no_bytes),),
    "floor": ((measure, "check_floor", _nothing),),
    "distribution": ((draws, "_compare", _nothing),),
    "echoes": ((draws, "_listen", _none),),
    "hidden cases": ((Judging, "_check_hidden", _nothing),),
    "joined streams": ((judgement, "require_joined", _nothing),),
    "memory kept": ((judgement, "hoarded_bytes", _no_bytes),),
    "walls": ((Cells, "_start", _start_open),),
}  # fmt: skip


@contextmanager
def switched_off(name: str) -> Iterator[None]:
    """The judge without one guard. Open the judge inside the block."""
    with ExitStack() as stack:
        steps = *GUARDS[name], *GUARDS["hidden cases"]  # those see most cheats once more
        for target, attribute, replacement in steps:
            stack.enter_context(patch.object(target, attribute, replacement))
        yield
