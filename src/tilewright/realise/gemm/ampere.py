"""Products of matrices on GPUs without TMA (sm_80, sm_86, sm_89): cp.async and mma.sync, in 16 bits, whole K, and an
elementwise epilogue. Its points are ranked by whole waves of tiles alone (MODEL: nothing was measured)."""

from __future__ import annotations

from math import ceil

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Point, Space
from ...ir.program import Program
from ..realiser import Fit, Refused, refused
from .kept_diagonals import NO_ZEROS, kept_diagonals
from .points import KNOBS
from .renderer import digest, skeleton_files, unsupported, writers
from .shape import is_dual, is_grouped_gemm, is_plain, is_small_m, matrices, no_matrices, sizes
from .text import fused_text
from .tiles import turn

__all__ = ["digest", "fits", "points", "render", "skeleton_files", "target", "writers"]

target: Target = "cuda"
_WITHOUT_TMA = "sm_8"  # how such architectures begin
_RATES = {"128x128": 1.0, "128x64": 0.85, "64x128": 0.85, "64x64": 0.7}  # MODEL: what a small tile reads more


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    if program.product is None or not device.architecture.startswith(_WITHOUT_TMA):
        return Refused("no product of matrices on a GPU without TMA", foreign=True)
    why = no_matrices(program) or _unsupported(program) or unsupported(program, device)
    return refused(why, ranked=True, guess=True)


def _unsupported(program: Program) -> str | None:
    product = program.product
    assert product is not None
    if not is_plain(program):
        return "without TMA, a product in other types than fp16 and bf16"
    if program.reduced or is_dual(program) or is_grouped_gemm(program) or product.prologues or len(program.outputs) > 1:
        return "without TMA, a product with more than an elementwise epilogue"
    if matrices(program).zeros != NO_ZEROS or kept_diagonals(program) != (None, None):
        return "without TMA, a product of triangles or bands"
    return "without TMA, a product with a side of 64 or less" if is_small_m(program) else None


def points(program: Program, device: Device) -> Space:
    """See `realiser`."""
    batch, m, n, _ = sizes(program)

    def work(tile: str) -> float:
        tall, wide = map(int, tile.split("x"))
        tiles = batch * ceil(m / tall) * ceil(n / wide)
        return ceil(tiles / device.processors) * tall * wide / _RATES[tile]

    ranked = sorted(_RATES, key=work)
    return Space(knobs=KNOBS, points=tuple(turn(tile, "1x1", "direct", "cooperative") for tile in ranked))


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.py`, which says for which architecture it is."""
    text = fused_text(program, name, point, architecture=device.architecture)
    return (SourceFile(path=f"{name}.py", text=text),)
