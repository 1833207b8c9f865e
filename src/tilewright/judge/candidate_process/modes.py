"""Modes that the code under test leaves on: torch then calls it back whenever the cell touches a tensor."""

from __future__ import annotations

import torch
from torch.utils._device import DeviceContext

from .load import CodeRaised

_dispatch = torch._C._len_torch_dispatch_stack
_functions = torch._C._len_torch_function_stack
_function_at = torch._C._get_function_stack_at


def require_no_modes() -> None:
    """Raise CodeRaised("tampering") where this thread has a mode on, but for torch.set_default_device's: what is timed
    could do nothing then, and the work when its result is read."""
    strange = [type(m).__name__ for m in map(_function_at, range(_functions())) if not isinstance(m, DeviceContext)]
    if _dispatch():
        strange.append("a dispatch mode")
    if strange:
        raise CodeRaised("tampering", f"it leaves {strange[0]} on, through which it sees every tensor that is read")
