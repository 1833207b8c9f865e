"""A tripwire: what the cell calls, noted before a candidate is loaded, and held against what stands there later.

It finds what was replaced in Tilewright's own modules, the clocks, and those parts of torch by which a cell reads,
writes and waits. That is no wall: code in the same process can do worse than replace a name.
"""

from __future__ import annotations

import builtins
import gc
import json
import operator
import sys
import time
import types
from collections.abc import Iterator, Sequence
from itertools import compress, repeat
from operator import is_not

import torch

from .hooks import Standing
from .load import CodeRaised
from .session import CandidateSession

_OF_TENSORS = (
    "__getitem__", "as_strided", "clone", "copy_", "data_ptr", "detach", "device", "dtype", "element_size", "fill_",
    "is_complex", "is_floating_point", "layout", "narrow", "numel", "permute", "reshape", "shape", "stride", "sum",
    "to", "view", "zero_",
)  # fmt: skip
_OF_TORCH = ("as_tensor", "empty", "enable_grad", "frombuffer", "mv", "no_grad", "randint", "zeros")
_OF_CUDA = ("empty_cache", "synchronize")
_OPERATORS = (
    "aten::_to_copy", "aten::clone", "aten::copy_", "aten::detach", "aten::fill_.Scalar", "aten::sum",
    "aten::mv", "aten::addmv_", "aten::index_select",
)  # fmt: skip
_KEYS = ("CPU:", "CUDA:", "ADInplaceOrView:", "AutogradCPU:", "AutogradCUDA:")
_table = torch._C._dispatch_dump_table
_MISSING = object()
_OF_GC = ("collect", "disable", "enable")
_OF_PYTHON = (
    "__import__", "all", "any", "dict", "enumerate", "float", "frozenset", "getattr", "id", "int", "isinstance",
    "issubclass", "iter", "len", "list", "map", "max", "min", "next", "range", "set", "sorted", "str", "sum", "tuple",
    "type", "zip",
)  # fmt: skip


class Tripwire:
    """Remembers on construction. `ours`: Tilewright's modules."""

    def __init__(self, session: CandidateSession, ours: Sequence[types.ModuleType]) -> None:
        if not ours:
            raise RuntimeError("Tilewright's modules are put away already: nothing of them would be watched")
        self._session = session
        own = [("the cell's session", owner, name) for owner, name in session.parts()]
        self._labels, self._owners, self._names = zip(*own, *_watched(ours), strict=True)
        self._values = tuple(map(getattr, self._owners, self._names))
        self._standing = Standing()
        self._kernels = tuple((name, text, _kernels(text)) for name in _OPERATORS for text in [_table(name)])

    def check(self) -> None:
        """Raise CodeRaised("tampering") where something is not as it was. Takes a third of a millisecond."""
        found = map(getattr, self._owners, self._names, repeat(_MISSING))
        for label in compress(self._labels, map(is_not, found, self._values)):
            raise CodeRaised("tampering", f"it replaced {label}")
        for name, text, kernels in self._kernels:
            now = _table(name)
            if now != text and _kernels(now) != kernels:
                raise CodeRaised("tampering", f"it registered another {name} with torch's dispatcher")
        self._standing.check()
        if not self._session.holds_its_own:
            raise CodeRaised("tampering", "it replaced what holds slots and results")


def _kernels(table: str) -> tuple[str, ...]:
    """What torch's dispatcher has for an operator on plain tensors, and where that was registered, of all it has."""
    return tuple(line for line in table.splitlines() if line.startswith(_KEYS))


def own_modules() -> tuple[types.ModuleType, ...]:
    """Those of Tilewright's modules that are imported and can be found."""
    package = __name__.partition(".")[0]
    return tuple(m for n, m in sys.modules.items() if n.partition(".")[0] == package)


def _watched(ours: Sequence[types.ModuleType]) -> Iterator[tuple[str, object, str]]:
    """What is watched: a label, the object, the name of its attribute."""
    for module in ours:
        yield from _of_module(module)
    for owner, names in (
        (torch, _OF_TORCH), (torch.cuda, _OF_CUDA), (gc, _OF_GC), (builtins, _OF_PYTHON), (json, ("dumps", "loads")),
        (json.JSONEncoder, ("encode", "iterencode")), (operator, ("call", "is_", "itemgetter")),
        (time, [n for n, v in vars(time).items() if isinstance(v, types.BuiltinFunctionType)]),
    ):  # fmt: skip
        yield from ((f"{owner.__name__}.{name}", owner, name) for name in names)
    yield from ((f"torch.Tensor.{name}", torch.Tensor, name) for name in _OF_TENSORS)


def _of_module(module: types.ModuleType) -> Iterator[tuple[str, object, str]]:
    for name, value in list(vars(module).items()):
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
            yield f"{module.__name__}.{name}", module, name
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from _of_class(f"{module.__name__}.{name}", value)
        elif isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
            yield f"{module.__name__}.{name}", value, "__code__"


def _of_class(label: str, owner: type) -> Iterator[tuple[str, object, str]]:
    for name, value in list(vars(owner).items()):
        if isinstance(value, types.FunctionType):
            yield f"{label}.{name}", owner, name
            yield f"{label}.{name}", value, "__code__"
