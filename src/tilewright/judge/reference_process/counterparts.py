"""Counterparts: state under other names. Two modules constructed under one seed begin with the same values, so a tensor
of the one finds its counterpart in the other by what it held at first; both are then moved alike, without a name.

A mark stands for type, shape and first contents. All tensors of one mark are moved by the same numbers, drawn from the
mark and a seed: it does not matter which of them stands for which.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from ..candidate_process.bits import fingerprint
from ..candidate_process.subject import named_state
from ..memory.arena import dtype_name
from ..wire.messages import Mark, Moved
from .families import chosen_to_move, perturb_state
from .rearrange import Rearranger


class Counterparts:
    """The marks of one module, taken when it was constructed."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        parameters = {n for n, _ in module.named_parameters(remove_duplicate=False)}
        state = named_state(module)
        self._rearranger = Rearranger(module)
        self._marks = {n: _mark(t.detach(), is_parameter=n in parameters) for n, t in state.items()}

    @property
    def marks(self) -> tuple[Mark, ...]:
        return tuple(self._marks.values())

    def labels(self, keys: tuple[str, ...]) -> dict[str, str]:
        """The keys of the tensors that have one of these, by name."""
        return {name: mark.key for name, mark in self._marks.items() if mark.key in keys}

    def carry_out(self, moves: tuple[Moved, ...]) -> None:
        """Rearrange masks and indices as it was done elsewhere."""
        labels = self.labels(tuple(m.label for m in moves))
        self._rearranger.carry_out(moves, self._rearranger.groups(labels))

    def put_back(self) -> None:
        """As before the last rearrangement."""
        self._rearranger.put_back()

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


def _mark(tensor: Tensor, *, is_parameter: bool) -> Mark:
    kind = "parameter" if is_parameter else "buffer"
    key = f"{dtype_name(tensor.dtype)}{list(tensor.shape)}:{kind}:{fingerprint(tensor)}"
    flat = tensor.reshape(-1)
    constant = tensor.is_floating_point() and flat.numel() > 1 and bool((flat == flat[0]).all())
    value = float(flat[0]) if constant else 0.0
    return Mark(key=key, is_parameter=is_parameter, constant=constant, value=value, elements=tensor.numel())
