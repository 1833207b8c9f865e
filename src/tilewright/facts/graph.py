"""A Graph: what one case of a module computes, as traced; small, typed and made of values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One value of a graph. `op` is "input", "state", "constant", a name of facts.program.POINTWISE or REDUCTIONS,
    "view", or "call" (left to torch)."""

    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
