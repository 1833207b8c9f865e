"""A candidate in the room of a case, ready to be called: for what is looked at beside checks and times."""

from __future__ import annotations

from .check.check import Check, Findings, Refused
from .client import Cell, CellFault
from .memory.room import Room
from .wire import messages as wire


def seat(check: Check, *, construct_seed: int, seed: int) -> None:
    """Construct the candidate with the reference's state, and put a set of inputs in slot 0."""
    check.room.admit(check.cell)
    check.state.construct(construct_seed)
    check.room.state.take()
    check.state.load()
    fill(check.room, seed)


def fill(room: Room, seed: int) -> None:
    room.draw(0, family="own", seed=seed)
    room.place(0, 0)


def require_joined(room: Room, cell: Cell, findings: Findings) -> None:
    """On a GPU, raise Refused where a call leaves work on streams that nobody waits for. The cell is good for
    nothing else afterwards."""
    request = wire.Capture(args=room.described.args, inputs=room.slot(0))
    try:
        seen = cell.ask(request, wire.Captured, limit_s=room.limits.call_s)
    except CellFault as fault:
        findings.note(f"whether a call leaves streams behind was not seen: {fault.summary}")
        return
    if seen.leaves_streams:
        raise Refused(
            "unjoined_streams",
            "it starts work on a stream that waits for the call's own, and the call's own never waits for it: whoever "
            "reads the result may read it too early",
        )
