"""Check: a built candidate against the reference, trial by trial, until all agree or one does not.

For every case: the module is constructed under the reference's seed; where its state has the same names and shapes, the
reference's state is loaded into it, and re-drawn in place between trials. Every result must have the structure,
shapes and dtypes of the reference's, hold the precision contract (stages.check.metric), come from unchanged inputs,
stay what it is when the next call is made, and come out right again on a second call.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...facts.outcome import Built, Checked, Failure
from ...facts.problem import Precision, TensorSpec
from ..client import Cell, CellFault
from ..memory.room import Room
from ..memory.sameness import same_bits
from ..wire import messages as wire
from . import gradients, metric, state
from .contract import Contract
from .counterparts import moved
from .findings import Findings as Findings
from .findings import Refused as Refused
from .plan import BOUNDARY, BRIEF, OWN, SPECIALS, TIES, Trial, spread_of
from .turns import Turns

# Kinds of upstream gradients, in turn over the trials (training), and those that come in another layout.
_UPSTREAM = ("normal", "ones", "alone", "sparse")
_UNLIKE = ("ones", "alone")


class Check:
    """One candidate's check on one case: `run` the trials, or use the pieces (tuning and timing verify through
    them)."""

    def __init__(self, room: Room, cell: Cell, *, case: int, precision: Precision, findings: Findings) -> None:
        self.room = room
        self.cell = cell
        self.case = case
        self.precision: Precision = precision
        self.findings = findings
        self.shares_state = False
        self.moved: tuple[str, ...] = ()  # of what the reference's calls move, what it shares
        self.attributes: tuple[str, ...] = ()
        self._alike: tuple[str, ...] = ()  # marks of the state that it holds under other names
        self._places: tuple[tuple[str, wire.TensorRef], ...] = ()  # its own names of what is loaded, and from where
        self._rearranged = False
        self._turns = Turns(room)

    # ---- construction

    def construct(self, seed: int) -> None:
        """Build the candidate's module and see whether the reference's state can be loaded into it."""
        described = self.room.described
        request = wire.Construct(
            init=described.init, tensors=self.room.shared_init, seed=seed, gradients=described.gradients,
            attributes=tuple(a.name for a in described.attributes),
        )  # fmt: skip
        built = self.cell.ask(request, wire.Constructed, limit_s=self.room.limits.call_s)
        shared = state.shared(described, built)
        self.shares_state, self.moved, self.attributes = shared.whole, shared.moved, shared.attributes
        if shared.lacking:
            names = ", ".join(shared.lacking[:8])
            told = f"case {self.case}: calls of the reference move {names}, which the candidate does not have"
            if shared.lacks_what_shows:
                raise Refused("wrong_state", f"{told}, though results hang on it")
            self.findings.note(f"{told}: it is not compared")
        if self.shares_state:
            places = zip(self.room.state.names, self.room.state.shared, strict=True)
            fixed = set(self.room.state.names) - set(described.mutated_state)
            self._places = tuple((n, r) for n, r in places if n in self.moved or n in fixed)
        elif described.state:
            self._find_counterparts()

    def _find_counterparts(self) -> None:
        """State under other names is told by what it holds when it is constructed."""
        theirs = self.cell.ask(wire.MarkState(), wire.Marked, limit_s=self.room.limits.call_s)
        mine = self.room.state.marks()
        self._alike = () if self.room.described.mutated_state else moved(mine, theirs.marks)
        held = dict(zip(self.room.state.names, self.room.state.shared, strict=True))
        from_where = {m.key: held[m.name] for m in mine if m.key in self._alike}
        self._places = tuple((m.name, from_where[m.key]) for m in theirs.marks if m.key in from_where)
        count = sum(m.key in self._alike for m in mine)
        self.findings.note(
            f"case {self.case}: the state's names or shapes differ; {count} of {len(mine)} tensors are re-drawn by "
            "what they held at first, the others are compared by equal seeds alone"
        )

    def redraw(self, seed: int, *, brief: bool = False) -> None:
        """Move the reference's state, which the candidate is given by `load_state`. Pool set 0 must be drawn: masks and
        indices are moved as far as the reference bears it there. Under some seeds most elements stay, or all but a few:
        whoever looks at some of them alone takes the state for what it was."""
        if self.shares_state:
            self.room.state.move(wire.Redraw(seed=seed, spread=spread_of(seed), brief=brief))
            self.room.state.advance(seed % 3)
            self._note_moved(self.room.state.rearrange(seed))
        elif self._alike:
            self.room.state.move(wire.RedrawAlike(seed=seed, keys=self._alike, spread=spread_of(seed)))
            self._note_moved(self.room.state.rearrange(seed, self._alike))

    def _note_moved(self, found: wire.Rearranged) -> None:
        self._rearranged = bool(found.moves)
        self.findings.moved |= {(self.case, name) for name in found.moved}
        self.findings.stuck |= {(self.case, name) for name in found.stuck}

    def put_back(self) -> None:
        """Masks and indices as they were constructed: how long a call takes may hang on them."""
        if not self._rearranged:
            return
        self._rearranged = False
        self.room.state.move(wire.PutBack())
        self.room.state.take()
        self.load_state()

    def load_state(self) -> None:
        """Give the candidate the reference's state as `State.take` found it: by its names, or by those of its
        counterparts."""
        attributes = self.given_attributes() if self.shares_state else ()
        if self._places or attributes:
            names, refs = tuple(n for n, _ in self._places), tuple(r for _, r in self._places)
            self.cell.do(wire.LoadState(names=names, refs=refs, attributes=attributes))

    def given_attributes(self) -> tuple[wire.Attribute, ...]:
        """Plain values that the reference's calls move, as they are before the next: those that the candidate has."""
        return tuple(a for a in self.room.state.attributes if a.name in self.attributes)

    # ---- one call

    def call(self, *, tag: int, slot: int, place: int, seed: int, unlike: bool = False) -> wire.Called:
        """Call the candidate on a slot and have the result, once its shapes and types are accepted, in `place`.
        `unlike`: in training, as a model around it may call it, which is not as the reference is called."""
        described = self.room.described
        calm = unlike and self.room.slots > 1 and not described.mutated_state and not described.random
        request = wire.Call(
            tag=tag, args=described.args, inputs=self.room.slot(slot), poison_bytes=self.room.poison_bytes(), seed=seed,
            between=self.room.slot(0 if slot else 1) if calm else (), unlike=unlike,
        )  # fmt: skip
        called = self.cell.ask(request, wire.Called, limit_s=self.room.limits.call_s)
        self.accept(called)
        self.fetch(tag=tag, place=place)
        return called

    def fetch(self, *, tag: int, place: int) -> None:
        for tensor in self.room.results(place):
            tensor.fill_(1) if tensor.dtype.is_floating_point else tensor.zero_()
        self.room.settle()
        self.cell.do(wire.Store(tag=tag, refs=self.room.result_refs(place)))

    def accept(self, called: wire.Called) -> None:
        """Raise Refused unless structure, types, dtypes, shapes and devices are the reference's."""
        described = self.room.described
        where = f"case {self.case}"
        if called.moved_input >= 0:
            raise Refused(
                "input_modified", f"{where}: it gives tensor input {called.moved_input} another shape or other memory"
            )
        if called.outputs_tree != described.outputs_tree or len(called.outputs) != len(described.outputs):
            raise Refused("wrong_structure", f"{where}: it returns {_shape_of(called)}, not {_shape_of(described)}")
        for i, (got, wanted) in enumerate(zip(called.outputs, described.outputs, strict=True)):
            at = f"{where}, {described.title(i)}"
            if got.type_name != "torch.Tensor":
                raise Refused("wrong_type", f"{at} is a {got.type_name[:80]}, not a plain tensor")
            if got.device != wanted.device:
                raise Refused("wrong_device", f"{at} lies on {got.device[:20]}, not on {wanted.device}")
            if got.spec.shape != wanted.spec.shape:
                raise Refused("wrong_shape", f"{at} has shape {got.spec.shape}, not {wanted.spec.shape}")
            if got.spec.dtype != wanted.spec.dtype:
                raise Refused("wrong_dtype", f"{at} is {got.spec.dtype[:20]}, not {wanted.spec.dtype}")
            if got.aliases_input >= 0 > wanted.aliases_input:
                raise Refused("aliases_input", f"{at} shares memory with tensor input {got.aliases_input}")
            if got.aliases_output >= 0 > wanted.aliases_output and i < self._returned:
                raise Refused("aliases_output", f"{at} shares memory with {described.title(got.aliases_output)}")
            if got.overlaps and not wanted.overlaps:
                raise Refused("wrong_strides", f"{at} is expanded: several of its elements share memory")
            self._note_layout(at, got.spec, wanted.spec)

    @property
    def _returned(self) -> int:
        """How many outputs forward gives; gradients come after them."""
        gradients = self.room.described.gradients
        return len(self.room.described.outputs) - len(gradients.inputs) - len(gradients.parameters)

    def _note_layout(self, at: str, got: TensorSpec, wanted: TensorSpec) -> None:
        """Another memory format is no fault, but whoever calls `.view` on the result wants to know."""
        mine, theirs = (tuple(s for s, e in zip(x.stride, x.shape, strict=True) if e > 1) for x in (got, wanted))
        if mine != theirs and 0 not in got.shape:
            self.findings.note(f"{at} has strides {got.stride}, where the reference's has {wanted.stride}")

    # ---- comparison

    def usable(self, trial: Trial, truth_is_exact: bool) -> bool:
        """Note the reference's own error on this trial; False where a family says nothing (the truth overflows, or the
        reference itself is far off)."""
        for i, (own, truth, slack) in enumerate(
            zip(self.room.truths.own(), self.room.truths.truth(), self.room.truths.slack(), strict=True)
        ):
            with metric.calm(own):
                found = metric.distance(own, truth, own, slack)
                special = metric.differing_specials(own, truth)
            limit = metric.hopeless(own.dtype)
            if slack is not None and trial.family != "own" and gradients.jumps(slack, truth) > gradients.JUMPS:
                return False
            if slack is not None and found.norm > limit and self._forgive_noise(i):
                continue
            if special or found.norm > limit:
                if trial.family != "own":
                    return False
                if truth_is_exact:
                    self.room.truths.doubt()
                    self.findings.note(
                        f"case {self.case}: in float64 the module gives something else than in its own type "
                        "(random, or out of range); its own result stands as the truth"
                    )
                    return self.usable(trial, False)
            key = (self.case, trial.family, i)
            norm, worst = self.findings.own.get(key, (0.0, 0.0))
            self.findings.own[key] = max(norm, found.norm), max(worst, found.worst)
        return True

    def _forgive_noise(self, result: int) -> bool:
        """Give a gradient that is nought by algebra the slack of its rounding noise; False for one that is not."""
        truths = self.room.truths.truth()
        first = len(truths) - len(self.room.described.gradients.names)
        scale = max(metric.typical(t) for t in truths[first:])
        amount = gradients.noise(self.room.truths.own()[result], truths[result], scale)
        if amount:
            self.room.truths.raise_slack(result, amount)
            title = self.room.described.title(result)
            self.findings.note(f"case {self.case}: the {title} is nought but for rounding, and is held to that")
        return amount > 0.0

    def compare(self, trial: Trial, place: int, what: str = "", *, k: int = 0) -> None:
        """Raise Refused unless the result in `place` holds the contract on pool set `k`; note its errors."""
        found = Contract(self.room, case=self.case, precision=self.precision, own=self.findings.own).compare(
            trial, place, what, k=k
        )
        self.findings.errors.extend(found.errors)
        for note in found.notes:
            self.findings.note(note)
        if found.refusal:
            raise Refused(*found.refusal)

    def compare_state(self, trial: Trial) -> None:
        """Raise Refused unless parameters and buffers are what the reference's are after the call."""
        if self.shares_state:
            state.fetch(self.room, self.cell, self.moved)
            self.hold_state(trial, state.attributes(self.cell, self.attributes))
            self.require_kept_state()

    def hold_state(self, trial: Trial, attributes: Sequence[wire.Attribute], what: str = "the call") -> None:
        """Raise Refused unless the buffers that were fetched, and these plain values, are what the reference's call has
        left."""
        specials = trial.family == SPECIALS
        found = state.misplaced(self.room, self.moved, self.precision, specials=specials)
        found = found or state.miscounted(self.room, attributes)
        if found:
            raise Refused("wrong_state", f"case {self.case}: after {what} {found}")

    def require_kept_state(self) -> None:
        """Raise Refused where calls have changed parameters or buffers that the reference's leave alone."""
        reason, found = state.changed(self.room, self.cell) if self.shares_state else ("", "")
        if found:
            raise Refused(reason, f"case {self.case}: {found}")

    # ---- the whole case

    def run(self, trials: tuple[Trial, ...]) -> None:
        """Carry out all trials; raises Refused at the first that fails, CellFault when the cell does."""
        first: wire.Called | None = None  # whose results are held until the end
        for number, trial in enumerate(trials):
            upstream = _UPSTREAM[number % len(_UPSTREAM)]
            if not self._draw(trial, upstream):
                continue
            self.room.state.take()
            if not self._prepare(trial):
                self.findings.note(f"case {self.case}: {trial.family} inputs say nothing here")
                continue
            slot = 0 if number < 2 else number % self.room.slots
            self.room.place(0, slot)
            self.load_state()
            place = 1 if first else 0
            unlike = bool(self.room.described.gradients.outputs) and upstream in _UNLIKE
            called = self.call(tag=min(number, 1), slot=slot, place=place, seed=trial.draws, unlike=unlike)
            self._after_call(trial, slot, place=place)
            if number == 0:
                self._repeat(trial, slot)
                first = called if self.room.places > 1 else None
            self.cell.do(wire.Drop(keep_first=first is not None))
        if first:
            self._unchanged(first)
            self.cell.do(wire.Drop())

    def _draw(self, trial: Trial, upstream: str) -> bool:
        """Fill pool set 0, and move the state; False where the trial would say nothing new."""
        if (beside := trial.family == BOUNDARY) and self._turns.enough:
            return False
        self.room.draw(0, family=OWN if beside else trial.family, seed=trial.seed, upstream=upstream)
        if trial.redraw:
            self.redraw(trial.redraw, brief=trial.family == BRIEF)
            if trial.family == TIES:  # with the state as it is now
                self.room.draw(0, family=TIES, seed=trial.seed, upstream=upstream)
        return not beside or self._turns.approach(trial.seed, state=self.shares_state)

    def _prepare(self, trial: Trial) -> bool:
        """Have the reference's result and the truth; False where the family says nothing, or the reference itself
        does not take it."""
        try:
            facts = self.room.truths.run(0, seed=trial.draws)
        except CellFault as fault:
            if trial.family == OWN or not (fault.by_code and self.room.truths.reference_lives):
                raise
            return False
        if not facts.exact:
            self.findings.note(
                f"case {self.case}: no float64 truth ({facts.why_not}); the reference's own result stands"
            )
        if facts.no_slack:
            self.findings.note(f"case {self.case}: where gradients jump could not be found ({facts.no_slack})")
        return self.usable(trial, facts.exact)

    def _after_call(self, trial: Trial, slot: int, *, place: int) -> None:
        changed = self.room.changed_input(0, slot)
        if changed >= 0:
            raise Refused("input_modified", f"case {self.case}: it changes tensor input {changed} in place")
        self.compare(trial, place)
        self.compare_state(trial)

    def _repeat(self, trial: Trial, slot: int) -> None:
        """A second call on the same values, at another address where there is one, must be right too."""
        other = (slot + 1) % self.room.slots
        place = self.room.places - 1
        self.room.place(0, other)
        self.load_state()
        if place == 0:
            self.findings.note(f"case {self.case}: too large to hold an early result beside later ones")
            self.cell.do(wire.Drop())
        self.call(tag=-1, slot=other, place=place, seed=trial.draws)
        self.compare(trial, place, " of a second call")
        if place and not all(same_bits(a, b) for a, b in zip(self.room.results(0), self.room.results(1), strict=True)):
            self.findings.note(f"case {self.case}: two calls on the same values differ in their last bits")

    def _unchanged(self, first: wire.Called) -> None:
        """What the first trial returned must still be what it was, though all other trials came since. What shares
        memory with an input, as the reference's does too, is now what the judge has put there."""
        self.fetch(tag=0, place=1)
        for i, (then, now) in enumerate(zip(self.room.results(0), self.room.results(1), strict=True)):
            if first.outputs[i].aliases_input < 0 and not same_bits(then, now):
                raise Refused(
                    "result_changes",
                    f"case {self.case}: output {i} of an earlier call changed when it was called again",
                )


def _shape_of(said: wire.Called | wire.Described) -> str:
    tree = said.outputs_tree.replace('{"$":"tensor","v":', "{").replace('"', "")
    return f"{len(said.outputs)} tensors as {tree}"[:200]


def concluded(built: Built, findings: Findings, fallbacks: tuple[tuple[str, int], ...]) -> Checked:
    findings.note_stuck()
    findings.note_nearest()
    return Checked(built=built, errors=tuple(findings.errors), notes=tuple(findings.notes), fallbacks=fallbacks)


def refusal(error: Refused | CellFault) -> Failure:
    """The Failure of an exception that ended a check."""
    if isinstance(error, Refused):
        return error.failure
    reason = error.reason if error.by_code else "broke_the_cell"
    return Failure(stage="check", reason=reason, summary=error.summary, excerpt=error.excerpt)
