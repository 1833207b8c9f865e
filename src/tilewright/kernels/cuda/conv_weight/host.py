"""How the gradient of a convolution's weight is called: like any other fused kernel.

    dw (A, B, *t) = the gradient of a convolution's weight, from dense (N, A, *o) and windowed (N, B, *i)

With groups dense is (N, G, A, *o), windowed (N, G, B, *i) and dw (G, A, B, *t). Operands may lie in any order.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from cutlass import cute
from torch import Tensor

from ..common.spec import ArraySpec
from ..common.views import ITEM_BYTES, contiguous
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue
from ..gemm.host.launch import processors_of
from ..gemm.host.recorded import is_aligned, run_on
from ..host.recorded_kernel import RecordedKernel, Strides, any_where_single, compiled, fake, settings
from .shape import WeightShape

_HERE = Path(__file__).resolve().parent
_ALIGNED = 16
Axes = tuple[int | None, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpec:
    """See the module's docstring. `axes`: where others than those dimensions are given, which of each operand's, dense
    and windowed, are sample, group, channel and the three spatial ones (None: it has none). `windowed_first`: it is
    called with the windowed operand, then the dense one."""

    name: str
    shape: WeightShape
    dense: ArraySpec
    windowed: ArraySpec
    output: ArraySpec
    axes: tuple[Axes, Axes] | None = None
    windowed_first: bool = False

    @property
    def read(self) -> tuple[ArraySpec, ArraySpec]:
        """What it is called with, in order."""
        return self.ordered((self.dense, self.windowed))

    @property
    def results(self) -> tuple[ArraySpec, ...]:
        """What a call gives."""
        return (self.output,)

    def ordered(self, two: tuple[T, T]) -> tuple[T, T]:
        """What is dense and what is windowed as they are called with, or the other way round."""
        return (two[1], two[0]) if self.windowed_first else two

    def walks(self, strides: Sequence[Strides]) -> tuple[Strides, Strides]:
        """Strides, given as they are called with, of the windowed operand and of the dense one along (sample, group,
        channel, three spatial dimensions), 0 where there is one element."""
        dense, windowed = self.ordered((strides[0], strides[1]))
        grouped, rank = self.shape.windowed.groups > 1, len(self.dense.shape)
        places = range(2 + grouped, rank)
        usual: Axes = (0, *((1, 2) if grouped else (None, 1)), *(None,) * (3 - len(places)), *places)
        both = self.axes or (usual, usual)
        return _walk(windowed, self.windowed.shape, both[1]), _walk(dense, self.dense.shape, both[0])


def _walk(strides: Strides, shape: tuple[int, ...], axes: Axes) -> Strides:
    return tuple(0 if d is None or shape[d] == 1 else strides[d] for d in axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrap:
    """What a launch needs beside operands and result: int32 zeros, fp32 sums, and two numbers that it is told."""

    zeros: int
    sums: int
    numbers: tuple[int, int]


class WeightHost(RecordedKernel[WeightSpec]):
    """A WeightSpec with its knobs. It launches (both operands, zeros, sums, out, two numbers, 0)."""

    point: Hashable

    @abstractmethod
    def _point(self, knobs: dict[str, Any]) -> Hashable:
        """What these settings come to. Raises ValueError where they are unknown or don't fit together."""

    @abstractmethod
    def _scrap(self, processors: int) -> Scrap: ...

    @abstractmethod
    def launched(self, strides: list[Strides]) -> Callable[..., None]:
        """All launches of a call, as `entries.product` calls them, of (both operands, zeros, sums, out)."""

    def _settle(self, knobs: dict[str, Any]) -> None:
        self.point = self._point(knobs)

    def _run(self, outs: list[Tensor], *given: Tensor) -> None:
        one, other = (x if is_aligned(x) else x.clone() for x in given)
        need, device = self._scrap(processors_of(one)), one.device
        zeros = torch.empty(need.zeros, dtype=torch.int32, device=device).zero_()
        sums = torch.empty(need.sums, dtype=torch.float32, device=device)
        launch = self._launch([one.stride(), other.stride()])
        run_on(launch, one, other, zeros, sums, *outs, *need.numbers, 0)

    def _launch(self, strides: list[Strides]) -> Launch:
        facts = (*settings(type(self).__name__, self.arch, self.point, strides, _HERE), self.spec)
        return self.store.obtain(facts, Epilogue(), lambda: self.compile(strides))

    def compile(self, strides: list[Strides], options: str = "") -> Launch:
        read = [
            fake(o.dtype, o.shape, any_where_single(o.shape, own), _ALIGNED)
            for o, own in zip(self.spec.read, strides, strict=True)
        ]
        between = [fake(dtype, (cute.sym_int64(),), (1,), _ALIGNED) for dtype in ("i32", "f32")]
        output = self.spec.output
        out = fake(output.dtype, output.shape, contiguous(output.shape), _ALIGNED)
        return compiled(self.launched(strides), [*read, *between, out], (1, 1, 0), arch=self.arch, options=options)


def demand_of(spec: WeightSpec, point: object) -> dict[str, int | str]:
    """Of `WeightHost.demand` what is the same for all of them."""
    return {
        "plan": hashlib.sha256(repr(point).encode()).hexdigest()[:16], "local_bytes": 0,
        "moved_bytes": sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in (*spec.read, spec.output)),
    }  # fmt: skip
