"""Attention by flash-attn's kernels in CuTe, in 16 bits on Hopper and datacentre Blackwell (pip install flash-attn-4).

Its `flash_attn_func` takes (batch, positions, heads, depth), scales the scores and masks them causally at most, and
shares heads of key and value where there are fewer. (https://github.com/Dao-AILab/flash-attention, flash_attn/cute)"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.facts.candidate import SourceFile
from tilewright.facts.device import Device
from tilewright.facts.space import Point
from tilewright.ir.graph import Graph

from ..realiser import Refused
from .attention import Attention, attentions
from .protocol import LibraryMatch, fitting, installed

_PACKAGE = "flash-attn-4"
_FAMILIES = (9, 10)  # of compute capability, by the first digits
_DEEPEST, _EVEN = 128, 8
_TEXT = '''"""Attention by flash-attn's kernels in CuTe."""

import torch
from flash_attn.cute import flash_attn_func


class ModelNew(torch.nn.Module):
    def forward(self, {parameters}):
        query, key, value = (x.transpose(1, 2) for x in (query, {key}, value))
        made = flash_attn_func(query, key, value, softmax_scale={scale}, causal={causal})
        made = made[0] if isinstance(made, tuple) else made  # with the scores' logarithmic sums, in some versions
        return made.transpose(1, 2){after}
'''


class FlashAttention:
    """A row of the table; see `protocol.Library`."""

    name = _PACKAGE

    def finds(self, graph: Graph, device: Device) -> Sequence[LibraryMatch] | Refused:
        every = attentions(graph) if device.target == "cuda" else ()
        if not every:
            return ()
        if device.capability // 10 not in _FAMILIES:
            return Refused(f"it has kernels for sm_90 and sm_100, and this device is {device.architecture}")
        found = fitting(every, _lack)
        if isinstance(found, Refused) or installed(_PACKAGE):
            return found
        return Refused(f"it could realise the module's attention, but is not installed (pip install {_PACKAGE})")

    def points(self, match: LibraryMatch, device: Device) -> tuple[Point, ...]:
        return ()

    def render(self, match: LibraryMatch, device: Device) -> tuple[SourceFile, ...]:
        assert isinstance(match, Attention)
        swap = f".transpose{match.transposed}" if match.transposed else ""
        text = _TEXT.format(
            parameters=", ".join(match.parameters), key="key" if match.direct else "key.transpose(-2, -1)",
            scale=match.scale, causal=match.causal, after=f"{swap}{'' if match.direct else '.contiguous()'}",
        )  # fmt: skip
        return (SourceFile(path="model.py", text=text),)


def _lack(attention: Attention) -> str:
    """What keeps it from an attention, as a sentence; "" where nothing does."""
    if attention.dtype not in ("f16", "bf16"):
        return f"it computes in 16 bits, and the module's attention in {attention.dtype}"
    if attention.masks:
        return "it takes no mask but a causal one, and the module's attention has a tensor for one"
    if attention.rank != 4 or any(d % _EVEN or d > _DEEPEST for d in attention.depths):
        return f"it takes heads of a depth divisible by {_EVEN} and of {_DEEPEST} at most"
    if attention.causal and attention.positions[0] != attention.positions[1]:
        return "its causal mask ends with the last key, and torch's begins with the first"
    return ""
