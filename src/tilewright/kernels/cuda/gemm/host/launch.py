"""Matrix products on torch tensors: compiled once for a layout and a Point, for any sizes; no GPU needed to compile.

    gemm = Gemm(Point(scheme="fp16x3", ...), "f32")
    c = gemm(a, b)                      fp32: split A, split B, product (, sum of the splits of K)
                                        fp32, streamed: split B, product (, sum)
                                        fp16, bf16, float8: product (, sum)
                                        tf32: round A, round B, product (, sum)

A and B may be transposed or strided; what TMA can't read (rows that don't start at multiples of 16 bytes) is copied to
padded rows first, which for fp32 the split does anyway. Nothing is kept between calls but compiled kernels, and what a
call of a layout does (see `recorded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....ops import DTYPES
from ..mainloop.streamed import SLAB
from ..prologue.fused import Factor, PrologueFactor
from .factors import NAMES, FactorLoader
from .kernels import Epilogue, GemmKernels, KernelVariant
from .layouts import major_of, vector_of
from .plan import Grid, Point, make_grid
from .recorded import RecordedLaunch, Results, device_of, run_on

__all__ = ["Epilogue", "Gemm", "processors_of"]


def _one(a: Factor) -> Factor:
    """One matrix as a batch of one."""
    return a.batched() if isinstance(a, PrologueFactor) else a[None]


def processors_of(x: Factor) -> int:
    """1 of meta tensors, for which nothing is launched."""
    device = device_of(x)
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


class Gemm:
    """C[M, N] = epilogue(A[M, K] @ B[K, N]) under a Point; `dtype`: of C. Calling it launches on torch's stream."""

    kernels_of: Any = GemmKernels
    loader_of: Any = FactorLoader

    def __init__(self, point: Point, dtype: str, epilogue: Epilogue | None = None, **more: Any) -> None:
        """`more`: of GemmKernels."""
        self.point = point
        self.epilogue = epilogue or Epilogue()
        self.kernels: GemmKernels = self.kernels_of(point=point, dtype=dtype, epilogue=self.epilogue, **more)
        self.swap_ab = self.kernels.swap_ab
        self.factors: FactorLoader = self.loader_of(self.kernels)
        self._noted: dict[int, RecordedLaunch] = {}

    def __call__(self, a: Tensor, b: Tensor, *operands: Tensor) -> Any:
        """A and B may both have one dimension more, the batch, in front; either may have one matrix for all of it. On
        meta tensors it compiles what tensors of these shapes and strides need (aligned ones), and launches nothing. Of
        `reductions` it gives the states, (state, batch, M, block of columns); with `further` results a tuple of all.
        Raises ValueError where shapes or types don't fit the Point's scheme."""
        noted = self._noted.get(len(operands))
        if noted is None:
            noted = self._noted[len(operands)] = RecordedLaunch(self.steps, 2 + len(operands))
        return noted.call(a, b, *operands)

    def steps(self, a: Factor, b: Factor, *operands: Tensor) -> Results:
        """The same with nothing known of earlier calls; factors of fp32 may be made on their way in."""
        self._check(a, b, operands)
        if a.ndim == 2:
            made = self._batched(_one(a), _one(b), operands)
            return self._results([c if self.epilogue.reductions else c[0] for c in made])
        return self._results(self._batched(a, b, operands))

    def _results(self, made: Sequence[Tensor]) -> Results:
        return tuple(made) if self.epilogue.further else made[0]

    def _batched(self, a: Factor, b: Factor, operands: Sequence[Tensor]) -> list[Tensor]:
        """C and the further results."""
        batch, rows, k = max(self._served(a, b)), *a.shape[1:]
        columns = b.shape[2]
        given: tuple[Factor, Factor] = (a.permute(1, 2, 0), b.permute(2, 1, 0))
        if self.swap_ab:
            given = given[::-1]
        grid = self.grid(batch, given[0].shape[0], given[1].shape[0], k, processors=processors_of(a))
        x, y, exponents = self.factors.both(*given, grid)
        results = self.allocate(a, batch, rows, columns)
        seen = self.epilogue.seen(operands, (batch, rows, columns))
        last = grid.splits == 1
        target = results[0][0] if self.epilogue.reductions else results[0]
        if not last:
            target = torch.empty((batch * grid.splits, rows, columns), device=a.device)
        read = [self.as_kernels(o) for o in seen] if last else []
        launch = self.kernels.product(KernelVariant(
            point=self.point.settled(k=k, results=batch * rows * columns), element=NAMES[y.dtype],
            majors=(major_of(x), major_of(y)), last=last, vector=self.vector(columns),
            operands=self.epilogue.reads(read) if last else (),
        ))  # fmt: skip
        further = [self.as_kernels(f.permute(1, 2, 0)) for f in results[1:]] if last else []
        written = self.as_kernels(target.permute(1, 2, 0))
        tensors = (x, y, written, *exponents, *read, *further, *self._parts(grid, a))
        run_on(launch, *tensors, grid.clusters, grid.splits, grid.chunk)
        if not last:
            first, total, *rest = (t.permute(1, 2, 0) for t in (target, *results))
            run_on(self.kernels.combine(self.epilogue.reads(seen)), first, total, *seen, *rest)
        return results

    def allocate(self, like: Factor, batch: int, rows: int, columns: int) -> list[Tensor]:
        """C and the results beside it, on a factor's device."""
        shape = self.epilogue.written(batch, rows, columns)
        dtypes = (self.kernels.dtype, *self.epilogue.further)
        return [torch.empty(shape, dtype=DTYPES[dtype], device=like.device) for dtype in dtypes]

    def _parts(self, grid: Grid, like: Factor) -> tuple[Tensor, ...]:
        """Flags and parts of tiles of each CTA, where clusters share tiles."""
        if not self.point.stream_k:
            return ()
        ctas = grid.clusters * self.point.cluster
        flags = torch.empty(ctas, dtype=torch.int32, device=like.device).zero_()
        return flags, torch.empty(ctas * self.point.tile_m * self.point.tile_n, device=like.device)

    def grid(self, batch: int, m: int, n: int, k: int, *, processors: int) -> Grid:
        """The launch for so many matrices, M and N as the Point has them."""
        return make_grid(self.point, m, n, k, batch=batch, processors=processors)

    def vector(self, columns: int) -> int:
        """Of the EpilogueStore."""
        return 1 if self.swap_ab or self.epilogue.reductions else vector_of(columns)

    def as_kernels(self, c: Tensor) -> Tensor:
        """(rows, columns, layers) as the Point has them."""
        return c.transpose(0, 1) if self.swap_ab else c

    def _served(self, a: Factor, b: Factor) -> list[int]:
        """How many of C's layers each factor's matrices make, before the first makes another."""
        own = self.kernels.layers[::-1] if self.swap_ab else self.kernels.layers
        return [x.shape[0] * (part[0] if part else 1) for x, part in zip((a, b), own, strict=True)]

    def _check(self, a: Factor, b: Factor, operands: Sequence[Tensor]) -> None:
        wanted = "f32" if self.point.scales else "float8_e4m3fn" if self.point.scheme == "fp8" else "f16 or bf16"
        if a.dtype != b.dtype or NAMES.get(a.dtype, "?") not in wanted.split(" or "):
            raise ValueError(f"a product of scheme {self.point.scheme!r} takes {wanted}, not {a.dtype} and {b.dtype}")
        fit = a.ndim == b.ndim and a.ndim in (2, 3) and a.shape[-1] == b.shape[-2]
        served = self._served(a, b) if fit and a.ndim == 3 else [1]
        fit = fit and all(max(served) % count == 0 for count in served)
        fit = fit and (any(self.kernels.layers) or a.ndim == 2 or 1 in served or a.shape[0] == b.shape[0])
        if not fit or 0 in (*a.shape, *b.shape):
            raise ValueError(f"no product of {tuple(a.shape)} and {tuple(b.shape)}")
        if self.point.streamed and a.shape[-1] % SLAB:
            raise ValueError(f"what is streamed has a K that is a multiple of {SLAB}, not {a.shape[-1]}")
        made = self.point.scales or self.point.scheme == "mixed_input"
        if not made and (isinstance(a, PrologueFactor) or isinstance(b, PrologueFactor)):
            raise ValueError("factors are made while fp32 is split, which this Point does not do")
        if self.point.streamed and isinstance(b if self.swap_ab else a, PrologueFactor):
            raise ValueError("what is streamed is not made on its way in")
        if tuple(NAMES[o.dtype] for o in operands) != self.epilogue.dtypes:
            raise ValueError(f"the epilogue takes {self.epilogue.dtypes}, not {[o.dtype for o in operands]}")
