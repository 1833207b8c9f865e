"""torch.compile in the cell of a baseline: its start, and the call in which it compiles; and the start of tracing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch


def start_compiler(device: str) -> None:
    """Import all that torch.compile needs and start its workers, by a function of a few elements; what it compiled is
    forgotten. What fails here is left to fail where it matters."""
    with suppress(Exception):
        torch.compile(_few)(torch.ones(64, device=device))
    torch._dynamo.reset()


def _few(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def compiling(call: Callable[[], object]) -> None:
    """Make the first call of a compiled module; raises what it raises.

    For a CPU, inductor first tries whether the compiler knows the processor's instruction sets, by programs that it
    compiles and loads in another process, and compiles headers ahead: 18 s and 9 s of processor time in a new folder,
    beside 4 s for the kernel of a layer norm (AMD EPYC, g++ 12.2, torch 2.13+cpu, 2026-11-22). So it is told that the
    compiler knows them, and tries where the kernels then can't be compiled; few modules have kernels for which the
    headers would pay."""
    from torch._inductor import config

    config.cpp_cache_precompile_headers = False
    config.cpp.vec_isa_ok = True
    try:
        call()
    except Exception:  # the module's own, too: it comes again
        config.cpp.vec_isa_ok = None
        forget()
        torch._dynamo.reset()
        call()


def forget() -> None:
    """What inductor has found out of the instruction sets."""
    from torch._inductor import cpu_vec_isa

    for found in (cpu_vec_isa.valid_vec_isa_list, *(type(i).__bool__ for i in cpu_vec_isa.supported_vec_isa_list)):
        getattr(found, "cache_clear", bool)()


class _Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def start_tracer() -> None:
    """Have torch import what tracing needs, over a thousand modules, by a module of one operator."""
    from ...frontend.trace import trace

    with torch.no_grad():
        trace(_Twice(), (torch.ones(2),), {})
