"""The state of a reference's module, moved by seed: floats are redrawn, masks, flags and indices rearranged."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..candidate_process.state import marks_of, named_state
from ..candidate_process.subject import CandidateSubject
from ..wire.messages import Mark, Rearranged
from .double import Double
from .families import chosen_to_move, perturb_state, shortened
from .rearrange import Rearranger


class MovableState:
    """Of the module that `subject` holds. `double` is told of every change; `flops`: how much a call computes."""

    def __init__(self, subject: CandidateSubject, double: Double, flops: Callable[[], int]) -> None:
        self._subject, self._double, self._flops = subject, double, flops
        self._rearranger: Rearranger | None = None
        self._counterparts: Counterparts | None = None

    def begin(self, mutated: Sequence[str]) -> None:
        """A module was constructed, of which calls move the tensors of these names."""
        self._rearranger = Rearranger(self._subject.built, tuple(mutated))

    def redraw(self, seed: int, *, spread: str = "whole", context: bool = False) -> None:
        self.put_back()
        source = torch.Generator(device=self._subject.device).manual_seed(seed)
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
                if context and name in parameters and tensor.is_floating_point():
                    tensor.copy_(shortened(tensor))

    def mark(self) -> tuple[Mark, ...]:
        """By what each tensor can be known that a candidate holds under another name."""
        self._counterparts = Counterparts(self._subject.built)
        return self._counterparts.marks

    def redraw_alike(self, seed: int, keys: tuple[str, ...], *, spread: str) -> None:
        """Redraw the tensors whose marks have these keys."""
        assert self._counterparts is not None, "the state was not marked"
        self.put_back()
        self._counterparts.redraw(seed, keys, spread=spread)

    def rearrange(self, seed: int, args: str, inputs: Sequence[Tensor], keys: tuple[str, ...] = ()) -> Rearranged:
        """Rearrange masks, flags and indices: all, or those whose marks have these keys."""
        labels = self._counterparts.labels(keys) if keys and self._counterparts is not None else None
        self._double.forget()
        rearranger = self._rearranger
        groups = rearranger.groups(labels) if rearranger is not None else {}
        if rearranger is None or not groups:
            return Rearranged()
        moves, stuck = rearranger.find(
            seed, groups, subject=self._subject, args=args, inputs=inputs, flops=self._flops()
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
        self._double.forget()
        if self._rearranger is not None:
            self._rearranger.put_back()


# ---- Counterparts: a reference's state that a candidate holds under other names. Two modules constructed under one
# seed begin with the same values, so a tensor of the one finds its counterpart in the other by its mark: type, shape
# and first contents (judge.candidate_process.state). All tensors of one mark are moved by the same numbers, drawn from
# the mark and a seed: it does not matter which of them stands for which. The candidate is given what they become.


class Counterparts:
    """The marks of one module, taken when it was constructed."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._marks = {mark.name: mark for mark in marks_of(module)}

    @property
    def marks(self) -> tuple[Mark, ...]:
        return tuple(self._marks.values())

    def labels(self, keys: tuple[str, ...]) -> dict[str, str]:
        """The keys of the tensors that have one of these, by name."""
        return {name: mark.key for name, mark in self._marks.items() if mark.key in keys}

    def redraw(self, seed: int, keys: tuple[str, ...], *, spread: str = "whole") -> None:
        """Perturb in place the floating tensors whose marks have these keys, as far as `spread` says."""
        seen: set[int] = set()
        keys = chosen_to_move(keys, spread=spread, seed=seed)
        with torch.no_grad():
            for name, tensor in named_state(self._module).items():
                mark = self._marks.get(name)
                if mark is None or mark.key not in keys or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                source = torch.Generator(device=tensor.device).manual_seed(seed ^ zlib.crc32(mark.key.encode()))
                perturb_state("", tensor, is_parameter=mark.is_parameter, source=source, spread=spread)
