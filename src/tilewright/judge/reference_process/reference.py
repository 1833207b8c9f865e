"""The reference's side of a cell: the user's module, its inputs and its state by seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..candidate_process import values
from ..candidate_process.load import CodeRaised, ProblemModule, blaming, load_problem
from ..candidate_process.step import learn
from ..candidate_process.subject import Subject, named_state, seed_all
from ..wire.messages import NO_GRADIENTS, Gradients, Rearranged, Variant
from .double import Double
from .families import OWN, chosen_to_move, perturb_state, redistribute, shortened, upstream
from .rearrange import Rearranger
from .structure import Structure
from .ties import TIES, tied
from .variant import resized, restrided


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was found out of a case by running it: the tensors that its calls move, whether they move anything, how much
    they compute, and what the problem promises of each tensor input."""

    mutated: tuple[str, ...] = ()
    moves: bool = False
    flops: int = 0
    structures: tuple[Structure, ...] = ()


class Reference:
    """A problem file, open in a cell: one case at a time is constructed. `marked`: the inputs that get_inputs wants
    gradients of; `init`: the constructor's arguments."""

    def __init__(self, path: str, source: str, cases: Sequence[str], *, subject: Subject, compiled: bool) -> None:
        self._problem: ProblemModule = load_problem(path, source)
        self._cases = tuple(json.loads(c) for c in cases)
        self.subject = subject
        self._device = subject.device
        self._compiled = compiled
        self._case: dict[str, Any] = {}
        self.init: Any = []
        self.marked: tuple[int, ...] = ()  # inputs that get_inputs wants gradients of
        self.double = Double(subject, lambda: self.known.moves)
        self._rearranger: Rearranger | None = None
        self._number = 0
        self._known: dict[int, Known] = {}  # by case
        self._variants: dict[int, tuple[int, Variant]] = {}  # by case: what it is a variant of, and how

    def add_case(self, base: int, variant: Variant) -> None:
        self._variants[len(self._cases)] = base, variant
        self._cases += (json.loads(variant.kwargs),)

    @property
    def known(self) -> Known:
        """Of the case that is constructed; nothing before it was described."""
        return self._known.get(self._number, Known())

    def learn(self, **found: Any) -> None:
        self._known[self._number] = replace(self.known, **found)

    @property
    def varied_flops(self) -> int | None:
        """How much the case computes that this one is a variant of; None where it is none."""
        variant = self._variants.get(self._number)
        return self._known.get(variant[0], Known()).flops if variant is not None else None

    def construct(self, case: int, seed: int, gradients: Gradients = NO_GRADIENTS) -> None:
        self.double.forget()
        self._case, self._number = self._cases[case], case
        seed_all(seed)
        with blaming("raised", "get_init_inputs raised"):
            self.init = self._problem.get_init_inputs(**self._case)
        if not isinstance(self.init, list | tuple | dict):
            raise CodeRaised(
                "bad_arguments", f"get_init_inputs returns a {type(self.init).__name__}, not a list or dict"
            )
        model, init = self._problem.model, self.init
        make = lambda: values.bound(model, init)()  # noqa: E731  # a dict whose keys are no names raises in there
        self.subject.construct(make, seed, compiled=self._compiled, gradients=gradients)
        self._rearranger = Rearranger(self.subject.built, self.known.mutated)

    def init_tensors(self) -> tuple[Tensor, ...]:
        tensors: list[Tensor] = []
        values.encode(self.init, tensors)
        return tuple(tensors)

    # ---- inputs

    def inputs(self, seed: int, family: str) -> tuple[str, tuple[Tensor, ...]]:
        """The encoded arguments and their tensors on the device, drawn with this seed and family."""
        text, tensors = self.own_inputs(seed)
        known = self.known.structures or (Structure(),) * len(tensors)
        if family != OWN:
            for i, tensor in enumerate(tensors):
                if tensor.is_floating_point() and family == TIES:
                    tensors[i] = tied(self.subject.built, tensor, seed + i, known[i])
                elif tensor.is_floating_point():
                    tensors[i] = redistribute(tensor, family, seed + i, known[i])
        if self._number in self._variants and self._variants[self._number][1].strided:
            tensors = [restrided(t, i) for i, t in enumerate(tensors)]
        return text, tuple(tensors)

    def own_inputs(self, seed: int) -> tuple[str, list[Tensor]]:
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
        self.marked = tuple(i for i, t in enumerate(tensors) if t.requires_grad)
        placed = [t.detach().to(self._device) for t in tensors]
        return text, self._varied(placed) if self._number in self._variants else placed

    def _varied(self, tensors: list[Tensor]) -> list[Tensor]:
        """The inputs at the shapes of the variant: what is cut down must have again what the whole promised."""
        base, variant = self._variants[self._number]
        found = resized(tensors, variant)
        for i, structure in enumerate(self._known.get(base, Known()).structures):
            if not structure.suits(found[i]):
                raise CodeRaised("bad_arguments", f"input {i} is symmetric, which nothing of {found[i].shape} can be")
            grows = any(new > old and old in tensors[i].shape for old, new in variant.extents)
            if grows and not (structure.goes_on and tensors[i].is_floating_point()):
                raise CodeRaised("bad_arguments", f"input {i} holds a mask or a triangle, of which no more is known")
            if variant.extents:
                found[i] = structure.reshaped(found[i])
        return found

    def all_inputs(self, seed: int) -> tuple[str, tuple[Tensor, ...]]:
        """As `inputs`, of the problem's own distribution, and in training with upstream gradients."""
        text, tensors = self.inputs(seed, OWN)
        if self.subject.gradients.outputs:
            _, like = learn(self.subject.built, text, tensors, self.marked)
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
        module = self.subject.built
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
        self.double.forget()
        rearranger = self._rearranger
        groups = rearranger.groups(labels) if rearranger is not None else {}
        if rearranger is None or not groups:
            return Rearranged()
        moves, stuck = rearranger.find(
            seed, groups, subject=self.subject, args=args, inputs=inputs, flops=self.known.flops
        )
        self.subject.drop()
        names = {n: label for n, label in (labels or {g: g for g in groups}).items() if label in groups}
        done = {m.label for m in moves}
        return Rearranged(
            moves=moves, moved=tuple(n for n, label in names.items() if label in done),
            stuck=tuple(n for n, label in names.items() if label in stuck),
        )  # fmt: skip

    def put_back(self) -> None:
        """Masks, flags and indices as they were before they were rearranged."""
        self.double.forget()
        if self._rearranger is not None:
            self._rearranger.put_back()
