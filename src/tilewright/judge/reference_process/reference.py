"""The reference's side of a cell: the user's module, its inputs and its state by seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..candidate_process import values
from ..candidate_process.load import CodeRaised, blaming
from ..candidate_process.subject import CandidateSubject, seed_all
from ..wire.messages import NO_GRADIENTS, Gradients, Variant
from .double import Double
from .families import OWN, redistribute, upstream
from .learn import learn
from .movable import MovableState
from .problem import ProblemModule, load_problem
from .structure import Structure
from .ties import TIES, tied
from .variant import resized, restrided

_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCase:
    """What was found out of a case by running it: the tensors that its calls move, whether they move anything, how much
    they compute, and what the problem promises of each tensor input."""

    mutated: tuple[str, ...] = ()
    moves: bool = False
    flops: int = 0
    structures: tuple[Structure, ...] = ()


class Reference:
    """A problem file, open in a cell: one case at a time is constructed. `marked`: the inputs that get_inputs wants
    gradients of; `init`: the constructor's arguments."""

    def __init__(
        self, path: str, source: str, cases: Sequence[str], *, subject: CandidateSubject, compiled: str
    ) -> None:
        self._problem: ProblemModule = load_problem(path, source)
        self._cases = tuple(json.loads(c) for c in cases)
        self.subject = subject
        self._device = subject.device
        self._compiled = compiled
        self._case: dict[str, Any] = {}
        self.init: Any = []
        self.marked: tuple[int, ...] = ()  # inputs that get_inputs wants gradients of
        self.double = Double(subject, lambda: self.known.moves)
        self.state = MovableState(subject, self.double, lambda: self.known.flops)
        self._number = 0
        self._known: dict[int, KnownCase] = {}  # by case
        self._variants: dict[int, tuple[int, Variant]] = {}  # by case: what it is a variant of, and how

    def add_case(self, base: int, variant: Variant) -> None:
        self._variants[len(self._cases)] = base, variant
        self._cases += (json.loads(variant.kwargs),)

    @property
    def known(self) -> KnownCase:
        """Of the case that is constructed; nothing before it was described."""
        return self._known.get(self._number, KnownCase())

    def learn(self, **found: Any) -> None:
        self._known[self._number] = replace(self.known, **found)

    @property
    def varied_flops(self) -> int | None:
        """How much the case computes that this one is a variant of; None where it is none."""
        variant = self._variants.get(self._number)
        return self._known.get(variant[0], KnownCase()).flops if variant is not None else None

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
        self.subject.construct(make, seed, gradients=gradients)
        if self._compiled:
            self.subject.forward = torch.compile(self.subject.built, mode=self._compiled)
        self.state.begin(self.known.mutated)

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

    def own_inputs(self, seed: int, changes: Mapping[str, int] = _NOTHING) -> tuple[str, list[Tensor]]:
        """As the problem draws them, where some of the case's arguments may be others."""
        with blaming("raised", "get_inputs raised"):
            args = self._draw(seed, {**self._case, **changes})
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
        for i, structure in enumerate(self._known.get(base, KnownCase()).structures):
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

    def _draw(self, seed: int, case: Mapping[str, Any]) -> Any:
        """get_inputs under the device's context; on the CPU where that does not work (it is moved then)."""
        seed_all(seed)
        if self._device == "cpu":
            return self._problem.get_inputs(**case)
        try:
            with torch.device(self._device):
                return self._problem.get_inputs(**case)
        except Exception:  # some draw with NumPy or with CPU generators: only the second refusal counts
            seed_all(seed)
            return self._problem.get_inputs(**case)
