"""A built program as a callable: knobs, lazy build, fresh outputs, one call into the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..ops import DTYPES
from .build import load, macros
from .sized import resized

KnobValue = int | str | bool
_MOST_SIZES = 64  # sizes for which what outputs look like is kept


class Kernel:
    """Launches the program in `source`; `knobs` holds its current settings, `legal` every knob's values.

    `stream` is given to each call; every other knob `k` is the macro TW_<K> of a build.
    """

    def __init__(
        self,
        source: Path,
        *,
        outputs: Sequence[tuple[tuple[int, ...], str]],
        knobs: dict[str, KnobValue],
        legal: Mapping[str, tuple[KnobValue, ...]],
        sizes: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """`sizes`: of the dimensions whose size is left open, the operand that says it; all others are as `outputs`
        says."""
        self._source = source
        # empty_like of a one-element expanded tensor is the cheapest way to a fresh contiguous one
        self._outputs = tuple(torch.empty(1, dtype=DTYPES[dtype]).expand(shape) for shape, dtype in outputs)
        self._sizes = dict(sizes)
        self._outputs_of: dict[tuple[int, ...], tuple[Tensor, ...]] = {}
        self._knobs = knobs
        self._legal = legal
        self._run: Callable[..., Any] | None = None
        self._stream = bool(knobs.get("stream", False))

    def configure(self, **knobs: KnobValue) -> None:
        """Replace settings; the next launch builds anew. Raises ValueError on an unknown knob or value."""
        for name, value in knobs.items():
            if name not in self._legal:
                raise ValueError(f"no knob {name!r}: there are {', '.join(sorted(self._legal)) or 'none'}")
            if not any(value == v and type(value) is type(v) for v in self._legal[name]):
                raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(repr, self._legal[name]))}")
        self._knobs.update(knobs)
        self._stream = bool(self._knobs.get("stream", False))
        self._run = None

    def launch(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """Outputs, freshly allocated and contiguous. Operands have the program's aligned shapes and any strides."""
        likes = self._likes(operands) if self._sizes else self._outputs
        made = tuple(map(torch.empty_like, likes))
        run = self._run or self._load()
        if run(*operands, *made, torch.get_num_threads(), self._stream):
            # Not contiguous where the lanes lie: torch's copy rearranges, then it is.
            run(*(o.contiguous() for o in operands), *made, torch.get_num_threads(), self._stream)
        return made

    def _likes(self, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        now = tuple([operands[number].shape[dimension] for dimension, number in self._sizes.items()])
        found = self._outputs_of.get(now)
        if found is None:
            shapes = (resized(like.shape, self._sizes, operands) for like in self._outputs)
            bare = (like[(slice(0, 1),) * like.dim()] for like in self._outputs)
            found = tuple(like.expand(shape) for like, shape in zip(bare, shapes, strict=True))
            if len(self._outputs_of) < _MOST_SIZES:
                self._outputs_of[now] = found
        return found

    def _load(self) -> Callable[..., Any]:
        self._run = load(self._source, macros(self._knobs))
        return self._run


class Summed:
    """A kernel whose last `count` results are sums in parts, and the kernel that adds these up."""

    def __init__(self, rows: Kernel, sums: Kernel, *, count: int) -> None:
        self._rows, self._sums, self._count = rows, sums, count

    def launch(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """As a Kernel's."""
        made = self._rows.launch(*operands)
        return (*made[: -self._count], *self._sums.launch(*made[-self._count :]))
