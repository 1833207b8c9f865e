"""SmallM products on torch tensors whose large matrix is made of eight bits an element (see `mixed_input`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..epilogue.epilogue import EpilogueStore
from ..mainloop.mixed_input import LINE, matrix_of
from ..prologue.fused import Factor, PrologueFactor, PrologueSpec
from .compiling import Launch, Read, compile_mixed_input
from .launch import Gemm
from .layouts import lines, tidied
from .plan import Grid, Point


class MixedInput(Gemm):
    """The Point is `mixed_input`; the matrix that `prologue` makes is its A."""

    def __init__(self, point: Point, dtype: str, epilogue: Any = None, *, prologue: PrologueSpec, **more: Any) -> None:
        super().__init__(point, dtype, epilogue, **more)
        self.prologue = prologue

    def _operands(self, x: Factor, y: Factor, grid: Grid) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Bytes, the other matrix, and what the prologue reads of rows."""
        if not isinstance(x, PrologueFactor) or not isinstance(y, Tensor) or x.shape[1] % LINE:
            raise ValueError(
                f"a mixed-input product has a matrix that is made on its way in, K being a multiple of {LINE}"
            )
        at = matrix_of(self.prologue)
        factors = tuple(t if t.shape[1] < x.shape[1] else t[:, :1] for i, t in enumerate(x.tensors) if i != at)
        return self._bytes(x.tensors[at]), self._loadable(y), factors

    def _bytes(self, x: Tensor) -> Tensor:
        """(rows, K, batch) as TMA can read it, along K: as it is, or copied."""
        if lines(x, 16) and x.stride(1) == 1:
            return tidied(x, 16)
        return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)

    def _product_facts(self, *args: Any, **more: Any) -> tuple[tuple[Any, ...], EpilogueStore, tuple[Read, ...]]:
        facts, finish, operands = super()._product_facts(*args, **more)
        return ("mixed_input", self.prologue.side, *facts), finish, operands

    def compiled(
        self, point: Point, element: str, majors: tuple[str, str], finish: EpilogueStore, operands: Sequence[Read],
        options: str = "",
    ) -> Launch:  # fmt: skip
        return compile_mixed_input(
            point, self.prologue, element=element, major=majors[1], finish=finish, operands=operands, arch=self.arch,
            options=options,
        )  # fmt: skip


def merged(prologue: PrologueSpec, tensors: Sequence[Tensor]) -> list[Tensor]:
    """What a prologue reads, of which K is in two, group and place, as matrices; what is of groups stays so."""
    at = 0 if prologue.side == "right" else 1
    return [t.flatten(at, at + 1) if t.ndim > 2 else t for t in tensors]
