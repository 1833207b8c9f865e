"""Products of rows in groups, each with a matrix of its own, on torch tensors; see `..mainloop.grouped`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .compiling import Launch, compile_grouped
from .factors import NAMES
from .kernels import GemmKernels, KernelVariant
from .launch import Gemm, processors_of
from .layouts import major_of
from .plan import Grid, Point
from .recorded import Results, run_on


def grouped_grid(point: Point, m: int, n: int, *, experts: int, processors: int) -> Grid:
    """As many clusters as are resident at once, or as there may be tiles: each expert may have one that is not full."""
    tiles = (-(-m // (point.tile_m * point.cluster_m)) + experts) * -(-n // (point.tile_n * point.cluster_n))
    return Grid(clusters=max(min(tiles, processors * point.resident // point.cluster), 1), splits=1, chunk=point.depth)


@dataclass(kw_only=True)
class GroupedKernels(GemmKernels):
    """The Point is plain, sums whole."""

    kind: ClassVar[str] = "grouped"

    def compile(self, variant: KernelVariant, options: str = "") -> Launch:
        return compile_grouped(
            variant.point, element=variant.element, majors=variant.majors, **self._rest(variant, options)
        )  # fmt: skip


class GroupedProduct(Gemm):
    """C[M, N] = epilogue(A[M, K] @ B[e, K, N]), e being the expert of the row."""

    kernels_of = GroupedKernels

    def steps(self, a: Tensor, b: Tensor, *operands: Tensor) -> Results:  # type: ignore[override]
        """`operands`: first the ends of the experts' rows, (experts,) of int32, ascending. Rows behind the last stay as
        they are allocated. Raises ValueError where shapes or types don't fit."""
        ends, *others = operands
        fits = a.ndim == 2 and b.ndim == 3 and a.shape[1] == b.shape[1] and ends.shape == (b.shape[0],)
        if not fits or 0 in (*a.shape, *b.shape) or ends.dtype != torch.int32:
            raise ValueError(f"no product of {tuple(a.shape)} and {tuple(b.shape)} by ends of {tuple(ends.shape)}")
        if a.dtype != b.dtype or NAMES.get(a.dtype) not in ("f16", "bf16"):
            raise ValueError(f"experts multiply f16 or bf16, not {a.dtype} and {b.dtype}")
        (m, k), n = a.shape, b.shape[2]
        grid = self.grid(len(ends), m, n, k, processors=processors_of(a))
        x, y = self.factors.loadable(a[None].permute(1, 2, 0)), self.factors.loadable(b.permute(2, 1, 0))
        results, seen = self.allocate(a, 1, m, n), self.epilogue.seen(others, (1, m, n))
        launch = self.kernels.product(KernelVariant(
            point=self.point, element=NAMES[a.dtype], majors=(major_of(x), major_of(y)), vector=self.vector(n),
            operands=self.epilogue.reads(seen),
        ))  # fmt: skip
        c, *further = (t.permute(1, 2, 0) for t in results)
        run_on(launch, x, y, c, ends.contiguous(), *seen, *further, grid.clusters, grid.splits, grid.chunk)
        return self._results([t[0] for t in results])

    def grid(self, batch: int, m: int, n: int, k: int, *, processors: int) -> Grid:
        """`batch`: experts."""
        return grouped_grid(self.point, m, n, experts=batch, processors=processors)
