"""torch.export of a module as it runs in eager mode.

Code of models asks whether it is exported, and then does what is right for any example: it builds a mask where eager
mode has none, or where `is_causal` says the same. A trace holds for its example alone, and guards say so. So only
torch's own code is told that an export is going on; where a module then wants to know a value, all code is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

_ASKED: set[str] = set()  # names of files that were told otherwise than torch's code


def _is_compiling() -> bool:
    from tilewright.frontend import eager  # runs with the globals of torch.compiler

    return eager.told(_is_compiling_flag)  # type: ignore[name-defined] # noqa: F821


def _is_exporting() -> bool:
    from tilewright.frontend import eager

    return eager.told(_is_exporting_flag)  # type: ignore[name-defined] # noqa: F821


def told(flag: bool) -> bool:
    """What the code that called our caller is told."""
    asks = sys._getframe(2).f_globals.get("__name__") or ""
    if not flag or asks.split(".")[0] == "torch":
        return bool(flag)
    _ASKED.add(asks)
    return False


_OURS = {"is_compiling": _is_compiling, "is_exporting": _is_exporting}


@contextmanager
def unasked() -> Iterator[None]:
    """Inside, code that is not torch's reads False from `torch.compiler.is_compiling` and `is_exporting`, under
    whatever name it imported them: the functions' code is another one."""
    found = [(getattr(torch.compiler, name, None), ours) for name, ours in _OURS.items()]
    before = [(theirs, theirs.__code__, ours) for theirs, ours in found if isinstance(theirs, FunctionType)]
    try:
        for theirs, _, ours in before:
            theirs.__code__ = ours.__code__
        yield
    finally:
        for theirs, code, _ in before:
            theirs.__code__ = code


def export(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], **settings: Any) -> ExportedProgram:
    """The module as torch.export sees it when it runs as in eager mode, or, where that can't be, as it runs under
    torch.export. Raises what torch.export does."""
    _ASKED.clear()
    try:
        with unasked():
            return torch.export.export(module, args, kwargs, strict=False, **settings)
    except Exception:  # of many kinds: a value that is known in eager mode alone, say
        if not _ASKED:
            raise
        return torch.export.export(module, args, kwargs, strict=False, **settings)
