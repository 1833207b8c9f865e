"""What the matcher makes of a function: its Programs, as a candidate would have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fakes.modules import Applies
from fakes.realisers import cuda
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.program import Program


def only_program(function: Callable[..., Any], *args: Tensor, renderer: Any = cuda) -> Program:
    """The Program of a function that is one kernel, with nothing left to torch."""
    graph = trace(Applies(function), args, {})
    matched = match(graph, unsupported=renderer.unsupported, space=renderer.space, tiny_bytes=0)
    assert len(matched.patterns) == 1 and not matched.unmatched, matched
    return matched.patterns[0].program
