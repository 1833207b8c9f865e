"""Declared algebra of convolutions of which only sums over windows or whole sides are wanted (see `convolution_form`).

The way from the convolution to the sum may hold what is linear and alike all over the space that is summed: numbers,
vectors along channels or samples, biases, views, norms by running statistics. A norm by statistics of the convolution
itself, as a batch norm in training, is linear, too: its deviation is a number like others. Then the convolution stays
for the deviation's sake, and the sum no longer reads it; where anything else reads it, the graph stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from math import prod

from tilewright.ir.convolution import ConvolutionCall, convolved
from tilewright.ir.graph import Graph, Node

from ..lowering.form import Stuck
from ..lowering.lower import FLOATS, Expr, NotLowered
from .convolution_form import ConvolutionForm, Value, form_of
from .draft import Draft
from .readers import Readers
from .spatial_sums import summed_over
from .windows import pooled

LEAST_GAIN_BESIDE = 4  # times fewer flops than a convolution that stays

_ON_THE_WAY = ("reshape", "to", "neg", "mul", "div", "add", "sub")
_Found = tuple[ConvolutionForm, Node]


def less_convolved(graph: Graph, least_flops: int) -> tuple[Graph, str, int] | None:
    """The graph with one sum behind a convolution of at least so many flops made of less work, what was done, and flops
    spared; None where there is none."""
    index = Readers(graph)
    for call in graph.calls:
        whole = convolved(call, index.nodes)
        if whole is None or whole.flops < least_flops:
            continue
        for number in count():
            draft = Draft(index)
            found = next(islice(_sums(index, form_of(draft, whole), whole.node.name), number, None), None)
            if found is None:
                break
            made = _made(index, draft, whole, found)
            if made is not None:
                return made
    return None


def _made(index: Readers, draft: Draft, whole: ConvolutionCall, found: _Found) -> tuple[Graph, str, int] | None:
    form, node = found
    draft.origin = f"{node.origin}_less"
    try:
        graph = draft.replaced(node, form.value(node))
    except (Stuck, NotLowered):
        return None
    stays = any(n.name == whole.node.name for n in graph.nodes)
    if stays and (LEAST_GAIN_BESIDE * form.flops > whole.flops or 2 * whole.x.bytes > whole.node.bytes):
        return None
    if stays and not _statistics_alone(Readers(graph), whole.node.name):
        return None
    if form.flops > whole.flops:
        return None
    labels = [index.calls[n.origin].label for n in (node, whole.node)]
    said = f"{labels[0]} of {labels[1]}: {', then '.join(form.steps)}"
    return (graph, f"{said}, beside it", 0) if stays else (graph, said, whole.flops - form.flops)


def _sums(index: Readers, form: ConvolutionForm, name: str) -> Iterator[_Found]:
    """The sums behind a value, those that come last first."""
    for reader in index.readers[name]:
        try:
            after, node = _step(index, form, index.nodes[reader], name)
        except (Stuck, NotLowered):
            continue
        if not after.rest:
            yield from _sums(index, after, node.name)
        if node.op == "sum":
            yield after, node


def _step(index: Readers, form: ConvolutionForm, node: Node, name: str) -> _Found:
    """The value of a node that reads a form's value, known as `name`."""
    form.draft.origin = f"{node.origin}_less"
    if node.op == "sum":
        return (summed_over(form, node) if form.window is None else pooled(form, node)), node
    if node.op == "load" and form.window is None and form.shape == form.base:
        return replace(form, window=node, shape=node.shape), node
    if node.op == "reshape" and form.window is None:
        return replace(form, shape=node.shape), node
    if node.op == "to" and node.dtype in FLOATS:
        return form, node
    if node.op == "neg":
        return form.times(-1.0), node
    return _with_other(index, form, node, name), node


def _with_other(index: Readers, form: ConvolutionForm, node: Node, name: str) -> ConvolutionForm:
    """An operator of two arguments."""
    if node.op not in ("mul", "div", "add", "sub") or node.shape != form.shape or node.args.count(name) != 1:
        raise Stuck
    mine = node.args.index(name)
    given = node.args[1 - mine]
    if node.op == "div" and mine:
        raise Stuck
    other: Value = form.pulled(_other(index, form, given, name)) if isinstance(given, str) else float(given)
    if node.op == "mul":
        return form.times(other)
    if node.op == "div":
        if other == 0.0:
            raise Stuck
        return form.times(other.wide().do("reciprocal") if isinstance(other, Expr) else 1.0 / other)
    if node.op == "sub" and mine:
        return form.times(-1.0).plus(other)
    return form.plus(-other if node.op == "sub" else other)


def _other(index: Readers, form: ConvolutionForm, given: str, name: str) -> Node:
    """Another argument; where it is the mean that a norm takes of the value itself, that from sums of the input, too.

    The convolution's rounded mean has rounding errors of the weights in it, alike in all results, which a norm takes
    off with the mean. What is made of sums of the input has others, so both must come from there."""
    mean = index.viewed(given)
    if mean.op != "moments" or mean.item or mean.sources[0] != name:
        return index.nodes[given]
    whole = summed_over(form, mean)
    if not all(s.summed for s in whole.sides):
        raise Stuck
    total = whole.value(mean) * (1.0 / prod(form.shape[d] for d in mean.dims))
    return total.reshape(index.nodes[given].shape).node


def _statistics_alone(index: Readers, name: str) -> bool:
    """Whether nothing but deviations and means over the whole read a value, be it by pointwise operators or views."""
    if index.kept(name):
        return False
    readers = [index.nodes[reader] for reader in index.readers[name]]
    return bool(readers) and all(
        r.op == "moments" or (r.op in _ON_THE_WAY and _statistics_alone(index, r.name)) for r in readers
    )
