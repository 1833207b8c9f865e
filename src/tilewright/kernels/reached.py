"""The code that a module's call may reach, by value: methods, functions, and what these read of their files."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Set
from typing import Any

from torch import Tensor, nn

from .contents import EMPTY_CELL, PLAIN_VALUES, code_names, fingerprint, functions_of, global_names
from .watched import Watched

_NEVER_CALLED = frozenset({"__init__", "extra_repr", "reset_parameters", "__repr__", "__setstate__"})
_UNNAMED = frozenset({"__getattr__", "__getattribute__", "__getitem__", "__iter__", "__len__"})  # called by syntax
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)
_HEAP = 1 << 9  # among a class's flags: it can be changed
_FILES = 6  # of files within files
_SHOWING = frozenset({"tqdm"})  # packages that show progress: no result hangs on what they keep
# Python's own files whose tables move with what runs beside a call, or lead to whoever registered classes there.
_REGISTRIES = frozenset({"copy", "copyreg", "logging", "threading", "warnings", "weakref", "_weakrefset"})


class ReachedCode:
    """`facts`: by name, functions and the values that they read. `names`: all that reached code mentions; `others`:
    those of code that is not torch's, which may read any module."""

    def __init__(self, watched: Watched) -> None:
        self.facts: dict[str, Any] = {}
        self.names: set[str] = set()
        self.others: set[str] = set()
        self._own: dict[type, set[str]] = {}  # and of torch's classes, which read themselves
        self._watched = watched
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        self._plain: list[tuple[str, Any]] = []  # members of classes that are no code, to be looked at
        self._waiting: list[tuple[type, str, Any]] = []  # members of classes that no code has named yet
        self._met: set[type] = set()
        self._functions_read: set[int] = set()

    def read_modules(self, modules: list[nn.Module], classes: list[type]) -> None:
        """All functions that a call may reach, by the names that code mentions: of classes, and of their files."""
        self.names |= {"forward", "__call__"}
        for name in ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__"):
            self._watched.value(self._watched.space_of(nn.Module), name, vars(nn.Module)[name])
            self.facts[f"torch.nn.Module.{name}"] = fingerprint(vars(nn.Module)[name])
        for function in (f for m in modules for value in vars(m).values() for f in functions_of(value)):
            self._read(function, None)
        self._read_classes([*classes, Tensor])

    def names_used(self, module: nn.Module) -> set[str]:
        """What may be read of a module."""
        return self.others.union(*(self._own.get(c, ()) for c in type(module).__mro__))

    def read_methods(self, kind: type) -> None:
        """The classes of what is no module: their methods are code like any other, their attributes are read."""
        self._read_classes(c for c in kind.__mro__ if c.__flags__ & _HEAP and not _is_installed_with_python(c))

    def read_functions(self, value: Any) -> None:
        """Those in a value, but torch's."""
        for function in functions_of(value):
            if not is_torch(function.__module__):
                self._read(function, None)

    def read_values(self, value_of: Callable[[Any, str, int], Any]) -> None:
        """What was met of classes and of files so far, as `value_of(value, path, depth)` has it, which may lead to more
        code."""
        read = 0
        while self._plain or read < len(self._globals):
            if self._plain:
                where, value = self._plain.pop(0)
                self.facts[where] = value_of(value, where, 1)
                continue
            space, name = [*self._globals.values()][read]
            read += 1
            where = f"{space.get('__name__', '')}.{name}"
            if is_torch(space.get("__name__")):
                self._watched.settle(space)
            self._watched.value(space, name, space[name])
            if where not in self.facts:
                self.facts[where] = value_of(space[name], where, 1)

    def _read_classes(self, classes: Iterable[type]) -> None:
        for kind in classes:
            if kind not in self._met:
                self._met.add(kind)
                space = self._watched.space_of(kind)
                self._watched.sizes.append((space, len(space)))
                self._waiting += [(kind, k, v) for k, v in list(space.items()) if k not in _NEVER_CALLED]
        while reached := [member for member in self._waiting if self._reached(*member[:2])]:
            self._waiting = [member for member in self._waiting if member not in reached]
            for owner, name, value in reached:
                self._member(owner, name, value)

    def _reached(self, owner: type, name: str) -> bool:
        return name in self.names or (name in _UNNAMED and not is_torch(owner.__module__))

    def _member(self, owner: type, name: str, value: Any) -> None:
        functions = list(functions_of(value))
        foreign = type(value) in _DESCRIPTORS or owner is Tensor or is_torch(owner.__module__)
        if foreign and not functions and not isinstance(value, PLAIN_VALUES):
            return
        self._watched.value(self._watched.space_of(owner), name, value)
        where = f"{owner.__name__}.{name}"
        where += "'" * sum(where == known.rstrip("'") for known in self.facts)  # another class of that name
        self.facts[where] = fingerprint(value)
        if not functions:
            self._plain.append((where, value))
        if owner is Tensor:
            return
        for function in functions:
            self._read(function, owner if is_torch(owner.__module__) and is_torch(function.__module__) else None)

    def _read(self, function: types.FunctionType, owner: type | None) -> None:
        """Take the names in a function's code, and note what it reads of the globals of its file. `owner`: the class
        of torch's that it belongs to, None for all else."""
        if id(function) in self._functions_read:
            return
        self._functions_read.add(id(function))
        self._watched.kept.append(function)
        names = code_names(function.__code__)
        self.names |= names
        read = self.others if owner is None else self._own.setdefault(owner, set())
        read |= names
        self._space(function.__globals__, global_names(function.__code__), names, 0)
        closed = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        filled = {name: cell for name, cell in closed if cell != EMPTY_CELL and name != "__class__"}
        self._watched.attributes += [(cell, "cell_contents", cell.cell_contents) for cell in filled.values()]
        if not is_torch(function.__module__):
            self._watched.attributes += [(function, k, getattr(function, k)) for k in ("__code__", "__defaults__")]
            self._globals |= {(id(vars(function)), name): (vars(function), name) for name in vars(function)}
        held = {name: cell.cell_contents for name, cell in filled.items()}
        self._space({"__name__": function.__qualname__, **held}, names | held.keys(), names, 0)

    def _space(self, space: dict[str, Any], mentioned: Set[str], names: set[str], depth: int) -> None:
        """Note what of a file's names is mentioned, and, where that is a module (`torch.nn.functional`), which of
        `names` are its."""
        file = space.get("__name__")
        for name in sorted(mentioned & space.keys()):
            value = space[name]
            if isinstance(value, types.ModuleType):
                if depth < _FILES:
                    self._space(vars(value), names, names, depth + 1)
            elif callable(value) or not ((depth and is_torch(file)) or file in _REGISTRIES):
                self._globals[id(space), name] = space, name
                self.read_functions(value)


def is_torch(name: str | None) -> bool:
    return (name or "").split(".")[0] in ("torch", "builtins")


def _is_installed_with_python(kind: type) -> bool:
    root = kind.__module__.split(".")[0]
    return is_torch(kind.__module__) or root in sys.stdlib_module_names or root in _SHOWING
