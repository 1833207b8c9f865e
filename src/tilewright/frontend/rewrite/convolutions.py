"""Declared algebra of convolutions of which only sums over windows or over whole sides are wanted (see `image`).

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

from tilewright.ir.convolution import Convolution, convolved
from tilewright.ir.graph import Graph, Node

from ..lowering.form import Stuck
from ..lowering.lower import FLOATS, Expr, NotLowered
from .draft import Draft
from .image import Image, Value, image_of
from .readers import Readers
from .spatial_sums import summed_over
from .windows import pooled

LEAST_GAIN_BESIDE = 4  # times fewer flops than a convolution that stays

_ON_THE_WAY = ("reshape", "to", "neg", "mul", "div", "add", "sub")
_Found = tuple[Image, Node]


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
            found = next(islice(_sums(index, image_of(draft, whole), whole.node.name), number, None), None)
            if found is None:
                break
            made = _made(index, draft, whole, found)
            if made is not None:
                return made
    return None


def _made(index: Readers, draft: Draft, whole: Convolution, found: _Found) -> tuple[Graph, str, int] | None:
    image, node = found
    draft.origin = f"{node.origin}_less"
    try:
        graph = draft.replaced(node, image.value(node))
    except (Stuck, NotLowered):
        return None
    stays = any(n.name == whole.node.name for n in graph.nodes)
    if stays and (LEAST_GAIN_BESIDE * image.flops > whole.flops or 2 * whole.x.bytes > whole.node.bytes):
        return None
    if stays and not _statistics_alone(Readers(graph), whole.node.name):
        return None
    if image.flops > whole.flops:
        return None
    labels = [index.calls[n.origin].label for n in (node, whole.node)]
    said = f"{labels[0]} of {labels[1]}: {', then '.join(image.steps)}"
    return (graph, f"{said}, beside it", 0) if stays else (graph, said, whole.flops - image.flops)


def _sums(index: Readers, image: Image, name: str) -> Iterator[_Found]:
    """The sums behind a value, those that come last first."""
    for reader in index.readers[name]:
        try:
            after, node = _step(index, image, index.nodes[reader], name)
        except (Stuck, NotLowered):
            continue
        if not after.rest:
            yield from _sums(index, after, node.name)
        if node.op == "sum":
            yield after, node


def _step(index: Readers, image: Image, node: Node, name: str) -> _Found:
    """The value of a node that reads an image's value, known as `name`."""
    image.draft.origin = f"{node.origin}_less"
    if node.op == "sum":
        return (summed_over(image, node) if image.window is None else pooled(image, node)), node
    if node.op == "load" and image.window is None and image.shape == image.base:
        return replace(image, window=node, shape=node.shape), node
    if node.op == "reshape" and image.window is None:
        return replace(image, shape=node.shape), node
    if node.op == "to" and node.dtype in FLOATS:
        return image, node
    if node.op == "neg":
        return image.times(-1.0), node
    return _with_other(index, image, node, name), node


def _with_other(index: Readers, image: Image, node: Node, name: str) -> Image:
    """An operator of two arguments."""
    if node.op not in ("mul", "div", "add", "sub") or node.shape != image.shape or node.args.count(name) != 1:
        raise Stuck
    mine = node.args.index(name)
    given = node.args[1 - mine]
    if node.op == "div" and mine:
        raise Stuck
    other: Value = image.pulled(_other(index, image, given, name)) if isinstance(given, str) else float(given)
    if node.op == "mul":
        return image.times(other)
    if node.op == "div":
        if other == 0.0:
            raise Stuck
        return image.times(other.wide().do("reciprocal") if isinstance(other, Expr) else 1.0 / other)
    if node.op == "sub" and mine:
        return image.times(-1.0).plus(other)
    return image.plus(-other if node.op == "sub" else other)


def _other(index: Readers, image: Image, given: str, name: str) -> Node:
    """Another argument; where it is the mean that a norm takes of the value itself, that from sums of the input, too.

    The convolution's rounded mean has rounding errors of the weights in it, alike in all results, which a norm takes
    off with the mean. What is made of sums of the input has others, so both must come from there."""
    mean = index.viewed(given)
    if mean.op != "moments" or mean.item or mean.sources[0] != name:
        return index.nodes[given]
    whole = summed_over(image, mean)
    if not all(s.summed for s in whole.sides):
        raise Stuck
    total = whole.value(mean) * (1.0 / prod(image.shape[d] for d in mean.dims))
    return total.reshape(index.nodes[given].shape).node


def _statistics_alone(index: Readers, name: str) -> bool:
    """Whether nothing but deviations and means over the whole read a value, be it by pointwise operators or views."""
    if index.kept(name):
        return False
    readers = [index.nodes[reader] for reader in index.readers[name]]
    return bool(readers) and all(
        r.op == "moments" or (r.op in _ON_THE_WAY and _statistics_alone(index, r.name)) for r in readers
    )
