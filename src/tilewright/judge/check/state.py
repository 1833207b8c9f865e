"""Parameters and buffers after a call: what the reference moves must have moved alike, all else have stayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...facts.problem import Precision
from ..client import Cell
from ..memory.room import Room
from ..wire import messages as wire
from . import metric

_SLACK = 8.0  # of moved buffers, in units of the output floors


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What a candidate holds of the reference's state under the same names: whether all that `state_dict` shows, which
    of the buffers and plain attributes that calls move, and which of these it lacks."""

    whole: bool
    moved: tuple[str, ...]
    attributes: tuple[str, ...]
    lacking: tuple[str, ...]
    lacks_what_shows: bool


def shared(described: wire.Described, built: wire.Constructed) -> Shared:
    """Plain attributes are shared where they are constructed alike."""
    wanted = {s.name: s.spec.shape for s in described.state}
    hidden = {s.name for s in described.state if s.hidden}
    shown = {s.name: s.spec.shape for s in built.state}
    whole = all(shown.get(n) == wanted.get(n) for n in set(shown) | (set(wanted) - hidden))
    mine = {s.name: s.spec.shape for s in built.hidden} | shown
    moved = tuple(n for n in described.mutated_state if whole and mine.get(n) == wanted[n])
    found = {a.name for a in built.attributes if a in described.attributes}
    attributes = tuple(a.name for a in described.attributes if a.name in found)
    uncounted = tuple(a.name for a in described.attributes if a.name not in found)
    unmoved = tuple(n for n in described.mutated_state if whole and n not in moved)
    return Shared(
        whole=whole, moved=moved, attributes=attributes, lacking=unmoved + uncounted,
        lacks_what_shows=described.shows_attributes and bool(uncounted),
    )  # fmt: skip


def fetch(room: Room, cell: Cell, names: Sequence[str]) -> None:
    """Have the buffers of these names, as they are now in the candidate's cell, among what `Room.moved` shows."""
    if names:
        cell.do(wire.StoreState(names=tuple(names), refs=room.state.after(names)))


def attributes(cell: Cell, names: Sequence[str]) -> tuple[wire.Attribute, ...]:
    """The plain values of these names, as they are now."""
    if not names:
        return ()
    return cell.ask(wire.ReadAttributes(names=tuple(names)), wire.Attributes, limit_s=60.0).values


def misplaced(room: Room, names: Sequence[str], precision: Precision, *, specials: bool) -> str:
    """Which of the buffers is not, within some floors of the truth or twice as far from it as the reference's, where
    the reference has moved it, and by how much; "" where all are. `specials`: of inputs with NaN and infinities, of
    which an output need not make what the reference's does, a buffer need not either."""
    for name, (got, wanted, truth) in zip(room.described.mutated_state, room.truths.moved(), strict=True):
        if name not in names:
            continue
        found, own = metric.distance(got, truth, wanted), metric.distance(wanted, truth, wanted)
        norm, worst = (_SLACK * f for f in metric.floors(got.dtype, precision))
        norm, worst = max(norm, metric.FACTOR * own.norm), max(worst, metric.FACTOR * own.worst)
        strange = found.misplaced and (not specials or metric.masks_infinity(got, truth, wanted))
        if strange:
            how = "not finite where the truth is, or the reverse" if got.dtype.is_floating_point else "wrong"
            return f"{found.misplaced} elements of {name} are {how}"
        if found.norm > norm or found.worst > worst:
            return f"{name} is off by {found.norm:.3g} in the norm"
    return ""


def miscounted(room: Room, attributes: Sequence[wire.Attribute]) -> str:
    """Which of these plain values is not what the reference's call has left, where that left one; "" where all are."""
    left = {a.name: a.text for a in room.state.left_attributes}
    for attribute in attributes:
        wanted = left.get(attribute.name, "")
        if wanted and attribute.text != wanted:
            return f"{attribute.name[:80]} is {attribute.text[:80] or 'no plain value'}, not {wanted[:80]}"
    return ""


def moved(room: Room, names: Sequence[str]) -> tuple[tuple[Tensor, Tensor], ...]:
    """The buffers of these names that were fetched: the candidate's and the reference's."""
    pairs = zip(room.described.mutated_state, room.truths.moved(), strict=True)
    return tuple((got.clone(), wanted.clone()) for name, (got, wanted, _) in pairs if name in names)


def changed(room: Room, cell: Cell) -> tuple[str, str]:
    """Reason and summary where the state is not what was loaded, though the reference leaves it alone; else "", ""."""
    pairs = zip(room.state.names, room.state.shared, strict=True)
    kept = [(name, ref) for name, ref in pairs if name not in room.described.mutated_state]
    if not kept:
        return "", ""
    request = wire.CompareState(names=tuple(n for n, _ in kept), refs=tuple(r for _, r in kept))
    found = cell.ask(request, wire.ComparedState, limit_s=60.0).changed
    if found and not room.state.holds_shared():
        return "input_modified", "it writes to the memory from which it is given its state"
    return ("wrong_state", f"the call changes {found[0][:80]}, which the reference leaves alone") if found else ("", "")
