"""Rows by quack's kernels in CuTe (pip install quack-kernels) and by Liger's in Triton (pip install liger-kernel).

quack's `rmsnorm`, `softmax` and `cross_entropy` differentiate, and take fp16, bf16 and fp32; `layernorm_fwd` takes fp32
weights. Importing quack changes the indexing of CuTe's tensors in the whole process, that of a candidate.
(https://github.com/Dao-AILab/quack)

Liger's are functions of `liger_kernel.transformers.functional`. A row is one block of its kernels, of 65,536 elements
at most. Its casting "gemma" computes all of a row in fp32; without `in_place` nothing of the arguments is written.
(https://github.com/linkedin/Liger-Kernel)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.facts.candidate import SourceFile
from tilewright.facts.device import Device
from tilewright.facts.space import Point
from tilewright.ir.graph import Graph

from ..realiser import Refused
from .protocol import LibraryMatch, fitting, installed
from .row_calls import RowCall, row_calls

_AMPERE, _WIDEST = 80, 65536
_QUACKS_FAMILIES = (9, 10, 12)  # of compute capability, by the first digits
_TEXT = '''"""{title} by {kernels}."""

import torch
from {module} import {function}


class ModelNew(torch.nn.Module):
    def forward(self, {parameters}):
        return {call}
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLibrary:
    """A row of the table; see `protocol.Library`. `calls`: by kind of a row call, the module to import from and the
    expression of the call, which begins with the function's name. `lack` says what keeps the library from a row call,
    "" where nothing does; `unfit` the same of a device, as the beginning of a sentence that ends with its name."""

    name: str
    kernels: str
    calls: Mapping[str, tuple[str, str]]
    unfit: Callable[[Device], str]
    lack: Callable[[RowCall], str]

    def finds(self, graph: Graph, device: Device) -> Sequence[LibraryMatch] | Refused:
        if device.target != "cuda" or not installed(self.name):
            return ()
        every = row_calls(graph, self.calls)
        if every and (why := self.unfit(device)):
            return Refused(f"{why}, and this device is {device.architecture}")
        return fitting(every, self.lack)

    def points(self, match: LibraryMatch, device: Device) -> tuple[Point, ...]:
        return ()

    def render(self, match: LibraryMatch, device: Device) -> tuple[SourceFile, ...]:
        """What the call names that the match has not is None there."""
        assert isinstance(match, RowCall)
        module, call = self.calls[match.kind]
        there = {name: name if name in match.parameters else "None" for name in ("weight", "bias")}
        text = _TEXT.format(
            title=match.title.capitalize(), kernels=self.kernels, module=module, function=call.partition("(")[0],
            parameters=", ".join(match.parameters),
            call=call.format(**there, eps=match.eps, width=match.width, ignored=match.ignored,
                             reduction=match.reduction),
        )  # fmt: skip
        return (SourceFile(path="model.py", text=text),)


def _quacks_lack(row: RowCall) -> str:
    if row.kind == "layer_norm" and row.weights != "f32":
        had = f"are in {row.weights}" if row.weights else "are none"
        return f"its layernorm takes weights in f32, and the module's {had}"
    return ""


def _ligers_lack(row: RowCall) -> str:
    if row.width > _WIDEST:
        return f"its kernels take rows of {_WIDEST} elements at most, and the module's {row.called} has {row.width}"
    if row.kind == "rms_norm" and not row.weights:
        return "its RMS normalisation takes a weight in all versions, and the module has none"
    if row.kind == "layer_norm" and "bias" not in row.parameters:
        return "its layer normalisation takes a weight and a bias, and the module has not both"
    return ""


QUACK = RowLibrary(
    name="quack-kernels", kernels="quack's kernels in CuTe", lack=_quacks_lack,
    unfit=lambda device: "it has kernels for Hopper and Blackwell"
    if device.capability // 10 not in _QUACKS_FAMILIES else "",
    calls={
        "rms_norm": ("quack", "rmsnorm(x, {weight}, eps={eps})"),
        "layer_norm": (
            "quack.rmsnorm",
            "layernorm_fwd(x.reshape(-1, {width}), weight, {bias}, eps={eps}).view(x.shape)",
        ),
        "softmax": ("quack", "softmax(x.reshape(-1, {width})).view(x.shape)"),
        "cross_entropy": (
            "quack",
            'cross_entropy(x, target, ignore_index={ignored}, reduction="{reduction}").to(x.dtype)',
        ),
    },
)  # fmt: skip
_FUNCTIONAL = "liger_kernel.transformers.functional"
LIGER = RowLibrary(
    name="liger-kernel", kernels="Liger's kernels in Triton", lack=_ligers_lack,
    unfit=lambda device: "Triton wants sm_80 or later for it" if device.capability < _AMPERE else "",
    calls={
        "rms_norm": (_FUNCTIONAL, 'liger_rms_norm(x, weight, {eps}, casting_mode="gemma", in_place=False)'),
        "layer_norm": (_FUNCTIONAL, "liger_layer_norm(x, weight, bias, {eps})"),
        "softmax": (_FUNCTIONAL, "liger_softmax(x)"),
        "cross_entropy": (
            _FUNCTIONAL,
            'liger_cross_entropy(x, target, ignore_index={ignored}, reduction="{reduction}")',
        ),
        "swiglu": (_FUNCTIONAL, "liger_swiglu(x, y)"),
        "geglu": (_FUNCTIONAL, "liger_geglu(x, y)"),
    },
)  # fmt: skip
