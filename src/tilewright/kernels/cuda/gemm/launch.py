"""Matrix products on torch tensors: compiled once for a layout and a Point, for any sizes; no GPU needed to compile.

    gemm = Gemm(Point(scheme="shared", ...), "f32")
    c = gemm(a, b)                      fp32: split A, split B, product (, sum of the splits of K)
                                        fp16, bf16: product (, sum)

A and B may be transposed or strided; what TMA can't read (rows that don't start at multiples of 16 bytes) is copied to
padded rows first, which for fp32 the split does anyway. Nothing is kept between calls but compiled kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from cutlass import Int32, cute
from torch import Tensor

from ...ops import DTYPES
from ..math import ELEMENT_TYPES
from ..spec import Function
from .entries import COMBINE, PRODUCT
from .entries import split as SPLIT
from .finish import Combine, Finish
from .plan import Point, make_grid
from .product import RESIDUAL_SHIFT, Product
from .split import Split

NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNED = 16
Launch = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """An expression over the product (see `finish`). Operands are broadcast to (M, N); `dtypes` are theirs."""

    function: Function
    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


def _fake(dtype: str, shape: Sequence[Any], strides: Sequence[Any], alignment: int) -> Any:
    return cute.runtime.make_fake_tensor(
        ELEMENT_TYPES[dtype], tuple(shape), stride=tuple(strides), assumed_align=alignment
    )


def _size() -> Any:
    return cute.sym_int()


def _stride(divisibility: int = 1) -> Any:
    return cute.sym_int64(divisibility=divisibility)


def _options(arch: str, more: str) -> str:
    return f"--enable-tvm-ffi --gpu-arch {arch} {more}".rstrip()


def _stream() -> Any:
    return cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)


def compile_product(
    point: Point, *, element: str, majors: tuple[str, str], finish: Finish, dtypes: Sequence[str] = (),
    arch: str = "sm_90a", options: str = "",
) -> Launch:  # fmt: skip
    """A launch of (a, b, c, [exponents of A, of B,] operands .., clusters, splits, chunk) for every size. `element`: of
    A and B; `majors`: theirs, "k", or "r" where M or N is contiguous; `dtypes`: of the epilogue's operands."""
    m, n, k = _size(), _size(), _size()

    def operand(rows: Any, major: str) -> Any:
        strides = (_stride(8), 1, _stride(8)) if major == "k" else (1, _stride(8), _stride(8))
        return _fake(element, (rows, k, _size()), strides, ALIGNED)

    c = _fake(finish.dtype, (m, n, _size()), (_stride(2 if finish.paired else 1), 1, _stride(2)), ALIGNED)
    operands = (_fake(d, (m, n), (_stride(), _stride()), ELEMENT_TYPES[d].width // 8) for d in dtypes)
    scaled = (m, n) if point.planes > 1 else ()
    exponents = (_fake("i32", (rows, _size()), (1, _stride()), 4) for rows in scaled)
    tensors = (operand(m, majors[0]), operand(n, majors[1]), c, *exponents, *operands)
    return cute.compile(
        PRODUCT[len(tensors)], Product(point, finish), *tensors, Int32(1), Int32(1), Int32(64), _stream(),
        options=_options(arch, options),
    )  # fmt: skip


def compile_split(split: Split, *, arch: str = "sm_90a", options: str = "") -> Launch:
    """A launch of (x, planes, exponents, chunk) for every size."""
    rows, k = _size(), _size()
    wide = split.vector
    if split.major == "k":
        walk, plane = (_stride(wide), 1), (_stride(8), 1, _stride(8))
    else:
        walk, plane = (1, _stride(wide)), (1, _stride(8), _stride(8))
    if wide == 1:
        walk = (_stride(), _stride())
    return cute.compile(
        SPLIT, split, _fake("f32", (rows, k), walk, 4 * wide), _fake("f16", (rows, k, 2), plane, ALIGNED),
        _fake("i32", (rows, _size()), (1, _stride()), 4), Int32(64), _stream(), options=_options(arch, options),
    )  # fmt: skip


def compile_combine(finish: Finish, *, dtypes: Sequence[str] = (), arch: str = "sm_90a", options: str = "") -> Launch:
    """A launch of (partial, c, operands ..) for every size."""
    m, n = _size(), _size()
    partial = _fake("f32", (m, n, _size()), (_stride(), 1, _stride()), 4)
    c = _fake(finish.dtype, (m, n, 1), (_stride(), 1, _stride()), ELEMENT_TYPES[finish.dtype].width // 8)
    operands = (_fake(d, (m, n), (_stride(), _stride()), ELEMENT_TYPES[d].width // 8) for d in dtypes)
    tensors = (partial, c, *operands)
    return cute.compile(COMBINE[len(tensors)], Combine(finish), *tensors, _stream(), options=_options(arch, options))


def major_of(x: Tensor) -> str:
    """ "k" where the second mode is contiguous, else "r"."""
    return "r" if x.stride(0) == 1 and (x.stride(1) != 1 or x.shape[1] == 1) and x.shape[0] > 1 else "k"


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def empty_planes(rows: int, k: int, planes: int, *, major: str, dtype: torch.dtype, device: Any) -> Tensor:
    """(rows, k, planes), rows (or columns, where they are contiguous) starting at multiples of 16 bytes."""
    if major == "k":
        wide = _up(k, 8)
        return torch.empty_strided((rows, k, planes), (wide, 1, rows * wide), dtype=dtype, device=device)
    wide = _up(rows, 8)
    return torch.empty_strided((rows, k, planes), (1, wide, k * wide), dtype=dtype, device=device)


class Gemm:
    """C[M, N] = epilogue(A[M, K] @ B[K, N]) under a Point; `dtype`: of C. Calling it launches on torch's stream."""

    def __init__(self, point: Point, dtype: str, epilogue: Epilogue | None = None, *, arch: str = "sm_90a") -> None:
        self.point = point
        self.dtype = dtype
        self.epilogue = epilogue
        self.arch = arch
        self._compiled: dict[tuple[Any, ...], Launch] = {}

    def __call__(self, a: Tensor, b: Tensor, *operands: Tensor) -> Tensor:
        """Raises ValueError where shapes or types don't fit the Point's scheme."""
        self._check(a, b, operands)
        rows, columns = a.shape[0], b.shape[1]
        device = a.device
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        grid = make_grid(self.point, rows, columns, a.shape[1], processors=processors)
        exponents: tuple[Tensor, ...] = ()
        if self.point.planes > 1:
            planes_a, of_a = self._split(a, grid.splits, grid.chunk)
            planes_b, of_b = self._split(b.t(), grid.splits, grid.chunk)
            exponents = (of_a, of_b)
        else:
            planes_a, planes_b = self._loadable(a), self._loadable(b.t())
        c = torch.empty((rows, columns, 1), dtype=DTYPES[self.dtype], device=device)
        seen = tuple(o.expand(rows, columns) for o in operands)
        last = grid.splits == 1
        target = c if last else torch.empty((grid.splits, rows, columns), device=device).permute(1, 2, 0)
        launch = self.product(
            NAMES[planes_a.dtype], (major_of(planes_a[:, :, 0]), major_of(planes_b[:, :, 0])),
            last=last, paired=columns % 2 == 0,
        )  # fmt: skip
        tensors = (planes_a, planes_b, target, *exponents, *(seen if last else ()))
        launch(*tensors, grid.clusters, grid.splits, grid.chunk)
        if not last:
            self.combine()(target, c, *seen)
        return c[:, :, 0]

    def _check(self, a: Tensor, b: Tensor, operands: Sequence[Tensor]) -> None:
        wanted = "f32" if self.point.planes > 1 else "f16 or bf16"
        if a.dtype != b.dtype or NAMES.get(a.dtype, "?") not in wanted.split(" or "):
            raise ValueError(f"a product of scheme {self.point.scheme!r} takes {wanted}, not {a.dtype} and {b.dtype}")
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or 0 in (*a.shape, *b.shape):
            raise ValueError(f"no product of {tuple(a.shape)} and {tuple(b.shape)}")
        dtypes = self.epilogue.dtypes if self.epilogue else ()
        if tuple(NAMES[o.dtype] for o in operands) != dtypes:
            raise ValueError(f"the epilogue takes {dtypes}, not {[o.dtype for o in operands]}")

    def product(self, element: str, majors: tuple[str, str], *, last: bool, paired: bool) -> Launch:
        """The compiled product; `last`: no sum of splits follows."""
        key = ("product", element, majors, last, paired)
        if key not in self._compiled:
            found = self._finish(paired) if last else Finish("f32", paired=paired)
            dtypes = self.epilogue.dtypes if self.epilogue and last else ()
            self._compiled[key] = compile_product(
                self.point, element=element, majors=majors, finish=found, dtypes=dtypes, arch=self.arch
            )
        return self._compiled[key]

    def splitter(self, major: str, vector: int, chunk: int) -> Launch:
        """The compiled split of an operand."""
        shift = RESIDUAL_SHIFT if self.point.scheme == "scaled" else 0
        split = Split.for_chunk(major=major, vector=vector, chunk=chunk, shift=shift)
        key = ("split", major, vector, split.group if major == "k" else 0, split.held and major == "k")
        if key not in self._compiled:
            self._compiled[key] = compile_split(split, arch=self.arch)
        return self._compiled[key]

    def combine(self) -> Launch:
        """The compiled sum of splits."""
        if ("combine",) not in self._compiled:
            dtypes = self.epilogue.dtypes if self.epilogue else ()
            self._compiled["combine",] = compile_combine(self._finish(False), dtypes=dtypes, arch=self.arch)
        return self._compiled["combine",]

    def _finish(self, paired: bool) -> Finish:
        if self.epilogue is None:
            return Finish(self.dtype, paired=paired)
        return Finish(self.dtype, function=self.epilogue.function, names=self.epilogue.names, paired=paired)

    def _split(self, x: Tensor, splits: int, chunk: int) -> tuple[Tensor, Tensor]:
        major = major_of(x)
        rows, k = x.shape
        planes = empty_planes(rows, k, 2, major=major, dtype=torch.float16, device=x.device)
        exponents = torch.empty((splits, rows), dtype=torch.int32, device=x.device).t()
        line, pitch = (0, 1) if major == "r" else (1, 0)
        wide = x.stride(line) == 1 and x.stride(pitch) % 4 == 0 and x.data_ptr() % 16 == 0 and x.shape[line] % 4 == 0
        self.splitter(major, 4 if wide else 1, min(chunk, k))(x, planes, exponents, chunk)
        return planes, exponents

    def _loadable(self, x: Tensor) -> Tensor:
        """(rows, k, 1) as TMA can read it: as it is, or copied to padded rows."""
        major = major_of(x)
        line, pitch = (0, 1) if major == "r" else (1, 0)
        if x.stride(line) == 1 and x.stride(pitch) % 8 == 0 and x.stride(pitch) > 0 and x.data_ptr() % 16 == 0:
            return x.as_strided((*x.shape, 1), (*x.stride(), 8))
        made = empty_planes(x.shape[0], x.shape[1], 1, major=major, dtype=x.dtype, device=x.device)
        made[:, :, 0].copy_(x)
        return made
