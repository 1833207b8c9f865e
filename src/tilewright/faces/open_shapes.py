"""What a caller says of sizes that change from call to call: `dynamic_shapes`, as torch.export takes them, or examples
that differ in sizes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, nn

from ..facts.errors import UserError
from ..facts.problem import OpenSize
from .examples import ExampleCall

UNBOUNDED = 65536  # the greatest size where a Dim has none


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShapes:
    """The open sizes by name, which of them dimensions of the first example's tensors (by id) have, and `others`: the
    sizes of further examples."""

    sizes: Mapping[str, OpenSize] = field(default_factory=dict)
    dims: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    others: Sequence[Mapping[str, int]] = ()

    def shape(self, tensor: Tensor) -> tuple[int | str, ...]:
        """The tensor's shape with names in the place of open sizes."""
        names = self.dims.get(id(tensor), {})
        return tuple(names.get(d, size) for d, size in enumerate(tensor.shape))

    @property
    def cases(self) -> list[dict[str, int]]:
        return [{name: size.size for name, size in self.sizes.items()}, *map(dict, self.others)]

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        return {name: (size.low, size.high) for name, size in self.sizes.items()}


def open_shapes(module: nn.Module, examples: Sequence[ExampleCall], given: Any) -> OpenShapes:
    """`given` of None: none; True: what differs between the examples; else as torch.export takes `dynamic_shapes`, of
    the one example, with Dims that have names. Raises UserError for anything else."""
    if given is None or given is False:
        return OpenShapes()
    if given is True:
        return _differing(examples)
    if len(examples) != 1:
        raise UserError(f"dynamic_shapes: {len(examples)} examples; give one, or True for what differs between them")
    sizes: dict[str, OpenSize] = {}
    dims: dict[int, dict[int, str]] = {}
    for tensor, dim, wanted in _marked(module, examples[0], given):
        size = _size(wanted, int(tensor.shape[dim]))
        if sizes.setdefault(size.name, size) != size:
            raise UserError(f"dynamic_shapes: {size.name!r} is {sizes[size.name].size} and {size.size} in the example")
        dims.setdefault(id(tensor), {})[dim] = size.name
    if not sizes:
        raise UserError("dynamic_shapes: names no dimension of a tensor")
    return OpenShapes(sizes=sizes, dims=dims)


def _marked(module: nn.Module, example: ExampleCall, given: Any) -> Iterator[tuple[Tensor, int, Any]]:
    """Tensors, dimensions, and what is said of them."""
    if isinstance(given, Mapping):
        named = inspect.signature(module.forward).bind(*example.args, **example.kwargs).arguments
        flat = {**named, **example.kwargs}
        if unknown := given.keys() - flat.keys():
            raise UserError(f"dynamic_shapes: the example has no argument {min(unknown)!r}")
        pairs = [(given[name], flat[name], name) for name in given]
    else:
        pairs = [
            (spec, value, f"argument {i}") for i, (spec, value) in enumerate(zip(given, example.args, strict=False))
        ]
    for spec, value, name in pairs:
        yield from _within(spec, value, name)


def _within(spec: Any, value: Any, name: str) -> Iterator[tuple[Tensor, int, Any]]:
    if spec is None:
        return
    if isinstance(value, Tensor):
        items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        for dim, wanted in items:
            if not isinstance(dim, int) or not 0 <= dim < value.dim():
                raise UserError(f"dynamic_shapes: {name} has {value.dim()} dimensions, not one of number {dim!r}")
            if wanted is not None:
                yield value, dim, wanted
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key in spec:
            yield from _within(spec[key], value.get(key), f"{name}[{key!r}]")
    elif isinstance(value, list | tuple) and isinstance(spec, list | tuple):
        for i, (inner, item) in enumerate(zip(spec, value, strict=False)):
            yield from _within(inner, item, f"{name}[{i}]")
    else:
        raise UserError(f"dynamic_shapes: {name} is a {type(value).__name__}, of which that says nothing")


def _size(wanted: Any, size: int) -> OpenSize:
    name, low, high = (getattr(wanted, a, None) for a in ("__name__", "min", "max"))
    if type(name) is not str or not isinstance(low, int) or not name.isidentifier() or name == "example":
        raise UserError(f"dynamic_shapes: {wanted!r:.60}; give torch.export.Dim(NAME, min=LEAST, max=GREATEST)")
    greatest = int(high) if isinstance(high, int) and high < UNBOUNDED else max(UNBOUNDED, size)
    found = OpenSize(name=name, size=size, low=max(1, low), high=greatest)
    if not (found.low < found.high and found.low <= size <= found.high and size > 1):
        raise UserError(
            f"dynamic_shapes: {name!r} is {size} in the example; it must be above 1, and from {low} to {high}"
        )
    return found


def _differing(examples: Sequence[ExampleCall]) -> OpenShapes:
    flat = [pytree.tree_flatten((e.args, dict(e.kwargs))) for e in examples]
    if any(str(spec) != str(flat[0][1]) for _, spec in flat):
        raise UserError("dynamic_shapes: the examples differ in more than sizes of tensors; leave dynamic_shapes out")
    names: dict[tuple[int, ...], str] = {}
    dims: dict[int, dict[int, str]] = {}
    for leaves in zip(*(found for found, _ in flat), strict=True):
        first = leaves[0]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if len(tensors) < len(leaves) and any(leaf != first for leaf in leaves):
            raise UserError("dynamic_shapes: the examples differ in more than sizes of tensors; leave it out")
        if len({(t.dim(), t.dtype) for t in tensors}) > 1:
            raise UserError("dynamic_shapes: a tensor has other dimensions, or another type, in another example")
        for d, extents in enumerate(zip(*(t.shape for t in tensors), strict=True)):
            if len(set(extents)) > 1:
                dims.setdefault(id(first), {})[d] = names.setdefault(tuple(map(int, extents)), f"size_{len(names)}")
    if not names:
        raise UserError("dynamic_shapes: the examples have the same sizes; give some that differ")
    sizes = {name: OpenSize(name=name, size=e[0], low=min(e), high=max(e)) for e, name in names.items()}
    others = [{name: e[i] for e, name in names.items()} for i in range(1, len(examples))]
    return OpenShapes(sizes=sizes, dims=dims, others=others)
