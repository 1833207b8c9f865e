"""Inductor for what is left to torch: the modes in which torch.compile may run it (see kernels/compiled.py)."""

from __future__ import annotations

from tilewright.facts.problem import Problem
from tilewright.facts.space import Point, point
from tilewright.ir.graph import Graph

TUNED_PRODUCTS = ("matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "convolution", "conv1d", "conv2d", "conv3d")


def modes(problem: Problem, graph: Graph | None) -> tuple[Point, ...]:
    """Points of the choice INDUCTOR, torch's default first. A CUDA graph of its own pays on a GPU alone, and can't be
    had where a call writes to the module or its arguments, or where gradients are wanted; Inductor's own products,
    which it times against libraries', only where there are products."""
    found = ["default"]
    if problem.target == "cuda":
        writes = graph is not None and bool(graph.updates)
        found += ["reduce-overhead"] if problem.mode == "inference" and not writes else []
        multiplies = graph is None or any(call.label in TUNED_PRODUCTS for call in graph.calls)
        found += ["max-autotune-no-cudagraphs"] if multiplies else []
    return tuple(point(mode=mode) for mode in found)
