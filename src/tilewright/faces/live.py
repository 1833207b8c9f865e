"""A live module's replacement: of the module's own class, over its own parts, and copied and pickled as it would be."""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from ..edges.in_use import hold
from ..facts.candidate import Candidate, SourceFile
from ..facts.errors import UserError
from ..judge.build import load_candidate
from ..judge.candidate_process.load import last_line
from ..kernels.guards import Guard, count
from ..kernels.survey import GUARD
from ..run.optimize import write_candidate
from . import config
from .called import let_be_called
from .trees import PLAIN, Trees, adapted

_FALLBACKS = "_tilewright_fallbacks"
_MODEL = "_tilewright_model"
_WRITTEN = "_tilewright_names"  # of the attributes that hold what a call writes to
_CASE = "_case_"  # how the methods begin that run kernels
_Files = tuple[tuple[str, str], ...]  # path and text of each
_classes: dict[tuple[str, type], type] = {}  # the latest of each candidate and class: copies from a file are of it


def replacement(module: nn.Module, folder: Path, trees: Trees = PLAIN) -> nn.Module:
    """A module that runs the candidate in `folder`, which `stages.propose` made, where all is as it is in `module` now,
    and else the forward of `module`'s class. It shares submodules, parameters and buffers with `module`. `trees`: its
    containers, for which the candidate was made."""
    return _over(module, _class(load_candidate(folder), type(module), folder, trees))


def compiled_by_torch(module: nn.Module, mode: str) -> nn.Module:
    """A module of the same class that torch.compile runs in this mode at its next calls. It shares submodules,
    parameters and buffers with `module`, which stays as it is; the names of its state are the same."""
    new = _empty(type(module))
    new.__dict__.update(module.__dict__)
    new.compile(mode=mode)
    return new


def repeated(module: nn.Module, first: nn.Module) -> nn.Module:
    """The same of a module that computes what the one does that `first` replaces, with parameters of its own: kernels
    are built once, and calls counted together."""
    return _over(module, type(first))


def _over(module: nn.Module, kind: type) -> nn.Module:
    new = _empty(kind)
    new.__dict__.update(module.__dict__)
    new.__dict__.update(dict.fromkeys(getattr(kind, _WRITTEN)))  # bound while a call writes to them
    new.__dict__[GUARD] = getattr(kind, _MODEL).guard(new)
    return new


def adapted_module(module: nn.Module, trees: Trees, *, written: Mapping[str, Tensor]) -> nn.Module:
    """The module as it is judged: it takes and gives tensors in plain containers, and `written` are its buffers."""
    if trees.plain:
        return module
    made = _empty(_adapted(type(module), trees))
    made.__dict__.update(module.__dict__, _buffers={**module._buffers, **written})
    return made


def _adapted(base: type, trees: Trees) -> type:
    kind: type = adapted(base, trees.layouts(), trees.result is not None, trees.autocast)
    return kind


def fallbacks(module: nn.Module) -> dict[str, int]:
    """How often calls of what `optimize` gave, and of its copies in this process, ran the original forward instead of
    fused kernels, by reason."""
    return dict(getattr(type(module), _FALLBACKS, {}))


def _class(candidate: Candidate, base: type, folder: Path, trees: Trees) -> type:
    """The candidate's ModelNew with the user's class, as it is in this process, where it had the captured one; it
    counts for itself."""
    model = loaded(folder, base if trees.plain else _adapted(base, trees))
    if not trees.plain and not hasattr(model.ModelNew, "_tilewright_fall_back"):
        model = loaded(folder, base)  # torch.compile has all of it, and takes containers
    kind: type = model.ModelNew
    let_be_called(kind, base, trees, model)
    kind.__name__, kind.__qualname__ = base.__name__, base.__qualname__  # as its errors and its repr say
    setattr(kind, _MODEL, model)
    setattr(kind, _WRITTEN, tuple(w.name for given in trees.given for w in given.written))
    for name in [name for name in vars(kind) if name.startswith(_CASE)]:
        setattr(kind, name, _tried(kind, name))
    return _registered(kind, candidate, base, model.FALLBACKS, trees)


def _registered(kind: type, candidate: Candidate, base: type, counts: dict[str, int], trees: Trees) -> type:
    """The class, copied and pickled as modules of `base` are."""
    files: _Files = tuple((file.path, file.text) for file in candidate.files)

    def reduce(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
        held, state = self.__dict__.get(GUARD), self.__getstate__()
        if isinstance(state, dict):
            state = {key: value for key, value in state.items() if key != GUARD}
        known = base, files, None if held is None else held.__getstate__()
        return _restored, known if trees.plain else (*known, trees), state

    setattr(kind, _FALLBACKS, counts)
    kind.__reduce_ex__ = reduce  # type: ignore[method-assign,assignment]
    if not hasattr(base, "__deepcopy__"):
        kind.__deepcopy__ = _deep_copy  # type: ignore[attr-defined]
    if not hasattr(base, "__copy__"):
        kind.__copy__ = _shallow_copy  # type: ignore[attr-defined]
    _classes[candidate.id, base] = kind
    return kind


def _deep_copy(self: nn.Module, memo: dict[int, Any]) -> nn.Module:
    made = _empty(type(self))
    memo[id(self)] = made
    made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
    return made


def _shallow_copy(self: nn.Module) -> nn.Module:
    made = _empty(type(self))
    made.__setstate__(dict(self.__getstate__()))
    return made


def _empty(kind: type) -> nn.Module:
    made: nn.Module = object.__new__(kind)
    return made


def _restored(base: type, files: _Files, guard: Any, trees: Trees = PLAIN) -> nn.Module:
    """Unpickles: the candidate is written to the cache, and loaded from there. Where it can't be, the module is one of
    `base` that says so when it is called."""
    candidate = Candidate(files=tuple(SourceFile(path=path, text=text) for path, text in files))
    folder = config.cache_dir() / "modules" / candidate.id
    try:
        if (kind := _classes.get((candidate.id, base))) is None:
            if not folder.exists():
                _write_once(candidate, folder)
            kind = _class(candidate, base, folder, trees)
    except Exception as error:  # whatever a library that is missing here makes of its import
        kind = _unfused(candidate, base, _no_kernels(error), trees)
    made = _empty(kind)
    if guard is not None:
        guards = getattr(getattr(kind, _MODEL, None), "Guard", Guard)  # one that is not asked is kept for the next file
        made.__dict__[GUARD] = guards.__new__(guards)
        made.__dict__[GUARD].__setstate__(guard)
    return made


def _write_once(candidate: Candidate, folder: Path) -> None:
    """Write it beside, and put it in its place: several processes may restore one module at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        written = Path(beside) / folder.name
        write_candidate(candidate, written)
        try:
            written.rename(folder)
        except OSError:
            if not folder.exists():
                raise


def _unfused(candidate: Candidate, base: type, why: str, trees: Trees) -> type:
    counts: dict[str, int] = {}

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        count(counts, why)
        return base.forward(self, *args, **kwargs)  # type: ignore[attr-defined]

    kind = type(base.__name__, (base,), {"forward": forward, GUARD: None})
    return _registered(kind, candidate, base, counts, trees)


def _tried(kind: type, name: str) -> Callable[..., Any]:
    """The method of a case until its first call has ended: it builds kernels, which another machine may not be able
    to. Then it is the method itself; or, where only the original forward can be run, that one, counted."""
    run: Callable[..., Any] = vars(kind)[name]

    @functools.wraps(run)
    def first(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return run(self, *args, **kwargs)
        try:
            result = run(self, *args, **kwargs)
        except Exception as error:  # of as many kinds as compilers, drivers and libraries have
            why = _no_kernels(error)
        else:
            setattr(kind, name, run)
            return result

        def original(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            count(getattr(kind, _FALLBACKS), why)
            return kind.__bases__[0].forward(self, *args, **kwargs)  # type: ignore[attr-defined]

        result = original(self, *args, **kwargs)
        setattr(kind, name, original)
        return result

    return first


def _no_kernels(error: Exception) -> str:
    return f"its kernels can't be built here: {type(error).__name__}: {last_line(error)[:200]}"


def load(folder: str | Path) -> type[nn.Module]:
    """`ModelNew` of the candidate in `folder`, a run's or the candidate's own, whatever else is called model.py: its
    constructor takes what `Model` takes. Raises UserError where there is none."""
    places = [place for place in (Path(folder) / "candidate", Path(folder)) if (place / "model.py").is_file()]
    if not places:
        raise UserError(f"{folder}: no candidate here (no model.py); a run hands one over when it ends")
    kind = getattr(loaded(places[0].resolve()), "ModelNew", None)
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise UserError(f"{places[0] / 'model.py'}: has no ModelNew; give the folder of a run, or of a candidate")
    return kind


def loaded(candidate: Path, base: type | None = None) -> ModuleType:
    """Import a candidate's model.py, with `base`, where it is given, for its Model, under a name of its own; its
    companions leave `sys.modules` again, since the next candidate's have the same names."""
    spec = importlib.util.spec_from_file_location(f"tilewright_candidate_{uuid.uuid4().hex}", candidate / "model.py")
    assert spec is not None and spec.loader is not None
    model = importlib.util.module_from_spec(spec)
    if base is not None:
        vars(model)["LIVE_MODEL"] = base  # what original.py unpickles would write over the class that it was made from
    hold(candidate)
    before = set(sys.modules)
    sys.path.insert(0, str(candidate))
    try:
        spec.loader.exec_module(model)
    finally:
        sys.path.remove(str(candidate))
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(candidate):
                del sys.modules[name]
    sys.modules[model.__name__] = model
    return model
