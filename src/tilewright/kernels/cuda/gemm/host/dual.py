"""Two products of one left matrix in one kernel, on torch tensors: C[M, N] = epilogue(A @ B, A @ B1), neither product
written. A tile of 128 x 256 makes 128 columns of both (see `wgmma`), one of few rows 64 (see `small_m`, to which the
right matrices are left ones); B and B1 come as they lie, from two matrices."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..prologue.fused import Factor
from .factors import CROSSED_ROWS, NAMES
from .kernels import KernelVariant
from .launch import Gemm, processors_of
from .layouts import along_k, major_of
from .plan import Grid
from .recorded import Results, run_on

LINE = 64  # columns of 16 bits that TMA swizzles together, where they don't lie along K
_DIMS = ((1, 2, 0), (2, 1, 0), (2, 1, 0))


class DualGemm(Gemm):
    """The Point is dual; the epilogue's function reads `product` and `product_1`."""

    def steps(self, a: Factor, b: Factor, *operands: Tensor) -> Results:
        """`operands`: first the second right matrix, (K, N) as the first. Raises ValueError where shapes or types don't
        fit. On meta tensors it compiles what tensors of these strides need, and launches nothing."""
        other, *others = operands
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            raise ValueError("factors of a dual product are not made on their way in")
        fits = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and b.shape == other.shape
        if not fits or 0 in (*a.shape, *b.shape):
            raise ValueError(f"no products of {tuple(a.shape)} with {tuple(b.shape)} and {tuple(other.shape)}")
        wanted = ("f32",) if self.point.scales else ("f16", "bf16")
        if not a.dtype == b.dtype == other.dtype or NAMES.get(a.dtype) not in wanted:
            raise ValueError(f"this dual product takes {wanted}, not {a.dtype}, {b.dtype} and {other.dtype}")
        (m, k), n = a.shape, b.shape[1]
        grid = self.grid(1, *((n, m) if self.swap_ab else (m, n)), k, processors=processors_of(a))
        (x, *rights), exponents = self._matrices((a, b, other), grid)
        first, second = (rights[0], x) if self.swap_ab else (x, rights[0])
        results = self.allocate(a, 1, m, n)
        seen = [self.as_kernels(o) for o in self.epilogue.seen(others, (1, m, n))]
        launch = self.kernels.product(KernelVariant(
            point=self.point.settled(k=k, results=m * n), element=NAMES[x.dtype],
            majors=(major_of(first), major_of(second)), vector=self.vector(n), operands=self.epilogue.reads(seen),
        ))  # fmt: skip
        written, *further = (self.as_kernels(t.permute(1, 2, 0)) for t in results)
        behind = (rights[1], *exponents, *seen, *further)
        run_on(launch, first, second, written, *behind, grid.clusters, grid.splits, grid.chunk)
        return self._results([t[0] for t in results])

    def _matrices(self, given: Sequence[Tensor], grid: Grid) -> tuple[list[Tensor], list[Tensor]]:
        """What the product reads, and the exponents of each; wgmma takes both right ones as they lie in one way."""
        left, *rights = (t[None].permute(dims) for t, dims in zip(given, _DIMS, strict=True))
        across = {major_of(t) for t in rights} == {"k", "r"}
        if self.point.scales:
            along = across or left.shape[0] >= CROSSED_ROWS
            split = self.factors.split
            planes = [split(left, 1, grid.chunk), *(split(t, 1, grid.chunk, along=along) for t in rights)]
            return [p for p, _ in planes], [e for _, e in planes]
        rights = [self.factors.loadable(t) for t in rights]
        if across or (self.point.rows if self.swap_ab else self.point.columns) % LINE:
            rights = [t if major_of(t) == "k" else self.factors.loadable(along_k(t)) for t in rights]
        return [self.factors.loadable(left), *rights], []
