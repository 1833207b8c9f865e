"""The reference's side of a cell: the user's module, its inputs and state by seed, its float64 truth, its facts."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor

from ...facts import codec
from ...facts.problem import TensorSpec
from ..candidate_process import values
from ..candidate_process.bits import fingerprint
from ..candidate_process.collector import keep_what_is_there
from ..candidate_process.held import facts_of
from ..candidate_process.load import CodeRaised, blaming
from ..candidate_process.moving import hidden_tensors
from ..candidate_process.state import named_state, state_specs
from ..candidate_process.step import Step, tensors_of
from ..candidate_process.subject import Subject, seed_all
from ..memory.mapped import dtype_of, spec_of
from ..wire.messages import NO_GRADIENTS, Described, Gradients, Rearranged, Traced, Variant
from . import jitter, work
from .before import Before
from .eight_bits import computable
from .families import OWN, chosen_to_move, perturb_state, redistribute, shortened, upstream
from .learn import learn
from .problem import ProblemModule, load_problem, require_tensors
from .randomness import differ, far, is_random, sampled
from .rearrange import Rearranger, runs_on_cpu
from .structure import NOT_NEGATIVE, Structure, structure_of
from .ties import TIES, tied
from .variant import indexes, resized, restrided
from .widened import Widened


class Reference:
    """A problem file, open in a cell: one case at a time is constructed."""

    def __init__(self, path: str, source: str, cases: Sequence[str], *, subject: Subject, compiled: bool) -> None:
        self._problem: ProblemModule = load_problem(path, source)
        self._cases = tuple(json.loads(c) for c in cases)
        self._subject = self.subject = subject
        self._device = subject.device
        self._compiled = compiled
        self._case: dict[str, Any] = {}
        self._init: Any = []
        self._marked: tuple[int, ...] = ()  # inputs that get_inputs wants gradients of
        self._double: torch.nn.Module | None = None
        self._rearranger: Rearranger | None = None
        self._mutated: dict[int, tuple[str, ...]] = {}  # by case: what calls move, and how much they compute
        self._moving: set[int] = set()  # cases whose calls move anything
        self._flops: dict[int, int] = {}
        self._structures: dict[int, tuple[Structure, ...]] = {}
        self._number = 0
        self._variants: dict[int, tuple[int, Variant]] = {}  # by case: what it is a variant of, and how

    def add_case(self, base: int, variant: Variant) -> None:
        self._variants[len(self._cases)] = base, variant
        self._cases += (json.loads(variant.kwargs),)

    def construct(self, case: int, seed: int, gradients: Gradients = NO_GRADIENTS) -> None:
        self._double = None
        self._case, self._number = self._cases[case], case
        seed_all(seed)
        with blaming("raised", "get_init_inputs raised"):
            self._init = self._problem.get_init_inputs(**self._case)
        if not isinstance(self._init, list | tuple | dict):
            raise CodeRaised(
                "bad_arguments", f"get_init_inputs returns a {type(self._init).__name__}, not a list or dict"
            )
        model, init = self._problem.model, self._init
        make = lambda: values.bound(model, init)()  # noqa: E731  # a dict whose keys are no names raises in there
        self._subject.construct(make, seed, gradients=gradients)
        if self._compiled:
            self._subject.forward = torch.compile(self._subject.built)
        self._rearranger = Rearranger(self._subject.built, self._mutated.get(case, ()))

    def init_tensors(self) -> tuple[Tensor, ...]:
        tensors: list[Tensor] = []
        values.encode(self._init, tensors)
        return tuple(tensors)

    # ---- inputs

    def inputs(self, seed: int, family: str) -> tuple[str, tuple[Tensor, ...]]:
        """The encoded arguments and their tensors on the device, drawn with this seed and family."""
        text, tensors = self._own_inputs(seed)
        known = self._structures.get(self._number) or (Structure(),) * len(tensors)
        if family != OWN:
            for i, tensor in enumerate(tensors):
                if tensor.is_floating_point() and family == TIES:
                    tensors[i] = tied(self._subject.built, tensor, seed + i, known[i])
                elif tensor.is_floating_point():
                    tensors[i] = redistribute(tensor, family, seed + i, known[i])
        if self._number in self._variants and self._variants[self._number][1].strided:
            tensors = [restrided(t, i) for i, t in enumerate(tensors)]
        return text, tuple(tensors)

    def _own_inputs(self, seed: int) -> tuple[str, list[Tensor]]:
        with blaming("raised", "get_inputs raised"):
            args = self._draw(seed)
        if not isinstance(args, list | tuple | dict):
            raise CodeRaised("bad_arguments", f"get_inputs returns a {type(args).__name__}, not a list or dict")
        tensors: list[Tensor] = []
        try:
            text = values.encode(list(args) if isinstance(args, tuple) else args, tensors)
        except values.CannotTravel as error:
            raise CodeRaised(
                "bad_arguments", f"get_inputs returns {error}, which can't be handed to a module"
            ) from error
        self._marked = tuple(i for i, t in enumerate(tensors) if t.requires_grad)
        placed = [t.detach().to(self._device) for t in tensors]
        return text, self._varied(placed) if self._number in self._variants else placed

    def structures(self) -> tuple[Structure, ...]:
        """What the problem promises of each tensor input; empty before the case was described."""
        return self._structures.get(self._number, ())

    def _varied(self, tensors: list[Tensor]) -> list[Tensor]:
        """The inputs at the shapes of the variant: what is cut down must have again what the whole promised."""
        base, variant = self._variants[self._number]
        found = resized(tensors, variant)
        for i, structure in enumerate(self._structures.get(base, ())):
            if not structure.suits(found[i]):
                raise CodeRaised("bad_arguments", f"input {i} is symmetric, which nothing of {found[i].shape} can be")
            grows = any(new > old and old in tensors[i].shape for old, new in variant.extents)
            if grows and not (structure.goes_on and tensors[i].is_floating_point()):
                raise CodeRaised("bad_arguments", f"input {i} holds a mask or a triangle, of which no more is known")
            if variant.extents:
                found[i] = structure.reshaped(found[i])
        return found

    def _learn_structure(self, text: str, first: Sequence[Tensor], seed: int) -> None:
        """Compare own inputs with another draw of them. That all are positive is no structure where the module takes
        negative numbers as well."""
        _, second = self._own_inputs(seed)
        pairs = zip(first[: len(second)], second, strict=True)
        found = tuple(
            structure_of(a, b) if a.is_floating_point() and computable(a) is a else Structure() for a, b in pairs
        )
        free = tuple(s.without(NOT_NEGATIVE) for s in found)
        self._structures[self._number] = free
        if any(NOT_NEGATIVE in s.forms for s in found) and not self._takes(text, self.inputs(seed, "normal")[1]):
            self._structures[self._number] = found

    def _takes(self, text: str, inputs: Sequence[Tensor]) -> bool:
        """Whether the module gives numbers for these inputs."""
        forward = values.bound(self._subject.built, values.decode(text, inputs))
        try:
            with torch.no_grad():
                results = tensors_of(forward())
        except Exception:  # whatever it raises, it does not take them
            return False
        return not any(t.is_floating_point() and bool(t.isnan().any()) for t in results)

    def all_inputs(self, seed: int) -> tuple[str, tuple[Tensor, ...]]:
        """As `inputs`, of the problem's own distribution, and in training with upstream gradients."""
        text, tensors = self.inputs(seed, OWN)
        if self._subject.gradients.outputs:
            _, like = learn(self._subject.built, text, tensors, self._marked)
            tensors += upstream(like, "normal", seed)
        return text, tensors

    def _draw(self, seed: int) -> Any:
        """get_inputs under the device's context; on the CPU where that does not work (it is moved then)."""
        seed_all(seed)
        if self._device == "cpu":
            return self._problem.get_inputs(**self._case)
        try:
            with torch.device(self._device):
                return self._problem.get_inputs(**self._case)
        except Exception:  # some draw with NumPy or with CPU generators: only the second refusal counts
            seed_all(seed)
            return self._problem.get_inputs(**self._case)

    def redraw(self, seed: int, *, spread: str = "whole", brief: bool = False) -> None:
        self.put_back()
        source = torch.Generator(device=self._device).manual_seed(seed)
        module = self._subject.built
        parameters = {n for n, _ in module.named_parameters(remove_duplicate=False)}
        seen: set[int] = set()
        state = named_state(module)
        chosen = chosen_to_move([n for n, t in state.items() if t.is_floating_point()], spread=spread, seed=seed)
        with torch.no_grad():
            for name, tensor in state.items():
                if id(tensor) not in seen and (name in chosen or not tensor.is_floating_point()):
                    seen.add(id(tensor))
                    wanted = name in parameters
                    perturb_state(name, tensor, is_parameter=wanted, source=source, spread=spread)
                if brief and name in parameters and tensor.is_floating_point():
                    tensor.copy_(shortened(tensor))

    def rearrange(
        self, seed: int, args: str, inputs: Sequence[Tensor], labels: Mapping[str, str] | None = None
    ) -> Rearranged:
        """Rearrange masks, flags and indices, by name or by the labels given."""
        self._double = None
        rearranger = self._rearranger
        groups = rearranger.groups(labels) if rearranger is not None else {}
        if rearranger is None or not groups:
            return Rearranged()
        moves, stuck = rearranger.find(
            seed, groups, subject=self._subject, args=args, inputs=inputs, flops=self._flops.get(self._number, 0)
        )
        self._subject.drop()
        names = {n: label for n, label in (labels or {g: g for g in groups}).items() if label in groups}
        done = {m.label for m in moves}
        return Rearranged(
            moves=moves, moved=tuple(n for n, label in names.items() if label in done),
            stuck=tuple(n for n, label in names.items() if label in stuck),
        )  # fmt: skip

    def put_back(self) -> None:
        """Masks, flags and indices as they were before they were rearranged."""
        self._double = None
        if self._rearranger is not None:
            self._rearranger.put_back()

    # ---- truth

    def truth(
        self, args_text: str, inputs: Sequence[Tensor], seed: int, *, moved_by: jitter.Jitter | None = None,
        buffers: Sequence[str] = (), under: Sequence[AbstractContextManager[Any]] = (), again: bool = False,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Outputs of the module in float64 on the same inputs and state, or on moved ones, and then the buffers
        named, as they are afterwards; `under` these contexts, the last of which is the innermost. Raises
        CodeRaised("no_truth") where an operation has no float64, and for lack of memory. `again`: one of many runs,
        before which no garbage is looked for."""
        if not (again or under):
            self._subject.drop()
        seed_all(seed)
        wide = [t.double() if t.is_floating_point() else t.to(torch.complex128) if t.is_complex() else t.clone()
                for t in inputs]  # fmt: skip
        before = torch.get_default_dtype()
        try:
            with blaming("raised", "in float64 the module raised"), self._subject.grad_mode():
                torch.set_default_dtype(torch.float64)
                module = self._double = self._double or copy.deepcopy(self._subject.built).double()
                if moved_by:
                    wide = self._jittered(module, wide, moved_by, seed + moved_by.draw)
                with ExitStack() as stack:
                    for context in under:
                        stack.enter_context(context)
                    result = self._in_double(module, args_text, wide)
                del wide
        finally:
            torch.set_default_dtype(before)
            if self._subject.built.training or moved_by or self._number in self._moving:
                self._double = None  # it may have moved its buffers
        state = hidden_tensors(module) | named_state(module) if buffers else {}
        return tuple(t.detach() for t in (*tensors_of(result), *(state[name] for name in buffers)))

    def run_copy(self, args_text: str, inputs: Sequence[Tensor], seed: int) -> None:
        """Run a copy of the module in its own types, whose state nobody else sees."""
        self._subject.drop()
        seed_all(seed)
        with blaming("raised", "forward raised"), self._subject.grad_mode():
            self._in_double(copy.deepcopy(self._subject.built), args_text, inputs)

    def floats(self) -> tuple[torch.dtype, ...]:
        """The types of the floating parameters."""
        return tuple(p.dtype for p in self._subject.built.parameters() if p.is_floating_point())

    def _in_double(self, module: torch.nn.Module, args_text: str, wide: Sequence[Tensor]) -> Any:
        gradients = self._subject.gradients
        with Widened():
            if gradients.outputs:
                return Step(module, module, args_text, wide, gradients).readied("whole")()
            return values.bound(module, values.decode(args_text, wide))()

    def _jittered(self, module: torch.nn.Module, wide: Sequence[Tensor], by: jitter.Jitter, seed: int) -> list[Tensor]:
        """The inputs, moved; the module's parameters are moved where they are."""
        source = torch.Generator(device=self._device).manual_seed(seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(jitter.moved(parameter, by, source))
            return [jitter.moved(t, by, source) for t in wide]

    def slack(
        self, args_text: str, inputs: Sequence[Tensor], own: Sequence[Tensor], truth: Sequence[Tensor], seed: int
    ) -> tuple[Tensor, ...]:
        """How far each gradient of a step moves with the last bits of inputs, upstream gradients and parameters: the
        larger of two draws that move them to opposite sides."""
        first = len(truth) - len(self._subject.gradients.names)
        amount = jitter.share(own[:first], truth[:first])
        found = [torch.zeros_like(t) for t in truth[first:]]
        for sign in (1.0, -1.0):
            moved = self.truth(args_text, inputs, seed, moved_by=jitter.Jitter(amount=sign * amount))[first:]
            for most, there, here in zip(found, moved, truth[first:], strict=True):
                if here.is_complex():
                    continue  # held to the contract as it is
                torch.maximum(most, torch.nan_to_num((there - here).abs()), out=most)
        return tuple(found)

    def is_whole(self) -> bool:
        """Whether rows depend on one another by what is asked for: statistics of a batch, gradients of parameters."""
        return self._number in self._moving or bool(self._subject.gradients.outputs)

    def release_truth(self) -> None:
        self.forget_double()
        gc.collect()

    def forget_double(self) -> None:
        """The module in float64 is no longer what the module is."""
        self._double = None

    # ---- description

    def describe(self, seed: int, *, trace: bool, training: bool = False) -> Described:
        """Run the case and say what is known of it; the state is as before afterwards."""
        text, inputs = self.inputs(seed, OWN)
        subject = self._subject
        state = named_state(subject.built)
        if self._number in self._variants and self._device != "cpu" and any(map(indexes, (*inputs, *state.values()))):
            flops = self._flops.get(self._variants[self._number][0], 0)
            if not runs_on_cpu(subject, text, inputs, flops=flops):
                raise CodeRaised("bad_arguments", "its indices may lead out of tensors of these shapes")
        before = Before(subject, state)
        if training:
            subject.gradients, like = learn(subject.built, text, inputs, self._marked)
            before.restore()
            inputs += upstream(like, "normal", seed)
        marks = tuple(fingerprint(t) for t in inputs)
        result = self._first_run(text, inputs)
        first = [sampled(t) for t in tensors_of(result)]
        del result
        for i, (tensor, then) in enumerate(zip(inputs, marks, strict=True)):
            if fingerprint(tensor) != then:
                raise CodeRaised("bad_module", f"forward changes its tensor input {i} in place; give it a copy instead")
        mutated, attributes = before.moved()
        self._moving |= {self._number} if mutated or attributes else set()
        shows = bool(attributes) and not self._comes_again(text, inputs, first, before)
        before.restore()
        seed_all(seed + 1)
        with blaming("raised", "forward raised under observation"):
            seen = work.measure(lambda: subject.run(text, inputs), [*inputs, *state.values()], tensors_of)
        second, measured, longest, steps, nominal_s = (
            seen.result,
            seen.work,
            seen.longest_sum,
            seen.steps,
            seen.nominal_s,
        )
        del seen
        random = differ(first, [sampled(t) for t in tensors_of(second)])
        tree = values.encode(second, [], sort_keys=True)
        found = tensors_of(second)
        outputs = facts_of(found, tuple(map(values.kind_of, found)), inputs)
        del found
        del first, second
        if random:

            def run(drawn: int) -> list[Tensor]:
                before.restore()
                seed_all(drawn)
                return [sampled(t).clone() for t in tensors_of(subject.run(text, inputs))]

            random = is_random(run, seed)
        self._mutated[self._number], self._flops[self._number] = mutated, measured.flops
        subject.drop()
        self._learn_structure(text, inputs, seed + 2)
        before.restore()
        graph, failure = self._trace(text, inputs) if trace else ("", "")
        before.restore()
        init: list[Tensor] = []
        try:
            init_text = values.encode(self._init, init)
        except values.CannotTravel as error:
            raise CodeRaised(
                "bad_arguments", f"get_init_inputs returns {error}, which can't be sent to a candidate"
            ) from error
        return Described(
            init=init_text, init_tensors=tuple(spec_of(t) for t in init), args=text,
            inputs=tuple(spec_of(t) for t in inputs), outputs_tree=tree, outputs=outputs,
            state=state_specs(subject.built) + before.hidden(mutated), mutated_state=mutated, random=random,
            work=measured,
            longest_sum=longest, steps=steps, graph=graph, gradients=subject.gradients, trace_failure=failure,
            nominal_s=nominal_s, attributes=attributes, shows_attributes=shows,
        )  # fmt: skip

    def _comes_again(self, text: str, inputs: Sequence[Tensor], first: Sequence[Tensor], before: Before) -> bool:
        """Whether a call gives what the first did where tensors are put back, and plain attributes are not."""
        before.restore_tensors()
        try:
            with blaming("raised", "a second call raised"):
                second = [sampled(t) for t in tensors_of(self._subject.run(text, inputs))]
        except CodeRaised:
            return False
        return not far(first, second)

    def traced(self, text: str, inputs: Sequence[TensorSpec]) -> Traced:
        """The graph of a case that was described, which says what its inputs are like."""
        given = [torch.empty_strided(t.shape, t.stride, dtype=dtype_of(t.dtype), device=self._device) for t in inputs]
        graph, failure = self._trace(text, given)
        del given
        self._subject.give_memory_back()
        return Traced(graph=graph, failure=failure)

    def _first_run(self, text: str, inputs: Sequence[Tensor]) -> Any:
        """What the module returns, known to be tensors."""
        with blaming("raised", "forward raised"):
            result = self._subject.run(text, inputs)
            if self._device == "cuda":
                torch.cuda.synchronize()
        require_tensors(result)
        return result

    def _trace(self, text: str, inputs: Sequence[Tensor]) -> tuple[str, str]:
        from ...frontend.rows import traced
        from ...frontend.trace import trace, trace_training

        forward = values.bound(self._subject.built, values.decode(text, inputs))
        given = (self._subject.built, forward.args, forward.keywords)
        gradients = self._subject.gradients
        try:
            if gradients.outputs:
                return codec.dumps(trace_training(*given, inputs, gradients)), ""
            on_cpu = all(t.device.type == "cpu" for t in inputs)  # there alone do kernels take any number of rows
            graph = traced(*given) if on_cpu else trace(*given)
            return codec.dumps(graph), ""
        except Exception as error:  # whatever torch's tracers raise, the module then stays torch's
            lines = str(error).strip().splitlines()
            return "", f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
        finally:
            keep_what_is_there()  # tracing imports a great deal
