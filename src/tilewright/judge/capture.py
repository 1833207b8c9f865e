"""A candidate as users may run it: recorded as a CUDA graph, filled anew, and replayed beside the module itself."""

from __future__ import annotations

import random

from ..facts.machine import Machine
from ..facts.outcome import Captured
from .check.check import Check
from .check.plan import OWN, Trial, secret
from .client import Cell, CellFault
from .memory.sizes import flush_bytes
from .timing.statistics import ratio_interval, time_interval
from .wire import messages as wire

_ROUNDS = 9
_BURST = 5  # replays of one side, before the other's turn


def captured(check: Check, reference: Cell, *, machine: Machine, rng: random.Random) -> Captured:
    """Of a candidate that sits in the case memory of its check with inputs in slot 0. Raises Refused where a replay on
    other inputs is wrong, and CellFault("not_capturable") where the candidate's call can't be recorded. The
    reference's cell is good for nothing else afterwards."""
    memory = check.memory
    limit_s = memory.limits.call_s
    args, slot, own = memory.described.args, memory.sets.slot(0), memory.sets.inputs_at(0)
    check.cell.do(wire.RecordGraph(args=args, inputs=slot), limit_s=limit_s)
    _require_right(check, rng)
    why = ""
    try:
        reference.do(wire.RecordGraph(args=args, inputs=own), limit_s=limit_s)
    except CellFault as fault:  # its cell ends with this, whatever became of it
        why = fault.summary
    sides = {"ours": (check.cell, slot)} | ({} if why else {"eager": (reference, own)})
    bursts: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
    for _ in range(_ROUNDS):
        for name in rng.sample(sorted(sides), len(sides)):
            cell, inputs = sides[name]
            request = wire.ReplayGraph(inputs=inputs, times=_BURST, flush_bytes=flush_bytes(machine))
            bursts[name].append(cell.ask(request, wire.GraphReplayed, limit_s=limit_s).ns)
    ours, eager = bursts["ours"], bursts.get("eager")
    if eager is None:
        return Captured(ours_ns=time_interval(ours), eager_ns=None, ratio=None, why=why)
    return Captured(ours_ns=time_interval(ours), eager_ns=time_interval(eager), ratio=ratio_interval(eager, ours))


def _require_right(check: Check, rng: random.Random) -> None:
    """Inputs that the recorded call never saw, a replay, and its result held against the truth; not where calls draw
    random numbers or move the module's state."""
    memory = check.memory
    trial = Trial(case=check.case, family=OWN, seed=secret(rng), redraw=0, draws=secret(rng))
    memory.sets.draw(0, family=OWN, seed=trial.seed)
    if memory.described.random or memory.described.mutated_state:
        memory.sets.place(0, 0)
        return
    usable = check.usable(trial, memory.truths.run(0, seed=trial.draws).exact)
    memory.sets.place(0, 0)
    request = wire.ReplayGraph(inputs=memory.sets.slot(0), times=1)
    seen = check.cell.ask(request, wire.GraphReplayed, limit_s=memory.limits.call_s)
    check.accept(wire.Called(outputs_tree=seen.outputs_tree, outputs=seen.outputs))
    check.fetch(tag=0, place=0)
    if usable:
        check.compare(trial, 0, " of a replayed CUDA graph")
