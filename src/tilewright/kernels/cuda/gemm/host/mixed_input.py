"""Small-M products on torch tensors whose large matrix has eight bits an element; see `..mainloop.mixed_input`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..mainloop.mixed_input import LINE, matrix_of
from ..prologue.fused import Factor, PrologueFactor, PrologueSpec
from .compiling import Launch, compile_mixed_input
from .factors import FactorLoader
from .kernels import GemmKernels, KernelVariant
from .launch import Gemm
from .layouts import along_k, lines, tidied
from .plan import Grid


@dataclass(kw_only=True)
class MixedInputKernels(GemmKernels):
    """The Point is `mixed_input`; the matrix that `prologue` makes is its A."""

    prologue_spec: PrologueSpec
    kind: ClassVar[str] = "mixed_input"

    def compile(self, variant: KernelVariant, options: str = "") -> Launch:
        return compile_mixed_input(
            variant.point, self.prologue_spec, element=variant.element, major=variant.majors[1],
            **self._rest(variant, options),
        )  # fmt: skip


class _Loader(FactorLoader):
    kernels: MixedInputKernels

    def both(self, x: Factor, y: Factor, grid: Grid) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Bytes, the other matrix, and what the prologue reads of rows."""
        if not isinstance(x, PrologueFactor) or not isinstance(y, Tensor) or x.shape[1] % LINE:
            raise ValueError(
                f"a mixed-input product has a matrix that is made on its way in, K being a multiple of {LINE}"
            )
        at = matrix_of(self.kernels.prologue_spec)
        factors = tuple(t if t.shape[1] < x.shape[1] else t[:, :1] for i, t in enumerate(x.tensors) if i != at)
        read = x.tensors[at]
        fits = lines(read, 16) and read.stride(1) == 1
        return tidied(read, 16) if fits else along_k(read), self.loadable(y), factors


class MixedInput(Gemm):
    """Its kernels' `prologue_spec` says how A is made."""

    kernels_of = MixedInputKernels
    loader_of = _Loader


def merged(prologue: PrologueSpec, tensors: Sequence[Tensor]) -> list[Tensor]:
    """What a prologue reads, of which K is in two, group and place, as matrices; what is of groups stays so."""
    at = 0 if prologue.side == "right" else 1
    return [t.flatten(at, at + 1) if t.ndim > 2 else t for t in tensors]
