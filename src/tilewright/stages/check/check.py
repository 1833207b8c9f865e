"""Check: a built candidate against the reference, trial by trial, until all agree or one does not.

For every case: the module is constructed under the reference's seed; where its state has the same names and shapes, the
reference's state is loaded into it, and re-drawn in place between trials. Every result must have the structure,
shapes and dtypes of the reference's, hold the precision contract (stages.check.metric), come from unchanged inputs,
stay what it is when the next call is made, and come out right again on a second call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from ...cell import wire
from ...edges.sandbox.cell import Cell, CellFault
from ...edges.sandbox.room import Room, same_bits
from ...facts.outcome import Built, Checked, Failure, OutputError
from ...facts.problem import Precision
from . import metric
from .plan import Trial, plan

_HOPELESS = {8: 1e-6, 4: 0.05, 2: 0.25}  # own error, by bytes of the type, at which the truth says nothing any more
_STATE_SLACK = 8.0  # mutated buffers: in units of the output floors


@dataclass(slots=True)
class Findings:
    """What is gathered over the trials."""

    errors: list[OutputError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    own: dict[tuple[int, str, int], tuple[float, float]] = field(default_factory=dict)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


class Refused(Exception):
    """Ends a check; carries the Failure."""

    def __init__(self, reason: str, summary: str, excerpt: str = "") -> None:
        super().__init__(summary)
        self.failure = Failure(stage="check", reason=reason, summary=summary, excerpt=excerpt)


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

    # ---- construction

    def construct(self, seed: int) -> None:
        """Build the candidate's module and see whether the reference's state can be loaded into it."""
        described = self.room.described
        request = wire.Construct(init=described.init, tensors=self.room.shared_init, seed=seed)
        built = self.cell.ask(request, wire.Constructed, limit_s=self.room.limits.call_s)
        wanted = {s.name: s.spec.shape for s in described.state}
        self.shares_state = {s.name: s.spec.shape for s in built.state} == wanted
        if wanted and not self.shares_state:
            self.findings.note(
                f"case {self.case}: the state's names or shapes differ; it is compared by equal seeds alone"
            )

    def load_state(self) -> None:
        if self.shares_state and self.room.state_names:
            self.cell.do(wire.LoadState(names=self.room.state_names, refs=self.room.shared_state))

    # ---- one call

    def call(self, *, tag: int, slot: int, place: int, seed: int) -> None:
        """Call the candidate on a slot and have the result, once its shapes and types are accepted, in `place`."""
        described = self.room.described
        request = wire.Call(
            tag=tag, args=described.args, inputs=self.room.slot(slot), poison_bytes=self.room.poison_bytes(), seed=seed
        )
        called = self.cell.ask(request, wire.Called, limit_s=self.room.limits.call_s)
        self.accept(called)
        self.fetch(tag=tag, place=place)

    def fetch(self, *, tag: int, place: int) -> None:
        for tensor in self.room.results(place):
            tensor.fill_(1) if tensor.dtype.is_floating_point else tensor.zero_()
        self.room.settle()
        self.cell.do(wire.Store(tag=tag, refs=self.room.result_refs(place)))

    def accept(self, called: wire.Called) -> None:
        """Raise Refused unless structure, types, dtypes, shapes and devices are the reference's."""
        described = self.room.described
        where = f"case {self.case}"
        if called.outputs_tree != described.outputs_tree or len(called.outputs) != len(described.outputs):
            raise Refused("wrong_structure", f"{where}: it returns {_shape_of(called)}, not {_shape_of(described)}")
        for i, (got, wanted) in enumerate(zip(called.outputs, described.outputs, strict=True)):
            at = f"{where}, output {i}"
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

    # ---- comparison

    def usable(self, trial: Trial, truth_is_exact: bool) -> bool:
        """Note the reference's own error on this trial; False where a family says nothing (the truth overflows, or the
        reference itself is far off)."""
        for i, (own, truth) in enumerate(zip(self.room.own(), self.room.truth(), strict=True)):
            with metric.calm(own):
                found = metric.distance(own, truth, own)
                special = metric.differing_specials(own, truth)
            limit = _HOPELESS.get(own.element_size(), 0.25) if own.dtype.is_floating_point else float("inf")
            if special or found.norm > limit:
                if trial.family != "own":
                    return False
                if truth_is_exact:
                    self.room.doubt_truth()
                    self.findings.note(
                        f"case {self.case}: in float64 the module gives something else than in its own type "
                        "(random, or out of range); its own result stands as the truth"
                    )
                    return self.usable(trial, False)
            key = (self.case, trial.family, i)
            norm, worst = self.findings.own.get(key, (0.0, 0.0))
            self.findings.own[key] = max(norm, found.norm), max(worst, found.worst)
        return True

    def compare(self, trial: Trial, place: int, what: str = "") -> None:
        """Raise Refused unless the result in `place` holds the contract; note its errors."""
        for i, (value, truth, own) in enumerate(
            zip(self.room.results(place), self.room.truth(), self.room.own(), strict=True)
        ):
            with metric.calm(value):
                found = metric.distance(value, truth, own)
            own_norm, own_worst = self.findings.own.get((self.case, trial.family, i), (0.0, 0.0))
            floor_norm, floor_worst = metric.floors(value.dtype, self.precision)
            error = OutputError(
                case=self.case, family=trial.family, output=i, norm=found.norm, worst=found.worst,
                allowed_norm=max(metric.FACTOR * own_norm, floor_norm),
                allowed_worst=max(metric.FACTOR * own_worst, floor_worst),
            )  # fmt: skip
            self.findings.errors.append(error)
            if found.misplaced or not (error.norm <= error.allowed_norm and error.worst <= error.allowed_worst):
                raise Refused("wrong_values", self._describe(error, found, (value, truth, own), what))

    def _describe(
        self, error: OutputError, found: metric.Distance, tensors: tuple[Tensor, Tensor, Tensor], what: str
    ) -> str:
        value = tensors[0]
        head = f"case {self.case}, {error.family} inputs, output {error.output}{what}: "
        if found.misplaced and value.dtype.is_floating_point:
            detail = f"{found.misplaced} of {value.numel()} elements are not finite where the truth is, or the reverse"
        elif found.misplaced:
            detail = f"{found.misplaced} of {value.numel()} elements differ"
        else:
            detail = (
                f"norm error {error.norm:.3g} (allowed {error.allowed_norm:.3g}), "
                f"worst {error.worst:.3g} (allowed {error.allowed_worst:.3g})"
            )
        return f"{head}{detail}; {metric.first_difference(*tensors)}".rstrip("; ")

    def compare_state(self) -> None:
        """Buffers that the reference's forward moves must have moved alike."""
        names = self.room.described.mutated_state
        if not names or not self.shares_state:
            return
        self.cell.do(wire.StoreState(names=names, refs=self.room.shared_moved))
        for name, (got, wanted) in zip(names, self.room.moved(), strict=True):
            found = metric.distance(got, wanted, wanted)
            norm, worst = metric.floors(got.dtype, self.precision)
            if found.misplaced or found.norm > _STATE_SLACK * norm or found.worst > _STATE_SLACK * worst:
                raise Refused(
                    "wrong_state", f"case {self.case}: after the call {name} is off by {found.norm:.3g} in the norm"
                )

    # ---- the whole case

    def run(self, trials: tuple[Trial, ...], *, redraw: Callable[[int], None]) -> None:
        """Carry out all trials; raises Refused at the first that fails, CellFault when the cell does."""
        held: Trial | None = None
        for number, trial in enumerate(trials):
            if trial.redraw and self.shares_state:
                redraw(trial.redraw)
            self.room.take_state()
            self.room.draw(0, family=trial.family, seed=trial.seed)
            facts = self.room.run_reference(0, seed=trial.seed)
            if not facts.exact:
                self.findings.note(
                    f"case {self.case}: no float64 truth ({facts.why_not}); the reference's own result stands"
                )
            if not self.usable(trial, facts.exact):
                self.findings.note(f"case {self.case}: {trial.family} inputs say nothing here")
                continue
            slot = 0 if number < 2 else number % self.room.slots
            self.room.place(0, slot)
            self.load_state()
            again = held is not None
            self.call(tag=number, slot=slot, place=1 if again else 0, seed=trial.seed)
            self._after_call(trial, slot, place=1 if again else 0)
            if number == 0:
                self._repeat(trial, slot)
                held = trial
            elif again:
                self._unchanged()
                held = None
            self.cell.do(wire.Drop(keep_held=held is not None))

    def _after_call(self, trial: Trial, slot: int, *, place: int) -> None:
        changed = self.room.changed_input(0, slot)
        if changed >= 0:
            raise Refused("input_modified", f"case {self.case}: it changes tensor input {changed} in place")
        self.compare(trial, place)
        self.compare_state()

    def _repeat(self, trial: Trial, slot: int) -> None:
        """A second call on the same values, at another address where there is one, must be right too."""
        other = (slot + 1) % self.room.slots
        self.room.place(0, other)
        self.load_state()
        self.call(tag=-1, slot=other, place=1, seed=trial.seed)
        self.compare(trial, 1, " of a second call")
        if not all(same_bits(a, b) for a, b in zip(self.room.results(0), self.room.results(1), strict=True)):
            self.findings.note(f"case {self.case}: two calls on the same values differ in their last bits")

    def _unchanged(self) -> None:
        """What the first trial returned must still be what it was, though other calls and other inputs came since."""
        self.fetch(tag=0, place=1)
        for i, (then, now) in enumerate(zip(self.room.results(0), self.room.results(1), strict=True)):
            if not same_bits(then, now):
                raise Refused(
                    "result_changes",
                    f"case {self.case}: output {i} of an earlier call changed when it was called again",
                )


def _shape_of(said: wire.Called | wire.Described) -> str:
    tree = said.outputs_tree.replace('{"$":"tensor","v":', "{").replace('"', "")
    return f"{len(said.outputs)} tensors as {tree}"[:200]


def trials_for(described: wire.Described, case: int, *, rng: random.Random) -> tuple[Trial, ...]:
    """The trials of a case, by its size and by whether it has floating inputs and state."""
    work = described.work
    floats = any(s.dtype in ("f64", "f32", "f16", "bf16") for s in described.inputs)
    return plan(
        case, case_bytes=work.bytes_read + work.bytes_written, has_floats=floats, redraws=bool(described.state), rng=rng
    )


def concluded(built: Built, findings: Findings, fallbacks: tuple[tuple[str, int], ...]) -> Checked:
    return Checked(built=built, errors=tuple(findings.errors), notes=tuple(findings.notes), fallbacks=fallbacks)


def refusal(error: Refused | CellFault) -> Failure:
    """The Failure of an exception that ended a check."""
    if isinstance(error, Refused):
        return error.failure
    reason = error.reason if error.by_code else "broke_the_cell"
    return Failure(stage="check", reason=reason, summary=error.summary, excerpt=error.excerpt)
