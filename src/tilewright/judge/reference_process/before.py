"""The state of a module as it was before a call: what has moved since, and how it is put back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..candidate_process.bits import words
from ..candidate_process.moving import hidden_tensors, modules_of, text_of, write_attributes
from ..candidate_process.state import named_state, write_state
from ..candidate_process.subject import CandidateSubject
from ..memory.mapped import spec_of
from ..wire.parts import Attribute, NamedSpec

_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


def plain_attributes(root: torch.nn.Module) -> dict[str, str]:
    """Attributes that are numbers, strings, None, or tuples, lists and dicts of them, by dotted name, as texts of
    `values.encode`."""
    found: dict[str, str] = {}
    for prefix, fields in modules_of(root):
        for name, value in fields.items():
            if name not in _OF_EVERY_MODULE and (text := text_of(value)):
                found[prefix + name] = text
    return found


class Before:
    """Takes the state when it is made. `state`: what `state_dict` shows of it."""

    def __init__(self, subject: CandidateSubject, state: Mapping[str, Tensor]) -> None:
        self._subject = subject
        self._shown = set(state)
        kept = hidden_tensors(subject.built) | dict(state)
        self._tensors = {k: v.detach().clone() for k, v in kept.items()}
        self._plain = plain_attributes(subject.built)
        self._moved: tuple[str, ...] | None = None  # as far as it is known

    def moved(self) -> tuple[tuple[str, ...], tuple[Attribute, ...]]:
        """Names of the tensors that have moved since, and the plain attributes that have, as they were. What is no
        tensor of its shape any more can't be put back, and is not among them."""
        module = self._subject.built
        now = hidden_tensors(module) | named_state(module)
        alike = {k: v for k, v in self._tensors.items() if k in now and now[k].shape == v.shape}
        mutated = tuple(k for k, v in alike.items() if not torch.equal(words(now[k].detach()), words(v)))
        self._moved = mutated
        return mutated, self._changed()

    def _changed(self) -> tuple[Attribute, ...]:
        plain = plain_attributes(self._subject.built)
        return tuple(Attribute(name=k, text=v) for k, v in self._plain.items() if plain.get(k) != v)

    def hidden(self, names: tuple[str, ...]) -> tuple[NamedSpec, ...]:
        """Those of the names that `state_dict` does not show."""
        return tuple(
            NamedSpec(name=n, spec=spec_of(self._tensors[n]), hidden=True) for n in names if n not in self._shown
        )

    def restore_tensors(self) -> None:
        names = self.moved()[0] if self._moved is None else self._moved
        write_state(self._subject.built, names, [self._tensors[n] for n in names])

    def restore(self) -> None:
        """Put back what is known to move, or all that has moved since."""
        self.restore_tensors()
        write_attributes(self._subject.built, self._changed())
