"""Two products of one left matrix in one kernel, on torch tensors: C[M, N] = epilogue(A @ B, A @ B1), neither product
written. A tile of 128 x 256 makes 128 columns of both (see `product`); B and B1 come as they lie, from two matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from ...ops import DTYPES
from .entering import Factor
from .launch import NAMES, Gemm, processors_of
from .lying import broadcast, major_of, walk_of
from .noted import Results, run_on

LINE = 64  # columns of 16 bits that TMA swizzles together


class Gated(Gemm):
    """The Point is gated; the epilogue's function reads `product` and `product_1`."""

    def steps(self, a: Factor, b: Factor, *operands: Tensor) -> Results:
        """`operands`: first the second right matrix, (K, N) as the first. Raises ValueError where shapes or types don't
        fit. On meta tensors it compiles what tensors of these strides need, and launches nothing."""
        other, *others = operands
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            raise ValueError("factors of a gated product are not made on their way in")
        fits = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and b.shape == other.shape
        if not fits or 0 in (*a.shape, *b.shape):
            raise ValueError(f"no products of {tuple(a.shape)} with {tuple(b.shape)} and {tuple(other.shape)}")
        if not a.dtype == b.dtype == other.dtype or NAMES.get(a.dtype) not in ("f16", "bf16"):
            raise ValueError(f"a gated product takes f16 or bf16, not {a.dtype}, {b.dtype} and {other.dtype}")
        (m, k), n = a.shape, b.shape[1]
        grid = self.grid(1, m, n, k, processors=processors_of(a))
        x = self._loadable(a[None].permute(1, 2, 0))
        rights = [self._loadable(t[None].permute(2, 1, 0)) for t in (b, other)]
        # wgmma takes both halves as they lie in one way, and across K whole lines of 64 columns.
        if major_of(rights[0]) != major_of(rights[1]) or self.point.columns < LINE:
            rights = [self._along_k(t) for t in rights]
        c = torch.empty((1, m, n), dtype=DTYPES[self.dtype], device=a.device)
        seen = [broadcast(o, (1, m, n)) for o in others]
        launch = self.product(
            self.point, NAMES[a.dtype], (major_of(x), major_of(rights[0])), last=True, vector=self.vector(n, last=True),
            walks=tuple(map(walk_of, seen)),
        )  # fmt: skip
        first, second = rights
        further = self.beside(c)
        behind = (*seen, *(f.permute(1, 2, 0) for f in further))
        run_on(launch, x, first, c.permute(1, 2, 0), second, *behind, grid.clusters, grid.splits, grid.chunk)
        return self._results([t[0] for t in (c, *further)])

    def _along_k(self, x: Tensor) -> Tensor:
        """The same, copied to lie along K if it does not."""
        if major_of(x) == "k":
            return x
        return self._loadable(x.permute(2, 0, 1).contiguous().permute(1, 2, 0))
