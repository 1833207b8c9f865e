"""What calls move of a module beside what they return: buffers, tensors and plain values that it keeps as attributes.

They are found in the tree of modules as Python keeps it, in `__dict__`: no code of the module runs, which could do
work then, or show what it likes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..wire.parts import Attribute
from . import values
from .load import CodeRaised
from .timing import Copies, Seen, as_it_is

_fields = object.__getattribute__


def modules_of(root: torch.nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every module of the tree once: what its names begin with, and its fields."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", root)]
    for prefix, module in waiting:
        if id(module) in seen or not issubclass(type(module), torch.nn.Module):
            continue
        seen.add(id(module))
        fields = _fields(module, "__dict__")
        yield prefix, fields
        waiting += [(f"{prefix}{name}.", child) for name, child in _table(fields, "_modules").items()]


def _table(fields: dict[str, Any], name: str) -> dict[str, Any]:
    found: Any = fields.get(name)
    return dict(dict.items(found)) if issubclass(type(found), dict) else {}


def _holder(root: torch.nn.Module, name: str) -> tuple[dict[str, Any], str] | None:
    """The fields of the module that a dotted name leads to, and what is left of the name."""
    *path, last = name.split(".")
    fields = _fields(root, "__dict__")
    for step in path:
        child = _table(fields, "_modules").get(step)
        if not issubclass(type(child), torch.nn.Module):
            return None
        fields = _fields(child, "__dict__")
    return fields, last


def tensor_at(root: torch.nn.Module, name: str) -> Tensor | None:
    """The parameter, buffer or tensor attribute of this dotted name; None where there is none."""
    found = _holder(root, name)
    if found is None:
        return None
    fields, last = found
    tables = (_table(fields, "_buffers"), _table(fields, "_parameters"), fields)
    return next((t[last] for t in tables if isinstance(t.get(last), Tensor)), None)


def hidden_tensors(root: torch.nn.Module) -> dict[str, Tensor]:
    """Buffers, and tensors that are attributes, by dotted name: what `state_dict` shows of them is among them."""
    found: dict[str, Tensor] = {}
    for prefix, fields in modules_of(root):
        for table in (fields, _table(fields, "_buffers")):
            found |= {prefix + n: t for n, t in table.items() if isinstance(t, Tensor)}
    return found


def text_of(value: Any) -> str:
    """ "" of what is no plain value."""
    tensors: list[Tensor] = []
    try:
        text = values.encode(value, tensors)
    except values.CannotTravel:
        return ""
    return "" if tensors else text


def read_attributes(root: torch.nn.Module, names: Sequence[str]) -> tuple[Attribute, ...]:
    """Those of these names that are there as plain values; of the others an empty text."""
    found = []
    for name in names:
        place = _holder(root, name)
        value = place[0].get(place[1], _NOTHING) if place is not None else _NOTHING
        found.append(Attribute(name=name, text="" if value is _NOTHING else text_of(value)))
    return tuple(found)


_NOTHING = object()


def write_attributes(root: torch.nn.Module, attributes: Sequence[Attribute]) -> None:
    """Set plain values where they are; what the tree has no place for is left out."""
    for attribute in attributes:
        place = _holder(root, attribute.name)
        if place is not None and attribute.text:
            place[0][place[1]] = values.decode(attribute.text, ())


class Moving:
    """The state that calls move, of one module: it is put back before every timed call, each time in the same way, and
    taken as it is when the clock has stopped. `tensors` hold what is put back."""

    __slots__ = ("_names", "_root", "_spare", "_tensors", "attributes")

    def __init__(self, root: torch.nn.Module, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        self._root = root
        self._names = tuple(names)
        self._tensors = tuple(tensors)
        self._spare: Copies = ()
        self.attributes: tuple[Attribute, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it is more than statistics of batches, which any number of calls may move."""
        return any(not name.endswith(("running_mean", "running_var", "num_batches_tracked")) for name in self._names)

    def put_back(self) -> None:
        with torch.no_grad():
            for name, tensor in zip(self._names, self._tensors, strict=True):
                place = tensor_at(self._root, name)
                if place is None or place.shape != tensor.shape:
                    raise CodeRaised("wrong_state", f"calls leave no {name[:80]} of its shape")
                place.copy_(tensor)
        write_attributes(self._root, self.attributes)

    def left(self) -> Left:
        """What the last call has left, in copies."""
        tensors = tuple(tensor_at(self._root, name) for name in self._names)
        seen = as_it_is([t for t in tensors if t is not None], self._spare)
        return Left(seen, read_attributes(self._root, [a.name for a in self.attributes]))

    def require_whole(self, left: Left) -> None:
        """Raise CodeRaised unless all of it is there, in its shape."""
        shapes = tuple(t.shape for t in left.seen.tensors)
        if shapes != tuple(t.shape for t in self._tensors) or set(left.seen.kinds) > {values.PLAIN}:
            raise CodeRaised("wrong_state", f"a call leaves other buffers than {', '.join(self._names)[:300]}")

    def use_again(self, left: Left) -> None:
        """The memory of its copies may be written to."""
        self._spare = left.seen.copies

    def use_nothing_again(self) -> None:
        self._spare = ()


class Left:
    """What a call left of the state that it moves."""

    __slots__ = ("attributes", "seen")

    def __init__(self, seen: Seen, attributes: tuple[Attribute, ...]) -> None:
        self.seen = seen
        self.attributes = attributes
