"""A Segment: a part of what a module computes in training that kernels do forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What lies between operators that are left to torch, with products that it reads and its derivative; autograd sees
    one operation.

    `forward` gives `outputs`, then what of `saved` is not among them. `backward` reads those inputs of the forward that
    are in `kept`, then `saved`, then a gradient for each output in `graded`; it gives one for each input (None in its
    result: there is none). All these are names of nodes of the forward graph, which are the whole graph's."""

    id: str
    title: str
    calls: tuple[str, ...]  # of the whole graph, replaced by this
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    saved: tuple[str, ...]
    kept: tuple[str, ...]
    graded: tuple[str, ...]
    forward: Graph
    backward: Graph
