"""Calls of a replacement as its module is called: by name or by position, with containers of classes, and with tensors
that forward writes to, which lie where the candidate finds them for as long as a call takes."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from itertools import pairwise
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.utils._pytree import tree_leaves

from ..kernels.guards import ACTS, NO_CASE, compared, count
from .structures import KnownObjects
from .trees import Flat, Trees

NOT_CAST = "torch.autocast is not on as it was when the module was optimised"
SHARED = "arguments that the module writes to share memory with others"
_CASE = "_case_"  # how the methods begin that run kernels
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_MISSING = object()
_FALLEN = object()  # in the place of a result: the original forward is to be run
_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_Form = tuple[int, tuple[str, ...]]  # how many arguments come by position, and the names of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """The ways in which cases are called, and the parameters of the original forward."""

    forms: tuple[_Form, ...]
    names: tuple[str, ...]  # of those that may come by position
    defaults: Mapping[str, Any]

    def arranged(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Arguments | None:
        """The same arguments in the first form that takes them, others being as forward has them of itself; None where
        there is none, and where they have one already."""
        if any(len(args) == places and kwargs.keys() == set(names) for places, names in self.forms):
            return None
        if len(args) > len(self.names) or any(name in kwargs for name in self.names[: len(args)]):
            return None
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        for places, keywords in self.forms:
            names = (*self.names[:places], *keywords)
            filled = {name: given.get(name, self.defaults.get(name, _MISSING)) for name in names}
            rest = [name for name in given if name not in filled]
            if (
                len(names) >= places
                and all(filled[name] is not _MISSING for name in names)
                and self._usual(given, rest)
            ):
                return tuple(filled[n] for n in names[:places]), {n: filled[n] for n in keywords}
        return None

    def _usual(self, given: Mapping[str, Any], rest: Sequence[str]) -> bool:
        """Whether these arguments are what forward takes where they are not given."""
        pairs = [(given[name], self.defaults.get(name, _MISSING)) for name in rest]
        return all(a is b or (type(a) is type(b) and isinstance(a, int | float | str) and a == b) for a, b in pairs)


def let_be_called(kind: Any, base: type, trees: Trees, model: ModuleType) -> None:
    """Let the class of a replacement, ModelNew of the file `model`, take what `base` takes."""
    if not hasattr(kind, "_tilewright_fall_back"):  # all of it is torch.compile's, which sees the original forward
        return
    calls = _calls(kind, base, trees)
    counts, judged = model.FALLBACKS, model._JUDGED
    inner, original = kind.forward, kind.__bases__[0].forward

    def fall_back(self: nn.Module, reason: str, args: Any, kwargs: Any) -> Any:
        other = calls.arranged(args, kwargs) if reason == NO_CASE and not trees.given else None
        if other is not None:
            return inner(self, *other[0], **other[1])
        if is_dynamo_compiling():
            counts[reason] = counts.get(reason, 0) + 1
        else:
            count(counts, reason, lambda: compared(judged, self.training, args, kwargs), within=_between(mine))
        return original(self, *args, **kwargs) if trees.plain else _FALLEN

    def cast(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Its code casts where autocast would."""
        with torch.autocast(_device(self, args, kwargs), enabled=False):
            return inner(self, *args, **kwargs)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        flat = None
        if trees.autocast and not _is_cast(trees.autocast, self, args, kwargs):
            found = fall_back(self, NOT_CAST, args, kwargs)
        elif not trees.given:
            found = run(self, *args, **kwargs)
        elif trees.writes and is_dynamo_compiling():
            found = fall_back(self, ACTS, args, kwargs)
        elif (flat := _flat(trees, calls, args, kwargs, known)) is None:
            found = fall_back(self, NO_CASE, args, kwargs)
        elif not flat.written:
            found = run(self, *flat.leaves)
        elif not places.are_apart(flat):
            found = fall_back(self, SHARED, args, kwargs)
        else:
            found = places.called(self, run, flat)
        return base.forward(self, *args, **kwargs) if found is _FALLEN else trees.whole(found, flat)  # type: ignore[attr-defined]

    places, known, run = _Places(), trees.known_objects(), cast if trees.autocast else inner
    mine = {fall_back.__code__, forward.__code__, inner.__code__, cast.__code__}
    kind._tilewright_fall_back = fall_back
    if not trees.plain:
        kind.forward = forward
        forward.__signature__ = inspect.signature(base.forward)  # type: ignore[attr-defined]  # generation asks
        kind._tilewright_written = lambda self, name: self.__dict__[name]


def _device(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The type of the device that a call is for: of the first tensor among its arguments, or of a parameter."""
    leaves = (leaf for value in (*args, *kwargs.values()) for leaf in tree_leaves(value))
    own = (*leaves, *module.parameters())
    return next((t.device.type for t in own if isinstance(t, Tensor)), "cpu")


def _is_cast(dtype: str, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    device = _device(module, args, kwargs)
    available = torch.amp.is_autocast_available(device)
    return available and torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is getattr(torch, dtype)


class _Places:
    """Where the tensors that calls of one class write to lie meanwhile: in attributes of the module."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._apart: tuple[int, ...] = ()  # addresses of tensors that were found to share no memory

    def are_apart(self, flat: Flat) -> bool:
        """Whether no memory that is written to is another argument's, too."""
        written = list(flat.written.values())
        addresses = tuple([tensor.data_ptr() for tensor in written])  # and their names tell their sizes and strides
        others = [leaf for leaf in flat.leaves if isinstance(leaf, Tensor)]
        if addresses != self._apart:
            spans = sorted((t.data_ptr(), t.data_ptr() + _span(t)) for t in written)
            if any(end > start for (_, end), (start, _) in pairwise(spans)):
                return False
            self._apart = addresses
        storages = {tensor.untyped_storage().data_ptr() for tensor in written} if others else set()
        return not any(other.untyped_storage().data_ptr() in storages for other in others)

    def called(self, module: nn.Module, inner: Any, flat: Flat) -> Any:
        """The result of a call, one at a time: two threads may call on caches of their own."""
        fields = module.__dict__
        with self._lock:
            before = {name: fields.get(name) for name in flat.written}
            fields.update(flat.written)
            try:
                return inner(module, *flat.leaves)
            finally:
                fields.update(before)


def _span(tensor: Tensor) -> int:
    """Bytes from its first element to the end of its last."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def _between(codes: set[CodeType]) -> int:
    """How many frames of this code there are above the caller's beside its own and a forward's."""
    frame: FrameType | None = sys._getframe(1)
    found = -2
    while frame is not None and frame.f_code in codes:
        found, frame = found + 1, frame.f_back
    return found


def _flat(trees: Trees, calls: _Calls, args: tuple[Any, ...], kwargs: Any, known: KnownObjects) -> Flat | None:
    found = trees.flat(args, kwargs, known)
    if found is None and (other := calls.arranged(args, kwargs)) is not None:
        found = trees.flat(*other, known)
    return found


def _calls(kind: type, base: type, trees: Trees) -> _Calls:
    given = list(inspect.signature(base.forward).parameters.values())[1:]  # type: ignore[attr-defined]
    defaults = {p.name: p.default for p in given if p.default is not Parameter.empty}
    if trees.given:
        specs = [given.structure.spec for given in trees.given]
        forms = [(spec.child(0).num_children, tuple(spec.child(1).context)) for spec in specs]
    else:
        cases = [inspect.signature(vars(kind)[name]).parameters for name in vars(kind) if name.startswith(_CASE)]
        kinds = [{name: p.kind for name, p in list(case.items())[1:]} for case in cases]
        forms = [
            (sum(k in _BY_PLACE for k in case.values()),
             tuple(name for name, k in case.items() if k is Parameter.KEYWORD_ONLY))
            for case in kinds
        ]  # fmt: skip
    names = tuple(p.name for p in given if p.kind is Parameter.POSITIONAL_OR_KEYWORD)
    return _Calls(forms=tuple(dict.fromkeys(forms)), names=names, defaults=defaults)
