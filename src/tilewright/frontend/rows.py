"""Whether a module computes the same whatever the size of its inputs' first dimension: what a kernel need not be told.

torch.export says it of the module with that size left open: it refuses where Python, or an operator, decides by it.
What
the size may have left in the numbers of a graph (a mean over it, a shape) shows in a second graph, of another size.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn

from tilewright.ir.graph import Graph

from .eager import export
from .recurrent import told_by_shape
from .trace import trace, trace_operators

_OTHER = (3, 5)  # sizes for a second graph, the first that is another; tensors of it have no contents to speak of


def traced(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """As `trace`, and what may have any number of rows stands in `Graph.free`."""
    graph = trace(module, args, kwargs)
    if kwargs or not args or not all(isinstance(a, Tensor) and a.ndim for a in args):
        return graph
    many = [a.shape[0] == args[0].shape[0] for a in args]
    return replace(graph, free=_free(module, args, graph, many, lambda args: trace(module, args, {})))


def traced_operators(module: nn.Module, args: tuple[Tensor, ...], many: Sequence[bool]) -> Graph:
    """The same of a module as `trace_operators` takes it; `many` says which arguments' first dimension may have any
    size, the first one's among them."""
    graph = trace_operators(module, args)
    return replace(graph, free=_free(module, args, graph, many, lambda args: trace_operators(module, args)))


def _free(
    module: nn.Module, args: Sequence[Tensor], graph: Graph, many: Sequence[bool],
    again: Callable[[tuple[Tensor, ...]], Graph],
) -> tuple[str, ...]:  # fmt: skip
    """Names of the graph's nodes whose first dimension is that of the first argument, and may have any size from 2 on,
    all of them the same; () where that can't be said."""
    rows = int(args[0].shape[0])
    if rows < 2 or graph.updates or not _is_indifferent(module, args, many):
        return ()
    less = next(n for n in _OTHER if n != rows)
    try:
        second = again(tuple(a.new_zeros((less, *a.shape[1:])) if m else a for a, m in zip(args, many, strict=True)))
    except ValueError:
        return ()
    return _open(graph, second, rows, less)


def _is_indifferent(module: nn.Module, args: Sequence[Tensor], many: Sequence[bool]) -> bool:
    """Whether torch.export takes the module with its rows left open."""
    size = torch.export.Dim("rows", min=2)
    shapes: list[Any] = [{0: size} if m else {} for m in many]
    kinds = [p.kind for p in inspect.signature(module.forward).parameters.values()]
    named = sum(kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    if len(args) > named:  # the rest are starred, and count as one
        shapes[named:] = [tuple(shapes[named:])]
    with warnings.catch_warnings(), torch.no_grad(), told_by_shape():
        warnings.simplefilter("ignore")
        try:
            export(module, tuple(args), {}, dynamic_shapes=tuple(shapes))
        except Exception:  # of many kinds: a size that is decided by, an operator that it can't follow
            return False
    return True


def _open(one: Graph, other: Graph, rows: int, less: int) -> tuple[str, ...]:
    """The nodes that differ in their first dimension, if that is all in which the two graphs differ."""
    if replace(one, nodes=()) != replace(other, nodes=()) or len(one.nodes) != len(other.nodes):
        return ()
    found: list[str] = []
    for a, b in zip(one.nodes, other.nodes, strict=True):
        if a == b:
            continue
        if (a.shape[:1], b.shape[:1]) != ((rows,), (less,)) or replace(b, shape=(rows, *b.shape[1:])) != a:
            return ()
        found.append(a.name)
    return tuple(found)
