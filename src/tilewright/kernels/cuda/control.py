"""The three forms of run-time control flow; all else in the skeletons is Python that runs while tracing.

The bodies are closures: they may store to memory and to register fragments, but rebind nothing.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Boolean, Int32, cute


@cute.jit  # type: ignore[untyped-decorator]
def loop(lo: Any, hi: Any, body: cutlass.Constexpr) -> None:
    """body(i) for i in [lo, hi), not unrolled."""
    for i in cutlass.range(lo, hi, unroll=1):
        body(i)


@cute.jit  # type: ignore[untyped-decorator]
def wait_for(counter: cute.Pointer, target: cutlass.Constexpr) -> None:
    """Spin until the counter in global memory has reached the target; what its raisers wrote before is visible then."""
    seen = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")
    while seen < target:
        seen = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")


@cute.jit  # type: ignore[untyped-decorator]
def when(condition: Boolean, body: cutlass.Constexpr) -> None:
    """body() where the condition holds."""
    if condition:
        body()
