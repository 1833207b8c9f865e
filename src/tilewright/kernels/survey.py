"""What a module's call depends on beside its arguments: by value, to compare, and by identity, to watch."""

from __future__ import annotations

import copyreg
import functools
import gc
import logging
import sys
import types
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .contents import (
    CHANGING,
    EMPTY_CELL,
    PLAIN_VALUES,
    by_type,
    class_name,
    code_names,
    content,
    fingerprint,
    functions_of,
)

GUARD = "_tilewright_guard"  # the attribute of a module that holds its guard
PLAIN = (Tensor, nn.Parameter, nn.Buffer)  # tensors of these very types are what kernels take
_BOOKKEEPING = frozenset(vars(nn.Module())) | {GUARD}
_OPEN = frozenset(  # who names these may read any attribute
    {"getattr", "hasattr", "vars", "__dict__", "eval", "exec", "attrgetter", "methodcaller", "__getattribute__",
     "getattr_static", "getmembers", "asdict", "astuple"}
)  # fmt: skip
_IN_ORDER = frozenset({"children", "named_children", "modules", "named_modules", "_modules", "apply"})
_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_MODES = frozenset({"is_grad_enabled", "is_inference_mode_enabled", "is_inference"})
_NEVER_CALLED = frozenset({"__init__", "extra_repr", "reset_parameters", "__repr__", "__setstate__"})
_UNNAMED = frozenset({"__getattr__", "__getattribute__", "__getitem__", "__iter__", "__len__"})  # called by syntax
_BASES = (nn.Module, object)
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)
_HEAP = 1 << 9  # among a class's flags: it can be changed
_FILES = 6  # of files within files
_DEPTH = 40  # of values within values; each is looked at once

Facts = dict[str, Any]


class ClassName(str):
    """The class of a module, among facts."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:  # as text: this file has another name in each process
        return str, (str(self),)


class Conditions:
    """`facts`: everything by value, under the name that a reason gives it; picklable.

    What must be as it is now, to be asked at each call: `same`, the value under a key of a mapping; `sizes`, mappings
    that get no more keys; `keys`, those that stay in a mapping under any value; `ordered`, mappings whose values stay
    in order; `attributes` of what is no mapping; `contents` of what has no attributes; `types`, modules and their
    classes; `empty`, mappings, and the key under which each has an empty one; `versions`, tensors
    that nobody writes to. `settled`: dictionaries, by identity, to which a program seldom writes between two calls.
    `tensors`: by path, the mapping and the key of each parameter and buffer; `shared`: paths of those that have
    several. `modes`: whether code asks if gradients are on. `refusal`: why no fused call may stand for this module, ""
    where one may.

    The root's own dictionary is never among them: it holds whoever holds the survey. `ROOT` stands for it."""

    ROOT: Mapping[str, Any] = types.MappingProxyType({})

    def __init__(self) -> None:
        self.tensors: dict[str, tuple[Any, str]] = {}
        self.facts: Facts = {}
        self.same: dict[tuple[int, Any], tuple[Any, Any, Any]] = {}
        self.sizes: list[tuple[Any, int]] = []
        self.empty: list[tuple[Any, str]] = []
        self.versions: list[tuple[Tensor, int]] = []
        self.types: list[tuple[nn.Module, type]] = []
        self.ordered: list[dict[str, nn.Module | None]] = []
        self.keys: list[tuple[Any, str]] = []
        self.attributes: list[tuple[Any, str, Any]] = []
        self.contents: list[tuple[Any, Any]] = []
        self.settled: dict[int, dict[Any, Any]] = {}
        self.refusal = ""
        self.shared: set[str] = set()
        self._spaces: dict[type, Any] = {}

    def _watch(self, mapping: Any, key: Any, value: Any, *, owner: Any = None) -> None:
        if isinstance(mapping, types.MappingProxyType) and owner is not None:
            mapping = self._space_of(owner)
        self.same[id(mapping), key] = mapping, key, value

    def _space_of(self, owner: type) -> Any:
        """What a class holds; each look at it makes a new proxy."""
        if owner not in self._spaces:
            self._spaces[owner] = _behind(vars(owner))
            self._settle(self._spaces[owner])
        return self._spaces[owner]

    def _settle(self, mapping: Any) -> None:
        if type(mapping) is dict:
            self.settled[id(mapping)] = mapping

    def checks(self, free: Collection[str]) -> list[tuple[Any, Any, Any]]:
        """What must be the same; `free`: paths of tensors that may be replaced by their like."""
        places = (self.tensors[path] for path in free if path in self.tensors and path not in self.shared)
        without = {(id(mapping), key) for mapping, key in places}
        return [triple for place, triple in self.same.items() if place not in without]


class CodeSurvey(Conditions):
    """All code that a call may reach, and what it reads of classes and of its files."""

    _value: Any  # of a Survey
    _kept: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self._code: Facts = {}
        self._names: set[str] = set()  # that reached code mentions
        self._others: set[str] = set()  # those of code that is not torch's: it may read any module
        self._own: dict[type, set[str]] = {}  # and of torch's classes, which read themselves
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        self._waiting: list[tuple[type, str, Any]] = []  # members of classes that no code has named yet
        self._met: set[type] = set()
        self._functions_read: set[int] = set()

    def _read_code(self, modules: list[nn.Module]) -> None:
        """All functions that a call may reach, by the names that code mentions: of classes, and of their files."""
        self._names |= {"forward", "__call__"}
        for name in ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__"):
            self._watch(vars(nn.Module), name, vars(nn.Module)[name], owner=nn.Module)
            self._code[f"torch.nn.Module.{name}"] = fingerprint(vars(nn.Module)[name])
        for function in (f for m in modules for value in vars(m).values() for f in functions_of(value)):
            self._read(function, None)
        self._read_classes([*_classes(modules), Tensor])

    def _read_classes(self, classes: Iterable[type]) -> None:
        for kind in classes:
            if kind not in self._met:
                self._met.add(kind)
                space = self._space_of(kind)
                self.sizes.append((space, len(space)))
                self._waiting += [(kind, k, v) for k, v in list(space.items()) if k not in _NEVER_CALLED]
        while reached := [member for member in self._waiting if self._reached(*member[:2])]:
            self._waiting = [member for member in self._waiting if member not in reached]
            for owner, name, value in reached:
                self._member(owner, name, value)

    def _read_helpers(self, kind: type) -> None:
        """The classes of what is no module: their methods are code like any other, their attributes are read."""
        self._read_classes(c for c in kind.__mro__ if c.__flags__ & _HEAP and not _is_installed_with_python(c))

    def _reached(self, owner: type, name: str) -> bool:
        return name in self._names or (name in _UNNAMED and not _is_torch(owner.__module__))

    def _member(self, owner: type, name: str, value: Any) -> None:
        functions = list(functions_of(value))
        foreign = type(value) in _DESCRIPTORS or owner is Tensor or _is_torch(owner.__module__)
        if foreign and not functions and not isinstance(value, PLAIN_VALUES):
            return
        self._watch(vars(owner), name, value, owner=owner)
        where = f"{owner.__name__}.{name}"
        where += "'" * sum(where == known.rstrip("'") for known in self._code)  # another class of that name
        self._code[where] = fingerprint(value) if functions else self._value(value, where, 1)
        if owner is Tensor:
            return
        for function in functions:
            self._read(function, owner if _is_torch(owner.__module__) and _is_torch(function.__module__) else None)

    def _read(self, function: types.FunctionType, owner: type | None) -> None:
        """Take the names in a function's code, and note what it reads of the globals of its file. `owner`: the class
        of torch's that it belongs to, None for all else."""
        if id(function) in self._functions_read:
            return
        self._functions_read.add(id(function))
        self._kept.append(function)
        names = code_names(function.__code__)
        self._names |= names
        read = self._others if owner is None else self._own.setdefault(owner, set())
        read |= names
        self._space(function.__globals__, names, 0)
        closed = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        filled = {name: cell for name, cell in closed if cell != EMPTY_CELL and name != "__class__"}
        self.attributes += [(cell, "cell_contents", cell.cell_contents) for cell in filled.values()]
        if not _is_torch(function.__module__):
            self.attributes += [(function, name, getattr(function, name)) for name in ("__code__", "__defaults__")]
            self._globals |= {(id(vars(function)), name): (vars(function), name) for name in vars(function)}
        held = {name: cell.cell_contents for name, cell in filled.items()}
        self._space({"__name__": function.__qualname__, **held}, names | held.keys(), 0)

    def _space(self, space: dict[str, Any], names: set[str], depth: int) -> None:
        """Note what of a file's names is mentioned, and, where that is a module (`torch.nn.functional`), of its."""
        for name in sorted(names & space.keys()):
            value = space[name]
            if isinstance(value, types.ModuleType):
                if depth < _FILES:
                    self._space(vars(value), names, depth + 1)
            elif callable(value) or not (depth and _is_torch(space.get("__name__"))):
                self._globals[id(space), name] = space, name
                for called in functions_of(value):
                    if not _is_torch(called.__module__):
                        self._read(called, None)

    def _read_globals(self) -> None:
        done = 0
        while done < len(self._globals):  # what is read may name others
            self._global(*[*self._globals.values()][done])
            done += 1

    def _global(self, space: dict[str, Any], name: str) -> None:
        value, where = space[name], f"{space.get('__name__', '')}.{name}"
        if _is_torch(space.get("__name__")):
            self._settle(space)
        self._watch(space, name, value)
        if where not in self._code:
            self._code[where] = self._value(value, where, 1)


class Survey(CodeSurvey):
    """The module, its values, and the code that they reach."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self._root = root
        self._tree = {id(module) for module in root.modules()}
        self._first: dict[int, str] = {}  # of each module and tensor, where it was met first
        self._kept: list[Any] = []  # what the identities above belong to
        self._read_code(list(root.modules()))
        self._open = bool(self._others & _OPEN)
        self._read_globals()
        self.facts["the default dtype"] = torch.get_default_dtype()
        self._walk(root, "")
        self._read_globals()
        self.facts |= self._code  # behind the module's own: reasons name the first that differs
        self.modes = bool(self._others & _MODES)

    def _walk(self, module: nn.Module, path: str) -> None:
        if path and id(module) in self._first:
            self.facts[path] = f"the same as {self._first[id(module)]}"
            return
        self._first[id(module)] = path or "the module"
        self._kept.append(module)
        state = module.__dict__
        there: Any = state if path else self.ROOT
        if path:
            self.facts[path] = ClassName(class_name(type(module)))
            self.types.append((module, type(module)))
            self._settle(state)
            self._hooks(state, path)
        self.sizes.append((there, len(state)))
        read = self._names_used(module)
        if "training" in read:
            self._watch(there, "training", module.training)
            self.facts[f"{path}.training"] = module.training == self._root.training
        for name in ("_parameters", "_buffers", "_modules"):
            held = state[name]
            if held or not path:
                self._watch(there, name, held)
        for name, value in (*state["_parameters"].items(), *state["_buffers"].items()):
            self._tensor(state["_parameters"] if name in state["_parameters"] else state["_buffers"], name, value,
                         _joined(path, name))  # fmt: skip
        if state["_modules"]:
            if isinstance(module, _LISTS) or self._names_used(module) & _IN_ORDER:
                self.ordered.append(state["_modules"])
            self._settle(state["_modules"])
            self.sizes.append((state["_modules"], len(state["_modules"])))
            self.facts[f"the order of {path or 'the modules'}"] = tuple(state["_modules"])
        for name, child in state["_modules"].items():
            self._watch(state["_modules"], name, child)
            if child is None:
                self.facts[_joined(path, name)] = None
            else:
                self._walk(child, _joined(path, name))
        for name, value in list(state.items()):
            hides = callable(value) and not isinstance(value, nn.Module)  # a method, perhaps
            if name not in _BOOKKEEPING and (hides or self._open or name in read):
                self._watch(there, name, value)
                self.facts[_joined(path, name)] = self._value(value, _joined(path, name), 0)
            elif name not in _BOOKKEEPING:
                self.keys.append((there, name))  # else what is added might hide a method, and none be missing

    def _names_used(self, module: nn.Module) -> set[str]:
        return self._others.union(*(self._own.get(c, ()) for c in type(module).__mro__))

    def _hooks(self, state: dict[str, Any], path: str) -> None:
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            hooks = state[kind]
            foreign = [h for h in hooks.values() if not type(h).__module__.startswith("torch.nn.utils.")]
            if foreign:
                self.refusal = self.refusal or f"{path} has a hook"
            if hooks:
                self._watch(state, kind, hooks)
                self.sizes.append((hooks, len(hooks)))
                for key, hook in hooks.items():
                    self._watch(hooks, key, hook)
                self.facts[f"the hooks of {path}"] = tuple(type(h).__qualname__ for h in hooks.values())
            else:
                self.empty.append((state, kind))

    def _tensor(self, held: dict[str, Any], name: str, tensor: Tensor | None, path: str) -> None:
        self.facts[path] = None
        self._watch(held, name, tensor)
        if tensor is None:
            return
        self._kept.append(tensor)
        first = self._first.setdefault(id(tensor), path)
        self.tensors[path] = held, name
        self.facts[path] = f"the same as {first}" if first != path else _kind(tensor)
        if first != path:
            self.shared |= {path, first}

    def _value(self, value: Any, path: str, depth: int) -> Any:
        """What the value is, to compare; what of it may change in place is watched."""
        if isinstance(value, PLAIN_VALUES):
            if isinstance(value, type):
                self._read_helpers(value)
            return by_type(value)
        if isinstance(value, Tensor):
            return self._constant(value, path) if depth else _kind(value)
        if isinstance(value, nn.Module):
            if id(value) not in self._tree:  # else it is looked at in its place
                self._walk(value, path)
            return class_name(type(value))
        if isinstance(value, functools.partial):
            held = (value.func, value.args, value.keywords)
            return "partial", tuple(self._value(v, f"{path}.{i}", depth + 1) for i, v in enumerate(held))
        if isinstance(value, types.MethodType):
            return fingerprint(value), self._value(value.__self__, f"{path}.__self__", depth + 1)
        if list(functions_of(value)) or isinstance(value, types.BuiltinFunctionType):
            for function in functions_of(value):
                if not _is_torch(function.__module__):
                    self._read(function, None)
            return fingerprint(value)
        if depth > _DEPTH or id(value) in self._first:
            return class_name(type(value))
        self._first[id(value)] = path
        self._kept.append(value)
        return self._inside(value, path, depth)

    def _constant(self, tensor: Tensor, path: str) -> Any:
        """A constant of the trace, perhaps: an attribute of a module alone is read anew at each call."""
        if tensor.is_inference():
            self.refusal = self.refusal or f"{path} is a tensor of inference mode, whose changes nobody sees"
        elif id(tensor) not in self._first:
            self.versions.append((tensor, tensor._version))
        return _kind(tensor), tuple(tensor.shape), content(tensor)

    def _inside(self, value: Any, path: str, depth: int) -> Any:
        kind = class_name(type(value))
        if isinstance(value, types.MappingProxyType):
            value = _behind(value)
        if isinstance(value, dict):
            self.sizes.append((value, len(value)))
            for key, item in value.items():
                self._watch(value, key, item)
            if len(value) > 1:
                self.ordered.append(value)
            return kind, tuple((repr(k), self._value(v, f"{path}[{k!r}]", depth + 1)) for k, v in value.items())
        if isinstance(value, list | deque):
            self.sizes.append((value, len(value)))
            for i, item in enumerate(value):
                self._watch(value, i, item)
        if isinstance(value, list | tuple | deque):
            return kind, tuple(self._value(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value))
        if isinstance(value, types.ModuleType | logging.Logger):  # a logger's cache moves, no result hangs on it
            return kind
        self._read_helpers(type(value))
        slots = [(k, getattr(value, k)) for k in copyreg._slotnames(type(value)) if hasattr(value, k)]  # type: ignore[attr-defined]
        inside = getattr(value, "__dict__", None)
        if not slots and not isinstance(inside, dict):
            return self._opaque(value, kind)
        members = (v for c in type(value).__mro__ for v in vars(c).values())
        named = self._names.union(*(code_names(f.__code__) for v in members for f in functions_of(v)))
        found = [(k, v) for k, v in (inside or {}).items() if self._open or k in named]
        self.attributes += [(value, key, item) for key, item in slots]
        if isinstance(inside, dict):
            self.sizes.append((inside, len(inside)))  # what is new may hide what the class has
            self.keys += [(inside, k) for k in inside if k not in dict(found)]
        for key, item in found:
            self._watch(inside, key, item)
        return kind, tuple((k, self._value(v, f"{path}.{k}", depth + 1)) for k, v in (*slots, *found))

    def _opaque(self, value: Any, kind: str) -> Any:
        found = content(value)
        if isinstance(value, CHANGING):
            self.contents.append((value, found))
        return kind, found


def difference(before: Facts, now: Facts) -> str:
    """What tells most of how two surveys' facts differ, in words; "" where all are alike: classes of modules, then what
    has changed, then what was not there or is not."""
    other = [n for n in (*before, *now) if before.get(n, _MISSING) != now.get(n, _MISSING)]
    if not other:
        return ""
    classes = [n for n in other if isinstance(before.get(n), ClassName) or isinstance(now.get(n), ClassName)]
    name = next(iter(classes or [n for n in other if n in before and n in now] or other))
    if name not in before or name not in now:
        return f"{name} is {'gone' if name in before else 'new'}"
    if name in classes and isinstance(now[name], str) and isinstance(before[name], str):
        return f"{name} is a {now[name].split('.')[-1]}, not a {before[name].split('.')[-1]}"
    return f"{name} has changed"


_MISSING = object()


def _classes(modules: list[nn.Module]) -> list[type]:
    """Their classes and those that they inherit from, above torch's own root, each once."""
    found = dict.fromkeys(c for m in modules for c in type(m).__mro__ if c not in _BASES)
    return [c for c in found if GUARD not in vars(c)]


def _behind(proxy: Any) -> Any:
    """The dictionary that a class shows through a proxy: a look at it takes half the time."""
    found = gc.get_referents(proxy)
    return found[0] if len(found) == 1 and type(found[0]) is dict and found[0].keys() == proxy.keys() else proxy


def _is_installed_with_python(kind: type) -> bool:
    return _is_torch(kind.__module__) or kind.__module__.split(".")[0] in sys.stdlib_module_names


def _kind(tensor: Tensor) -> str:
    return "a tensor" if type(tensor) in PLAIN else type(tensor).__qualname__


def _is_torch(name: str | None) -> bool:
    return (name or "").split(".")[0] in ("torch", "builtins")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
