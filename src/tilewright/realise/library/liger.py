"""Rows by Liger's kernels in Triton (pip install liger-kernel): functions of `liger_kernel.transformers.functional`.

A row is one block of its kernels, of 65,536 elements at most. (https://github.com/linkedin/Liger-Kernel)"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.facts.candidate import SourceFile
from tilewright.facts.device import Device
from tilewright.facts.space import Point
from tilewright.ir.graph import Graph

from ..realiser import Refused
from .protocol import LibraryMatch, installed
from .quack import row_module
from .row_calls import RowCall, row_calls

_PACKAGE = "liger-kernel"
_AMPERE, _WIDEST = 80, 65536
# Its casting "gemma" computes all of a row in fp32; without `in_place` nothing of the arguments is written.
_CALLS = {
    "rms_norm": 'liger_rms_norm(x, weight, {eps}, casting_mode="gemma", in_place=False)',
    "layer_norm": "liger_layer_norm(x, weight, bias, {eps})",
    "softmax": "liger_softmax(x)",
    "cross_entropy": 'liger_cross_entropy(x, target, ignore_index={ignored}, reduction="{reduction}")',
    "swiglu": "liger_swiglu(x, y)",
    "geglu": "liger_geglu(x, y)",
}
_TEXT = '''"""{title} by Liger's kernels in Triton."""

import torch
{imports}


class ModelNew(torch.nn.Module):
    def forward(self, {parameters}):
        return {call}
'''


class Liger:
    """A row of the table; see `protocol.Library`."""

    name = _PACKAGE

    def finds(self, graph: Graph, device: Device) -> Sequence[LibraryMatch] | Refused:
        if device.target != "cuda" or not installed(_PACKAGE):
            return ()
        every = row_calls(graph, _CALLS)
        if every and device.capability < _AMPERE:
            return Refused(f"Triton wants sm_80 or later for it, and this device is {device.architecture}")
        fitting = [one for one in every if not _lack(one)]
        return fitting if fitting or not every else Refused(_lack(every[0]))

    def points(self, match: LibraryMatch, device: Device) -> tuple[Point, ...]:
        return ()

    def render(self, match: LibraryMatch, device: Device) -> tuple[SourceFile, ...]:
        assert isinstance(match, RowCall)
        call = _CALLS[match.kind]
        imports = f"from liger_kernel.transformers.functional import {call.partition('(')[0]}"
        return (SourceFile(path="model.py", text=row_module(_TEXT, match, imports, call)),)


def _lack(row: RowCall) -> str:
    """What keeps it from a row call, as a sentence; "" where nothing does."""
    if row.width > _WIDEST:
        return f"its kernels take rows of {_WIDEST} elements at most, and the module's {row.called} has {row.width}"
    if row.kind == "rms_norm" and not row.weights:
        return "its RMS normalisation takes a weight in all versions, and the module has none"
    if row.kind == "layer_norm" and "bias" not in row.parameters:
        return "its layer normalisation takes a weight and a bias, and the module has not both"
    return ""
