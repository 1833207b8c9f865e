"""Loading what the user wrote: a problem file's Model and functions."""

from __future__ import annotations

import linecache
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..candidate_process import values
from ..candidate_process.load import CodeRaised, blaming


@dataclass(frozen=True, slots=True)
class ProblemModule:
    """The three names of a problem file."""

    model: type
    get_inputs: Callable[..., Any]
    get_init_inputs: Callable[..., Any]


def load_problem(path: str, source: str) -> ProblemModule:
    """Execute the source as a module that believes to be `path`; its folder is importable."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    try:
        code = compile(source, path, "exec")
    except (SyntaxError, ValueError) as error:
        raise CodeRaised("not_python", f"{path} is not Python: {error}") from error
    module = types.ModuleType("tilewright_problem")
    module.__file__ = path
    sys.modules[module.__name__] = module
    with blaming("raised", "it raised when it was loaded"):
        exec(code, module.__dict__)
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if not callable(getattr(module, name, None)):
            raise CodeRaised("no_entry", f"{path} defines no {name}")
    return ProblemModule(module.Model, module.get_inputs, module.get_init_inputs)


def require_tensors(result: Any) -> None:
    """Raise CodeRaised("bad_module") where what a module returned is not tensors, and what may hold them, alone."""
    wanted = "and only those can be judged; return tensors or None, or tuples, lists or dicts of them"
    tensors: list[Tensor] = []
    try:
        tree = values.encode(result, tensors, sort_keys=True)
    except values.CannotTravel as error:
        raise CodeRaised("bad_module", f"forward returns {error}, {wanted}") from error
    if other := values.misfit(tree):
        raise CodeRaised("bad_module", f"forward returns {other}, which is not a tensor, {wanted}")
    if not tensors:
        raise CodeRaised("bad_module", "forward returns no tensor")
