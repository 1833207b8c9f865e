"""Ties: inputs of which some elements are exactly what a module may compare them with.

Which of `<` and `<=` a comparison is, and which bin an edge belongs to, shows nowhere else. What is compared with lies
in the module's floating state (edges, thresholds), in its plain attributes or in its code, and is taken from there.
"""

from __future__ import annotations

import types
from collections.abc import Iterator

import torch
from torch import Tensor

from ..candidate_process.state import named_state
from .eight_bits import computable
from .families import redistribute
from .structure import Structure

TIES = "ties"
_MOST = 4096  # values of one tensor that are taken
_SHARE = 0.25  # of the elements
_ROWS = 8  # one row in so many holds one value alone: what is computed from it may be that value, too


def tied(module: torch.nn.Module, own: Tensor, seed: int, structure: Structure) -> Tensor:
    """A tensor like `own` (floating): normal, but for elements and whole rows that are values of the module's."""
    drawn = redistribute(own, "normal", seed, structure)
    if drawn.numel() == 0 or computable(own) is not own:
        return drawn
    source = torch.Generator(device=own.device).manual_seed(seed ^ 0x7165)
    found = _values(module, own)
    values = found[torch.randint(found.numel(), own.shape, generator=source, device=own.device)]
    hit = torch.rand(own.shape, generator=source, device=own.device) < _SHARE
    if own.ndim > 1:
        alone = (torch.rand((*own.shape[:-1], 1), generator=source, device=own.device) * _ROWS).long() == 0
        values, hit = torch.where(alone, values[..., :1], values), hit | alone
    return structure.enforce(torch.where(hit, values, drawn), own)


def _values(module: torch.nn.Module, like: Tensor) -> Tensor:
    """Nought, and the module's own numbers, as far as they are exact in this type: of others rounding decides."""
    numbers = torch.tensor([0.0, *_numbers(module)], dtype=torch.float64, device=like.device)
    parts = [numbers]
    for tensor in named_state(module).values():
        if tensor.is_floating_point() and computable(tensor) is tensor:
            flat = tensor.detach().reshape(-1).to(like.device, torch.float64)
            parts.append(flat[:: max(1, flat.numel() // _MOST)])
    every = torch.cat(parts)
    return every[torch.isfinite(every) & (every.to(like.dtype).double() == every)].to(like.dtype)


def _numbers(module: torch.nn.Module) -> Iterator[float]:
    for part in module.modules():
        yield from (float(v) for v in vars(part).values() if type(v) is float)
        for kind in type(part).__mro__:
            if not kind.__module__.startswith("torch"):
                functions = (f for f in vars(kind).values() if isinstance(f, types.FunctionType))
                yield from (float(v) for f in functions for v in f.__code__.co_consts if type(v) is float)
