"""Recurrent layers on CPUs: what stands between the layers and the built steps of one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..recurrent.layers import LayerCall, run_layers
from ..recurrent.shape import RecurrentShape
from .launch import Kernel, KnobValue


class RecurrentLayers(Kernel):
    """The layers whose steps are those of the program in `source`; knobs as a Kernel's."""

    def __init__(
        self, source: Path, shape: RecurrentShape, knobs: dict[str, KnobValue], legal: dict[str, tuple[KnobValue, ...]]
    ) -> None:
        super().__init__(source, outputs=shape.outputs, knobs=knobs, legal=legal)
        self._shape = shape

    def launch(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The results that are wanted, freshly allocated and contiguous."""
        return run_layers(self._shape, self._layer, operands)

    def _layer(self, call: LayerCall) -> None:
        none = torch.empty(0)
        written = (none if x is None else x for x in call.written)
        (self._run or self._load())(*call.read, *written, torch.get_num_threads(), call.batch_first)
