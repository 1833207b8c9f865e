"""Values and code by value: what two processes, or two looks at one module, may compare."""

from __future__ import annotations

import array
import dis
import enum
import functools
import hashlib
import pickle
import types
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN_VALUES = (
    type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.layout,
    torch.memory_format, enum.Enum,
)  # fmt: skip
EMPTY_CELL = types.CellType()
CHANGING = (set, bytearray, array.array, np.ndarray)  # kinds whose contents may change in place
_DEPTH = 6  # of functions within functions


def content(value: Any) -> str:
    """Of a tensor, its elements; of a set, its members; of all else, what pickle makes of it. "" where nothing can be
    told: of handles, locks and torch's own objects."""
    if isinstance(value, set | frozenset):
        return _digest(repr(sorted(map(repr, value))).encode())
    if isinstance(value, Tensor):
        return _elements(value)
    if type(value).__module__.split(".")[0] == "torch":
        return ""
    try:
        return _digest(pickle.dumps(value, protocol=4))
    except Exception:  # whatever a class makes of being asked
        return ""


def _elements(tensor: Tensor) -> str:
    try:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return _digest(flat.numpy().tobytes())
    except (RuntimeError, TypeError):  # without memory, or of a layout of its own
        return ""


def _digest(held: bytes) -> str:
    return hashlib.blake2b(held, digest_size=16).hexdigest()


def fingerprint(value: Any) -> Any:
    """Of a function, or what is made of functions: their code, defaults and what they close over, by value."""
    functions = list(functions_of(value))
    if not functions:
        return getattr(value, "__qualname__", type(value).__qualname__)
    return tuple(map(_function_fingerprint, functions))


def _function_fingerprint(function: types.FunctionType, depth: int = 0) -> tuple[Any, ...]:
    cells = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != EMPTY_CELL and name != "__class__":
            cells.append(_closed_over(cell.cell_contents, depth))
    defaults = [_closed_over(v, depth) for v in (function.__defaults__ or ())]
    defaults += [_closed_over(v, depth) for v in (function.__kwdefaults__ or {}).values()]
    return _code_digest(function.__code__), tuple(cells), tuple(defaults)


def _closed_over(value: Any, depth: int) -> Any:
    if isinstance(value, PLAIN_VALUES):
        return by_type(value)
    functions = list(functions_of(value))
    if functions and depth < _DEPTH:
        return tuple(_function_fingerprint(f, depth + 1) for f in functions)
    return type(value).__qualname__


@functools.lru_cache(maxsize=4096)
def _code_digest(code: types.CodeType) -> int:
    constants = [_code_digest(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return zlib.crc32(repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)).encode())


def code_names(code: types.CodeType) -> set[str]:
    inner = [code_names(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*inner)


@functools.lru_cache(maxsize=4096)
def global_names(code: types.CodeType) -> frozenset[str]:
    """The names that code looks up outside of itself; `code_names` has attributes, too."""
    own = {i.argval for i in dis.get_instructions(code) if i.opname.endswith(("_GLOBAL", "_NAME"))}
    return frozenset(own).union(*(global_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The Python functions that a call or a read of this runs first."""
    if isinstance(value, types.FunctionType):
        yield value
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:
            yield from functions_of(wrapped)
    elif isinstance(value, types.MethodType | staticmethod | classmethod):
        yield from functions_of(value.__func__)
    elif isinstance(value, property):
        yield from functions_of(value.fget)
    elif isinstance(value, functools.cached_property | functools.partial):
        yield from functions_of(value.func)


def by_type(value: Any) -> Any:
    """So that 1, 1.0 and True differ, and NaN is itself; picklable."""
    if isinstance(value, type):
        return class_name(value)
    return (type(value).__name__, repr(value)) if isinstance(value, int | float | complex | enum.Enum) else value


def class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
