"""What a module's call depends on beside its arguments: by value, to compare, and by identity, to watch."""

from __future__ import annotations

import copyreg
import functools
import logging
import types
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .contents import CHANGING, PLAIN_VALUES, by_type, class_name, code_names, content, fingerprint, functions_of
from .reached import ReachedCode
from .watched import Watched, behind

GUARD = "_tilewright_guard"  # the attribute of a module that holds its guard
WRITTEN = "_tilewright_written_"  # how attributes begin that hold, during a call, arguments that it writes to
PLAIN = (Tensor, nn.Parameter, nn.Buffer)  # tensors of these very types are what kernels take
_BOOKKEEPING = frozenset(vars(nn.Module())) | {GUARD}
_OPEN = frozenset(  # who names these may read any attribute
    {"getattr", "hasattr", "vars", "__dict__", "eval", "exec", "attrgetter", "methodcaller", "__getattribute__",
     "getattr_static", "getmembers", "asdict", "astuple"}
)  # fmt: skip
_IN_ORDER = frozenset({"children", "named_children", "modules", "named_modules", "_modules", "apply"})
_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_MODES = frozenset({"is_grad_enabled", "is_inference_mode_enabled", "is_inference"})
_BASES = (nn.Module, object)
_DEPTH = 40  # of values within values; each is looked at once

Facts = dict[str, Any]


class ClassName(str):
    """The class of a module, among facts."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:  # as text: this file has another name in each process
        return str, (str(self),)


class Survey:
    """`facts`: everything by value, under the name that a reason gives it; picklable. `watched`: what must be as it is
    now. `modes`: whether code asks if gradients are on. `refusal`: why no fused call may stand for this module, ""
    where one may.

    The root's own dictionary is not held here, but by whoever holds the survey. `ROOT` stands for it."""

    ROOT: Mapping[str, Any] = types.MappingProxyType({})

    def __init__(self, root: nn.Module) -> None:
        self.facts: Facts = {}
        self.watched = Watched()
        self.refusal = ""
        self._root = root
        self._tree = {id(module) for module in root.modules()}
        self._first: dict[int, str] = {}  # of each module and tensor, where it was met first
        self._code = ReachedCode(self.watched)
        self._code.read_modules(list(root.modules()), _classes(list(root.modules())))
        self._code.read_values(self._value)
        self.facts["the default dtype"] = torch.get_default_dtype()
        self._walk(root, "")
        self._code.read_values(self._value)
        self.facts |= self._code.facts  # behind the module's own: reasons name the first that differs
        self.modes = bool(self._code.others & _MODES)

    @property
    def _open(self) -> bool:
        return bool(self._code.others & _OPEN)

    def _walk(self, module: nn.Module, path: str) -> None:
        if path and id(module) in self._first:
            self.facts[path] = f"the same as {self._first[id(module)]}"
            return
        self._first[id(module)] = path or "the module"
        self.watched.kept.append(module)
        state = module.__dict__
        there: Any = state if path else self.ROOT
        if path:
            self.facts[path] = ClassName(class_name(type(module)))
            self.watched.types.append((module, type(module)))
            self.watched.settle(state)
            self._hooks(state, path)
        self.watched.sizes.append((there, len(state)))
        read = self._code.names_used(module)
        if "training" in read:
            self.watched.value(there, "training", module.training)
            self.facts[f"{path}.training"] = module.training == self._root.training
        for name in ("_parameters", "_buffers", "_modules"):
            held = state[name]
            if held or not path:
                self.watched.value(there, name, held)
        for name, value in (*state["_parameters"].items(), *state["_buffers"].items()):
            self._tensor(state["_parameters"] if name in state["_parameters"] else state["_buffers"], name, value,
                         _joined(path, name))  # fmt: skip
        if state["_modules"]:
            if isinstance(module, _LISTS) or self._code.names_used(module) & _IN_ORDER:
                self.watched.ordered.append(state["_modules"])
            self.watched.settle(state["_modules"])
            self.watched.sizes.append((state["_modules"], len(state["_modules"])))
            self.facts[f"the order of {path or 'the modules'}"] = tuple(state["_modules"])
        for name, child in state["_modules"].items():
            self.watched.value(state["_modules"], name, child)
            if child is None:
                self.facts[_joined(path, name)] = None
            else:
                self._walk(child, _joined(path, name))
        for name, value in list(state.items()):
            if name.startswith(WRITTEN):
                self.watched.tensors[_joined(path, name)] = there, name
                continue
            hides = callable(value) and not isinstance(value, nn.Module)  # a method, perhaps
            if name not in _BOOKKEEPING and (hides or self._open or name in read):
                self.watched.value(there, name, value)
                self.facts[_joined(path, name)] = self._value(value, _joined(path, name), 0)
            elif name not in _BOOKKEEPING:
                self.watched.keys.append((there, name))  # else what is added might hide a method, and none be missing

    def _hooks(self, state: dict[str, Any], path: str) -> None:
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            hooks = state[kind]
            foreign = [h for h in hooks.values() if not type(h).__module__.startswith("torch.nn.utils.")]
            if foreign:
                self.refusal = self.refusal or f"{path} has a hook"
            if hooks:
                self.watched.value(state, kind, hooks)
                self.watched.sizes.append((hooks, len(hooks)))
                for key, hook in hooks.items():
                    self.watched.value(hooks, key, hook)
                self.facts[f"the hooks of {path}"] = tuple(type(h).__qualname__ for h in hooks.values())
            else:
                self.watched.empty.append((state, kind))

    def _tensor(self, held: dict[str, Any], name: str, tensor: Tensor | None, path: str) -> None:
        self.facts[path] = None
        self.watched.value(held, name, tensor)
        if tensor is None:
            return
        self.watched.kept.append(tensor)
        first = self._first.setdefault(id(tensor), path)
        self.watched.tensors[path] = held, name
        self.facts[path] = f"the same as {first}" if first != path else _kind(tensor)
        if first != path:
            self.watched.shared |= {path, first}

    def _value(self, value: Any, path: str, depth: int) -> Any:
        """What the value is, to compare; what of it may change in place is watched."""
        if isinstance(value, PLAIN_VALUES):
            if isinstance(value, type):
                self._code.read_methods(value)
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
            self._code.read_functions(value)
            return fingerprint(value)
        if depth > _DEPTH or id(value) in self._first:
            return class_name(type(value))
        self._first[id(value)] = path
        self.watched.kept.append(value)
        return self._inside(value, path, depth)

    def _constant(self, tensor: Tensor, path: str) -> Any:
        """A constant of the trace, perhaps: an attribute of a module alone is read anew at each call."""
        if tensor.is_inference():
            self.refusal = self.refusal or f"{path} is a tensor of inference mode, whose changes nobody sees"
        elif id(tensor) not in self._first:
            self.watched.versions.append((tensor, tensor._version))
        return _kind(tensor), tuple(tensor.shape), content(tensor)

    def _inside(self, value: Any, path: str, depth: int) -> Any:
        kind = class_name(type(value))
        if isinstance(value, types.MappingProxyType):
            value = behind(value)
        if isinstance(value, dict):
            self.watched.sizes.append((value, len(value)))
            for key, item in value.items():
                self.watched.value(value, key, item)
            if len(value) > 1:
                self.watched.ordered.append(value)
            return kind, tuple((repr(k), self._value(v, f"{path}[{k!r}]", depth + 1)) for k, v in value.items())
        if isinstance(value, list | deque):
            self.watched.sizes.append((value, len(value)))
            for i, item in enumerate(value):
                self.watched.value(value, i, item)
        if isinstance(value, list | tuple | deque):
            return kind, tuple(self._value(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value))
        if isinstance(value, types.ModuleType | logging.Logger):  # a logger's cache moves, no result hangs on it
            return kind
        self._code.read_methods(type(value))
        slots = [(k, getattr(value, k)) for k in copyreg._slotnames(type(value)) if hasattr(value, k)]  # type: ignore[attr-defined]
        inside = getattr(value, "__dict__", None)
        if not slots and not isinstance(inside, dict):
            return self._opaque(value, kind)
        members = (v for c in type(value).__mro__ for v in vars(c).values())
        named = self._code.names.union(*(code_names(f.__code__) for v in members for f in functions_of(v)))
        found = [(k, v) for k, v in (inside or {}).items() if self._open or k in named]
        self.watched.attributes += [(value, key, item) for key, item in slots]
        if isinstance(inside, dict):
            self.watched.sizes.append((inside, len(inside)))  # what is new may hide what the class has
            self.watched.keys += [(inside, k) for k in inside if k not in dict(found)]
        for key, item in found:
            self.watched.value(inside, key, item)
        return kind, tuple((k, self._value(v, f"{path}.{k}", depth + 1)) for k, v in (*slots, *found))

    def _opaque(self, value: Any, kind: str) -> Any:
        found = content(value)
        if isinstance(value, CHANGING):
            self.watched.contents.append((value, found))
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


def _kind(tensor: Tensor) -> str:
    plain = type(tensor) in PLAIN or torch.compiler.is_exporting()  # which puts fake tensors in their place
    return "a tensor" if plain else type(tensor).__qualname__


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
