"""What a call of a product does with tensors of one layout: noted once, and done from then on by a function that is
written out for it.

    first call     shapes, strides, dtypes and addresses within 16 bytes are a layout nobody knows: `make` runs on meta
    tensors
                   on the meta device, and what it allocates, zeroes, copies and launches is noted
    every call     does just that on memory of its own: nothing is asked, chosen or reckoned again

Of the operands' values nothing is noted, nor is memory kept: what a call needs it allocates on the stream that is
current then. A call that does anything else is not known, and `make` runs in it each time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from ...common.calls import fresh

LINE = 16  # bytes at whose multiples what TMA and wide loads read must lie
MOST_KNOWN = 1024  # layouts
_EMPTY = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default)
Results = Tensor | tuple[Tensor, ...]
Call = Callable[..., Results]

_KNOWN = """
def make(found, first):
    def call({taken}):
        key = ({key})
        return (found(key) or first(key, {taken}))({taken})

    return call
"""


class RecordedLaunch:
    """`make`, which gives a new tensor, or several, of so many, as a call that does only what it must. On meta tensors
    it is `make` itself."""

    def __init__(self, make: Call, arity: int) -> None:
        self._make = make
        self._known: dict[Hashable, Call] = {}
        names = [f"t{i}" for i in range(arity)]
        of_each = (f"{n}.dtype, {n}.shape, {n}.stride(), {n}.data_ptr() & {LINE - 1}" for n in names)
        text = _KNOWN.format(taken=", ".join(names), key=", ".join(("t0.device", *of_each)))
        self.call: Call = _defined(text, "make")(self._known.get, self._first)

    def _first(self, key: Hashable, *operands: Tensor) -> Call:
        if operands[0].is_meta:
            return self._make
        notes = Notes(operands)
        with notes:
            result = self._make(*notes.twins)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[key] = found = notes.written(result) or self._make
        return found


class Notes(TorchDispatchMode):
    """While it is entered, what is done with `meta tensors`."""

    def __init__(self, operands: Sequence[Tensor]) -> None:
        super().__init__()
        self.device = operands[0].device
        self.twins = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in operands]
        self.unknown = ""  # what was done that can't be done again
        self._sources = {_memory(t): (f"t{i}", t) for i, t in enumerate(self.twins)}
        self._starts = {_memory(twin): t.data_ptr() for twin, t in zip(self.twins, operands, strict=True)}
        self._steps: list[tuple[Any, ...]] = []  # (what is called, arguments), or (None, (new memory,))

    def launch(self, launch: Callable[..., None], args: Sequence[Any]) -> None:
        self._steps.append((launch, args))

    def is_aligned(self, x: Tensor) -> bool:
        """Whether its meta tensor begins at a multiple of LINE; new memory does."""
        return (self._starts.get(_memory(x), 0) + x.storage_offset() * x.element_size()) % LINE == 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default:
            self._steps.append((Tensor.copy_, args[:2]))
        elif func in _EMPTY:
            self._new(made)
        elif func is torch.ops.aten.zero_.default:
            self._steps.append((Tensor.zero_, args[:1]))
        elif func is torch.ops.aten.clone.default:
            self._new(made)
            self._steps.append((Tensor.copy_, (made, args[0])))
        elif func._schema.is_mutable or not all(map(self._is_view, _tensors(made))):
            self.unknown = str(func)
        return made

    def _is_view(self, made: Tensor) -> bool:
        known = self._sources.get(_memory(made))
        return known is not None and known[1].dtype == made.dtype

    def _new(self, made: Tensor) -> None:
        self._sources[_memory(made)] = (f"b{len(self._sources)}", made)
        self._steps.append((None, (made,)))

    def written(self, result: Results) -> Call | None:
        """The function of the operands that does the same, or None where that is unknown."""
        return None if self.unknown else _Text(self._sources, self.device, result).written(self._steps, len(self.twins))


class _Text:
    """Steps as the text of a function. All is allocated as it was, but what holds the result and no more like that."""

    def __init__(self, sources: dict[int, tuple[str, Tensor]], device: torch.device, result: Results) -> None:
        self._sources = dict(sources)
        for x in _tensors(result):
            if x.is_contiguous() and x.untyped_storage().nbytes() == x.numel() * x.element_size():
                self._sources[_memory(x)] = (sources[_memory(x)][0], x)
        self._device = device
        self._result = result
        self._values: dict[str, Any] = {"view": _view}
        self._lines: list[str] = []
        self._views: dict[Hashable, str] = {}

    def written(self, steps: Sequence[tuple[Any, ...]], arity: int) -> Call:
        for done, args in steps:
            if done is None:
                name, whole = self._sources[_memory(args[0])]
                self._lines.append(f"{name} = {self._value(self._fresh(whole))}()")
            else:
                given = [self._place(x) if isinstance(x, Tensor) else repr(x) for x in args]
                self._lines.append(f"{self._value(done)}({', '.join(given)})")
        places = [self._place(x) for x in _tensors(self._result)]
        several = isinstance(self._result, tuple)
        self._lines.append(f"return ({', '.join(places)},)" if several else f"return {places[0]}")
        taken = ", ".join(f"t{i}" for i in range(arity))
        body = "".join(f"        {line}\n" for line in self._lines)
        text = f"def make({', '.join(self._values)}):\n    def call({taken}):\n{body}    return call\n"
        known: Call = _defined(text, "make")(**self._values)
        return known

    def _fresh(self, like: Tensor) -> Callable[[], Tensor]:
        return fresh(tuple(like.shape), like.dtype, self._device, strides=like.stride())

    def _value(self, value: Any) -> str:
        """A name for it."""
        name = f"x{len(self._values)}"
        self._values[name] = value
        return name

    def _place(self, x: Tensor) -> str:
        """A name for a tensor: of its memory, or of a view made of that."""
        name, whole = self._sources[_memory(x)]
        layout = (name, tuple(x.shape), x.stride(), x.storage_offset() - whole.storage_offset())
        if layout == (name, tuple(whole.shape), whole.stride(), 0):
            return name
        if layout not in self._views:
            self._views[layout] = f"v{len(self._views)}"
            self._lines.append(f"{self._views[layout]} = view({', '.join((name, *map(repr, layout[1:])))})")
        return self._views[layout]


def _as_strided(x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    return x.as_strided(shape, strides, x.storage_offset() + offset)


# What torch.compile writes, where there is such: it asks no dispatcher, and takes half the time.
_view = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_reinterpret_tensor", _as_strided)


def _defined(text: str, name: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    return namespace[name]


def _memory(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _tensors(made: Any) -> list[Tensor]:
    return [x for x in (made if isinstance(made, tuple | list) else (made,)) if isinstance(x, Tensor)]


def _noting() -> Notes | None:
    mode = _get_current_dispatch_mode()
    return mode if isinstance(mode, Notes) else None


def is_aligned(x: Tensor) -> bool:
    """Whether it begins at a multiple of 16 bytes, as meta tensors do that are nobody's meta tensors."""
    if not x.is_meta:
        return x.data_ptr() % LINE == 0
    notes = _noting()
    return notes is None or notes.is_aligned(x)


def device_of(x: Any) -> torch.device:
    """Of a tensor, or of whose meta tensor it is."""
    notes = _noting()
    found: torch.device = x.device if notes is None else notes.device
    return found


def run_on(launch: Callable[..., None], first: Tensor, *rest: Any) -> None:
    """Launch, or note it; of meta tensors that are nobody's meta tensors nothing."""
    notes = _noting()
    if notes is not None:
        notes.launch(launch, (first, *rest))
    elif not first.is_meta:
        launch(first, *rest)
