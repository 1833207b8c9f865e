"""The four forms of run-time control flow; all else in the skeletons is Python that runs while tracing.

The bodies are closures: they may store to memory and to register fragments, but rebind nothing.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Boolean, Int32, cute
from cutlass._mlir.dialects import llvm


@cute.jit  # type: ignore[untyped-decorator]
def loop(lo: Any, hi: Any, body: cutlass.Constexpr) -> None:
    """body(i) for i in [lo, hi), not unrolled."""
    for i in cutlass.range(lo, hi, unroll=1):
        body(i)


@cute.jit  # type: ignore[untyped-decorator]
def until(read: cutlass.Constexpr) -> None:
    """read() again and again, until it returns 0; it may store to register fragments."""
    missing = read()
    while missing != 0:
        missing = read()


@cute.jit  # type: ignore[untyped-decorator]
def when(condition: Boolean, body: cutlass.Constexpr) -> None:
    """body() where the condition holds."""
    if condition:
        body()


def trap_unless(condition: Any) -> None:
    """End the kernel with an error, which the caller's next synchronisation sees, where the condition does not hold."""
    holds = Int32(condition)
    llvm.inline_asm(
        None, [holds.ir_value()], "{ .reg .pred p; setp.eq.s32 p, $0, 0; @p trap; }", "r",
        has_side_effects=True, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT,
    )  # fmt: skip
