"""Products of rows in stretches, each with a matrix of its own, on torch tensors; see `experts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....ops import DTYPES
from ..epilogue.epilogue import EpilogueStore
from .compiling import Launch, Read, compile_product
from .launch import NAMES, Gemm, processors_of
from .layouts import major_of, walk_of
from .plan import Grid, Point
from .recorded import Results, run_on


def grouped_grid(point: Point, m: int, n: int, *, experts: int, processors: int) -> Grid:
    """As many clusters as are resident at once, or as there may be tiles: each expert may have one that is not full."""
    tiles = (-(-m // (point.tile_m * point.cluster_m)) + experts) * -(-n // (point.tile_n * point.cluster_n))
    return Grid(clusters=max(min(tiles, processors * point.resident // point.cluster), 1), splits=1, chunk=point.depth)


class GroupedProduct(Gemm):
    """C[M, N] = epilogue(A[M, K] @ B[e, K, N]), e being the expert of the row; the Point is plain, sums whole."""

    def steps(self, a: Tensor, b: Tensor, *operands: Tensor) -> Results:  # type: ignore[override]
        """`operands`: first the ends of the experts' rows, (experts,) of int32, ascending. Rows behind the last stay as
        they are allocated. Raises ValueError where shapes or types don't fit."""
        ends, *others = operands
        fits = a.ndim == 2 and b.ndim == 3 and a.shape[1] == b.shape[1] and ends.shape == (b.shape[0],)
        if not fits or 0 in (*a.shape, *b.shape) or ends.dtype != torch.int32:
            raise ValueError(f"no product of {tuple(a.shape)} and {tuple(b.shape)} by ends of {tuple(ends.shape)}")
        if a.dtype != b.dtype or NAMES.get(a.dtype) not in ("f16", "bf16"):
            raise ValueError(f"experts multiply f16 or bf16, not {a.dtype} and {b.dtype}")
        (m, _), n = a.shape, b.shape[2]
        grid = self.grid(len(ends), m, n, a.shape[1], processors=processors_of(a))
        x, y = self._loadable(a[None].permute(1, 2, 0)), self._loadable(b.permute(2, 1, 0))
        c = torch.empty((1, m, n), dtype=DTYPES[self.dtype], device=a.device)
        seen = self.seen(others, (1, m, n))
        launch = self.product(
            self.point, NAMES[a.dtype], (major_of(x), major_of(y)), last=True, vector=self.vector(n),
            walks=tuple(map(walk_of, seen)),
        )  # fmt: skip
        further = self.beside(c)
        behind = (*seen, *(f.permute(1, 2, 0) for f in further))
        run_on(launch, x, y, c.permute(1, 2, 0), ends.contiguous(), *behind, grid.clusters, grid.splits, grid.chunk)
        return self._results([t[0] for t in (c, *further)])

    def _product_facts(self, *args: Any, **more: Any) -> tuple[tuple[Any, ...], EpilogueStore, tuple[Read, ...]]:
        facts, finish, operands = super()._product_facts(*args, **more)
        return ("experts", *facts), finish, operands

    def compiled(
        self, point: Point, element: str, majors: tuple[str, str], finish: EpilogueStore, operands: Sequence[Read],
        options: str = "",
    ) -> Launch:  # fmt: skip
        return compile_product(
            point, element=element, majors=majors, finish=finish, operands=operands, routed=True, arch=self.arch,
            options=options,
        )  # fmt: skip

    def grid(self, batch: int, m: int, n: int, k: int, *, processors: int) -> Grid:
        """`batch`: experts."""
        return grouped_grid(self.point, m, n, experts=batch, processors=processors)
