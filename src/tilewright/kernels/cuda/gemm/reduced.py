"""A product whose rows are reduced, as one kernel to a caller: the product with states of blocks of columns, and a
kernel along rows that joins them and does what is done with the results. The product itself is nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..launch import Fused
from ..plan import Device
from .fused import FusedProduct


class Reduced:
    """`first` and `second`: which operands the product and the rows' kernel take; the states come before the latter.
    Knobs are the product's."""

    def __init__(self, product: FusedProduct, rows: Fused, *, first: Sequence[int], second: Sequence[int]) -> None:
        self.product, self.rows = product, rows
        self.first, self.second = tuple(first), tuple(second)
        self.knobs = product.knobs
        self._shape = rows.spec.operands[0].shape

    @property
    def spec(self) -> Any:
        """Of the product, which does nearly all of the work."""
        return self.product.spec

    def configure(self, **knobs: Any) -> None:
        """As a FusedProduct's."""
        self.product.configure(**knobs)

    @property
    def objects(self) -> set[Path]:
        return self.product.objects | self.rows.objects

    def prepare(self, device: Device) -> None:
        """Both, as a FusedProduct's and a Fused's."""
        self.product.prepare(device)
        self.rows.prepare(device)

    def demand(self, processors: int) -> dict[str, int | str]:
        """The product's."""
        return self.product.demand(processors)

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        (made,) = self.product(*[operands[i] for i in self.first])
        states = made.view(made.shape[0], *self._shape).unbind(0)
        return self.rows(*states, *[operands[i] for i in self.second])
