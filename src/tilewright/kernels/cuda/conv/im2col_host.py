"""A convolution by the product of `im2col_product` on torch tensors: what is copied before it, and its one launch.

x        as it lies, if its channels are in one piece and all else at multiples of 16 bytes; else copied so
weights  (columns, tap, channel) of each group, which those in channels-last are; else copied so
others   matrices of (pixels, columns, groups), of which each pixel may have a row, or each sample, or all one
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..common.spec import ArraySpec
from ..common.views import contiguous
from ..gemm.epilogue.epilogue import EpilogueStore
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue, KernelStore
from ..gemm.host.launch import processors_of
from ..gemm.host.layouts import vector_of
from ..gemm.host.plan import Grid, make_grid
from ..gemm.host.recorded import is_aligned, run_on
from ..host.recorded_kernel import Strides, compiled, demanded, fake, settings
from .im2col import PixelRows, im2col_point, no_im2col, pixel_rows
from .im2col_addresses import Im2col
from .im2col_product import AsyncIm2col, TmaIm2col
from .shape import GROUP
from .spec import ConvSpec

_HERE = Path(__file__).resolve().parent
_ALIGNED = 16
_OWN_LAYER = (1, 0)  # of A and of B, for each group


class Im2colConv:
    """A ConvSpec at knobs of a kernel of `im2col`. Raises ValueError where that can't compute it."""

    def __init__(self, spec: ConvSpec, knobs: dict[str, Any], store: KernelStore, arch: str) -> None:
        why = no_im2col(spec.shape, spec.x.dtype, channels_last=spec.channels_last)
        if why is not None:
            raise ValueError(why)
        self.spec, self.store, self.arch = spec, store, arch
        self.kind = TmaIm2col if knobs["kernel"] == "im2col_tma" else AsyncIm2col
        self.point = im2col_point(spec.shape, knobs)
        s = spec.shape
        self.depth = s.channels * s.all_taps
        self.weights = (s.groups, s.columns, *s.taps, s.channels)

    def run(self, outs: list[Tensor], *given: Tensor) -> None:
        """Launch on tensors of the Spec's shapes and dtypes."""
        x, w, *operands = given
        spec, shape = self.spec, self.spec.shape
        if not (is_aligned(x) and self._lies(x)):
            x = _last(x, shape.groups).copy_(x)
        views = [self._operand(o, own) for o, own in zip(operands, spec.operands, strict=True)]
        launch = self.launch([x.stride(), *(o.stride() for _, o in views)])
        matrices = [o.as_strided(*_matrix(self.rows(own, o.stride()), self.spec, own, o.stride()), o.storage_offset())
                    for (own, o) in views]  # fmt: skip
        first, *further = [o.as_strided(*self._result()) for o in outs]
        grid = self.grid(processors_of(x))
        tensors = (x, self._weights(w), first, *matrices, *further)
        run_on(launch, *tensors, grid.clusters, grid.splits, grid.chunk)

    def grid(self, processors: int) -> Grid:
        """The launch on so many multiprocessors."""
        s = self.spec.shape
        return make_grid(self.point, s.pixels, s.columns, self.depth, batch=s.groups, processors=processors)

    def launch(self, strides: list[Strides]) -> Launch:
        """What is compiled for x and operands of these strides."""
        facts = settings("im2col", self.arch, (self.kind.__name__, self.point), strides, _HERE)
        epilogue = Epilogue(function=self.spec.epilogue, names=tuple(o.name for o in self.spec.operands))
        return self.store.obtain(facts, epilogue, lambda: self.compile(strides))

    def compile(self, strides: list[Strides], options: str = "") -> Launch:
        """A launch of (x, weights, output, operands .., further outputs .., clusters, splits, chunk) for tensors of
        these strides, of x and of the operands; no GPU needed."""
        spec, s = self.spec, self.spec.shape
        of_x, *others = strides
        rows = [self.rows(o, walk) for o, walk in zip(spec.operands, others, strict=True)]
        dtypes = [o.dtype for o in spec.outputs]
        finish = EpilogueStore(
            dtypes[0], function=spec.epilogue, names=[o.name for o in spec.operands], vector=vector_of(s.columns),
            further=dtypes[1:], parts=[(own.part, None, None) for own in rows], layers=(_OWN_LAYER, _OWN_LAYER),
        )  # fmt: skip
        kernel = self.kind(self.point, finish, Im2col(s, spec.walk(of_x, spec.x.shape)))
        tensors = [
            _fake(spec.x.dtype, spec.x.shape, of_x),
            _fake(spec.x.dtype, (s.columns, self.depth, s.groups), (self.depth, 1, s.columns * self.depth)),
            _fake(dtypes[0], *self._result()),
            *(_fake(o.dtype, *_matrix(own, spec, o, walk))
              for o, own, walk in zip(spec.operands, rows, others, strict=True)),
            *(_fake(dtype, *self._result()) for dtype in dtypes[1:]),
        ]  # fmt: skip
        return compiled(kernel, tensors, (1, 1, 64), arch=self.arch, options=options)

    def rows(self, operand: ArraySpec, strides: Strides) -> PixelRows:
        """Of an operand that has some."""
        found = pixel_rows(self.spec.shape, self.spec.walk(strides, operand.shape, last=True))
        assert found is not None
        return found

    def demand(self, processors: int) -> dict[str, int | str]:
        """What the kernel takes, operands lying as the Spec says (see `cuda.demand`)."""
        p, grid = self.point, self.grid(processors)
        staged = p.depth_stages * p.stage_bytes
        return demanded(
            self.spec, (self.kind.__name__, p, grid), registers=max(p.registers),
            shared_bytes=staged + p.smem_store_bytes, threads=p.threads, ctas=grid.clusters * p.cluster,
            in_flight_bytes=staged // p.threads,
        )  # fmt: skip

    # ---- how tensors lie

    def _lies(self, x: Tensor) -> bool:
        """Whether each pixel's channels are in one piece, and all else at multiples of 16 bytes."""
        of_n, of_g, of_c, *places = self.spec.walk(x.stride(), tuple(x.shape))
        return of_c == 1 and not any(step % GROUP for step in (of_n, of_g, *places))

    def _weights(self, w: Tensor) -> Tensor:
        """(columns, K, groups), K = (tap, channel)."""
        group, column, channel, *taps = self.spec.weight_walk(w.stride())
        walk = (group, column, *taps, channel)
        wanted = contiguous(self.weights)
        same = all(a == b for a, b, n in zip(walk, wanted, self.weights, strict=True) if n > 1)
        if not (same and is_aligned(w)):
            source = w.as_strided(self.weights, walk, w.storage_offset())
            w = torch.empty(self.weights, dtype=w.dtype, device=w.device).copy_(source)
        columns = self.spec.shape.columns
        sides = (columns, self.depth, self.spec.shape.groups)
        return w.as_strided(sides, (self.depth, 1, columns * self.depth), w.storage_offset())

    def _result(self) -> tuple[Strides, Strides]:
        """Shape and strides of an output as (pixels, columns, groups)."""
        s = self.spec.shape
        return (s.pixels, s.columns, s.groups), (s.groups * s.columns, 1, s.columns)

    def _operand(self, o: Tensor, own: ArraySpec) -> tuple[ArraySpec, Tensor]:
        """The same, copied where it is no matrix, or begins anywhere."""
        if pixel_rows(self.spec.shape, self.spec.walk(o.stride(), own.shape, last=True)) is None:
            o = o.contiguous()
        return own, o if is_aligned(o) else o.clone()


def _matrix(rows: PixelRows, spec: ConvSpec, operand: ArraySpec, strides: Strides) -> tuple[Strides, Strides]:
    """Shape and strides of an operand as (rows, columns, groups)."""
    s = spec.shape
    _, group, channel, *_ = spec.walk(strides, operand.shape, last=True)
    return (rows.size or s.pixels, s.columns, s.groups), (rows.stride, channel, group)


def _fake(dtype: str, shape: Strides, strides: Strides) -> Any:
    """A tensor that begins at a multiple of 16 bytes; where its rows do not, it is known by its elements alone."""
    whole = not any(step % GROUP for step in strides if step != 1)
    return fake(dtype, shape, strides, _ALIGNED if whole else 0)


def _last(x: Tensor, groups: int) -> Tensor:
    """New memory of x's shape, channels innermost and groups around them."""
    at = 1 + (groups > 1)
    order = (0, *range(at + 1, x.ndim), *range(1, at + 1))
    sizes = [x.shape[d] for d in order]
    strides = [0] * x.ndim
    for i, d in enumerate(order):
        strides[d] = prod(sizes[i + 1 :])
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)
