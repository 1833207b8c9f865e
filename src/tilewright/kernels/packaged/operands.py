"""Where no launch was exported for operands that lie in some way, they are copied to lie as the judge's did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .cuda.common.cache import NotExportedError

_ALIGNED = 16


def laid(operand: Tensor, strides: Sequence[int]) -> Tensor:
    """The operand with these strides, from an aligned address on: itself, or a copy."""
    if operand.stride() == tuple(strides) and operand.data_ptr() % _ALIGNED == 0:
        return operand
    return torch.empty_strided(operand.shape, strides, dtype=operand.dtype, device=operand.device).copy_(operand)


def adapt_rows() -> None:
    """Let `Fused` of this package take operands that lie otherwise, and refuse numbers of rows that it has no launch
    for."""
    rows = import_module(".cuda.rows.launch", __package__)
    launch, kind = rows.Fused.launch, rows.Fused

    def adapted(
        self: Any, strides: Any, alignments: Any, device: Any, rows: int | None = None
    ) -> tuple[Callable[..., None], Any]:
        try:
            return launch(self, strides, alignments, device, rows)  # type: ignore[no-any-return]
        except NotExportedError:
            walks = self._walks(self._at(rows))
            made, kernel = launch(self, walks, [_ALIGNED] * len(walks), device, rows)

        def copying(*args: Any) -> None:
            made(*map(laid, args[: len(walks)], walks), *args[len(walks) :])

        return copying, kernel

    def takes(self: Any, count: int) -> bool:
        found: bool | None = self._takes.get(count)
        if found is None:
            found = self._takes[count] = count == self.spec.domain[0] or _has(self, count, rows._device(torch.device("cuda")))
        return found

    kind.launch, kind.takes = adapted, takes


def _has(fused: Any, count: int, device: Any) -> bool:
    if not fused._is_free(count, device):
        return False
    try:
        fused.launch(fused._walks(fused._at(count)), [_ALIGNED] * len(fused.spec.operands), device, count)
    except NotExportedError:
        return False
    return True


def adapt_products() -> None:
    """The same of `FusedProduct`, which takes operands of the Spec's shapes alone."""
    host = import_module(".cuda.gemm.host.fused", __package__)
    call = host.FusedProduct.__call__

    def adapted(self: Any, *operands: Tensor) -> tuple[Tensor, ...]:
        try:
            return call(self, *operands)  # type: ignore[no-any-return]
        except NotExportedError:
            return call(self, *(laid(o, host._whole(s).stride()) for o, s in zip(operands, self.spec.read, strict=True)))  # type: ignore[no-any-return]

    host.FusedProduct.__call__ = adapted
