"""A candidate in the memory of a case, ready to be called: for what is looked at beside checks and times."""

from __future__ import annotations

from .check.check import Check, Findings, RefusedByCheck
from .client import Cell, CellFault
from .memory.case_memory import CaseMemory
from .wire import messages as wire


def seat(check: Check, *, construct_seed: int, seed: int) -> None:
    """Construct the candidate with the reference's state, and put a set of inputs in slot 0."""
    check.memory.admit(check.cell)
    check.state.construct(construct_seed)
    check.memory.state.take()
    check.state.load()
    fill(check.memory, seed)


def fill(memory: CaseMemory, seed: int) -> None:
    memory.sets.draw(0, family="own", seed=seed)
    memory.sets.place(0, 0)


def require_joined(memory: CaseMemory, cell: Cell, findings: Findings) -> None:
    """On a GPU, raise RefusedByCheck where a call leaves work on streams that nobody waits for. The cell is good for
    nothing else afterwards."""
    request = wire.CaptureRequest(args=memory.described.args, inputs=memory.sets.slot(0))
    try:
        seen = cell.ask(request, wire.CaptureReply, limit_s=memory.limits.call_s)
    except CellFault as fault:
        findings.note(f"whether a call leaves streams behind was not seen: {fault.summary}")
        return
    if seen.leaves_streams:
        raise RefusedByCheck(
            "unjoined_streams",
            "it starts work on a stream that waits for the call's own, and the call's own never waits for it: whoever "
            "reads the result may read it too early",
        )
