"""Check: a built candidate against the reference, trial by trial, until all agree or one does not.

For every case: the module is constructed under the reference's seed; where its state has the same names and shapes, the
reference's state is loaded into it, and re-drawn in place between trials. Every result must have the structure,
shapes and dtypes of the reference's, hold the precision contract (stages.check.metric), come from unchanged inputs,
stay what it is when the next call is made, and come out right again on a second call.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...facts.outcome import Built, Checked
from ...facts.problem import Precision, TensorSpec
from ..client import Cell
from ..memory.case_memory import CaseMemory
from ..wire import messages as wire
from . import gradients, metric
from .contract import Contract
from .findings import Findings as Findings
from .findings import RefusedByCheck as RefusedByCheck
from .plan import SPECIALS, Trial
from .state import CandidateState, miscounted, misplaced


class Check:
    """One candidate in the case memory of one case: what its calls return and leave is held against the reference's."""

    def __init__(self, memory: CaseMemory, cell: Cell, *, case: int, precision: Precision, findings: Findings) -> None:
        self.memory, self.cell, self.case = memory, cell, case
        self.precision: Precision = precision
        self.findings = findings
        self.state = CandidateState(memory, cell, case=case, findings=findings)

    def call(self, *, tag: int, slot: int, place: int, seed: int, unlike: bool = False) -> wire.Called:
        """Call the candidate on a slot and have the result, once its shapes and types are accepted, in `place`.
        `unlike`: in training, as a model around it may call it, which is not as the reference is called."""
        described = self.memory.described
        calm = unlike and self.memory.slots > 1 and not described.mutated_state and not described.random
        request = wire.CallRequest(
            tag=tag, args=described.args, inputs=self.memory.sets.slot(slot), poison_bytes=self.memory.poison_bytes(),
            seed=seed, between=self.memory.sets.slot(0 if slot else 1) if calm else (), unlike=unlike,
        )  # fmt: skip
        called = self.cell.ask(request, wire.Called, limit_s=self.memory.limits.call_s)
        self.accept(called)
        self.fetch(tag=tag, place=place)
        return called

    def fetch(self, *, tag: int, place: int) -> None:
        for tensor in self.memory.results(place):
            tensor.fill_(1) if tensor.dtype.is_floating_point else tensor.zero_()
        self.memory.settle()
        self.cell.do(wire.StoreRequest(tag=tag, refs=self.memory.result_refs(place)))

    def accept(self, called: wire.Called) -> None:
        """Raise RefusedByCheck unless structure, types, dtypes, shapes and devices are the reference's."""
        described = self.memory.described
        where = f"case {self.case}"
        if called.moved_input >= 0:
            raise RefusedByCheck(
                "input_modified", f"{where}: it gives tensor input {called.moved_input} another shape or other memory"
            )
        if called.outputs_tree != described.outputs_tree or len(called.outputs) != len(described.outputs):
            raise RefusedByCheck(
                "wrong_structure", f"{where}: it returns {_shape_of(called)}, not {_shape_of(described)}"
            )
        for i, (got, wanted) in enumerate(zip(called.outputs, described.outputs, strict=True)):
            at = f"{where}, {described.title(i)}"
            if got.type_name != "torch.Tensor":
                raise RefusedByCheck("wrong_type", f"{at} is a {got.type_name[:80]}, not a plain tensor")
            if got.device != wanted.device:
                raise RefusedByCheck("wrong_device", f"{at} lies on {got.device[:20]}, not on {wanted.device}")
            if got.spec.shape != wanted.spec.shape:
                raise RefusedByCheck("wrong_shape", f"{at} has shape {got.spec.shape}, not {wanted.spec.shape}")
            if got.spec.dtype != wanted.spec.dtype:
                raise RefusedByCheck("wrong_dtype", f"{at} is {got.spec.dtype[:20]}, not {wanted.spec.dtype}")
            if got.aliases_input >= 0 > wanted.aliases_input:
                raise RefusedByCheck("aliases_input", f"{at} shares memory with tensor input {got.aliases_input}")
            if got.aliases_output >= 0 > wanted.aliases_output and i < self._returned:
                raise RefusedByCheck("aliases_output", f"{at} shares memory with {described.title(got.aliases_output)}")
            if got.overlaps and not wanted.overlaps:
                raise RefusedByCheck("wrong_strides", f"{at} is expanded: several of its elements share memory")
            self._note_layout(at, got.spec, wanted.spec)

    @property
    def _returned(self) -> int:
        """How many outputs forward gives; gradients come after them."""
        gradients = self.memory.described.gradients
        return len(self.memory.described.outputs) - len(gradients.inputs) - len(gradients.parameters)

    def _note_layout(self, at: str, got: TensorSpec, wanted: TensorSpec) -> None:
        """Another memory format is no fault, but whoever calls `.view` on the result wants to know."""
        mine, theirs = (tuple(s for s, e in zip(x.stride, x.shape, strict=True) if e > 1) for x in (got, wanted))
        if mine != theirs and 0 not in got.shape:
            self.findings.note(f"{at} has strides {got.stride}, where the reference's has {wanted.stride}")

    def usable(self, trial: Trial, truth_is_exact: bool) -> bool:
        """Note the reference's own error on this trial; False where a family says nothing (the truth overflows, or the
        reference itself is far off)."""
        for i, (own, truth, slack) in enumerate(
            zip(self.memory.truths.own(), self.memory.truths.truth(), self.memory.truths.slack(), strict=True)
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
                    self.memory.truths.doubt()
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
        truths = self.memory.truths.truth()
        first = len(truths) - len(self.memory.described.gradients.names)
        scale = max(metric.typical(t) for t in truths[first:])
        amount = gradients.noise(self.memory.truths.own()[result], truths[result], scale)
        if amount:
            self.memory.truths.raise_slack(result, amount)
            title = self.memory.described.title(result)
            self.findings.note(f"case {self.case}: the {title} is nought but for rounding, and is held to that")
        return amount > 0.0

    def compare(self, trial: Trial, place: int, what: str = "", *, k: int = 0) -> None:
        """Raise RefusedByCheck unless the result in `place` holds the contract on pool set `k`; note its errors."""
        found = Contract(self.memory, case=self.case, precision=self.precision, own=self.findings.own).compare(
            trial, place, what, k=k
        )
        self.findings.errors.extend(found.errors)
        for note in found.notes:
            self.findings.note(note)
        if found.refusal:
            raise RefusedByCheck(*found.refusal)

    def compare_state(self, trial: Trial) -> None:
        """Raise RefusedByCheck unless parameters and buffers are what the reference's are after the call."""
        if self.state.shares:
            self.state.fetch()
            self.hold_state(trial, self.state.left())
            self.state.require_kept()

    def hold_state(self, trial: Trial, attributes: Sequence[wire.Attribute], what: str = "the call") -> None:
        """Raise RefusedByCheck unless the buffers that were fetched, and these plain values, are what the reference's
        call has left."""
        specials = trial.family == SPECIALS
        found = misplaced(self.memory, self.state.moved, self.precision, specials=specials)
        found = found or miscounted(self.memory, attributes)
        if found:
            raise RefusedByCheck("wrong_state", f"case {self.case}: after {what} {found}")


def _shape_of(said: wire.Called | wire.Described) -> str:
    tree = said.outputs_tree.replace('{"$":"tensor","v":', "{").replace('"', "")
    return f"{len(said.outputs)} tensors as {tree}"[:200]


def concluded(built: Built, findings: Findings, fallbacks: tuple[tuple[str, int], ...]) -> Checked:
    findings.note_stuck()
    findings.note_nearest()
    return Checked(built=built, errors=tuple(findings.errors), notes=tuple(findings.notes), fallbacks=fallbacks)
