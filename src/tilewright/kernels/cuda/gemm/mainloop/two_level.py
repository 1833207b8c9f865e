"""Sums of two levels: what the tensor cores have added up is a wave, which is added to the sum of all in registers."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T


def kept(text: str, constraints: str, *values: Any) -> Float32:
    """A float instruction that stays where it is: sums that move past the next wgmma would make ptxas wait for each."""
    operands = [Float32(v).ir_value() for v in values]
    return Float32(
        llvm.inline_asm(
            T.f32(), operands, text, constraints, has_side_effects=True, is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )  # fmt: skip


def promote(total: cute.Tensor, wave: cute.Tensor, part: int = 0) -> None:
    """total += wave, element by element, rounded once; of a total of several waves, this part of it."""
    first = part * cute.size(wave)
    for i in range(cute.size(wave)):
        total[first + i] = kept("add.rn.f32 $0, $1, $2;", "=f,f,f", total[first + i], wave[i])


def scale_back(wave: cute.Tensor, shift: int) -> None:
    """wave /= 2^shift, which rounds nothing."""
    for i in range(cute.size(wave)):
        wave[i] = kept("mul.rn.f32 $0, $1, $2;", "=f,f,f", wave[i], 2.0**-shift)
