"""How a call's arguments are made of tensors: containers that torch knows, and plain objects that hold tensors.

A cache is such an object: its tensors lie in its attributes, perhaps in further objects. It is taken apart into them,
and everything else in it (numbers, devices, flags) belongs to its structure.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

_PLAIN = (torch.Tensor, nn.Module, type, str, int, float, complex, type(None), torch.dtype, torch.device)
_DEEPEST = 8  # objects within objects
Layout = tuple[Any, ...]  # (): a leaf; else the class of a container, what torch says of it, and the layouts in it
OBJECT = "object"  # stands before an object's class, its attributes that hold no tensor, and the layout of the others


@dataclass(frozen=True, slots=True)
class ArgumentTree:
    """`spec` is what torch says, to which objects are leaves; `objects` are their layouts, () of any other leaf, and
    the layout of its attributes of an object's."""

    spec: pytree.TreeSpec
    objects: tuple[Layout, ...]

    def whole(self, leaves: Sequence[Any]) -> Any:
        """The value with these leaves; objects are new ones."""
        given = iter(leaves)
        return pytree.tree_unflatten([_made(found, given) for found in self.objects], self.spec)

    def layout(self) -> Layout:
        """The structure as plain values, which travel."""
        return layout(self.spec, iter(self.objects))

    def kinds(self) -> list[type]:
        """The classes of its containers and objects."""
        found: dict[type, None] = {}
        waiting = [self.layout()]
        while waiting:
            match waiting.pop():
                case (str(), kind, _, inner):
                    found[kind] = None
                    waiting.append(inner)
                case (kind, context, children):
                    found[context if isinstance(context, type) else kind] = None
                    waiting += children
        return list(found)

    def __reduce__(self) -> tuple[Any, ...]:  # torch's own specs of leaves warn when they are read
        return _structure, (layout(self.spec), self.objects)


class KnownObjects:
    """Objects that were taken apart, with their leaves and layouts: as long as each lives, and nothing in it has been
    exchanged: a look at a cache takes a thirtieth of the time of taking it apart. `layouts`: those of examples, each of
    which stands for equal ones, since what is identical is compared in no time."""

    def __init__(self, layouts: Sequence[Layout] = ()) -> None:
        self._layouts = layouts
        self._known: dict[int, _KnownObject] = {}

    def get(self, value: Any) -> tuple[list[Any], Layout] | None:
        known = self._known.get(id(value))
        return (known.leaves, known.layout) if known is not None and known.is_still(value) else None

    def put(self, value: Any, leaves: list[Any], layout: Layout) -> None:
        held = list(_containers(value))
        if None in held:
            return
        key = id(value)
        died = weakref.ref(value, lambda _: self._known.pop(key, None))
        layout = next((other for other in self._layouts if other == layout), layout)
        self._known[key] = _KnownObject(died, tuple((h, tuple(_values(h))) for h in held), leaves, layout)


@dataclass(frozen=True, slots=True)
class _KnownObject:
    """`held`: the dictionaries and lists in it, each with what it held."""

    object: weakref.ref[Any]
    held: tuple[tuple[Any, tuple[Any, ...]], ...]
    leaves: list[Any]
    layout: Layout

    def is_still(self, value: Any) -> bool:
        return self.object() is value and all(
            len(now) == len(then) and all(map(is_, _values(now), then)) for now, then in self.held
        )


def _values(container: Any) -> Any:
    return container.values() if type(container) is dict else container


def _containers(value: Any) -> Iterator[Any]:
    """The dictionary of an object's attributes, and all lists and dictionaries in there; None where something else may
    hold tensors."""
    waiting = [vars(value)]
    while waiting:
        container = waiting.pop()
        yield container
        for item in _values(container):
            if isinstance(item, _PLAIN):
                continue
            if type(item) in (dict, list, tuple) and item:
                waiting.append(item)
            elif _held(item, 1) is not None:
                waiting.append(vars(item))
            elif _holds(item, 1):
                yield None


def taken_apart(value: Any, depth: int = 0, known: KnownObjects | None = None) -> tuple[list[Any], ArgumentTree]:
    """The leaves of a value, and its structure; objects that are `known` are not looked into again."""
    found, spec = pytree.tree_flatten(value)
    leaves: list[Any] = []
    objects: list[Layout] = []
    for leaf in found:
        if known is not None and not isinstance(leaf, _PLAIN) and (there := known.get(leaf)) is not None:
            leaves += there[0]
            objects.append(there[1])
            continue
        held = _held(leaf, depth)
        if held is None:
            leaves.append(leaf)
            objects.append(())
            continue
        inner, structure = taken_apart(held, depth + 1)
        leaves += inner
        rest = tuple((name, item) for name, item in sorted(vars(leaf).items()) if name not in held)
        objects.append((OBJECT, type(leaf), rest, structure.layout()))
        if known is not None:
            known.put(leaf, inner, objects[-1])
    return leaves, ArgumentTree(spec, tuple(objects))


def layout(spec: pytree.TreeSpec, objects: Iterator[Layout] | None = None) -> Layout:
    """The structure as plain values; `objects`: the layouts of its leaves; None: they are no objects."""
    if spec.is_leaf():
        return next(objects) if objects is not None else ()
    return spec.type, spec.context, tuple([layout(child, objects) for child in spec.children()])


def spec_of(found: Layout) -> pytree.TreeSpec:
    return pytree.TreeSpec(found[0], found[1], list(map(spec_of, found[2]))) if found else pytree.tree_structure(0)


def is_object(value: Any) -> bool:
    """Whether it is a plain object that holds tensors."""
    return _held(value, 0) is not None


def _structure(spec: Layout, objects: tuple[Layout, ...]) -> ArgumentTree:
    return ArgumentTree(spec_of(spec), objects)


def _held(value: Any, depth: int) -> dict[str, Any] | None:
    """The attributes that hold tensors, of an object that has such."""
    if isinstance(value, _PLAIN) or callable(value) or depth >= _DEEPEST:
        return None
    fields = getattr(value, "__dict__", None)
    if not isinstance(fields, dict):
        return None
    return {name: item for name, item in sorted(fields.items()) if _holds(item, depth + 1)} or None


def _holds(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, _PLAIN):
        return False
    if isinstance(value, list | tuple | dict):
        return any(_holds(item, depth) for item in (value.values() if isinstance(value, dict) else value))
    return any(isinstance(leaf, torch.Tensor) or _held(leaf, depth) for leaf in pytree.tree_leaves(value))


def _made(found: Layout, leaves: Iterator[Any]) -> Any:
    if not found:
        return next(leaves)
    if found[0] == OBJECT:
        _, kind, rest, inner = found
        value = object.__new__(kind)
        value.__dict__.update(rest)
        value.__dict__.update(_made(inner, leaves))
        return value
    kind, context, children = found
    return pytree.SUPPORTED_NODES[kind].unflatten_fn([_made(child, leaves) for child in children], context)
