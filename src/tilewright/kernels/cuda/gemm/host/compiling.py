"""Compiling the kernels of a product: for operands of any size, of which types, majors and neighbours are known; no GPU
is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cutlass import Int32, cute

from ...common.math import ELEMENT_TYPES
from ...common.views import ITEM_BYTES
from ..epilogue.epilogue import Combine, EpilogueStore
from ..epilogue.expression import WIDE
from ..fp32.split import Split
from ..mainloop.ampere import Ampere
from ..mainloop.grouped import GroupedMainloop
from ..mainloop.k_range import NO_ZEROS, Zeros
from ..mainloop.mixed_input import MixedInputProduct, matrix_of
from ..mainloop.small_m import SmallM
from ..mainloop.stream_k import StreamK
from ..mainloop.streamed import Streamed
from ..mainloop.wgmma import WgmmaProduct
from ..prologue.fused import PrologueSpec, PrologueSplit
from . import entries
from .plan import ARCH, Point

ALIGNED = 16
Launch = Callable[..., None]
# Strides of an epilogue's operand along (rows, columns, batch): 0, 1, or None, any; and whether columns are neighbours
# and all else starts at multiples of 16 bytes.
Walk = tuple[tuple[int | None, ...], bool]
Read = tuple[str, Walk]  # its dtype, too


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


def _read(operands: Sequence[Read], m: Any, n: Any, finish: EpilogueStore) -> list[Any]:
    """What an epilogue reads at (row, column, batch), and its further results."""
    parts = [finish.parts.get(name, (None, None, None)) for name in finish.names]
    rows = [_size() if own[0] else m for own in parts]
    columns = [_size() if name in finish.apart or own[1] else n for name, own in zip(finish.names, parts, strict=True)]
    return [
        _fake(dtype, (*sides, _size()), [_stride(8 if wide else 1) if step is None else step for step in strides],
              WIDE if wide else ITEM_BYTES[dtype])
        for sides, (dtype, (strides, wide)) in zip(zip(rows, columns, strict=True), operands, strict=False)
    ] + [_written(own.dtype, m, n, own.vector, swap_ab=finish.swap_ab) for own in finish.further]  # fmt: skip


def _written(dtype: str, m: Any, n: Any, vector: int, *, swap_ab: bool) -> Any:
    """A result; of a transposed one columns are contiguous, not rows."""
    walk = (1, _stride(), _stride()) if swap_ab else (_stride(vector), 1, _stride(vector))
    return _fake(dtype, (m, n, _size()), walk, ALIGNED)


def _result(finish: EpilogueStore, m: Any, n: Any) -> Any:
    columns = _size() if finish.own_columns else n
    return _written(finish.dtype, m, columns, finish.vector, swap_ab=finish.swap_ab)


def _lines(major: str, multiple: int) -> tuple[Any, ...]:
    """Strides along (rows, K, batch); lines start at multiples of so many elements."""
    return (_stride(multiple), 1, _stride(multiple)) if major == "k" else (1, _stride(multiple), _stride(multiple))


def _factor(dtype: str, rows: Any, k: Any, major: str = "k") -> Any:
    """A matrix as TMA reads it, (rows, K, batch)."""
    return _fake(dtype, (rows, k, _size()), _lines(major, ALIGNED * 8 // ELEMENT_TYPES[dtype].width), ALIGNED)


def _exponents(rows: Any) -> Any:
    return _fake("i32", (rows, _size()), (1, _stride()), 4)


def _compiled(kernel: Any, tensors: Sequence[Any], arch: str, options: str) -> Launch:
    """A launch of (tensors .., clusters, splits, chunk) for every size."""
    return cute.compile(
        entries.product(len(tensors)), kernel, *tensors, Int32(1), Int32(1), Int32(64), _stream(),
        options=_options(arch, options),
    )  # fmt: skip


def compile_product(
    point: Point, *, element: str, majors: tuple[str, str], finish: EpilogueStore, operands: Sequence[Read] = (),
    zeros: Zeros = NO_ZEROS, arch: str = ARCH, options: str = "",
) -> Launch:  # fmt: skip
    """A launch of (a, b, c, [exponents of A, of B,] operands .., clusters, splits, chunk) for every size. `element`: of
    A and B; `majors`: theirs, "k", or "r" where M or N is contiguous; `operands`: the epilogue's. Of a transposed
    EpilogueStore, columns of C are contiguous, not rows. `zeros`: of A and B, as a KRange has them. Of a dual point the
    second B comes behind C, and its exponents behind the first's (of a small_m one the second A); of one with
    `stream_k` flags and parts come last."""
    m, n, k = _size(), _size(), _size()
    a, b, c = _factor(element, m, k, majors[0]), _factor(element, n, k, majors[1]), _result(finish, m, n)
    scaled = ((m, n, n) if point.dual else (m, n)) if point.scales else ()
    exponents = [_exponents(rows) for rows in scaled]
    second = (_factor(element, m, k, majors[0]) if point.small_m else _factor(element, n, k, majors[1]),)
    tensors = (a, b, c, *(second if point.dual else ()), *exponents, *_read(operands, m, n, finish))
    if point.stream_k:
        tensors = (*tensors, _fake("i32", (_size(),), (1,), 4), _fake("f32", (_size(),), (1,), ALIGNED))
    kind = SmallM if point.small_m else StreamK if point.stream_k else WgmmaProduct
    return _compiled(kind(point, finish, zeros), tensors, arch, options)


def compile_grouped(
    point: Point, *, element: str, majors: tuple[str, str], finish: EpilogueStore, operands: Sequence[Read] = (),
    arch: str = ARCH, options: str = "",
) -> Launch:  # fmt: skip
    """A launch of (a, b, c, ends of the groups' rows, operands .., clusters, splits, chunk) for every size, as
    `compile_product` has them; see `..mainloop.grouped`."""
    m, n, k = _size(), _size(), _size()
    a, b, c = _factor(element, m, k, majors[0]), _factor(element, n, k, majors[1]), _result(finish, m, n)
    tensors = (a, b, c, _fake("i32", (_size(),), (1,), 4), *_read(operands, m, n, finish))
    return _compiled(GroupedMainloop(point, finish), tensors, arch, options)


def compile_ampere(
    point: Point, *, element: str, finish: EpilogueStore, operands: Sequence[Read] = (), arch: str = "sm_80",
    options: str = "",
) -> Launch:  # fmt: skip
    """A launch of (a, b, c, operands .., clusters, splits, chunk) for every size, on GPUs without TMA; A and B lie
    along K. The last three are what other kernels take, and count for nothing."""
    m, n, k = _size(), _size(), _size()
    c = _written(finish.dtype, m, n, finish.vector, swap_ab=False)
    tensors = (_factor(element, m, k), _factor(element, n, k), c, *_read(operands, m, n, finish))
    return _compiled(Ampere(point, finish), tensors, arch, options)


def compile_streamed(
    point: Point, *, major: str, finish: EpilogueStore, operands: Sequence[Read] = (), zeros: Zeros = NO_ZEROS,
    arch: str = ARCH, options: str = "",
) -> Launch:  # fmt: skip
    """A launch of (a, b, c, exponents of B, operands .., clusters, splits, chunk) for every size; `major`: of B. Of a
    transposed EpilogueStore, columns of C are contiguous, not rows. `zeros`: of A and B, as a KRange has them."""
    m, n, k = _size(), _size(), _size()
    a, b, c = _factor("f32", m, k), _factor("f16", n, k, major), _result(finish, m, n)
    tensors = (a, b, c, _exponents(n), *_read(operands, m, n, finish))
    return _compiled(Streamed(point, finish, zeros), tensors, arch, options)


def compile_mixed_input(
    point: Point, prologue: PrologueSpec, *, element: str, major: str, finish: EpilogueStore,
    operands: Sequence[Read] = (), arch: str = ARCH, options: str = "",
) -> Launch:  # fmt: skip
    """A launch of (a, b, c, factors .., operands .., clusters, splits, chunk) for every size: A of eight bits along K,
    B of `element` and `major`; factors, (rows, groups of K, batch), are what the prologue reads beside A."""
    m, n, k = _size(), _size(), _size()
    at = matrix_of(prologue)
    a, b, c = _factor(prologue.operands[at].dtype, m, k), _factor(element, n, k, major), _result(finish, m, n)
    factors = [
        _fake(o.dtype, (m, _size(), _size()), (_stride(), _stride(), _stride()), ITEM_BYTES[o.dtype])
        for i, o in enumerate(prologue.operands)
        if i != at
    ]
    tensors = (a, b, c, *factors, *_read(operands, m, n, finish))
    return _compiled(MixedInputProduct(point, finish, prologue, element), tensors, arch, options)


def compile_split(split: Split, *, arch: str = ARCH, options: str = "") -> Launch:
    """A launch of (x, planes, exponents, chunk) for every size."""
    rows, k = _size(), _size()
    wide = 4 if split.plan.wide else 1
    walk = _lines(split.plan.major, wide) if split.plan.wide else (_stride(), _stride(), _stride())
    x = _fake("f32", (rows, k, _size()), walk, 4 * wide)
    planes = _planes(split, rows, k, along=split.plan.major == "k" or split.plan.crossed)
    return cute.compile(
        entries.split, split, x, planes, _exponents(rows), Int32(64), _stream(), options=_options(arch, options)
    )


def _planes(split: Split, rows: Any, k: Any, *, along: bool) -> Any:
    return _factor("bf16" if split.plan.planes == 3 else "f16", rows, k, "k" if along else "r")


def compile_prologue(split: PrologueSplit, *, arch: str = ARCH, options: str = "") -> Launch:
    """A launch of (planes, exponents, operands .., clusters, splits, chunk) for every size: what a prologue makes,
    split. Two of the numbers are what other kernels take, and count for nothing."""
    rows, k = _size(), _size()
    operands = []
    for name, (strides, lines) in split.walks.items():
        dtype = split.dtypes[name]
        each = ALIGNED * 8 // ELEMENT_TYPES[dtype].width if lines else 1
        walk = [_stride(each) if step is None else step for step in strides]
        operands.append(_fake(dtype, (rows, k, _size()), walk, ALIGNED if lines else ITEM_BYTES[dtype]))
    planes = _planes(split, rows, k, along=split.plan.major != "r")
    return _compiled(split, (planes, _exponents(rows), *operands), arch, options)


def compile_combine(
    finish: EpilogueStore, *, operands: Sequence[Read] = (), arch: str = ARCH, options: str = ""
) -> Launch:
    """A launch of (partial, c, operands ..) for every size."""
    m, n = _size(), _size()
    partial = _fake("f32", (m, n, _size()), (_stride(), 1, _stride()), 4)
    c = _fake(finish.dtype, (m, n, _size()), (_stride(), 1, _stride()), ITEM_BYTES[finish.dtype])
    tensors = (partial, c, *_read(operands, m, n, finish))
    return cute.compile(
        entries.combine(len(tensors)), Combine(finish), *tensors, _stream(), options=_options(arch, options)
    )
