"""Attention by torch's scaled_dot_product_attention; which of its backends is a knob."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.facts.candidate import SourceFile
from tilewright.facts.device import Device
from tilewright.facts.space import Point, point
from tilewright.ir.graph import Graph

from ..realiser import Refused
from ..templates import template
from .attention import Attention, attentions
from .protocol import LibraryMatch

_HALF = ("f16", "bf16")
# By knob setting, torch's name. "default" is torch's own order among those that can do it.
BACKENDS = {
    "cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH",
}  # fmt: skip
_AMPERE = 80


class Sdpa:
    """A row of the table; see `protocol.Library`."""

    name = "torch's scaled_dot_product_attention"

    def finds(self, graph: Graph, device: Device) -> Sequence[LibraryMatch] | Refused:
        return [a for a in attentions(graph) if not a.direct or len(_backends(a, device)) > 1]

    def points(self, match: LibraryMatch, device: Device) -> tuple[Point, ...]:
        assert isinstance(match, Attention)
        return tuple(point(backend=name) for name in _backends(match, device))

    def render(self, match: LibraryMatch, device: Device) -> tuple[SourceFile, ...]:
        assert isinstance(match, Attention)
        names = [name for name in _backends(match, device) if name in BACKENDS]
        text = template(__package__, "sdpa.py.jinja", trim=True).render(
            attention=match, backends={name: BACKENDS[name] for name in names}
        )
        return (SourceFile(path="model.py", text=text),)


def _backends(attention: Attention, device: Device) -> tuple[str, ...]:
    """Those that may be able to do it. A module that calls the library itself has the default already: the others are
    tried in its place."""
    half, ampere = attention.dtype in _HALF, device.capability >= _AMPERE
    if device.target == "cpu" or attention.dtype == "f64":
        return ("default", "math")
    if half and ampere:
        return ("default", "cudnn", *(() if attention.masks else ("flash",)), "efficient", "math")
    return ("default", "efficient", "math")
