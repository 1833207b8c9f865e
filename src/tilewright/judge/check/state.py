"""Parameters and buffers after a call: what the reference moves must have moved alike, all else have stayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...facts.problem import Precision
from ..client import Cell
from ..memory.case_memory import CaseMemory
from ..wire import messages as wire
from . import counterparts, metric
from .findings import Findings, RefusedByCheck
from .plan import spread_of

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


def shared_with(described: wire.Described, built: wire.Constructed) -> Shared:
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


class CandidateState:
    """The parameters, buffers and plain attributes of one candidate on one case, which are given the reference's."""

    def __init__(self, memory: CaseMemory, cell: Cell, *, case: int, findings: Findings) -> None:
        self.memory, self.cell, self.case, self.findings = memory, cell, case, findings
        self.shares = False  # whether the reference's state is loaded into it
        self.moved: tuple[str, ...] = ()  # of what the reference's calls move, what it shares
        self.attributes: tuple[str, ...] = ()
        self._alike: tuple[str, ...] = ()  # marks of the state that it holds under other names
        self._places: tuple[tuple[str, wire.TensorRef], ...] = ()  # its own names of what is loaded, and from where
        self._rearranged = False

    def construct(self, seed: int) -> None:
        """Build the candidate's module and see whether the reference's state can be loaded into it."""
        described = self.memory.described
        request = wire.Construct(
            init=described.init, tensors=self.memory.shared_init, seed=seed, gradients=described.gradients,
            attributes=tuple(a.name for a in described.attributes),
        )  # fmt: skip
        built = self.cell.ask(request, wire.Constructed, limit_s=self.memory.limits.call_s)
        shared = shared_with(described, built)
        self.shares, self.moved, self.attributes = shared.whole, shared.moved, shared.attributes
        if shared.lacking:
            names = ", ".join(shared.lacking[:8])
            told = f"case {self.case}: calls of the reference move {names}, which the candidate does not have"
            if shared.lacks_what_shows:
                raise RefusedByCheck("wrong_state", f"{told}, though results hang on it")
            self.findings.note(f"{told}: it is not compared")
        if self.shares:
            places = zip(self.memory.state.names, self.memory.state.shared, strict=True)
            fixed = set(self.memory.state.names) - set(described.mutated_state)
            self._places = tuple((n, r) for n, r in places if n in self.moved or n in fixed)
        elif described.state:
            self._find_counterparts()

    def _find_counterparts(self) -> None:
        """State under other names is told by what it holds when it is constructed."""
        theirs = self.cell.ask(wire.MarkState(), wire.Marked, limit_s=self.memory.limits.call_s)
        mine = self.memory.state.marks()
        self._alike = () if self.memory.described.mutated_state else counterparts.moved(mine, theirs.marks)
        held = dict(zip(self.memory.state.names, self.memory.state.shared, strict=True))
        from_where = {m.key: held[m.name] for m in mine if m.key in self._alike}
        self._places = tuple((m.name, from_where[m.key]) for m in theirs.marks if m.key in from_where)
        count = sum(m.key in self._alike for m in mine)
        self.findings.note(
            f"case {self.case}: the state's names or shapes differ; {count} of {len(mine)} tensors are re-drawn by "
            "what they held at first, the others are compared by equal seeds alone"
        )

    def redraw(self, seed: int, *, context: bool = False) -> None:
        """Move the reference's state, which the candidate is given by `load`. Pool set 0 must be drawn: masks and
        indices are moved as far as the reference bears it there. Under some seeds most elements stay, or all but a few:
        whoever looks at some of them alone takes the state for what it was."""
        if self.shares:
            self.memory.state.move(wire.Redraw(seed=seed, spread=spread_of(seed), context=context))
            self.memory.state.advance(seed % 3)
            self._note_moved(self.memory.state.rearrange(seed))
        elif self._alike:
            self.memory.state.move(wire.RedrawAlike(seed=seed, keys=self._alike, spread=spread_of(seed)))
            self._note_moved(self.memory.state.rearrange(seed, self._alike))

    def _note_moved(self, found: wire.Rearranged) -> None:
        self._rearranged = bool(found.moves)
        self.findings.moved |= {(self.case, name) for name in found.moved}
        self.findings.stuck |= {(self.case, name) for name in found.stuck}

    def put_back(self) -> None:
        """Masks and indices as they were constructed: how long a call takes may hang on them."""
        if not self._rearranged:
            return
        self._rearranged = False
        self.memory.state.move(wire.PutBack())
        self.memory.state.take()
        self.load()

    def load(self) -> None:
        """Give the candidate the reference's state as `State.take` found it: by its names, or by those of its
        counterparts; and plain values that the reference's calls move, those that the candidate has."""
        given = tuple(a for a in self.memory.state.attributes if a.name in self.attributes) if self.shares else ()
        if self._places or given:
            names, refs = tuple(n for n, _ in self._places), tuple(r for _, r in self._places)
            self.cell.do(wire.LoadState(names=names, refs=refs, attributes=given))

    def fetch(self) -> None:
        """Have the buffers that calls move, as they are now in the candidate's cell, among what `CaseMemory.moved`
        shows."""
        if self.moved:
            self.cell.do(wire.StoreState(names=self.moved, refs=self.memory.state.buffers(self.moved, left=True)))

    def left(self) -> tuple[wire.Attribute, ...]:
        """The plain values that calls move, as they are now."""
        if not self.attributes:
            return ()
        return self.cell.ask(wire.ReadAttributes(names=self.attributes), wire.Attributes, limit_s=60.0).values

    def fetched(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Those buffers: the candidate's and the reference's."""
        pairs = zip(self.memory.described.mutated_state, self.memory.truths.moved(), strict=True)
        return tuple((got.clone(), wanted.clone()) for name, (got, wanted, _) in pairs if name in self.moved)

    def require_kept(self) -> None:
        """Raise RefusedByCheck where calls have changed parameters or buffers that the reference's leave alone."""
        if not self.shares:
            return
        pairs = zip(self.memory.state.names, self.memory.state.shared, strict=True)
        kept = [(name, ref) for name, ref in pairs if name not in self.memory.described.mutated_state]
        if not kept:
            return
        request = wire.CompareState(names=tuple(n for n, _ in kept), refs=tuple(r for _, r in kept))
        found = self.cell.ask(request, wire.ComparedState, limit_s=60.0).changed
        if found and not self.memory.state.holds_shared():
            told = "it writes to the memory from which it is given its state"
            raise RefusedByCheck("input_modified", f"case {self.case}: {told}")
        if found:
            told = f"the call changes {found[0][:80]}, which the reference leaves alone"
            raise RefusedByCheck("wrong_state", f"case {self.case}: {told}")


def misplaced(memory: CaseMemory, names: Sequence[str], precision: Precision, *, specials: bool) -> str:
    """Which of the buffers is not, within some floors of the truth or twice as far from it as the reference's, where
    the reference has moved it, and by how much; "" where all are. `specials`: of inputs with NaN and infinities, of
    which an output need not make what the reference's does, a buffer need not either."""
    for name, (got, wanted, truth) in zip(memory.described.mutated_state, memory.truths.moved(), strict=True):
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


def miscounted(memory: CaseMemory, attributes: Sequence[wire.Attribute]) -> str:
    """Which of these plain values is not what the reference's call has left, where that left one; "" where all are."""
    left = {a.name: a.text for a in memory.state.left_attributes}
    for attribute in attributes:
        wanted = left.get(attribute.name, "")
        if wanted and attribute.text != wanted:
            return f"{attribute.name[:80]} is {attribute.text[:80] or 'no plain value'}, not {wanted[:80]}"
    return ""
