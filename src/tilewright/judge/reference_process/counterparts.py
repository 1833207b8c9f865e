"""Counterparts: a reference's state that a candidate holds under other names. Two modules constructed under one seed
begin with the same values, so a tensor of the one finds its counterpart in the other by its mark: type, shape and first
contents (judge.candidate_process.state).

All tensors of one mark are moved by the same numbers, drawn from the mark and a seed: it does not matter which of them
stands for which. The candidate is given what they become.
"""

from __future__ import annotations

import zlib

import torch

from ..candidate_process.state import marks_of, named_state
from ..wire.parts import Mark
from .families import chosen_to_move, perturb_state


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
