"""Inductor for what is left to torch: the modes in which torch.compile may run it (see kernels/compiled.py), and one
CUDA graph of the whole module (kernels/graphed.py)."""

from __future__ import annotations

from tilewright.facts.pattern import COMPILE_MODES, CUDA_GRAPH
from tilewright.facts.problem import Problem
from tilewright.facts.space import Point, point
from tilewright.ir.graph import Graph

TUNED_PRODUCTS = ("matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "convolution", "conv1d", "conv2d", "conv3d")


def baselines(problem: Problem, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The modes in which torch.compile is timed beside candidates: of those that are `wanted`, or of the usual ones
    where none are named, all that may differ for the problem. A training step is timed in the default mode alone."""
    usable: tuple[str, ...] = COMPILE_MODES[:1]
    if problem.target == "cuda":
        usable = COMPILE_MODES if problem.mode == "inference" else COMPILE_MODES[:1]
    chosen = tuple(mode for mode in wanted or COMPILE_MODES[:2] if mode in usable)
    return chosen or usable[:1]


def modes(problem: Problem, graph: Graph | None) -> tuple[Point, ...]:
    """Points of the choice INDUCTOR, torch's default first. A CUDA graph pays on a GPU alone, and can't be had where
    gradients are wanted, nor where a call writes to its arguments or draws random numbers. Inductor's own products,
    which it times against libraries', only where there are products."""
    found = ["default"]
    if problem.target == "cuda":
        replays = problem.mode == "inference" and (graph is None or _replays(graph))
        found += ["reduce-overhead"] if replays else []
        multiplies = graph is None or any(call.label in TUNED_PRODUCTS for call in graph.calls)
        found += ["max-autotune-no-cudagraphs"] if multiplies else []
        found += ["max-autotune"] if multiplies and "reduce-overhead" in found else []
        found += [CUDA_GRAPH] if replays and graph is not None else []
    return tuple(point(mode=mode) for mode in found)


def _replays(graph: Graph) -> bool:
    """Whether the module does the same when it is replayed, at its own buffers and others' arguments."""
    states = {n.name for n in graph.nodes if n.op == "state"}
    return all(u.target in states for u in graph.updates) and not any(call.ordered for call in graph.calls)
