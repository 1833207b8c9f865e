"""A and B as a product's kernel reads them: as they are, copied to lines that TMA can read, or split into planes."""

from __future__ import annotations

import torch
from torch import Tensor

from ....ops import DTYPES
from ..prologue.fused import Factor, PrologueFactor
from .kernels import GemmKernels, is_without_tma
from .layouts import along_k, empty_planes, lines, major_of, tidied, up
from .plan import Grid
from .recorded import run_on

NAMES = {dtype: name for name, dtype in DTYPES.items()}
# From so many rows of A on planes of a B that lies across K lie along it: the split takes 5 to 17% longer, the product
# 2 to 8% less (with 512 rows 0.274 ms instead of 0.263, with 2048 0.683 instead of 0.721; H200, 2026-11-23).
CROSSED_ROWS = 2048


class FactorLoader:
    """For the kernels of a product; factors are (rows, K, batch)."""

    def __init__(self, kernels: GemmKernels) -> None:
        self.kernels, self.point = kernels, kernels.point

    def both(self, x: Factor, y: Factor, grid: Grid) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """What the product reads of A and B, M and N as the Point has them, and what comes behind C: the exponents."""
        if self.point.streamed and isinstance(x, Tensor):
            planes, of_y = self.split(y, grid.splits, grid.chunk)
            fits = major_of(x) == "k" and lines(x, 4)
            return tidied(x if fits else along_k(x), 4), planes, (of_y,)
        if not self.point.scales and isinstance(x, Tensor) and isinstance(y, Tensor):
            return self.loadable(x), self.loadable(y), ()
        planes_x, of_x = self.split(x, grid.splits, grid.chunk)
        planes_y, of_y = self.split(y, grid.splits, grid.chunk, along=x.shape[0] >= CROSSED_ROWS)
        return planes_x, planes_y, (of_x, of_y)

    def split(self, x: Factor, splits: int, chunk: int, *, along: bool = False) -> tuple[Tensor, Tensor]:
        """Planes, (rows, K, batch x planes), and exponents, (rows, batch x splits); `along`: planes lie along K even
        where a tensor does not."""
        rows, k, batch = x.shape
        along = along and isinstance(x, Tensor)
        planes = empty_planes(x, self.point.planes, DTYPES[self.point.halves], along=along)
        exponents = torch.empty((batch * splits, rows), dtype=torch.int32, device=x.device).t()
        if isinstance(x, PrologueFactor):
            launch = self.kernels.prologue(x, chunk=min(chunk, k))
            run_on(launch, planes, exponents, *x.tensors, 1, splits, chunk)
            return planes, exponents
        major = major_of(x)
        wide = lines(x, 4) and x.shape[1 if major == "k" else 0] % 4 == 0
        launch = self.kernels.split(
            major=major, wide=wide, chunk=min(chunk, k), crossed=major_of(planes) != major
        )  # fmt: skip
        run_on(launch, tidied(x, 4) if wide else x, planes, exponents, chunk)
        return planes, exponents

    def loadable(self, x: Tensor) -> Tensor:
        """The factor as TMA can read it, along K alone of float8, and without TMA: as it is, or copied to padded
        lines."""
        narrow = self.point.scheme == "fp8"
        multiple = 16 if narrow else 8
        k_alone = narrow or is_without_tma(self.kernels.arch)
        if lines(x, multiple) and not (k_alone and major_of(x) == "r"):
            return tidied(x, multiple)
        if k_alone:
            wide = up(x.shape[1], multiple)
            made = torch.empty_strided(x.shape, (wide, 1, x.shape[0] * wide), dtype=x.dtype, device=x.device)
        else:
            made = empty_planes(x, 1, x.dtype)
        made.copy_(x)
        return made
