"""Rows by quack's kernels in CuTe, on Hopper and Blackwell (pip install quack-kernels).

Its `rmsnorm`, `softmax` and `cross_entropy` differentiate, and take fp16, bf16 and fp32; `layernorm_fwd` takes fp32
weights. Importing it changes the indexing of CuTe's tensors in the whole process, that of a candidate.
(https://github.com/Dao-AILab/quack)"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.facts.candidate import SourceFile
from tilewright.facts.device import Device
from tilewright.facts.space import Point
from tilewright.ir.graph import Graph

from ..realiser import Refused
from .protocol import LibraryMatch, installed
from .row_calls import RowCall, row_calls

_PACKAGE = "quack-kernels"
_FAMILIES = (9, 10, 12)  # of compute capability, by the first digits
_CALLS = {
    "rms_norm": ("from quack import rmsnorm", "rmsnorm(x, {weight}, eps={eps})"),
    "layer_norm": (
        "from quack.rmsnorm import layernorm_fwd",
        "layernorm_fwd(x.reshape(-1, {width}), weight, {bias}, eps={eps}).view(x.shape)",
    ),
    "softmax": ("from quack import softmax", "softmax(x.reshape(-1, {width})).view(x.shape)"),
    "cross_entropy": (
        "from quack import cross_entropy",
        'cross_entropy(x, target, ignore_index={ignored}, reduction="{reduction}").to(x.dtype)',
    ),
}
_TEXT = '''"""{title} by quack's kernels in CuTe."""

import torch
{imports}


class ModelNew(torch.nn.Module):
    def forward(self, {parameters}):
        return {call}
'''


class Quack:
    """A row of the table; see `protocol.Library`."""

    name = _PACKAGE

    def finds(self, graph: Graph, device: Device) -> Sequence[LibraryMatch] | Refused:
        if device.target != "cuda" or not installed(_PACKAGE):
            return ()
        every = row_calls(graph, _CALLS)
        if every and device.capability // 10 not in _FAMILIES:
            return Refused(f"it has kernels for Hopper and Blackwell, and this device is {device.architecture}")
        fitting = [one for one in every if not _lack(one)]
        return fitting if fitting or not every else Refused(_lack(every[0]))

    def points(self, match: LibraryMatch, device: Device) -> tuple[Point, ...]:
        return ()

    def render(self, match: LibraryMatch, device: Device) -> tuple[SourceFile, ...]:
        assert isinstance(match, RowCall)
        return (SourceFile(path="model.py", text=row_module(_TEXT, match, *_CALLS[match.kind])),)


def row_module(text: str, match: RowCall, imports: str, call: str) -> str:
    """The module of a row call: what the call names that the match has not is None there."""
    there = {name: name if name in match.parameters else "None" for name in ("weight", "bias")}
    call = call.format(
        **there, eps=match.eps, width=match.width, ignored=match.ignored, reduction=match.reduction
    )  # fmt: skip
    return text.format(
        title=match.title.capitalize(), imports=imports, parameters=", ".join(match.parameters), call=call
    )


def _lack(row: RowCall) -> str:
    """What keeps it from a row call, as a sentence; "" where nothing does."""
    if row.kind == "layer_norm" and row.weights != "f32":
        had = f"are in {row.weights}" if row.weights else "are none"
        return f"its layernorm takes weights in f32, and the module's {had}"
    return ""
