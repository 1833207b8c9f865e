"""What a forward writes beside tensors: attributes, globals, and what lies in containers and objects.

A graph of operators holds none of it, so a module that does it is not fused. The forward is called twice on tensors
without data. The first call shows which objects its Python code reaches, and may fill memos (a table for a new length,
say), which are no result of a call; what the second call changes is what every call does. Numbers and strings that it
may write anew are equal ones of another kind then, so that a write of the same value shows. Then all is put back.
Buffers and parameters are left to the tracer, which follows writes to them. Not seen: True, False or None written over
itself in a dict, a list or an object that is no module, an equal value in slots, and what C++ code keeps.
"""

from __future__ import annotations

import builtins
import copyreg
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.func import functional_call

from .recurrent import told_by_shape

_TABLES = ("_parameters", "_buffers", "_modules")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_PLAIN = frozenset({"types", "argparse", "collections", "dataclasses"})  # whose objects only hold values
_SKIPPED = (Tensor, str, bytes, int, float, complex, type(None), torch.dtype, torch.device)
_MOST = 200_000  # values that are looked at
_MISSING = object()
_Owned = list[tuple[Any, str]]  # values, and what they are called


def written(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The name of something that each call of the module on such arguments writes, "" where there is none, or where it
    can't be called on tensors without data, as no tracer can then."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    state = {f"module.{k}": v for k, v in (*module.named_parameters(), *module.named_buffers())}
    watched = _Watched(module)
    try:
        with torch.no_grad(), told_by_shape(), enable_python_dispatcher():
            fakes, given, named = pytree.tree_map_only(Tensor, mode.from_tensor, (state, args, kwargs))
            with mode:
                functional_call(watched, fakes, given, named, strict=False)
    except Exception:  # of as many kinds as code and operators have
        return ""
    return watched.found


class _Watched(nn.Module):
    """Calls the module twice, and then holds in `found` what the second call wrote."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.found = ""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        before = _Reached()
        before.add(self.module, "self")
        try:
            with before.followed():
                self.module(*args, **kwargs)
            try:
                return self._again(before.anew(), args, kwargs, twins=True)
            except Exception:  # some code looks at types, or so deep into a value that a meta tensor does not do
                return self._again(before.anew(), args, kwargs, twins=False)
        finally:
            before.put_back()

    def _again(self, reached: _Reached, args: Any, kwargs: Any, *, twins: bool) -> Any:
        try:
            if twins:
                reached.put_twins()
            now = reached.anew()
            with _attributes_noted(now) as (ours, theirs):
                result = self.module(*args, **kwargs)
            self.found = next(iter(ours), "") or now.changed(theirs)
            return result
        finally:
            reached.put_back()


class _Int(int):
    """Equal to a number, and another object: what is written over it shows, though it be equal."""


class _Float(float):
    """The same of a float."""


class _Str(str):
    """The same of a string."""

    __slots__ = ()


_TWINS: dict[type, Callable[[Any], Any]] = {int: _Int, float: _Float, str: _Str}


@dataclass(frozen=True, slots=True)
class _Held:
    """What a container, a class, a cell or an object with slots held. `by_key`: whether only its keys count; `fields`:
    whether they are names of attributes; `of_module`: whether it is a module's own."""

    value: Any
    name: str
    content: tuple[Any, ...]
    by_key: bool = False
    fields: bool = False
    of_module: bool = False


class _Reached:
    """Containers and fields of objects, each with its contents when it was met first."""

    def __init__(self) -> None:
        self.held: dict[int, _Held] = {}
        self._met: dict[int, tuple[Any, str]] = {}
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._met

    def add(self, value: Any, name: str) -> None:
        waiting: deque[tuple[Any, str]] = deque([(value, name)])
        while waiting and len(self._met) < _MOST:
            value, name = waiting.popleft()
            skipped = isinstance(value, _SKIPPED) or value is vars(builtins)  # without these, nothing is put back
            if not skipped and id(value) not in self._met:
                self._met[id(value)] = value, name
                waiting += _inside(self, value, name)

    def path(self, value: Any) -> str:
        return self._met[id(value)][1]

    def anew(self) -> _Reached:
        """The same objects, and what they lead to, with their contents now."""
        now = _Reached()
        for value, name in list(self._met.values()):
            now.add(value, name)
        for key, (space, name, _) in self._globals.items():
            now._globals[key] = space, name, space.get(name, _MISSING)
        return now

    def changed(self, spared: set[tuple[int, str]]) -> str:
        """The name of what does not hold what it held; `spared`: fields, by the identity of their dictionary."""
        for space, name, value in self._globals.values():
            if space.get(name, _MISSING) is not value:
                return name
        for held in self.held.values():
            place, value = id(held.value), held.value
            now = tuple(pair for pair in _content(value) if (place, pair[0]) not in spared)
            was = tuple(pair for pair in held.content if (place, pair[0]) not in spared)
            if [k for k, _ in now] != [k for k, _ in was]:
                return held.name
            if not held.by_key and (other := [k for (k, a), (_, b) in zip(now, was, strict=True) if a is not b]):
                return f"{held.name}.{other[0]}" if held.fields else f"{held.name}[{other[0]!r}]"
        return ""

    def put_twins(self) -> None:
        """Put an equal object in the place of each number and string, but for modules' own, whose writes are noted."""
        for held in self.held.values():
            if type(held.value) in (dict, list) and not held.of_module:
                for key, item in held.content:
                    if type(item) in _TWINS:
                        held.value[key] = _TWINS[type(item)](item)
        for space, name, value in self._globals.values():
            if type(value) in _TWINS:
                space[name] = _TWINS[type(value)](value)

    def put_back(self) -> None:
        for space, name, value in self._globals.values():
            if value is _MISSING:
                space.pop(name, None)
            elif space.get(name) is not value:
                space[name] = value
        for held in self.held.values():
            if not _same(_content(held.value), held.content):
                _fill(held.value, held.content)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Inside, what Python code that is not torch's is given, or names, is added before it runs."""

        def seen(frame: types.FrameType, event: str, _: Any) -> None:
            if event == "call" and not _is_torch(frame.f_globals.get("__name__")):
                for name, value in list(frame.f_locals.items()):  # arguments, and what it closes over
                    self.add(value, name)
                self._names(frame.f_globals, frame.f_code.co_names)

        before = sys.getprofile()
        sys.setprofile(seen)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _names(self, space: dict[str, Any], names: tuple[str, ...]) -> None:
        """What code names of its file, and of files that it names."""
        for name in names:
            if (id(space), name) in self._globals:
                continue
            value = space.get(name, _MISSING)
            self._globals[id(space), name] = space, name, value
            if not isinstance(value, types.ModuleType):
                self.add(value, name)
            elif not _is_torch(value.__name__):
                self._names(vars(value), names)

    def hold(self, value: Any, name: str, **named: bool) -> None:
        self.held[id(value)] = _Held(value, name, _content(value), **named)


def _inside(reached: _Reached, value: Any, name: str) -> _Owned:
    """Note what it holds; what is in there."""
    if isinstance(value, nn.Module):
        return _module(reached, value, name)
    if isinstance(value, dict | list | tuple | set | deque):
        reached.hold(value, name)
        found = [(item, f"{name}[{key!r}]") for key, item in _content(value)]
        return found + _fields(reached, value, name)
    if isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            reached.hold(cell, name)
        more = [(cell.cell_contents, name) for cell in value.__closure__ or () if _content(cell)]
        return [*more, (vars(value), name), (value.__defaults__, name), (value.__kwdefaults__, name)]
    if isinstance(value, types.MethodType):
        return [(value.__self__, name), (value.__func__, name)]
    if isinstance(value, functools.partial):
        return [(value.func, name), (value.args, name), (value.keywords, name)]
    if isinstance(value, type):
        return _class(reached, value)
    return _fields(reached, value, name)


def _module(reached: _Reached, module: nn.Module, name: str) -> _Owned:
    fields = module.__dict__
    reached.hold(fields, name, fields=True, of_module=True)
    for table in _TABLES:
        reached.hold(fields[table], name, by_key=table != "_modules", fields=True, of_module=True)
    found = [(item, f"{name}.{key}") for key, item in fields.items() if key not in _OF_EVERY_MODULE]
    return [*found, *((child, f"{name}.{key}") for key, child in fields["_modules"].items()), (type(module), name)]


def _class(reached: _Reached, kind: type) -> _Owned:
    if _is_torch(kind.__module__):
        return []
    reached.hold(kind, kind.__name__, fields=True)
    return [(item, f"{kind.__name__}.{key}") for key, item in _content(kind)] + [(c, "") for c in kind.__bases__]


def _fields(reached: _Reached, value: Any, name: str) -> _Owned:
    kind = type(value)
    if _is_torch(kind.__module__) and kind.__module__ not in _PLAIN:
        return []
    found: _Owned = []
    if _slots(value) and id(value) not in reached.held:
        reached.hold(value, name, fields=True)
        found = [(item, f"{name}.{key}") for key, item in _content(value)]
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict):
        reached.hold(fields, name, fields=True)
        found += [(item, f"{name}.{key}") for key, item in fields.items()]
    return [*found, (kind, kind.__name__)]


def _content(value: Any) -> tuple[tuple[Any, Any], ...]:
    """What it holds, under keys."""
    if isinstance(value, type):
        return tuple(vars(value).items())
    if isinstance(value, dict):
        return tuple(dict.items(value))
    if isinstance(value, list | tuple | set | deque):
        return tuple(enumerate(value))
    if isinstance(value, types.CellType):
        try:
            return ((0, value.cell_contents),)
        except ValueError:  # an empty one
            return ()
    return tuple((name, getattr(value, name)) for name in _slots(value) if hasattr(value, name))


def _slots(value: Any) -> list[str]:
    found: list[str] = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
    return found


def _fill(value: Any, content: tuple[tuple[Any, Any], ...]) -> None:
    """Make it hold that again."""
    if isinstance(value, types.CellType):
        value.cell_contents = content[0][1] if content else None
    elif isinstance(value, dict):
        dict.clear(value)
        dict.update(value, content)
    elif isinstance(value, set):
        value.clear()
        value.update(item for _, item in content)
    elif isinstance(value, list | deque):
        value.clear()
        value.extend(item for _, item in content)
    else:
        before = dict(content)
        for name, item in _content(value):
            if item is not before.get(name, _MISSING):
                _set(value, name, before)
        for name in before.keys() - dict(_content(value)).keys():
            setattr(value, name, before[name])


def _set(owner: Any, name: str, before: dict[str, Any]) -> None:
    if name in before:
        setattr(owner, name, before[name])
    else:
        delattr(owner, name)


def _same(one: tuple[tuple[Any, Any], ...], other: tuple[tuple[Any, Any], ...]) -> bool:
    return len(one) == len(other) and all(a[0] == b[0] and a[1] is b[1] for a, b in zip(one, other, strict=True))


@contextmanager
def _attributes_noted(reached: _Reached) -> Iterator[tuple[list[str], set[tuple[int, str]]]]:
    """The attributes of modules that are set inside: the names of those that the user's code sets, and the places of
    those that torch's own does, which computes them anew at each call (`torch.nn.utils.prune`, say)."""
    ours: list[str] = []
    theirs: set[tuple[int, str]] = set()
    kept = nn.Module.__setattr__

    def noting(self: nn.Module, name: str, value: Any) -> None:
        if _is_torch(sys._getframe(1).f_globals.get("__name__")):
            theirs.add((id(self.__dict__), name))
        elif self in reached and not (isinstance(value, Tensor) and name in (*self._buffers, *self._parameters)):
            ours.append(f"{reached.path(self)}.{name}")
        kept(self, name, value)

    nn.Module.__setattr__ = noting  # type: ignore[method-assign]
    try:
        yield ours, theirs
    finally:
        nn.Module.__setattr__ = kept  # type: ignore[method-assign]


def _is_torch(name: str | None) -> bool:
    root = (name or "").split(".")[0]
    return root in ("torch", "tilewright") or root in sys.stdlib_module_names
