"""Sums of two levels: what the tensor cores have added up is a wave, which is added to the sum of all in registers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from cutlass import Float32, cute
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import warpgroup
from cutlass.cutlass_dsl import T

from ..host.plan import Chain, Point


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


class Chains:
    """Of a product: the wgmma of a stage, in the chains of its scheme."""

    point: Point
    chains: tuple[Chain, ...]
    foresees: bool

    def _feed(self, mma: Any, wave: Any, sums: list[Any], r_a: Any, r_b: Any, stage: Any, onto: Any) -> None:
        """wgmma of one stage for all parts; of plain ones a block of K for all parts before the next."""
        if self.point.two_levels:
            for part, total in enumerate(sums):
                self._step(mma, wave, total, r_a, r_b, part, stage)
            return
        warpgroup.fence()
        for block, (part, total) in itertools.product(self.chains[0].blocks, enumerate(sums)):
            chain = replace(self.chains[0], blocks=range(block, block + 1))
            self._chain(mma, total, r_a, r_b, chain, part, stage, onto=onto if block == 0 and self.foresees else True)

    def _step(self, mma: Any, wave: Any, total: Any, r_a: Any, r_b: Any, part: int, stage: Any) -> None:
        """The chains of one part over one stage, promoted."""
        onto = False
        for chain in self.chains:
            warpgroup.fence()
            self._chain(mma, wave, r_a, r_b, chain, part, stage, onto=onto)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            onto = bool(chain.shift)
            if onto:
                scale_back(wave, chain.shift)
            else:
                promote(total, wave)

    def _chain(
        self, mma: Any, total: Any, r_a: Any, r_b: Any, chain: Chain, part: int, stage: Any, *, onto: Any
    ) -> None:  # fmt: skip
        """The wgmma of one part over one stage, added `onto` what `total` held or not."""
        p = self.point
        parts_m = cute.size(r_a, mode=[1])
        atom = cute.make_mma_atom(mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, onto)
        for plane_a, plane_b in chain.products:
            slot_a, slot_b = stage * p.planes + plane_a, stage * p.planes + plane_b
            for block in chain.blocks:
                cute.mma_atom_call(
                    atom, total[(None, 0, 0)], r_a[(None, part % parts_m, block, slot_a)],
                    r_b[(None, part // parts_m, block, slot_b)], total[(None, 0, 0)],
                )  # fmt: skip
                atom.set(warpgroup.Field.ACCUMULATE, True)
