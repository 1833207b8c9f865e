"""Where no launch was exported for operands that lie in some way, they are copied to lie as the judge's did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 16


def _missing() -> type[Exception]:
    found: type[Exception] = import_module(".cuda.common.cache", __package__).NotExportedError
    return found


def laid(operand: Tensor, strides: Sequence[int]) -> Tensor:
    """The operand with these strides, from an aligned address on: itself, or a copy."""
    if operand.stride() == tuple(strides) and operand.data_ptr() % _ALIGNED == 0:
        return operand
    return torch.empty_strided(operand.shape, strides, dtype=operand.dtype, device=operand.device).copy_(operand)


def adapt_rows() -> None:
    """Let `Fused` of this package take operands that lie otherwise, and refuse numbers of rows that it has no launch
    for."""
    host = import_module(".cuda.rows.launch", __package__)
    launch, kind = host.Fused.launch, host.Fused

    def adapted(
        self: Any, strides: Any, alignments: Any, device: Any, rows: int | None = None
    ) -> tuple[Callable[..., None], Any]:
        try:
            return launch(self, strides, alignments, device, rows)  # type: ignore[no-any-return]
        except _missing():
            walks = self._walks(self._at(rows))
            made, kernel = launch(self, walks, [_ALIGNED] * len(walks), device, rows)

        def copying(*args: Any) -> None:
            made(*map(laid, args[: len(walks)], walks), *args[len(walks) :])

        return copying, kernel

    def takes(self: Any, rows: int) -> bool:
        if rows == self.spec.domain[0] or torch.compiler.is_compiling():
            return bool(rows == self.spec.domain[0])
        found: bool | None = self._takes.get(rows)
        if found is None:
            found = self._takes[rows] = _has(self, rows, host._device(torch.device("cuda")))
        return found

    kind.launch, kind.takes = adapted, takes


def _has(fused: Any, rows: int, device: Any) -> bool:
    if not fused._is_free(rows, device):
        return False
    try:
        fused.launch(fused._walks(fused._at(rows)), [_ALIGNED] * len(fused.spec.operands), device, rows)
    except _missing():
        return False
    return True


def adapt_products() -> None:
    """The same of `FusedProduct`, and of convolutions, attention and its gradients where they are there, which take
    operands of the Spec's shapes alone."""
    host = import_module(".cuda.gemm.host.fused", __package__)
    _adapt_whole(host, host.FusedProduct)
    for folder, name in (
        ("conv", "FusedConv"), ("attention", "FusedAttention"), ("attention_backward", "FusedAttentionBackward"),
    ):  # fmt: skip
        if find_spec(f".cuda.{folder}", __package__) is not None:
            _adapt_whole(host, getattr(import_module(f".cuda.{folder}.fused", __package__), name))


def _adapt_whole(host: Any, fused: Any) -> None:
    call = fused.__call__

    def adapted(self: Any, *operands: Tensor) -> tuple[Tensor, ...]:
        try:
            made: tuple[Tensor, ...] = call(self, *operands)
        except _missing():
            walks = [host._whole(spec).stride() for spec in self.spec.read]
            made = call(self, *map(laid, operands, walks))
        return made

    fused.__call__ = adapted
