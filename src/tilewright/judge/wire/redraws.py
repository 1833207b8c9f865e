"""The messages by which a reference's state is moved: floating tensors around what was constructed, masks and indices
rearranged."""

from __future__ import annotations

from dataclasses import dataclass

from .parts import TensorRef

# Of state, all elements move, one in eight, or a few that lie together; or a few change places with others.
SPREADS = ("whole", "sparse", "few", "exchanged")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redraw:
    """In a reference cell: perturb floating parameters and buffers in place around the values constructed. `spread`:
    which elements of them, one of SPREADS. `context`: parameters then get 12 significant bits."""

    seed: int
    spread: str = "whole"
    context: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrawAlike:
    """In a reference cell: perturb in place the tensors whose marks have these keys, those of one key by the same
    numbers. `spread` as in Redraw."""

    seed: int
    keys: tuple[str, ...]
    spread: str = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How a tensor was rearranged (see judge.reference_process.rearrange). `label`: its name, or the key of its
    mark."""

    label: str
    way: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearrange:
    """In a reference cell: rearrange masks, flags and indices in place, as far as the module bears it on these inputs.
    `keys`: only those whose marks have these keys, all of one mark alike; all where there are none."""

    seed: int
    args: str
    inputs: tuple[TensorRef, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """In a reference cell: undo the last rearrangement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearranged:
    """What was done, and the names of what was moved and of what no way moved that the module bears and shows."""

    moves: tuple[Moved, ...] = ()
    moved: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
