"""A module with kernels of its own, made by Tilewright: `Model`, as the file that it was made from has it, or
`load(module)` of one that is there. Parameters and `state_dict` are the original's.

Its ops, of the namespace that is the package's name, are registered when it is imported, for programs that torch.export
or AOTInductor made of it.

A call that is not as the kernels were judged for runs the original forward: `fallbacks()` counts these by reason, and
a RuntimeWarning says so the first time."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

_GUARD = "_tilewright_guard"
_HERE = Path(__file__).resolve().parent
_made: dict[type, Any] = {}  # by the class that is replaced: model.py, run with it

__all__ = ["Model", "fallbacks", "load"]  # noqa: F822  `Model` is made when it is asked for


def load(module: nn.Module) -> nn.Module:
    """A module that runs the kernels where all is as it was judged, and else the forward of `module`'s class. It shares
    submodules, parameters and buffers with `module`. Raises ValueError, as `Model` does, where that is not the module
    that was optimised: its tensors, or attributes that its code reads, are others."""
    model = _model(type(module))
    new: nn.Module = object.__new__(model.ModelNew)
    new.__dict__.update(module.__dict__)
    new.__dict__[_GUARD] = model.guard(new)
    return new


def fallbacks() -> dict[str, int]:
    """How often calls in this process ran the original forward, by reason."""
    found: dict[str, int] = {}
    for model in _made.values():
        for reason, count in model.FALLBACKS.items():
            found[reason] = found.get(reason, 0) + count
    return found


def __getattr__(name: str) -> Any:
    if name != "Model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _model(importlib.import_module(f"{__name__}.original").Model).ModelNew


def _model(base: type) -> Any:
    """model.py, run with this class for its Model."""
    if base not in _made:
        name = f"{__name__}.model_{len(_made)}"
        spec = importlib.util.spec_from_file_location(name, _HERE / "model.py")
        assert spec is not None and spec.loader is not None
        model: Any = importlib.util.module_from_spec(spec)
        vars(model)["LIVE_MODEL"] = base
        spec.loader.exec_module(model)
        model.guard = partial(_judged, model.guard, base)
        kind = model.ModelNew
        kind.__name__, kind.__qualname__ = base.__name__, base.__qualname__
        kind.__reduce_ex__ = _reduce
        _made[base] = sys.modules[name] = model
    return _made[base]


def _judged(guard: Callable[[nn.Module], Any], base: type, module: nn.Module) -> Any:
    """A guard of the module, of which what kernels may have for constants must be as it was judged."""
    made = guard(module)
    if differs := _differs(made.expected, base):
        raise ValueError(f"{__name__} was made of another {base.__name__}: {differs}; optimise and export this one")
    return made


def _differs(now: dict[str, Any], kind: type) -> str:
    """What the module reads that is not as it was in any case at the export; "" where all is as in one."""
    cases = pickle.loads((_HERE / "build" / "judged.pkl").read_bytes())
    found, why = told(now, kind), ""
    for before in reversed(cases):
        other = [name for name in (*before, *found) if before.get(name) != found.get(name)]
        if not other:
            return ""
        why = f"{other[0]} is another"
    return why


def told(facts: dict[str, Any], kind: type) -> dict[str, Any]:
    """Of a survey's facts those that another process, and another version of Python, tells alike: not code, nor where
    classes of the module's own files lie."""
    homes = tuple(f"{owner.__module__}." for owner in kind.__mro__ if owner.__module__ != nn.Module.__module__)

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        if isinstance(value, str):
            home = next(filter(value.startswith, homes), "")
            return str(value)[len(home) :]
        return value

    return {name: plain(value) for name, value in facts.items() if not _has_code(value)}


def _has_code(value: Any) -> bool:
    """Of fingerprints alone digests are bare numbers."""
    if isinstance(value, tuple):
        return any(map(_has_code, value))
    return isinstance(value, int) and not isinstance(value, bool)


def _reduce(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
    held, state = self.__dict__.get(_GUARD), dict(self.__getstate__())
    state.pop(_GUARD, None)
    return _restored, (type(self).__bases__[0], None if held is None else held.__getstate__()), state


def _restored(base: type, guarded: Any) -> nn.Module:
    """Unpickles and copies."""
    model = _model(base)
    made: nn.Module = object.__new__(model.ModelNew)
    if guarded is not None:
        made.__dict__[_GUARD] = guard = model.Guard.__new__(model.Guard)
        guard.__setstate__(guarded)
    return made


for _path in sorted(_HERE.glob("*.py")):
    if _path.stem.startswith(("fused_", "segment_", "library_")):
        importlib.import_module(f"{__name__}.{_path.stem}")
